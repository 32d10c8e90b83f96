"""Programs of one statement that takes items of an iterator, each of which leaves a trace."""

import random

from tests.generators.python.programs import PythonProgram

# what takes items: an expression on the iterator, or statements that bind `r`
EXPRESSIONS = (
    *("any({})", "all({})", "sum({})", "min({})", "max({}, default=0.0)", "sorted({})[0]"),
    *("next(iter({}))", "next(iter({}), 9.0)", "list({})[0]"),
    *("len(list({}))", "[t for t in {} if t > 0]", "sum(1 for t in {} if t > 0)"),
    *(
        "any(t > 0.5 for t in {})",
        "all([t < 1 for t in {}])",
        "next((t for t in {} if t > 0), -9.0)",
    ),
    *(
        "[t + total + b[0] for t in {}][-1]",
        "tuple(itertools.islice({}, 2))[1]",
        "dict(enumerate({}))[0]",
    ),
    *("sum(itertools.takewhile(lambda t: t < 1, {}))", "list(zip({}, range(2)))[1][0]"),
    *("sum(p * q for p, q in zip(v, {}))", "functools.reduce(lambda p, q: p + q, {})"),
    *("list(itertools.chain({}, [1.0]))[-1]", "list(map(lambda t: t + 1, {}))[1]"),
    *("list(itertools.accumulate({}))[-1]", "x in {}", "max(enumerate({}), key=lambda p: p[1])[0]"),
    *("list(filter(None, {}))", "{{True: 1.0}}.get(any({}), 2.0)", "np.array(list({})).sum()"),
)
STATEMENTS = (
    "for t in {}:\n    r = t\n    if t > 0:\n        break",
    "for t in {}:\n    if t > 0.5:\n        break\n    r += t\nelse:\n    r = 100.0",
    "for k, t in enumerate({}):\n    if t > 0:\n        continue\n    r += k",
    "for t, u in zip({}, v):\n    if t > u:\n        r += 1",
    "first, *others = {}\nr = first + len(others)",
    "found = [*{}]\nr = found[-1] if found[0] > 0 else found[0]",
    "items = iter({})\nr = next(items)\nif r > 0:\n    r += sum(items)",
    "for t in {}:\n    r += total + len(seen) + state.n + count[0] + t",
    "def first():\n    for t in {}:\n        if t > 0:\n            return t\n"
    "    return 0.5\nr = first()",
    "for k in range(2):\n    r += k + max({})",
)
KINDS = (  # what is gone through; `made` gives the items and leaves the traces
    *("(made(t) for t in v)", "map(made, v)", "filter(lambda t: made(t) > 0, v)", "gone(v)"),
    *("[made(t) for t in v]", "map(made, iter(v))", "gone(reversed(list(v)))", "map(made, a[0])"),
    *("(made(t) for t in v if t > -1)", "map(made, range(3))", "gone(held.values())"),
    *("itertools.chain(gone(v), gone(a[1]))", "(made(t) for row in a for t in row)"),
    *("gone([x, y, 1.0])", "itertools.islice(gone(itertools.cycle(v)), 4)", "Items(v)"),
)
EFFECTS = (
    *("pass", "seen.append(t)", "count[0] += 1", "state.n += 1", "total += t", "held['a'] = t"),
    *("b[0] += t", "seen[0] = t", "total = total + 1", "b[:] = t", "held.setdefault('k', t)"),
)
VALUES = (
    "t",
    "1.0 if t > 0 else -0.5",
    "t * 2",
    "math.floor(t)",
    "t if t > 0 else 0.0",
    "abs(t) - 1",
)

PROGRAM = """
class State:
    n = 0


def program(x, y, n, m, v, a):
    seen, count, state, total, b = [0.0], [0], State(), 0.0, np.zeros(2)
    held = {{"a": x, "b": y}}

    def made(t):
        nonlocal total
        {effect}
        return {value}

    def gone(items):
        for t in items:
            yield made(t)

    class Items:
        def __init__(self, items):
            self.items, self.at = items, 0

        def __iter__(self):
            return self

        def __next__(self):
            if self.at == len(self.items):
                raise StopIteration
            self.at += 1
            return made(self.items[self.at - 1])

    r = 0.0
{body}
    return r, seen, count, state.n, total, b, held
"""


def random_iterator_program(seed: int) -> PythonProgram:
    """The program of a seed: a consumer, what it goes through, and what each item changes."""
    draw = random.Random(seed)
    kind = draw.choice(KINDS)
    one = draw.choice([*EXPRESSIONS, *STATEMENTS])
    lines = (one if one in STATEMENTS else f"r = {one}").format(kind).splitlines()
    body = "\n".join(f"    {line}" for line in lines)
    effect, value = draw.choice(EFFECTS), draw.choice(VALUES)
    return PythonProgram(PROGRAM.format(effect=effect, value=value, body=body))
