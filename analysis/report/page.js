const AXES = JSON.parse(document.getElementById("axes").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const NARROW = 620, PAPER = 680;
const drawn = () => document.querySelectorAll(".js-plotly-plot");
const axes = layout => Object.keys(layout).filter(key => /^[xy]axis[0-9]*$/.test(key));
const isShown = element => element.checkVisibility();

// Plotly is stored compressed: as it is, it alone would be five megabytes.
async function start() {
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  // A figure is drawn when it comes near the window, so that a long page opens at once.
  const observer = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, {rootMargin: "600px"});
  for (const div of document.querySelectorAll(".figure")) observer.observe(div);
  dark.addEventListener("change", () => paint(dark.matches, {}));
  document.body.dataset.ready = "yes";
}

async function draw(div) {
  if (!("plot" in div.dataset)) return;
  delete div.dataset.plot;
  const {data, layout} = JSON.parse(div.querySelector("script").textContent);
  if (innerWidth < NARROW) stack(layout);
  for (const trace of data) trace.visible = isOn(trace);
  await Plotly.newPlot(div, data, layout, {
    displaylogo: false, responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  });
  div.on("plotly_legendclick", event => {
    const {legendgroup, name} = event.data[event.curveNumber];
    for (const input of switches()) if (names(input).includes(legendgroup || name)) input.click();
    return false;
  });
  Plotly.relayout(div, colours(div, dark.matches));
  if (div.closest("#curves")) redraw(div);
}

function drawAll() {
  return Promise.all([...document.querySelectorAll(".figure[data-plot]")].filter(isShown).map(draw));
}

// One panel below the other, where there is no room for two.
function stack(layout) {
  const number = key => Number(key.slice(5) || 1);
  const keys = axes(layout).filter(key => key[0] === "x").sort((a, b) => number(a) - number(b));
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

function colours(div, isDark) {
  const grid = isDark ? "#333a42" : "#e3e6ea", ink = isDark ? "#e6e9ed" : "#1b1f24";
  const update = {"font.color": ink, "legend.font.color": ink};
  for (const a of axes(div._fullLayout)) Object.assign(update,
    {[a + ".gridcolor"]: grid, [a + ".zerolinecolor"]: grid, [a + ".linecolor"]: grid});
  return update;
}

function paint(isDark, size) {
  for (const div of drawn()) Plotly.relayout(div, {...colours(div, isDark), ...size});
}

// The learning curves: loss or validation, which horizontal axis, and which axes are logarithmic.
function redraw(div) {
  const index = document.querySelector("input[name=axis]:checked").value;
  const kind = id => document.getElementById(id).checked ? "log" : "linear";
  const layout = {};
  for (const a of axes(div._fullLayout)) {
    Object.assign(layout, {[a + ".type"]: kind(a[0] === "x" ? "log" : "log-score"), [a + ".autorange"]: true});
    if (a[0] === "x") layout[a + ".title.text"] = AXES[index];
  }
  Plotly.update(div, {x: div.data.map(t => t.customdata.map(p => p[index]))}, layout);
}
for (const input of document.querySelectorAll(".curves input:not(#seeds)")) {
  input.addEventListener("change", () => {
    const curve = document.querySelector("input[name=curve]:checked")?.value;
    for (const part of document.querySelectorAll("[data-curve]"))
      part.hidden = curve !== undefined && part.dataset.curve !== curve;
    for (const div of document.querySelectorAll("#curves .js-plotly-plot")) redraw(div);
    refit();
  });
}

// Shows or hides models in every figure at once.
const switches = () => document.querySelectorAll(".arms input");
const names = input => JSON.parse(input.dataset.names);
const off = new Set();
const isOn = trace => !off.has(trace.legendgroup || trace.name)
  && (trace.meta !== "seed" || Boolean(document.getElementById("seeds")?.checked));
function show() {
  for (const div of drawn()) Plotly.restyle(div, {visible: div.data.map(isOn)});
  for (const part of document.querySelectorAll("[data-arm]")) part.classList.toggle("off", off.has(part.dataset.arm));
}
document.getElementById("seeds")?.addEventListener("change", show);
for (const input of switches()) input.addEventListener("change", () => {
  for (const name of names(input)) input.checked ? off.delete(name) : off.add(name);
  show();
});
for (const row of document.querySelectorAll(".bar")) row.cells[0].addEventListener("click", () => {
  for (const input of switches()) if (names(input).includes(row.dataset.arm)) input.click();
});

// A table that is wider than the page becomes a list of rows, each with the heads of its cells.
function fit(width) {
  for (const box of document.querySelectorAll(".scroll")) {
    const table = box.firstElementChild, head = [...table.tHead.rows[0].cells].map(cell => cell.textContent);
    if (!isShown(box)) continue;
    table.classList.remove("listed");
    if (table.scrollWidth <= (width || box.clientWidth)) continue;
    table.classList.add("listed");
    for (const row of table.tBodies[0].rows)
      [...row.cells].forEach((cell, i) => cell.dataset.head = cell.colSpan > 1 ? "" : head[i]);
  }
}
function refit() {
  fit();
  for (const div of drawn()) if (isShown(div)) Plotly.Plots.resize(div);
}
for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", refit);
addEventListener("resize", () => fit());
addEventListener("beforeprint", () => {
  drawAll();
  paint(false, {autosize: false, width: PAPER});
  fit(PAPER);
});
addEventListener("afterprint", () => { paint(dark.matches, {autosize: true, width: null}); fit(); });

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
fit();
start();
