"""Two programs side by side: which equations are kept, removed, added or changed."""

import bisect
import dataclasses
import functools
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeVar

import jax
import numpy as np

from malleable import compat
from malleable.inspection.show.rows import lines
from malleable.inspection.show.rows.outline import Body, Row, spell_atom
from malleable.inspection.show.rows.renamed import fresh, known, rename, rows_of
from malleable.programs.types import is_key

Atom = int | str  # a value, by number; or a literal, as text
MARKS = ("kept", "removed", "added", "changed")
_LARGE = 250_000  # pairs of equations
_CALLS = {"removed": "its body stands in its place", "added": "calls what stood here"}


@dataclass(frozen=True)
class Change:
    """What became of one equation, or of what a program takes or returns.

    mark: "kept", "removed", "added" or "changed"; old, new: its rows, None where it is absent,
    both None for arguments and results. was, now: it as text, "" where it is absent; a value that
    is kept has its old name in both. why: of one that is changed, what differs ("operands",
    "parameters", "types", "inside" for nothing but bodies), and what else there is to say.
    inner: (role, changes) of each body; () where an equation is kept, removed or added whole.
    """

    mark: str
    old: Row | None
    new: Row | None
    was: str
    now: str
    why: str = ""
    inner: tuple[tuple[str, tuple["Change", ...]], ...] = ()

    @property
    def row(self) -> Row | None:
        """The newest row there is."""
        return self.new or self.old

    @property
    def marks(self) -> Iterator[tuple[str, int]]:
        """(mark, how many equations): this one, and those inside that `inner` does not list."""
        if self.row is None:
            return
        yield self.mark, 1
        if not self.inner and self.why not in _CALLS.values():
            inside = sum(body.size for body in self.row.bodies)
            yield "kept" if self.mark == "changed" else self.mark, inside

    @property
    def is_moved(self) -> bool:
        """Whether something was changed here or inside."""
        return any(change.mark != "kept" for change in self.all())

    def all(self) -> Iterator["Change"]:
        """This, and what became of what is inside, in program order."""
        yield self
        for _, inside in self.inner:
            for change in inside:
                yield from change.all()


def align(old: Body, new: Body, taken: Iterable[str] = ()) -> tuple[tuple[Change, ...], Body]:
    """What became of each equation of `old` in `new`; and `new` with the names of `old`.

    The changes are in program order, those of bodies inside of their equations. taken: names
    that no new value may have.

    Equations are matched in order, first those that do the same to the same types, then those of
    one primitive. A jit that says nothing but its name is looked into where the other program
    has none of that name. Values are followed: an equation that reads other values is "changed".

    >>> from malleable.core.stage import stage
    >>> from malleable.inspection.show.rows.outline import outline
    >>> from malleable.rewriting.passes.passes import cse
    >>> program = stage(lambda x: abs(x) * abs(x))(1.0).jaxpr
    >>> changes, _ = align(outline(program), outline(cse(program)))
    >>> for change in changes:
    ...     print(change.mark, change.now or change.was)
    kept b:f32[] = abs a
    removed c:f32[] = abs a
    changed d:f32[] = mul b b
    """
    alignment = _Alignment(old, taken)
    changes = alignment.bodies(old, new)
    body = rename(new, alignment.given, alignment.fresh)
    return _replaced(changes, {row.number: row for row in rows_of(body)}), body


def _replaced(changes: tuple[Change, ...], rows: dict[int, Row]) -> tuple[Change, ...]:
    """The changes with other rows of the new side, by their numbers."""
    return tuple(
        dataclasses.replace(
            c,
            new=c.new and rows[c.new.number],
            inner=tuple((role, _replaced(inside, rows)) for role, inside in c.inner),
        )
        for c in changes
    )


@dataclass
class _Item:
    """An equation of one side: its operands and results by number; opened: in its place, a body."""

    row: Row
    ins: tuple[Atom, ...]
    outs: tuple[Atom, ...]
    opened: bool = False

    @property
    def kind(self):
        """Equal for equations that do the same to the same types."""
        row = self.row
        name = row.eqn.params.get("name") if row.bodies else None
        return row.primitive, name, _spelled(row), tuple(x.type for x in row.outs)


