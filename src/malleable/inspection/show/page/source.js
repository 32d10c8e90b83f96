// The lines of the user, and other text.

/** Lines of Python, or of a program as XLA reads it; of the latter it is known where they come from. */
class Text {
  constructor({ text, line: first, kind, at = [] }) {
    this.scroller = el("div", "scroll plain");
    this.lines = new Map();
    this.shining = [];
    const paint = kind === "code" ? painter() : painterOfXla;
    this.rows = text.split("\n").map((line, i) => {
      const place = places[at[2 * i]] ?? null, link = at[2 * i + 1] ?? -1;
      const number = kind === "code" ? (first ? first + i : "") : place?.line ?? "";
      const item = el("div", "line", el("span", "no", String(number)), el("code", "", ...paint(line)));
      const row = { item, place, link, text: line, prim: line, outs: [], ins: [], bodies: [] };
      item.row = row;
      if (place) {
        item.classList.add("has");
        item.tabIndex = -1;
        item.dataset.line = place.line;
      }
      for (const there of new Set(frames(link).map((p) => key(p.file, p.line)))) {
        if (!this.lines.has(there)) this.lines.set(there, { own: [], near: [] });
        const own = place && there === key(place.file, place.line);
        this.lines.get(there)[own ? "own" : "near"].push(row);
      }
      return row;
    });
    for (let from = 0; from < this.rows.length; from += 4 * CHUNK) {
      this.scroller.append(el("div", "block", ...this.rows.slice(from, from + 4 * CHUNK).map((row) => row.item)));
    }
    const start = this.scroller.querySelector(".has");
    if (start) start.tabIndex = 0;
    else this.scroller.tabIndex = 0;
    const of = (row) => (row?.place ? { view: this, row } : null);
    lineEvents(this.scroller, (item) => of(item.row));
  }

  at(line) { return this.lines.get(line) ?? { own: [], near: [] }; }

  paint(own, near) {
    this.shining.forEach((row) => row.item.classList.remove("lit", "near"));
    this.shining = [...own, ...near];
    near.forEach((row) => row.item.classList.add("near"));
    own.forEach((row) => row.item.classList.add("lit"));
  }

  reveal(row) { return row.item; }

  foldAll() {}

  filter(query) {
    const tests = query.split(/\s+/).filter(Boolean).map(test);
    const found = this.rows.filter((row) => tests.every((says) => says(row)));
    this.rows.forEach((row) => (row.item.hidden = tests.length > 0));
    found.forEach((row) => (row.item.hidden = false));
    return tests.length ? found.length : null;
  }
}

/** Point at, click, focus and walk through the lines that come from somewhere. */
function lineEvents(scroller, focusOf) {
  const lineOf = (event) => event.target.closest?.(".line.has");
  scroller.addEventListener("pointerover", (event) => {
    const item = lineOf(event);
    hover(item && focusOf(item));
  });
  scroller.addEventListener("pointerleave", () => hover(null));
  scroller.addEventListener("click", (event) => {
    const item = lineOf(event);
    if (item && getSelection().isCollapsed) pin(focusOf(item));
  });
  scroller.addEventListener("focusin", (event) => {
    const item = lineOf(event);
    if (!item) return;
    scroller.querySelectorAll('.line[tabindex="0"]').forEach((one) => (one.tabIndex = -1));
    item.tabIndex = 0;
    if (item.matches(":focus-visible")) hover(focusOf(item), true);
  });
  scroller.addEventListener("keydown", (event) => {
    const item = lineOf(event), by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!item) return;
    if (by) {
      event.preventDefault();
      const all = [...scroller.querySelectorAll(".line.has")].filter((one) => one.offsetParent);
      all[all.indexOf(item) + by]?.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pin(focusOf(item));
    }
  });
}

