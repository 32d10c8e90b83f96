// How an equation is written, what a search finds, and where else a variable is.

/** A test of a row for one word: a primitive, a variable, a line, a type, a parameter. */
function test(word) {
  const line = word.match(/^(?:(.*):|)(\d+)$/);
  if (line) return (row) => row.place?.line === Number(line[2]) && files[row.place.file][0].endsWith(line[1] ?? "");
  const low = word.toLowerCase();
  const has = (text) => text.toLowerCase().includes(low);
  if (/[[=]/.test(word)) return (row) => row.outs.some(([, type]) => type.includes(word)) || has(row.params ?? "") || has(row.module ?? "") || has(row.was ?? "") || has(row.now ?? "");
  return (row) => has(row.prim) || (row.name && has(row.name)) || (row.module && has(row.module)) || row.ins.includes(word) || row.outs.some(([name]) => name === word)
    || row.mark === low || names(row.was).includes(word) || names(row.now).includes(word);
}

const names = (text) => text?.match(/[A-Za-z0-9_.]+/g) ?? [];

const FEW = 8; // operands or results that are shown; the others are counted

function variable(name, type) {
  const made = el("b", isName(name) ? "v" : "n", name);
  made.dataset.v = name;
  return type ? el("span", "typed", made, el("i", "t", `:${type}`)) : made;
}

function rest(hidden) {
  const made = el("b", "v more", ` +${hidden.length}`);
  made.dataset.v = hidden.join(" ");
  made.title = hidden.join(" ");
  return made;
}

function typed(named) {
  const shown = named.slice(0, FEW).flatMap(([name, type]) => [variable(name, type), " "]);
  if (named.length > FEW) return [...shown, rest(named.slice(FEW).map(([name]) => name))];
  return shown.slice(0, -1);
}

function operands(ins) {
  const shown = ins.slice(0, FEW).flatMap((name) => [" ", variable(name)]);
  return ins.length > FEW ? [...shown, rest(ins.slice(FEW))] : shown;
}

/** How much there is in a body that is folded. */
const inside = (row) => (row.inside ? el("span", "inside", many(row.inside, "equation")) : "");

/** The parts of an equation that is a text: `c:f32[] = add[k=v] b 1.0`. */
function parsed(text) {
  const at = text.indexOf(" = ") + 1, from = at ? at + 2 : 0;
  let end = from, deep = 0;
  for (; end < text.length && (deep || text[end] !== " "); end++) deep += { "[": 1, "]": -1 }[text[end]] ?? 0;
  const [prim, params = ""] = text.slice(from, end).split(/\[(.*)\]$/s);
  const words = (part) => part.split(" ").filter(Boolean);
  return { outs: at ? words(text.slice(0, at)) : [], prim, params, ins: words(text.slice(end)) };
}

/** How an equation was, or is; what the other text lacks is marked. */
function written(name, text, other) {
  const one = parsed(text), two = parsed(other);
  const word = (said, there) => {
    const [, id, type] = said.match(/^([^:]+):?(.*)$/s) ?? [null, said, ""];
    const made = variable(id, type);
    if (!there.includes(said)) made.classList.add("differs");
    return made;
  };
  const spread = (words, there) => words.flatMap((said, i) => [i ? " " : "", word(said, there)]);
  const head = el("span", "head", ...spread(one.outs, two.outs), el("span", "eq", one.outs.length ? " = " : ""),
    el("b", one.prim === two.prim ? "prim" : "prim differs", one.prim), " ", ...spread(one.ins, two.ins));
  return el("span", name, head, el("span", one.params === two.params ? "params" : "params differs", one.params));
}

function changeText(row) {
  if (row.run) return el("span", "text", el("span", "inside always", `${many(row.inside, "equation")} as before`));
  const text = el("span", "text");
  const { was, now } = row;
  if (row.mark === "changed" && was !== now) text.append(written("was", was, now), written("now", now, was));
  else text.append(written(row.mark === "removed" ? "was" : row.mark === "added" ? "now" : "", now || was, now || was));
  const said = ["inside", "operands", "parameters", "types", "arguments", "results"];
  const why = row.why.split(", ").filter((word) => !said.includes(word)).join(", ");
  if (why) text.lastChild.append(el("span", "why", why));
  text.title = row.why;
  text.lastChild.firstChild.append(inside(row));
  return text;
}

let shown = [];
function hoverName(at) {
  shown.forEach((item) => item.classList.remove("same"));
  shown = [];
  if (!at?.dataset.v) return;
  const body = at.closest(".body") ?? at.closest("#detail");
  const one = at.dataset.v.split(" ")[0];
  shown = [...body.querySelectorAll(`.v[data-v~="${CSS.escape(one)}"]`)].filter((item) => (item.closest(".body") ?? body) === body);
  shown.forEach((item) => item.classList.add("same"));
}