class _Alignment:
    """What is known while two programs are aligned: which values are the same, and their names."""

    def __init__(self, old: Body, taken: Iterable[str]):
        self.numbers = itertools.count()
        self.names: dict[Atom, str] = {}
        self.same: dict[Atom, Atom] = {}  # {new: old}
        self.constants: dict[Any, list[Atom]] = {}  # of the old side, by content
        self.used: set[str] = set()
        self.given = known(old)  # {variable: name}; those of the new side are added
        self.fresh = fresh({*self.given.values(), *taken})

    def bodies(self, old: Body, new: Body, hints: list | None = None) -> tuple[Change, ...]:
        """The changes from one body to another; hints: (i, j) of the arguments that correspond."""
        env, takes = self._arguments(old, True)
        env_new, took = self._arguments(new, False)
        types, types_new = ([x.type for x in body.ins] for body in (old, new))
        self._pair(takes, took, types, types_new, hints or [])
        found = []
        if types != types_new:
            texts = (self._sentence("arguments", *x) for x in ((takes, types), (took, types_new)))
            found.append(Change("changed", None, None, next(texts), next(texts), "arguments"))
        calls, calls_new = set(_calls(old)), set(_calls(new))
        olds = list(self._items(old, env, calls_new, True))
        news = list(self._items(new, env_new, calls, False))
        keys: list[Callable[[Any], Any]] = [_kind, _primitive]
        if len(olds) * len(news) > _LARGE:  # first what is computed alike from the arguments on
            keys.insert(0, functools.partial(self._deep, {}))
        pairs = matched(olds, news, keys)
        found += [self._change(a, b) for a, b in pairs]
        self.given |= {v: self._name(value) for v, value in env_new.items()}
        gives, gave = _read_all(old.program, env), _read_all(new.program, env_new)
        if self._resolved(gave) != gives:
            texts = (self._sentence("results", values) for values in (gives, gave))
            found.append(Change("changed", None, None, next(texts), next(texts), "results"))
        return tuple(found)

    def _deep(self, known: dict, item: _Item) -> int:
        """Equal for equations that compute the same from the same, as far as is known by now."""
        ins = tuple(known.get(v, v) for v in self._resolved(item.ins))
        key = hash((_kind(item), item.opened, ins))
        known.update({v: hash((key, i)) for i, v in enumerate(item.outs)})
        return key

    def _resolved(self, values: Sequence[Atom]) -> list[Atom]:
        """Values of the new side, as those of the old one where they are the same."""
        return [self.same.get(value, value) for value in values]

    def _name(self, value: Atom) -> str:
        """A value's name, that of the old program for one that is the same."""
        value = self.same.get(value, value)
        if isinstance(value, int) and value not in self.names:
            self.names[value] = next(self.fresh)
        return value if isinstance(value, str) else self.names[value]

    def _sentence(self, word: str, values: Sequence[Atom], types: Sequence[str] = ()) -> str:
        named = itertools.zip_longest(map(self._name, values), (f":{t}" for t in types))
        return " ".join([word, *(name + (kind or "") for name, kind in named)])

    def _arguments(self, body: Body, is_old: bool) -> tuple[dict, list[Atom]]:
        """Numbers for the constants and arguments of a body; those of its arguments."""
        raw = body.program.jaxpr
        env: dict = {v: next(self.numbers) for v in (*raw.constvars, *raw.invars)}
        for v, x in zip(raw.constvars, body.program.consts, strict=True):
            self._constant(env[v], x, is_old)
        values = [env[v] for v in raw.invars]
        if is_old:
            self.names |= {value: x.name for value, x in zip(values, body.ins, strict=True)}
        return env, values

    def _constant(self, value: Atom, x, is_old: bool) -> None:
        """Constants are the same if they are equal; of equal ones, the first is the first."""
        equal = self.constants.setdefault(_content(x), [])
        if is_old:
            equal.append(value)
        elif equal:
            self.same[value] = equal.pop(0) if equal[1:] else equal[0]

    def _items(self, body: Body, env: dict, others: set, is_old: bool, depth=0) -> Iterator[_Item]:
        """The equations of a body, those of calls that the other side lacks in their place."""
        for row in body.rows:
            eqn = row.eqn
            ins = tuple(map(_reader(env), eqn.invars))
            if row.bodies and compat.is_transparent(eqn) and _name_of_call(row) not in others:
                (inside,) = row.bodies
                raw = inside.program.jaxpr
                local, _ = self._arguments(inside, is_old)
                local |= zip(raw.invars, ins, strict=True)
                yield _Item(row, ins, (), True)
                yield from self._items(inside, local, others, is_old, depth + 1)
                env.update(zip(eqn.outvars, map(_reader(local), raw.outvars), strict=True))
                continue
            outs = tuple(next(self.numbers) for _ in eqn.outvars)
            env.update(zip(eqn.outvars, outs, strict=True))
            if is_old:
                for value, x in zip(outs, row.outs, strict=True):
                    if not depth or x.name not in self.used:  # a body may be called twice
                        self.names[value] = x.name
                        self.used.add(x.name)
            yield _Item(row, ins, outs)

    def _change(self, a: _Item | None, b: _Item | None) -> Change:
        if a is None or b is None:
            item, mark = (a, "removed") if a else (b, "added")
            assert item is not None
            text = self._spell(item)
            was, now = (text, "") if a else ("", text)
            why = _CALLS[mark] if item.opened else ""
            return Change(mark, a and a.row, b and b.row, was, now, why)
        types, types_new = ([x.type for x in item.row.outs] for item in (a, b))
        why = [
            word
            for word, differs in (
                ("types", types != types_new),
                ("parameters", _spelled(a.row) != _spelled(b.row)),
                ("operands", self._resolved(b.ins) != list(a.ins)),
            )
            if differs
        ]
        inner = () if _is_same(a.row, b.row) else self._inside(a, b)
        altered = any(c.mark != "kept" for _, changes in inner for c in changes)
        self._pair(a.outs, b.outs, types, types_new)
        mark = "changed" if why or altered else "kept"
        told = ", ".join(why) or "inside" * altered
        return Change(mark, a.row, b.row, self._spell(a), self._spell(b), told, inner)

    def _inside(self, a: _Item, b: _Item) -> tuple:
        found = []
        for old, new in itertools.zip_longest(a.row.bodies, b.row.bodies):
            role = (old or new).role
            pair = old or _nothing(role), new or _nothing(role)
            found.append((role, self.bodies(*pair, self._hints(a, b, *pair))))
        return tuple(found)

    def _hints(self, a: _Item, b: _Item, old: Body, new: Body) -> list[tuple[int, int]]:
        """Where bodies take different numbers of values: those that are the same operands."""
        if len(old.ins) == len(new.ins):
            return []
        sides = []
        for values, body in ((list(a.ins), old), (self._resolved(b.ins), new)):
            skip = len(values) - len(body.ins)  # the index of a cond
            values = values[skip:] if skip in (0, 1) else []
            once = {v: i for i, v in enumerate(values) if values.count(v) == 1}
            sides.append(once)
        return [(i, sides[1][v]) for v, i in sides[0].items() if v in sides[1]]

    def _pair(self, olds, news, types, types_new, hints=()) -> None:
        """Values of the new side as those of the old one: in order, by type if numbers differ."""
        pairs = [(olds[i], news[j]) for i, j in hints]
        if len(olds) == len(news):
            pairs += zip(olds, news, strict=True)
        else:
            i, j = (
                [n for n in range(len(values)) if n not in taken]
                for values, taken in zip((olds, news), zip(*hints) if hints else ((), ()))  # noqa: B905
            )
            kinds = [types[n] for n in i], [types_new[n] for n in j]
            for m, n, size in SequenceMatcher(None, *kinds, False).get_matching_blocks():
                pairs += [(olds[i[m + k]], news[j[n + k]]) for k in range(size)]
        for old, new in pairs:
            self.same.setdefault(new, old)

    def _spell(self, item: _Item) -> str:
        outs = None if item.opened else list(map(self._name, item.outs))
        spans = lines.equation(item.row, outs, list(map(self._name, item.ins)))
        return "".join(text for text, _ in spans)


