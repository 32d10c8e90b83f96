// The panes, tabs, notes and tools.

function pane(id, title, ...inside) {
  const made = el("section", "pane", el("h2", "", title), ...inside);
  made.id = id;
  made.setAttribute("aria-label", title);
  return made;
}

/** Columns with handles between them, which the pointer or the arrow keys move. */
function columns(list) {
  const box = document.getElementById("panes");
  list.forEach(([column, weight], i) => {
    if (i) box.append(handle(list[i - 1][0], column));
    column.style.flexGrow = weight;
    box.append(column);
  });
}

function handle(left, right) {
  const made = el("div", "handle");
  made.setAttribute("role", "separator");
  made.setAttribute("aria-orientation", "vertical");
  made.setAttribute("aria-label", "width of the columns");
  made.tabIndex = 0;
  const move = (by) => {
    const wide = left.offsetWidth + right.offsetWidth, grow = Number(left.style.flexGrow) + Number(right.style.flexGrow);
    const part = Math.min(0.9, Math.max(0.1, (left.offsetWidth + by) / wide));
    left.style.flexGrow = grow * part;
    right.style.flexGrow = grow * (1 - part);
  };
  made.addEventListener("pointerdown", (event) => {
    made.setPointerCapture(event.pointerId);
    made.onpointermove = (moved) => move(moved.movementX);
  });
  made.addEventListener("pointerup", () => (made.onpointermove = null));
  made.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -30, ArrowRight: 30 }[event.key];
    if (by) move(by);
  });
  return made;
}

function viewOf(stage, changed) {
  if (!stage.body) return new Text(stage);
  if (changed) return new Outline([0, [], [], stage.changes], { changes: true });
  return new Outline(stage.body, { marks: stage.marks });
}

function tabs(stages) {
  const list = el("div", "tabs"), place = el("div", "fill");
  list.setAttribute("role", "tablist");
  const made = new Map();
  const show = (stage, tab, changed) => {
    const id = `${stages.indexOf(stage)} ${changed}`;
    if (!made.has(id)) made.set(id, viewOf(stage, changed));
    side = made.get(id);
    list.querySelectorAll("[role=tab]").forEach((one) => {
      one.setAttribute("aria-selected", one === tab);
      one.tabIndex = one === tab ? 0 : -1;
    });
    place.replaceChildren(...header(stage, tab, changed), side.scroller);
    if (query) search(query);
    else if (side.kept) side.filter("");
    shine();
  };
  const header = (stage, tab, changed) => {
    if (stage.before === undefined || stage.before === null) return [];
    const size = made.get(`${stages.indexOf(stage)} false`)?.root.size ?? stage.size;
    const said = el("p", "became", `${many(stage.before, "equation")}, now ${size.toLocaleString("en")}`);
    if (stage.changes.length) {
      const button = el("button", "", changed ? "show the program" : "show what changed");
      button.onclick = () => show(stage, tab, !changed);
      said.append(button);
    } else said.append(el("span", "", "nothing to do"));
    return [said];
  };
  for (const stage of stages) {
    const tab = el("button", "", stage.name);
    if (stage.body) tab.append(el("span", "n", stage.size.toLocaleString("en")));
    tab.setAttribute("role", "tab");
    tab.onclick = () => show(stage, tab, !!stage.changes?.length);
    list.append(tab);
  }
  list.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], all = [...list.children];
    const next = by && all[(all.indexOf(document.activeElement) + by + all.length) % all.length];
    if (next) next.focus(), next.click();
  });
  const made_ = pane("stages", "After each stage", list, place);
  made_.start = () => list.firstChild.click();
  return made_;
}

