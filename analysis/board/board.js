// Filters and order of the results board. Both are in the fragment of the address, so that a link shows the same.
const board = document.querySelector(".board[data-board]");
const table = board.querySelector("table.scores"), groups = [...table.tBodies];
const inputs = [...board.querySelectorAll(".filters [name]")], heads = [...table.tHead.rows[0].cells];
const state = () => new URLSearchParams(location.hash.slice(1));
const lines = group => [...group.rows].filter(row => row.matches(".line"));

function chosen(name) { return board.querySelector(`.filters [name=${name}]`).value; }

// A ranking is shown if it has the workload, type, budget and source, a line if it has the family and the text.
function filter() {
  const family = chosen("family"), text = chosen("model").trim().toLowerCase();
  const narrowed = Boolean(family || text);
  let shown = 0;
  for (const group of groups) {
    const fits = ["workload", "likelihood", "budget", "source"].every(name => !chosen(name) || group.dataset[name] === chosen(name));
    let models = 0;
    for (const row of lines(group)) {
      const isModel = row.dataset.family !== "reference";
      const matches = (!family || row.dataset.family === family) && (!text || row.dataset.model.toLowerCase().includes(text));
      row.hidden = !(fits && (isModel ? matches : !narrowed));
      models += isModel && !row.hidden;
    }
    group.hidden = !models;
    shown += models;
  }
  for (const input of inputs) input.classList.toggle("on", Boolean(input.value));
  board.querySelector("#count").textContent = `${shown} of ${board.dataset.lines} scores`;
}

// Lines are sorted within a ranking: scores of two rankings are not comparable. Lines without a value are last.
function sort(column, descending) {
  const index = heads.findIndex(head => head.dataset.sort === column);
  heads.forEach((head, i) => i === index ? head.setAttribute("aria-sort", descending ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
  for (const group of groups) {
    const rows = index < 0 ? lines(group).sort((a, b) => a.dataset.order - b.dataset.order) : lines(group).sort((a, b) => {
      const [p, q] = [a, b].map(row => row.cells[index]?.dataset.v ?? "");
      if (p === "" || q === "") return (p === "") - (q === "") || a.dataset.order - b.dataset.order;
      const difference = column === "model" ? p.localeCompare(q) : p - q;
      return descending ? -difference : difference;
    });
    group.append(...rows);
  }
}

function show() {
  const params = state();
  for (const input of inputs) input.value = params.get(input.name) ?? "";
  filter();
  sort(params.get("sort"), params.get("order") === "descending");
}

function change(edit) {
  const params = state();
  edit(params);
  for (const [key, value] of [...params]) if (!value) params.delete(key);
  history.replaceState(null, "", params.size ? `#${params}` : location.pathname + location.search);
  show();
}

for (const input of inputs) input.addEventListener("input", () => change(params => params.set(input.name, input.value)));
for (const head of heads.filter(head => head.dataset.sort)) {
  head.tabIndex = 0;
  const next = () => change(params => {
    const same = params.get("sort") === head.dataset.sort, descending = params.get("order") === "descending";
    if (same && descending) { params.delete("sort"); params.delete("order"); return; }  // the third click: as at first
    params.set("sort", head.dataset.sort);
    params.set("order", same ? "descending" : "ascending");
  });
  head.addEventListener("click", next);
  head.addEventListener("keydown", event => { if (event.key === "Enter") next(); });
}
board.querySelector("#reset").addEventListener("click", () => { history.replaceState(null, "", location.pathname + location.search); show(); });
board.querySelector("#copy").addEventListener("click", event => {
  navigator.clipboard?.writeText(location.href);
  event.target.textContent = "Link copied";
  setTimeout(() => event.target.textContent = "Copy link", 1500);
});
addEventListener("hashchange", show);
for (const part of board.querySelectorAll(".script")) part.hidden = false;
show();
