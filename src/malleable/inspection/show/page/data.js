// What the page was given, and how numbers and places are spelled.

const data = await read(document.getElementById("data"));
const { words, files, links } = data;
const places = data.places.map(([file, line, column, endLine, endColumn, fun]) =>
  ({ file, line, column, endLine, endColumn, fun }));
const CHUNK = 80;          // rows that are built at once
const HEIGHT = 22;         // pixels of a row that is not built yet
const OPEN = 70;           // rows that are unfolded to begin with
const REVEALED = 150;      // rows that are unfolded for a line that is clicked, or for a search

async function read(block) {
  if (block.type === "application/json") return JSON.parse(block.textContent);
  const bytes = Uint8Array.from(atob(block.textContent), (c) => c.charCodeAt(0));
  const text = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(text).text());
}

function el(tag, name, ...inside) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...inside.filter((x) => x !== null && x !== ""));
  return made;
}

function short(n, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let i = 0;
  for (; n >= 999.5 && i < 5; i++) n /= 1000;
  const digits = n >= 99.5 || Number.isInteger(n) ? n.toFixed(0) : n.toPrecision(n < 1 ? 1 : 2);
  return `${digits}\u202f${prefixes[i]}${unit}`;
}

const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)}\u202f%`;
const key = (file, line) => file * 0x100000 + line;
const spell = (p) => `${files[p.file][0]}:${p.line} in ${p.fun}`;
const isName = (word) => /^[a-z]+$/.test(word) && word !== "nan" && word !== "inf";

function frames(link) {
  const found = [];
  for (; link >= 0; link = links[link][1]) found.push(places[links[link][0]]);
  return found;
}
