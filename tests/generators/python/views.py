"""Programs that write to parts of arrays, and to arrays through their parts."""

import random

from tests.generators.python.programs import PythonProgram

# parts of `v` (3,) and `a` (2, 3): `n`, `m` may be beyond the end, `i` and `j` are not
ROWS = (
    *("v[:n]", "v[n:]", "v[i:m]", "v[i:]", "a[j, :n]", "a[0, n:]", "a[j][i:]", "v[::2]", "v[::-1]"),
    *("a[j]", "a[:, i]", "v[n:][::-1]", "v[:n].copy()", "v[v > x]", "a[a > x]", "a[0][a[1] > 0]"),
    *(
        "a.ravel()",
        "a.T[i]",
        "np.diagonal(a).copy()",
        "a.reshape(-1)[i:m]",
        "v",
        "v.reshape(-1)[:n]",
    ),
    *("np.concatenate([v, a[0]])[n:]", "a[[0, 1], i]", "v[[2, 0]]", "np.where(v > 0)[0] * 1.0"),
)
GRIDS = ("a", "a[:, :n]", "a[:n]", "a.T", "a[:, i:]", "a[::-1]", "a[:, ::-1]", "a.copy()", "a[j:]")
WRITES = (  # to a part `p`, or to all; also under another name
    *("p += 1", "p *= 2", "p -= y", "p[:] = x", "p[:] = p[::-1].copy()", "p[p > 0.5] = y"),
    *("p.sort()", "p.fill(y)", "np.add(p, 1, out=p)", "np.maximum(p, 0, out=p)", "change(p)"),
    *("q = p\nq += 1", "p = p + 1", "p += p", "p[::-1] += 1", "np.copyto(p, x)", "p **= 2"),
    *("held['p'] = p\nheld['p'] *= 3", "some.append(p)\nsome[-1] -= 2", "p, q = v, p\nq += 1"),
)
ELEMENTS = (
    *(
        "if p.size > 0:\n    p[0] = y",
        "if p.size > 0:\n    p[-1] += x",
        "if p.size:\n    s += p[0]",
    ),
    *("for t in p:\n    v[0] += t", "v[i] = p.sum()", "if p.size > 0:\n    s -= max(p)"),
    *("for k, t in enumerate(p):\n    a[0, 0] += t * k", "if p.size > 1:\n    p[1] *= 2"),
)
BASES = (
    *("v[i] = 9.0", "a[j, i] = 7.0", "v += 1", "a *= 2", "a[:, i] = x", "v[:n] = y", "a[j] = v"),
    *("v = v + 1", "v[v > 0] = 0.0", "a[0], a[1] = a[1].copy(), a[0].copy()", "v.sort()"),
    *("v[n:], a[0, n:] = a[0, n:].copy(), v[n:].copy()",),
)
OF_GRIDS = (
    *(
        "p += 1",
        "p *= p",
        "p[:] = x",
        "if p.size:\n    p[0] += 1",
        "p[:, 0] = y",
        "for row in p:\n    row += 1",
    ),
    *(
        "if p.size:\n    q = p[0]\n    q *= 2",
        "p -= p.sum(axis=0)",
        "change(p)",
        "p[p > 0] = 0.5",
        "p.fill(x)",
    ),
)
AROUND = (
    *(
        "{}",
        "{}",
        "{}",
        "if x > 0:\n{}",
        "if x > y:\n{}\nelse:\n    v[0] = 5.0",
        "for k in range(m):\n{}",
    ),
    *("for k in range(2):\n{}", "r = 0.0\nwhile r + x < 1:\n    r += 0.75\n{}"),
)

PROGRAM = """
def change(t):
    t += 0.5


def program(x, y, n, m, v, a):
    i, j, held, some, s = n % 3, m % 2, {{}}, [], 0.0
{body}
    return v, a, s, x, y
"""


def random_view_program(seed: int) -> PythonProgram:
    """The program of a seed: parts of arrays that are written to while others are read."""
    draw = random.Random(seed)
    lines = []
    for _ in range(draw.randint(1, 2)):
        grid = draw.random() < 0.25
        lines.append(f"p = {draw.choice(GRIDS if grid else ROWS)}")
        kinds = [OF_GRIDS if grid else (*WRITES, *ELEMENTS), BASES]
        for _ in range(draw.randint(1, 3)):
            inner = draw.choice(draw.choice(kinds))
            around = draw.choice(AROUND)
            lines += around.format(inner if around == "{}" else indented(inner)).splitlines()
        lines.append(draw.choice(["s += p.sum()", "s += p.size", "s += (p * p).sum()", "pass"]))
    body = "\n".join(f"    {line}" for line in lines)
    return PythonProgram(PROGRAM.format(body=body))


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
