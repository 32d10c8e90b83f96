"""Programs of a few statements that users write every day, on what they keep numbers in.

Dicts and sets with traced keys, `Counter`, `defaultdict`, arrays of small types, parts of arrays,
`try` with `finally`, closures with `nonlocal`, `else` of loops, `del`, `*rest` and `:=`.
"""

import functools
import random
import re

from tests.generators.python.programs import PythonProgram
from tests.generators.python.views import indented

FLOATS = (
    *("x", "y", "v[i]", "a[j, i]", "s", "v.sum()", "max(x, y)", "float(n)", "xs[-1]", "abs(y)"),
    *("d.get(n, 0.5)", "0.25", "-1.5", "(x if @t else y)", "(@f + @f)", "@f * 0.5", "min(v)"),
)
INTS = ("n", "m", "i", "j", "(n + m) % 5", "int(@t)", "len(xs)", "(2 if @t else @i)", "1", "3")
TESTS = (
    *("x > 0", "n > m", "v[i] > y", "s < 1", "@i in d", "i == j", "@f > @f", "n in seen"),
    *("not n", "mask[i]", "p[i] > 60", "x < y < 1", "(@t or m == 2)", "@i != 1", "xs[0] > 0.5"),
)
LINES = """
d[@i] = @f
d[@i] = d.get(@i, 0.0) + @f
d[@i] = d[n] + 1 if n in d else @f
d.setdefault(@i, @f)
s += d.pop(@i, 0.5)
s += sum(d.values())
d.update({@i: @f})
e[i, @i] = @f
s += e.get((i, @i), 0.25)
e[@i, j] = e.get((@i, j), 0.0) + 1
counts[@i] += 1
counts.update([@i, n])
s += counts[@i]
counts[n] -= 2
sums[@i] += @f
s += sums[@i]
s += max(sums.values(), default=0.0)
groups[@i].append(@f)
s += len(groups[@i])
s += sum(groups[@i])
seen.add(@i)
seen.discard(@i)
s += len(seen)
seen |= {@i}
s += sum(seen)
xs[@i % len(xs)] = @f
xs.append(@f)
xs.sort()
xs.insert(@i, @f)
xs = xs[::-1]
xs[1:] = [@f]
xs += [@f, 1.0]
xs, ys = ys, xs
s += sum(w for t in v if (w := t + x) > 0)
x, y = y, x
i = (@i + i) % 3
n = @i % 5
x = @f
v[@i:] = @f
v[:@i] += @f
a[:, i] = y
a.T[i] -= 1
np.add(a[0], v, out=a[1])
v[mask] = @f
a[:, ::2] *= 2
v[::-1] += a[j]
p[i] += 100
p += 100
p[i] = p.max() - p[0]
total = total + p[i] if @t else total
q -= 100
q *= 2
q[i] = -q[i]
p >>= 1
h += h[i]
h[mask] *= 2
h /= 2
q //= 2
p[p > 100] = 7
mask[i] = @t
mask ^= v > @f
s += p.sum()
s += int(q[i]) * 2
s += mask.sum()
s += p[mask].sum()
s += max(p)
p, q = p + 1, q - 1
s += np.where(mask, p, q).sum()
s += (p * 2).sum() + (q + p).max()
s += p[i] / 2 + q[i] * 0.5
s += bool(mask[i]) + (p[i] & 3)
mask = mask & (p > 30) | ~mask
s += mask.any() * 2 + mask.all() * 1
s += sorted(xs, key=lambda t: -t if @t else t)[0]
s += sum(1 for k, t in enumerate(v) if t > @f and k != i)
xs = [t + 1 if t > 0 else t for t in xs]
"""
# blocks, between empty lines
BLOCKS = """
if @i in d:
    s += d[n] if n in d else 1.0

for key, value in d.items():
    s = s * 0.5 + key * value

for key in d:
    s = s * 0.5 + d[key]

if n in d:
    del d[n]

k = @i
if k not in d:
    d[k] = @f
else:
    d[k] += 1

if @i in seen:
    s += 1

for t in (n, m, i):
    seen.add(t)

if len(xs) > 1:
    del xs[0]

if len(xs) > 1:
    s += xs.pop(@i % len(xs))

for t in xs:
    s = s * 0.5 + t
    xs[-1] = @f

c = xs if @t else ys
c[0] += @f

for t in xs if @t else ys:
    s = s * 0.5 + t

for t in xs if @t else ys:
    s += t
    ys[1] = xs[0] = @f

c = f if @t else g
for t in c.values():
    s = s * 0.5 + t
    f['q'] = @f

c = f if @t else g
c['p'] += @f

c = (f, g)[@i % 2]
for k in c:
    s += c[k]

first, *rest = v
s += first - sum(rest)

*head, last = xs
xs = [last, *head]

(p0, *_), q0 = a[j], @f
s += p0 + q0

r, (_, *q0) = @f, ys
s += r * len(q0)

if (w := @f) > 0:
    s += w

t = @f
s += t
del t

k = @i
a[j, k:] = v[k:]

c = v[i:]
c *= 2

c = a[j]
c[:] = v
c += 1

c = a[j, @i:]
if c.size:
    c[0] = @f

for row in a:
    row[i] += @f

for k, t in enumerate(v):
    if t > @f:
        v[k] = 0

for t in p:
    if t > 60:
        total += t

for t in q:
    less += t

for t in h:
    s += t if t > 1 else 0.5

best = 0
for t in p:
    if t > best:
        best = t
s += best

c = p[::2]
c += 50

for k in range(3):
    try:
        if @t:
            break
        s += @f
    finally:
        v[0] += 1

for k in range(3):
    try:
        if @t:
            continue
        s += k
    finally:
        s += 0.5

k = 0
while k < @i:
    k += 1
    if @t:
        break
    s = @f
else:
    s -= 1

k = 0
while (k := k + 1) < @i + 2:
    if @t:
        continue
    s += k

for t in v:
    if t > @f:
        s = t
        break
else:
    s = -1.0

try:
    if @t:
        raise ValueError
    s += @f
except ValueError:
    v[i] = 0.5
else:
    s += 1

try:
    s += d[@i]
except KeyError:
    d[@i] = @f

def look(t):
    try:
        if @t:
            return t
        return xs[0]
    finally:
        xs[0] += 1
s += look(@f)

def bump(t):
    nonlocal s, n
    s += t
    if @t:
        n = (n + 1) % 5
    return s
r += bump(@f) - bump(0.5)

def counted():
    total = 0
    def one(t):
        nonlocal total
        total += t
        return total
    return one
c = counted()
r += c(1) + c(@i) * c(2)

todo = [lambda t: t + x, lambda t: t * y]
s += todo[@i % 2](@f)

ys = [t for t in (x, y, 1.0)]
ys[@i % 3] = @f
"""
STATEMENTS = (*LINES.strip().split("\n"), *BLOCKS.strip().split("\n\n"))
AROUND = (
    *(
        "@body",
        "@body",
        "@body",
        "if @t:\n@body",
        "if @t:\n@body\nelse:\n    s += 0.25",
        "for _ in range(2):\n@body",
    ),
    *(
        "for _ in range(m):\n@body",
        "for b in v:\n    if b > @f:\n@@",
        "z = 0.0\nwhile z < n:\n    z += 1\n@body",
    ),
)
PROGRAM = """
from collections import Counter, defaultdict


def fold(items):
    r = 0.0
    for t in items:
        r = r * 0.5 + t
    return r


def program(x, y, n, m, v, a):
    i, j, s, r, total, less = n % 3, m % 2, 0.0, 0.0, 0, 0
    xs, ys, d, e = [x, y, 0.5], [1.0, x, y], {{}}, {{}}
    f, g = {{"p": x, "q": 1.0}}, {{"p": y, "q": 0.5}}
    counts, sums, groups, seen = Counter(), defaultdict(float), defaultdict(list), set()
    p, q, h = (abs(v) * 60).astype(np.uint8), (v * 30).astype(np.int8), v.astype(np.float16)
    mask = v > 0
{body}
    held = [len(d), fold(d.values()), len(e), sum(e.values()), sum(counts.values())]
    held += [len(seen), sum(seen), fold(sums.values()), len(groups), f["p"], f["q"], g["p"], g["q"]]
    return v, a, s, r, total, less, p, q, h, mask, x, y, n, fold(xs), len(xs), fold(ys), held
"""


def random_everyday_program(seed: int) -> PythonProgram:
    """The program of a seed: two to six such statements, under tests and in loops."""
    draw = random.Random(seed)
    lines = []
    for _ in range(draw.randint(2, 6)):
        inner, around = draw.choice(STATEMENTS), draw.choice(AROUND)
        for mark, levels in (("@@", 2), ("@body", around != "@body")):
            around = around.replace(
                mark, functools.reduce(lambda t, _: indented(t), range(levels), inner)
            )
        lines += filled(around, draw).splitlines()
    body = "\n".join(f"    {line}" for line in lines)
    return PythonProgram(PROGRAM.format(body=body))


def filled(text: str, draw: random.Random) -> str:
    """The text with an expression for each mark: @f for a float, @i for an int, @t for a test."""
    kinds = {"@f": FLOATS, "@i": INTS, "@t": TESTS}
    while found := re.search("@[fit]", text):
        text = text.replace(found[0], draw.choice(kinds[found[0]]), 1)
    return text
