// A program, or what changed in one, as rows that fold; elements are made when they are needed.

class Outline {
  constructor(packed, { changes = false, marks = {} } = {}) {
    Object.assign(this, { changes, marks, rows: [], lines: new Map(), covered: new Map() });
    Object.assign(this, { own: new Set(), near: new Set(), held: new Map(), shining: [] });
    this.root = this.adopt(packed, null, 0);
    this.flops = Math.max(0, ...this.rows.map((row) => row.flops));
    this.unfoldSome();
    this.scroller = el("div", changes ? "scroll outline changes" : "scroll outline");
    this.scroller.setAttribute("role", "tree");
    this.watcher = new IntersectionObserver(
      (seen) => seen.forEach((s) => s.isIntersecting && this.build(s.target)),
      { root: this.scroller, rootMargin: "1200px 0px" });
    this.listen();
    this.render();
  }

  adopt([role, ins, outs, rows], owner, depth) {
    const body = { role: words[role], ins: this.named(ins), outs: this.named(outs), owner };
    body.rows = rows.map((packed) => this.row(packed, body, depth));
    body.size = body.rows.reduce((n, row) => n + (row.kept ?? (row.run ? 0 : 1)) + row.inside, 0);
    return body;
  }

  named(flat) {
    const found = [];
    for (let i = 0; i < flat.length; i += 2) found.push([flat[i], words[flat[i + 1]]]);
    return found;
  }

  row(packed, owner, depth) {
    const row = { owner, depth, index: this.rows.length, bodies: [], inside: 0 };
    this.rows.push(row);
    if (typeof packed === "number") {
      Object.assign(row, { kept: packed, prim: "", place: null, link: -1, outs: [], ins: [], flops: 0, bytes: 0 });
      row.end = this.rows.length;
      return row;
    }
    const [prim, place = 0, link = 0, size = 0, a, b, c, d, bytes = 0, share = 0, name = 0, steps = 0, bodies = [], module = 0] = packed;
    row.prim = words[prim];
    row.place = place < 0 ? null : places[place];
    Object.assign(row, { link, size, name: words[name], steps, module: words[module] });
    if (this.changes) {
      Object.assign(row, { mark: a, run: a === "run", was: b || "", now: c || "", why: d || "", outs: [], ins: [], params: "", flops: 0, bytes: 0, share: 0 });
    } else {
      Object.assign(row, { outs: this.named(a || []), ins: b || [], params: words[c || 0], flops: d || 0, bytes, share });
      row.mark = this.marks[row.index + 1];
    }
    row.bodies = bodies.map((body) => this.adopt(body, row, depth + !row.run));
    row.inside = row.bodies.reduce((n, body) => n + body.size, 0);
    row.end = this.rows.length;
    this.file(row);
    return row;
  }

  /** Under which lines of the source a row is found. */
  file(row) {
    const own = row.place && key(row.place.file, row.place.line);
    if (own !== null) {
      this.under(own).own.push(row);
      for (let line = row.place.line + 1; line <= row.place.endLine; line++) {
        const there = key(row.place.file, line), known = this.covered.get(there);
        const span = row.place.endLine - row.place.line;
        if (!known || span < known.span) this.covered.set(there, { span, own });
      }
    }
    const seen = new Set([own]);
    for (const place of frames(row.link)) {
      const there = key(place.file, place.line);
      if (!seen.has(there)) seen.add(there), this.under(there).near.push(row);
    }
  }

  under(line) {
    if (!this.lines.has(line)) this.lines.set(line, { own: [], near: [] });
    return this.lines.get(line);
  }

  /** {own, near} of a line; of one that only continues an expression, those of its first line. */
  at(line) {
    const found = this.lines.get(line);
    if (found?.own.length || !this.covered.has(line)) return found ?? { own: [], near: [] };
    return this.lines.get(this.covered.get(line).own);
  }

  unfoldSome() {
    let room = OPEN - this.root.rows.length;
    for (let level = this.root.rows, depth = 0; level.length && depth < 4; depth++) {
      const next = [];
      for (const row of [...level].sort((a, b) => (b.share || 0) - (a.share || 0))) {
        const more = row.bodies.reduce((n, body) => n + body.rows.length, 0);
        row.open = more > 0 && more <= room && !row.run;
        if (row.open) room -= more, row.bodies.forEach((body) => next.push(...body.rows));
      }
      level = next;
    }
  }

  // -------- elements, made when they are needed

  render() {
    this.watcher.disconnect();
    for (const row of this.rows) row.item = row.box = row.chunk = null;
    this.budget = 3 * CHUNK;
    const body = this.bodyElement(this.root);
    this.scroller.replaceChildren(this.heads(), body);
    const first = this.scroller.querySelector(".eqn");
    if (first) first.tabIndex = 0;
    this.paint(this.own, this.near);
  }