def _nothing(role: str) -> Body:
    return Body(role, (), (), (), compat.trace(lambda: ()))


def _content(x):
    """Equal for constants that are the same to the bit."""
    if not isinstance(x, _ARRAYS) or isinstance(x, compat.Tracer):
        return id(x)
    bits = np.asarray(jax.random.key_data(x) if is_key(x) else x).tobytes()  # type: ignore[arg-type]
    return str(x.dtype), x.shape, hashlib.sha256(bits).digest()


_ARRAYS = (np.ndarray, np.generic, jax.Array)


def _kind(item: _Item):
    return item.kind


def _primitive(item: _Item):
    return item.row.primitive, item.opened


def _is_same(a: Row, b: Row) -> bool:
    """Whether the bodies are the very same."""
    return len(a.bodies) == len(b.bodies) and all(
        x.program is y.program for x, y in zip(a.bodies, b.bodies, strict=True)
    )


def _spelled(row: Row) -> tuple:
    """The parameters but bodies and what only counts operands, as comparable text."""
    eqn = row.eqn
    if compat.is_transparent(eqn):
        return ()
    given = eqn.params.items()
    if row.bodies:  # the functions beside a body are made anew each time it is traced
        given = [(k, v) for k, v in given if not (callable(v) or hasattr(v, "call_wrapped"))]
    known = [(k, x) for k, x in given if k not in _COUNTS and not compat.bodies({k: x})]
    told = [(key, _ADDRESS.sub("", str(value))) for key, value in known]
    if row.primitive.startswith("custom_"):  # of its rules, the user's functions
        rules = (f for f in compat.derivative_key(eqn) if callable(f))
        told.append(("rules", str([getattr(f, "__qualname__", f) for f in rules])))
    return tuple(told)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_COUNTS = {"num_consts", "num_carry", "cond_nconsts", "body_nconsts", "ft_in", "ft_out", "linear"}


