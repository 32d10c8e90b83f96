"""Records as text: `== title`, then lines; what only one of two JAX says has its sign in front."""

import difflib
import pathlib
from collections.abc import Iterable

import jax

FOLDER = pathlib.Path(__file__).parent / "records"
SIGNS = ("old|", "new|")  # JAX before 0.12, and from then on
MINE = SIGNS[jax.__version_info__ >= (0, 12)]
TITLE = "== "
SHOWN = 200  # lines of a diff


def written(records: Iterable) -> list[str]:
    """(title, lines) of each program as the lines of a file; of a text, the first stands out.

    >>> written([("sum", ["unchanged", "a\\nb"])])
    ['== sum', 'unchanged', 'a', '    b', '']
    """
    found = []
    for title, texts in records:
        found.append(f"{TITLE}{title}")
        for text in texts:
            first, *rest = text.rstrip().split("\n")
            found += [first.rstrip(), *(f"    {line}".rstrip() for line in rest)]
        found.append("")
    return found


def expected(name: str, sign: str = MINE) -> list[str]:
    """What is on record for one JAX."""
    path = FOLDER / f"{name}.txt"
    return selected(path.read_text().splitlines(), sign) if path.exists() else []


def selected(lines: list[str], sign: str) -> list[str]:
    """The lines of one JAX.

    >>> selected(["both", "old|one", "new|other"], "new|")
    ['both', 'other']
    """
    mine = (line for line in lines if not line.startswith(other(sign)))
    return [line.removeprefix(sign) for line in mine]


def other(sign):
    return SIGNS[1 - SIGNS.index(sign)]


def merged(mine: list[str], theirs: list[str], sign: str) -> list[str]:
    """What `selected` takes apart again; sign: whose the first are.

    >>> merged(["a", "b"], ["a", "c"], "old|")
    ['a', 'old|b', 'new|c']
    """
    first, second = (mine, theirs) if sign == SIGNS[0] else (theirs, mine)
    found = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, first, second, False).get_opcodes():
        if what == "equal":
            found += first[a:b]
        else:
            found += [f"{SIGNS[0]}{line}" for line in first[a:b]]
            found += [f"{SIGNS[1]}{line}" for line in second[c:d]]
    return found


def write(name: str, lines: list[str]) -> None:
    """Put lines on record for this JAX; what is there for the other one stays."""
    theirs = expected(name, other(MINE))
    text = "\n".join(merged(lines, theirs, MINE) if theirs else lines)
    (FOLDER / f"{name}.txt").write_text(text + "\n")


def difference(name: str, lines: list[str]) -> str:
    """A diff from the record to these lines, each change below the program's title; "" for none."""
    before = by_title(expected(name))
    now, found = by_title(lines), []
    for title in dict.fromkeys([*before, *now]):
        old, new = before.get(title, []), now.get(title, [])
        if old != new:
            changes = list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]
            found += [title, *(line for line in changes if not line.startswith("@@"))]
    hidden = len(found) - SHOWN
    return "\n".join(found[:SHOWN] + [f"... {hidden} lines more"] * (hidden > 0))


def by_title(lines):
    found: dict = {}
    for line in lines:
        if line.startswith(TITLE):
            found[line] = under = []
        elif line:
            under.append(line)
    return found