  heads() {
    const words = this.changes ? ["line", "equation"] : ["line", "equation", "result", "work"];
    return el("div", "heads", ...words.map((word) => el("span", "", word)));
  }

  bodyElement(body) {
    const rows = this.kept ? body.rows.filter((row) => this.kept.has(row)) : body.rows;
    const inside = el("div", "rows");
    const made = el("div", body.owner?.run ? "run" : "body", inside);
    made.setAttribute("role", "group");
    made.style.setProperty("--depth", body.owner ? body.owner.depth + !body.owner.run : 0);
    if (body.ins.length || body.outs.length || (body.owner && body.role !== "body")) made.prepend(this.signature(body));
    for (let from = 0; from < rows.length; from += CHUNK) {
      const chunk = el("div", "chunk");
      chunk.rows = rows.slice(from, from + CHUNK);
      for (const row of chunk.rows) row.chunk = chunk;
      inside.append(chunk);
      if (this.budget > 0) {
        this.build(chunk);
      } else {
        const height = (row) => 1 + (row.open && row.inside);
        chunk.style.height = `${HEIGHT * chunk.rows.reduce((n, row) => n + height(row), 0)}px`;
        this.watcher.observe(chunk);
      }
    }
    return made;
  }

  build(chunk) {
    if (!chunk.rows) return;
    const rows = chunk.rows;
    chunk.rows = null;
    this.watcher.unobserve(chunk);
    this.budget -= rows.length;
    chunk.replaceChildren(...rows.map((row) => this.rowElement(row)));
    chunk.style.height = "";
  }

  rowElement(row) {
    if (row.kept) {
      row.item = el("div", "eqn kept-run", el("span", "at"), el("span", "text", `\u22ef ${many(row.kept, "equation")}${["added", "removed"].includes(row.owner.owner?.mark) ? "" : " as before"}`));
      return row.item;
    }
    const nested = row.bodies.length > 0;
    const item = row.item = el(nested ? "summary" : "div", "eqn");
    item.row = row;
    item.tabIndex = -1;
    item.dataset.n = row.index + 1;
    if (row.place) item.dataset.line = row.place.line;
    item.setAttribute("role", "treeitem");
    if (row.mark) item.classList.add(row.mark);
    if (row.run) item.classList.add("kept-run");
    item.append(this.lineNumber(row), this.changes ? changeText(row) : this.text(row), ...this.figures(row));
    this.dress(row);
    if (!nested) return item;
    row.box = el("details", "nest", item);
    row.box.row = row;
    if (row.open) this.fill(row), (row.box.open = true);
    return row.box;
  }

  /** The row that stands before one in the same body. */
  before(row) {
    let before = this.rows[row.index - 1];
    while (before && before.owner !== row.owner && before.depth > row.depth) before = before.owner.owner;
    return before?.owner === row.owner ? before : undefined;
  }

  lineNumber(row) {
    const made = el("span", "at", row.place ? String(row.place.line) : "");
    const before = this.rows[row.index - 1];
    const again = before?.owner === row.owner && before.place?.line === row.place?.line && before.place?.file === row.place?.file;
    if (again) made.classList.add("again");
    if (row.place) made.title = `${spell(row.place)}${row.module ? `, ${row.module}` : ""}: click to keep it lit`;
    return made;
  }

  text(row) {
    const head = el("span", "head", ...typed(row.outs), el("span", "eq", row.outs.length ? " = " : ""), el("b", "prim", row.prim));
    if (row.name && row.name !== row.prim) head.append(el("span", "name", ` ${row.name}`));
    if (row.steps) head.append(el("span", "steps", ` \u00d7${row.steps.toLocaleString("en")}`));
    head.append(...operands(row.ins), inside(row));
    if (row.module && this.before(row)?.module !== row.module) head.append(el("span", "module", row.module));
    return el("span", "text", head, el("span", "params", row.params));
  }

  figures(row) {
    if (this.changes) return [];
    const bar = el("i", "bar");
    bar.style.setProperty("--share", row.share > 0.005 ? Math.min(1, row.share) : 0);
    bar.dataset.heat = row.share > 0.25 ? 3 : row.share > 0.05 ? 2 : 1;
    return [
      el("span", "size", row.size ? short(row.size, "B") : ""),
      el("span", "cost", bar, el("span", "", row.flops ? short(row.flops, "") : "")),
    ];
  }

  signature(body) {
    const role = body.owner ? body.role : "";
    const arrow = el("span", "eq", " \u2192 ");
    return el("div", "sig", role && el("span", "role", role), ...typed(body.ins), body.ins.length + body.outs.length ? arrow : "", ...typed(body.outs));
  }

  fill(row) {
    if (row.box.childElementCount < 2) row.box.append(...row.bodies.map((body) => this.bodyElement(body)));
  }

  // -------- folding