def _name_of_call(row: Row) -> str:
    return str(row.eqn.params.get("name", ""))


def _calls(body: Body) -> Iterator[str]:
    """The names of the calls in a body, and in those."""
    for row in body.rows:
        if row.bodies and compat.is_transparent(row.eqn):
            yield _name_of_call(row)
            yield from _calls(row.bodies[0])


def _reader(env: dict) -> Callable[[Any], Atom]:
    def read(v) -> Atom:
        if not isinstance(v, compat.Literal):
            return env[v]
        text = spell_atom(v, {})  # of an array, not all of it
        many = getattr(v.aval, "shape", ())
        return f"{text}#{hash(_content(np.asarray(v.val))):x}" if many else text

    return read


def _read_all(program, env) -> list[Atom]:
    return list(map(_reader(env), program.jaxpr.outvars))


T = TypeVar("T")
_MANY = 20_000_000  # comparisons, at worst, from which on equal items are paired in order


def matched(
    a: Sequence[T], b: Sequence[T], keyings: Sequence[Callable[[T], Any]]
) -> Iterator[tuple[T | None, T | None]]:
    """Pairs of items in order, by the first key; those between, by the next; then single ones.

    >>> list(matched("abcd", "abd", [str]))
    [('a', 'a'), ('b', 'b'), ('c', None), ('d', 'd')]
    """
    if not (a and b and keyings):
        yield from ((x, None) for x in a)
        yield from ((None, x) for x in b)
        return
    at = end = 0
    for i, j in [*_anchors(list(map(keyings[0], a)), list(map(keyings[0], b))), (len(a), len(b))]:
        yield from matched(a[at:i], b[end:j], keyings[1:])
        if i < len(a):
            yield a[i], b[j]
        at, end = i + 1, j + 1


def _anchors(a: list, b: list) -> list[tuple[int, int]]:
    """Where equal keys meet, in order."""
    least = min(len(a), len(b))
    head = next((i for i in range(least) if a[i] != b[i]), least)
    tail = next((i for i in range(least - head) if a[-1 - i] != b[-1 - i]), least - head)
    pairs = [(i, i) for i in range(head)]
    x, y = a[head : len(a) - tail], b[head : len(b) - tail]
    here, there = Counter(x), Counter(y)
    if sum(n * there[key] for key, n in here.items()) * min(len(x), len(y)) > _MANY:
        found = _in_order(_numbered(x), _numbered(y))
    else:
        blocks = SequenceMatcher(None, x, y, False).get_matching_blocks()
        found = [(i + k, j + k) for i, j, n in blocks for k in range(n)]
    pairs += [(head + i, head + j) for i, j in found]
    return pairs + [(len(a) - k, len(b) - k) for k in range(tail, 0, -1)]


def _in_order(x: list, y: list) -> list[tuple[int, int]]:
    """Where two lists without repetitions meet, as often as can be without crossing.

    The longest increasing subsequence by patience sorting: Fredman, "On computing the length of
    longest increasing subsequences", Discrete Mathematics 11(1), 1975.
    """
    where = {key: j for j, key in enumerate(y)}
    pairs = [(i, where[key]) for i, key in enumerate(x) if key in where]
    ends: list[int] = []  # the smallest last j of a chain of each length
    last: list[int] = []  # which pair that is
    before: list[int] = []
    for n, (_, j) in enumerate(pairs):
        at = bisect.bisect_left(ends, j)
        ends[at : at + 1], last[at : at + 1] = [j], [n]
        before.append(last[at - 1] if at else -1)
    found, n = [], last[-1] if last else -1
    while n >= 0:
        found.append(pairs[n])
        n = before[n]
    return found[::-1]


def _numbered(keys: list) -> list:
    """Each key with how often it was there before."""
    seen: Counter = Counter()
    found = []
    for key in keys:
        found.append((key, seen[key]))
        seen[key] += 1
    return found
