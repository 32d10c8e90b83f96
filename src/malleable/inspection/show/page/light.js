// Light: which equations belong to a line, and which lines to an equation.

const state = { hovered: null, pinned: null };
let main = null, source = null, side = null, asked = 0;
const views = () => [main, side].filter(Boolean);

function hover(focus, scroll) {
  state.hovered = focus ?? null;
  cancelAnimationFrame(asked);
  asked = requestAnimationFrame(() => shine(scroll));
}

function pin(focus) {
  const same = (a, b) => a && b && a.key === b.key && a.row === b.row;
  state.pinned = same(state.pinned, focus) ? null : focus;
  state.hovered = null;
  document.body.classList.toggle("pinned", !!state.pinned);
  if (state.pinned) unfoldFor(state.pinned);
  shine(true);
}

function unfoldFor(focus) {
  for (const view of views()) {
    const line = focus.key ?? (focus.row.place && key(focus.row.place.file, focus.row.place.line));
    const rows = focus.row && focus.view === view ? [focus.row] : line === null ? [] : view.at(line).own;
    if (!view.reveal) continue;
    const shown = rows.filter((row) => view.kept?.has(row) !== false).slice(0, REVEALED);
    shown.forEach((row) => view.reveal(row));
    if (shown.length && focus.view !== view) bring(shown[0].item, view.scroller);
  }
}

function bring(item, scroller) {
  const here = item.getBoundingClientRect(), frame = scroller.getBoundingClientRect();
  if (here.top < frame.top + 30 || here.bottom > frame.bottom - 10) {
    scroller.scrollTop += here.top - frame.top - frame.height / 3;
  }
}

/** Light the equations of a line, or the lines of an equation. */
function shine(scroll) {
  const focus = state.hovered ?? state.pinned;
  const place = focus?.row?.place, lit = new Set(), near = new Set();
  let there = focus?.key ?? null;
  if (focus?.row) {
    for (const frame of frames(focus.row.link)) near.add(key(frame.file, frame.line));
    if (place) {
      there = key(place.file, place.line);
      for (let line = place.line + 1; line <= place.endLine; line++) near.add(key(place.file, line));
    }
  } else if (there !== null) {
    const first = main.lines.get(there)?.own.length ? there : main.covered.get(there)?.own ?? there;
    near.add(there);
    there = first;
  }
  if (there !== null) lit.add(there), near.delete(there);
  source.paint(lit, near, place);
  if (scroll && focus?.row && there !== null) source.show(there);
  for (const view of views()) {
    const found = there === null ? { own: [], near: [] } : view.at(there);
    if (!focus?.row) view.paint(found.own, found.near);
    else if (focus.view === view) view.paint([focus.row], found.own.filter((row) => row !== focus.row));
    else view.paint([], found.own);
  }
  document.querySelectorAll("#notes .note").forEach((note) => note.classList.toggle("lit", there !== null && note.there === there));
  detail(focus, there);
}

function detail(focus, there) {
  const box = document.getElementById("detail");
  if (!focus) return box.replaceChildren(el("p", "hint", "Point at a line or an equation; click to keep it lit. Arrow keys move, / finds, Esc lets go."));
  if (focus.row) {
    const { row } = focus;
    const code = el("p", "code");
    if (row.text !== undefined) code.append(row.text.trim());
    else if (focus.view.changes) code.append(changeText(row));
    else code.append(...row.outs.flatMap(([n, t]) => [variable(n, t), " "]), row.outs.length ? "= " : "", el("b", "prim", row.prim), row.params ? el("span", "params", ` [${row.params}]`) : "", ...row.ins.flatMap((name) => [" ", variable(name)]));
    const said = [row.size && `result ${short(row.size, "B")}`, row.flops && short(row.flops, "flop"), row.bytes && `${short(row.bytes, "B")} moved`, row.share && `${percent(row.share)} of the program`];
    const trail = frames(row.link).map((p) => spell(p));
    return box.replaceChildren(code, el("p", "trail", [...(row.module ? [row.module] : []), ...trail].join(" \u2190 ") || "no line known"), el("p", "facts", said.filter(Boolean).join(" \u00b7 ")));
  }
  const { own, near } = main.at(there);
  const file = files[Math.floor(there / 0x100000)][0];
  const text = [many(own.length, "equation"), near.length && `${near.length.toLocaleString("en")} more in what it calls`, source.work(there)];
  box.replaceChildren(el("p", "code", `${file}:${there % 0x100000}`), el("p", "trail", text.filter(Boolean).join(" \u00b7 ")));
}