  fold(row, open) {
    if (row.open === open && (!row.box || row.box.open === open)) return;
    row.open = open;
    if (row.box) {
      this.budget = Math.max(this.budget, CHUNK);
      if (open) this.fill(row);
      row.box.open = open;
    }
    this.paint(this.own, this.near);
  }

  foldAll(open) {
    for (const row of this.rows) row.open = open && row.bodies.length > 0;
    this.render();
  }

  path(row) {
    const found = [row];
    for (let up = row.owner.owner; up; up = up.owner.owner) found.unshift(up);
    return found;
  }

  /** Unfold what is around a row; the row is built then. */
  reveal(row) {
    for (const step of this.path(row)) {
      if (!step.item && step.chunk) this.build(step.chunk);
      if (step !== row) this.fold(step, true);
    }
    return row.item;
  }

  folded(row) {
    return this.path(row).slice(0, -1).find((up) => !up.open);
  }

  // -------- light

  paint(own, near) {
    const before = this.shining;
    this.own = new Set(own);
    this.near = new Set(near);
    this.held = new Map();
    for (const row of this.own) {
      const closed = this.folded(row);
      if (closed) this.held.set(closed, (this.held.get(closed) ?? 0) + 1);
    }
    this.shining = [...this.own, ...this.near, ...this.held.keys()];
    before.forEach((row) => this.dress(row));
    this.shining.forEach((row) => this.dress(row));
  }

  dress(row) {
    const item = row.item, count = this.held.get(row);
    if (!item) return;
    item.classList.toggle("lit", this.own.has(row));
    item.classList.toggle("near", this.near.has(row));
    item.classList.toggle("holds", count > 0);
    const inside = item.querySelector(".inside");
    if (inside) inside.dataset.lit = count ? `${count.toLocaleString("en")} of ` : "";
  }

  // -------- search

  /** Show the rows that all words of a query are true of, and what is around them; how many. */
  filter(query) {
    const tests = query.split(/\s+/).filter(Boolean).map(test);
    if (!tests.length) {
      if (this.kept) this.rows.forEach((row) => (row.open = row.opened));
      this.kept = null;
      this.render();
      return null;
    }
    if (!this.kept) this.rows.forEach((row) => (row.opened = row.open));
    const found = this.rows.filter((row) => !row.kept && !row.run && tests.every((says) => says(row)));
    this.kept = new Set(found);
    this.rows.forEach((row) => (row.open = false));
    found.forEach((row, i) => this.path(row).slice(0, -1).forEach((up) => {
      this.kept.add(up);
      up.open ||= i < REVEALED;
    }));
    this.render();
    return found.length;
  }

  // -------- keys and pointer

  listen() {
    const { scroller } = this;
    const rowOf = (event) => event.target.closest?.(".eqn")?.row;
    scroller.addEventListener("toggle", (event) => {
      const { row } = event.target;
      if (row) this.fold(row, event.target.open);
    }, true);
    scroller.addEventListener("pointerover", (event) => {
      hoverName(event.target.closest(".v"));
      hover(rowOf(event) && { view: this, row: rowOf(event) });
    });
    scroller.addEventListener("pointerleave", () => (hoverName(null), hover(null)));
    scroller.addEventListener("focusin", (event) => {
      const row = rowOf(event);
      if (!row) return;
      scroller.querySelectorAll('.eqn[tabindex="0"]').forEach((item) => (item.tabIndex = -1));
      event.target.tabIndex = 0;
      if (event.target.matches(":focus-visible")) hover({ view: this, row }, true);
    });
    scroller.addEventListener("click", (event) => {
      const row = rowOf(event);
      if (!row) return;
      if (event.target.closest(".at")) {
        event.preventDefault();
        if (row.place) pin({ key: key(row.place.file, row.place.line) });
      } else if (!row.bodies.length && getSelection().isCollapsed) pin({ view: this, row });
    });
    scroller.addEventListener("keydown", (event) => this.press(event, rowOf(event)));
  }

  press(event, row) {
    if (!row) return;
    const go = (to) => {
      event.preventDefault();
      if (to) this.reveal(to).focus();
    };
    const step = (by, i = row.index + by) => {
      for (; this.rows[i]; i += by) if (!this.rows[i].kept && this.kept?.has(this.rows[i]) !== false && !this.folded(this.rows[i])) return this.rows[i];
    };
    switch (event.key) {
      case "ArrowDown": return go(step(1));
      case "ArrowUp": return go(step(-1));
      case "Home": return go(step(1, 0));
      case "End": return go(step(-1, this.rows.length - 1));
      case "ArrowRight": return row.bodies.length && !row.open ? (this.fold(row, true), go(row)) : go(row.bodies.length ? step(1) : null);
      case "ArrowLeft": return row.open && row.bodies.length ? (this.fold(row, false), go(row)) : go(row.owner.owner);
      case "Enter": if (!row.bodies.length) pin({ view: this, row });
    }
  }
}
