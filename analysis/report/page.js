const AXES = JSON.parse(document.getElementById("axes").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const NARROW = 620;
const figures = () => document.querySelectorAll(".js-plotly-plot");
function axes(div) { return Object.keys(div._fullLayout).filter(k => /^[xy]axis[0-9]*$/.test(k)); }

// Plotly is stored compressed: as it is, it alone would be five megabytes.
async function start() {
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  for (const div of document.querySelectorAll(".figure[data-plot]")) {
    const plot = JSON.parse(div.querySelector("script").textContent);
    if (innerWidth < NARROW) stack(plot.layout);
    await Plotly.newPlot(div, plot.data, plot.layout, {
      displaylogo: false, responsive: true,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    });
  }
  paint(dark.matches, {});
  dark.addEventListener("change", () => paint(dark.matches, {}));
  addEventListener("beforeprint", () => paint(false, {autosize: false, width: 680}));
  addEventListener("afterprint", () => paint(dark.matches, {autosize: true, width: null}));
  for (const input of document.querySelectorAll(".curves input:not(#seeds)"))
    input.addEventListener("change", redraw);
  document.getElementById("seeds")?.addEventListener("change", () => show(t => t.meta === "seed"));
  for (const input of document.querySelectorAll(".arms input")) input.addEventListener("change", toggle);
  document.body.dataset.ready = "yes";
}

// One panel below the other, where there is no room for two.
function stack(layout) {
  const number = key => Number(key.slice(5) || 1);
  const keys = Object.keys(layout).filter(k => /^xaxis[0-9]*$/.test(k)).sort((a, b) => number(a) - number(b));
  const count = keys.length, lines = Math.ceil(count / 2);
  if (count < 2) return;
  keys.forEach((key, i) => {
    const top = 1 - i / count;
    layout[key].domain = [0, 1];
    layout[key.replace("x", "y")].domain = [top - 0.66 / count, top];
    if (layout.annotations?.[i]) Object.assign(layout.annotations[i], {x: 0.5, y: top});
  });
  layout.height *= count / lines;
  if (layout.legend) layout.legend.y = 1 + 0.13 / count;
}

function paint(isDark, size) {
  const grid = isDark ? "#333a42" : "#e3e6ea", ink = isDark ? "#e6e9ed" : "#1b1f24";
  for (const div of figures()) {
    const update = {"font.color": ink, "legend.font.color": ink, ...size};
    for (const a of axes(div)) Object.assign(update,
      {[a + ".gridcolor"]: grid, [a + ".zerolinecolor"]: grid, [a + ".linecolor"]: grid});
    Plotly.relayout(div, update);
  }
}

// The learning curves: which horizontal axis, and which axes are logarithmic.
function redraw() {
  const curves = document.querySelector("#curves .js-plotly-plot");
  const index = document.querySelector("input[name=axis]:checked").value;
  const kind = id => document.getElementById(id).checked ? "log" : "linear";
  const layout = {};
  for (const a of axes(curves)) {
    Object.assign(layout, {[a + ".type"]: kind(a[0] === "x" ? "log" : "log-score"), [a + ".autorange"]: true});
    if (a[0] === "x") layout[a + ".title.text"] = AXES[index];
  }
  Plotly.update(curves, {x: curves.data.map(t => t.customdata.map(p => p[index]))}, layout);
}

// Shows or hides an arm in every figure at once.
function toggle(event) {
  show(t => t.legendgroup === event.target.value || t.name === event.target.value);
  for (const row of document.querySelectorAll(".bar[data-arm]"))
    if (row.dataset.arm === event.target.value) row.hidden = !event.target.checked;
}

// Brings the traces that are meant up to date with the switches: those of arms, and that of single seeds.
function show(meant) {
  const off = new Set([...document.querySelectorAll(".arms input:not(:checked)")].map(input => input.value));
  const seeds = document.getElementById("seeds")?.checked;
  for (const div of figures()) {
    const own = div.data.map((t, i) => meant(t) ? i : -1).filter(i => i >= 0);
    const visible = own.map(i => {
      const trace = div.data[i];
      return !off.has(trace.legendgroup || trace.name) && (trace.meta !== "seed" || seeds);
    });
    if (own.length) Plotly.restyle(div, {visible}, own);
  }
}

// Numbers as the tables write them: 1.23e15, 45.2k, 400 MiB, 2.115 ± 0.014.
function value(text) {
  const found = /^[≤\s]*(-?[\d.]+(?:e[+-]?\d+)?)\s*([kMGT]?)(i?)/.exec(text);
  if (!found) return NaN;
  return Number(found[1]) * Math.pow(found[3] ? 1024 : 1000, " kMGT".indexOf(found[2] || " "));
}
for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.addEventListener("click", event => {
    const column = event.target.cellIndex, body = table.tBodies[0], rows = [...body.rows];
    const sign = event.target.dataset.sign === "1" ? -1 : 1;
    event.target.dataset.sign = sign;
    const compare = (a, b) => {
      const [s, t] = [a, b].map(row => row.cells[column]?.textContent ?? "");  // a reference has fewer
      const [p, q] = [value(s), value(t)];
      if (isNaN(p) && isNaN(q)) return s.localeCompare(t);
      return isNaN(p) ? sign : isNaN(q) ? -sign : p - q;  // what has no number stands last
    };
    body.append(...rows.sort((a, b) => sign * compare(a, b)));
  });
}
start();