/** Coloured pieces of a line of StableHLO or HLO: what is computed, types, values. */
function painterOfXla(line) {
  const token = /([%#@][\w.#-]+)|(tensor<[^>]*>|\b(?:bf16|[fsuc]\d+|pred|token)\[[^\]]*\](?:\{[^}]*\})?)|((?:stablehlo|chlo|func|mhlo|sdy)\.\w+|(?<=[\]})]\s)[a-z][\w-]*(?=\())/g;
  const made = [];
  let at = 0;
  for (const found of line.matchAll(token)) {
    made.push(line.slice(at, found.index), el("span", found[1] ? "value" : found[2] ? "t" : "prim", found[0]));
    at = found.index + found[0].length;
  }
  return [...made, line.slice(at)];
}

/** A function from lines of Python, in order, to coloured pieces. */
function painter() {
  const token = /(#.*)|("""|''')|((?:\b[rbuf]{1,2})?(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'))|(@[\w.]+)|\b(def|class)\s+(\w+)|\b(False|None|True|and|as|assert|async|await|break|case|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b|\b(\d[\d_]*\.?\d*(?:e[+-]?\d+)?j?)\b/gi;
  let quote = null;
  return (line) => {
    const made = [];
    let at = 0;
    const put = (name, text) => made.push(name ? el("span", name, text) : text);
    while (at < line.length) {
      if (quote) {
        const end = line.indexOf(quote, at);
        put("str", end < 0 ? line.slice(at) : line.slice(at, end + 3));
        at = end < 0 ? line.length : end + 3;
        if (end >= 0) quote = null;
        continue;
      }
      token.lastIndex = at;
      const found = token.exec(line);
      if (!found) break;
      if (found.index > at) put("", line.slice(at, found.index));
      const [all, comment, open, string, decorator, define, name, word, number] = found;
      if (open) {
        quote = open;
        put("str", open);
      } else if (define) {
        put("key", define);
        put("", all.slice(define.length, all.length - name.length));
        put("def", name);
      } else put(comment ? "com" : string ? "str" : decorator ? "def" : word ? "key" : number ? "num" : "", all);
      at = found.index + all.length;
    }
    put("", line.slice(at));
    return made;
  };
}

class Source {
  constructor(main) {
    this.main = main;
    this.scroller = el("div", "scroll source");
    this.items = new Map();
    this.shining = [];
    this.costs = main ? costsOf(main) : new Map();
    const order = files.map((file, i) => i).filter((i) => Object.keys(files[i][2]).length);
    order.sort((i, j) => files[j][1] - files[i][1] || this.weight(j) - this.weight(i));
    const several = order.length > 1;
    for (const file of order) {
      const [name, own, lines] = files[file];
      const box = el("details", "file", el("summary", "", el("span", "", name)));
      box.open = own || !several;
      const list = el("div", "lines"), paint = painter();
      let before = null;
      for (const number of Object.keys(lines).map(Number)) {
        if (before !== null && number !== before + 1) list.append(el("div", "gap", "\u22ef"));
        before = number;
        list.append(this.line(file, number, paint(lines[number])));
      }
      box.append(list);
      this.scroller.append(box);
    }
    if (!order.length) this.scroller.append(el("p", "none", "No line of the source is at hand."));
    const first = this.scroller.querySelector(".has");
    if (first) first.tabIndex = 0;
    lineEvents(this.scroller, (item) => ({ key: item.there }));
  }

  weight(file) {
    let n = 0;
    for (const [line, { own }] of this.main?.lines ?? []) if (Math.floor(line / 0x100000) === file) n += own.length;
    return n;
  }

  line(file, number, code) {
    const there = key(file, number), found = this.main?.lines.get(there);
    const count = found?.own.length ?? 0, share = this.costs.get(there)?.own ?? 0;
    const heat = el("i", "bar");
    heat.style.setProperty("--share", share > 0.005 ? Math.min(1, share) : 0);
    heat.dataset.heat = share > 0.25 ? 3 : share > 0.05 ? 2 : 1;
    const item = el("div", "line", el("span", "no", String(number)), el("code", "", ...code),
      el("span", "count", heat, el("span", "", count ? String(count) : "")));
    if (count || found || this.main?.covered.has(there)) {
      item.classList.add("has");
      item.tabIndex = -1;
      item.setAttribute("role", "button");
    }
    if (found) item.title = [many(count, "equation"), this.work(there)].filter(Boolean).join(", ");
    item.dataset.line = number;
    item.there = there;
    this.items.set(there, item);
    return item;
  }

  /** The share of the work that a line has, in words. */
  work(there) {
    const { own = 0, all = 0 } = this.costs.get(there) ?? {};
    const more = all - own >= 0.0005 ? `${percent(all)} of the work with what it calls` : "";
    return own >= 0.0005 ? `${percent(own)} of the work${more && `, ${percent(all)} with what it calls`}` : more;
  }

  /** lit, near: lines; place: what to underline in its line. */
  paint(lit, near, place) {
    this.shining.forEach((item) => item.classList.remove("lit", "near"));
    const dress = (name) => (line) => {
      const item = this.items.get(line);
      item?.classList.add(name);
      return item;
    };
    this.shining = [...[...near].map(dress("near")), ...[...lit].map(dress("lit"))].filter(Boolean);
    this.underline(place);
  }

  underline(place) {
    if (!globalThis.CSS?.highlights) return;
    CSS.highlights.delete("expression");
    const code = place && this.items.get(key(place.file, place.line))?.querySelector("code");
    if (!code || place.endLine !== place.line || place.endColumn <= place.column) return;
    const bytes = new TextEncoder().encode(code.textContent);
    const letters = (n) => new TextDecoder().decode(bytes.slice(0, n)).length;
    const range = new Range(), walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    let seen = 0, from = letters(place.column), to = letters(place.endColumn);
    for (let node; (node = walker.nextNode()); seen += node.length) {
      if (from >= seen && from <= seen + node.length) range.setStart(node, from - seen);
      if (to >= seen && to <= seen + node.length) { range.setEnd(node, to - seen); break; }
    }
    CSS.highlights.set("expression", new Highlight(range));
  }

  show(line) {
    const item = this.items.get(line);
    if (!item) return;
    item.closest("details").open = true;
    bring(item, this.scroller);
  }
}

/** {line: {own, all}}: its share of the work, and with what it calls; 0 to 1. Equations inside of
another share what that one costs. */
function costsOf(view) {
  const costs = new Map(), [flops, bytes] = totals(view);
  const add = (there, what, share) => {
    if (!costs.has(there)) costs.set(there, { own: [0, 0], all: [0, 0] });
    share.forEach((x, i) => (costs.get(there)[what][i] += x));
  };
  const walk = (rows, scale) => {
    for (const row of rows) {
      const inner = row.bodies.flatMap((body) => body.rows);
      const f = inner.reduce((n, r) => n + r.flops, 0), b = inner.reduce((n, r) => n + r.bytes, 0);
      if (f || b) {
        walk(inner, [scale[0] * (f ? row.flops / f : 1), scale[1] * (b ? row.bytes / b : 1)]);
        continue;
      }
      const share = [flops ? (scale[0] * row.flops) / flops : 0, bytes ? (scale[1] * row.bytes) / bytes : 0];
      const own = row.place && key(row.place.file, row.place.line);
      const around = new Set(frames(row.link).map((p) => key(p.file, p.line)));
      if (own !== null) add(own, "own", share), around.add(own);
      for (const there of around) add(there, "all", share);
    }
  };
  walk(view.root.rows, [1, 1]);
  for (const cost of costs.values()) (cost.own = Math.max(...cost.own)), (cost.all = Math.max(...cost.all));
  return costs;
}

function totals(view) {
  return ["flops", "bytes"].map((what) => view.root.rows.reduce((n, row) => n + row[what], 0));
}