function notes() {
  if (!data.notes.length) return null;
  const seen = new Map();
  for (const note of data.notes) seen.set(String(note), [...(seen.get(String(note)) ?? []), note]);
  const list = el("ul", "scroll");
  for (const all of seen.values()) {
    const [what, where, why, file, line] = all[0];
    const item = el("li", "note", el("b", "", what), all.length > 1 ? el("span", "times", ` ${all.length} times`) : "", why ? el("p", "", why) : "", where ? el("p", "where", where) : "");
    if (file >= 0) {
      item.there = key(file, line);
      item.tabIndex = 0;
      item.classList.add("has");
      const go = () => (pin({ key: item.there }), source.show(item.there));
      item.onclick = go;
      item.onkeydown = (event) => event.key === "Enter" && go();
      item.onpointerenter = () => hover({ key: item.there });
      item.onpointerleave = () => hover(null);
    }
    list.append(item);
  }
  return pane("notes", "Notes", list);
}

let query = "";
function search(text) {
  query = text.trim();
  const counts = views().map((view) => view.filter(query));
  const said = counts[0] === null || !query ? "" : counts.map((n) => n.toLocaleString("en")).join(" | ") + " found";
  document.getElementById("found").textContent = said;
  shine();
}

function startTools() {
  const find = document.getElementById("find");
  let waiting = 0;
  find.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => search(find.value), 80);
  });
  document.getElementById("fold").onclick = () => views().forEach((view) => view.foldAll(false));
  document.getElementById("unfold").onclick = () => views().forEach((view) => view.foldAll(true));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== find) {
      event.preventDefault();
      find.focus();
      find.select();
    } else if (event.key === "Escape") {
      if (find.value) (find.value = ""), search("");
      state.pinned = state.hovered = null;
      document.body.classList.remove("pinned");
      shine();
    }
  });
}

function show() {
  const at = data.stages.findIndex((stage) => stage.kind === "program");
  const known = files.some(([, , lines]) => Object.keys(lines).length);
  const stages = data.stages.filter((stage, i) => i !== at && !(known && stage.name === "source"));
  for (const stage of data.stages) if (stage.like !== undefined) stage.body = data.stages[stage.like].body;
  for (const stage of data.stages) stage.size = stage.body ? sizeOf(stage.body[3]) : 0;
  main = viewOf(data.stages[at]);
  const [flops, bytes] = totals(main);
  const said = [many(main.root.size, "equation"), flops && short(flops, "flop"), bytes && `${short(bytes, "B")} moved`];
  document.getElementById("summary").textContent = said.filter(Boolean).join(" \u00b7 ");
  source = new Source(main);
  const noted = notes(), staged = stages.length ? tabs(stages) : null;
  const right = el("div", "stack", ...[staged, noted].filter(Boolean));
  const list = [[pane("source", "Source", source.scroller), 34], [pane("program", "Program as traced", main.scroller), 37]];
  if (right.childElementCount) list.push([right, staged ? 29 : 18]);
  columns(list);
  staged?.start();
}

const sizeOf = (rows) => rows.reduce((n, row) => n + 1 + (row[12] ?? []).reduce((m, body) => m + sizeOf(body[3]), 0), 0);

function showDifference({ names, before, after, marks, changes }) {
  main = new Outline([0, [], [], changes], { changes: true });
  const [old, now] = [before, after].map(([n, flops, bytes]) => [n.toLocaleString("en"), short(flops, ""), short(bytes, "B")]);
  document.getElementById("summary").textContent = `${old[0]} \u2192 ${now[0]} equations \u00b7 ${old[1]} \u2192 ${now[1]}flop \u00b7 ${old[2]} \u2192 ${now[2]} moved`;
  source = new Source(main);
  const legend = el("p", "legend", ...["removed", "added", "changed", "kept"].filter((mark) => marks[mark]).flatMap((mark) => [el("span", mark, `${marks[mark].toLocaleString("en")} ${mark}`), " "]));
  const changed = pane("program", `From ${names[0]} to ${names[1]}`, legend, main.scroller);
  const list = [[pane("source", "Source", source.scroller), 34], [changed, 56]], noted = notes();
  if (noted) list.push([noted, 18]);
  columns(list);
}

if (data.difference) showDifference(data.difference);
else show();
startTools();
shine();
document.body.classList.add("ready");
