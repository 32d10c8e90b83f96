"""Programs that write to what a traced index or test has picked: `PROGRAMS`, with arguments."""

import collections
from dataclasses import dataclass, field

import numpy as np

V = np.array([3.0, 1, 4, 1, 5, 9, 2, 6], np.float32)
PROGRAMS = []
NT = collections.namedtuple("NT", "a b")


def on(*args):
    """Add a program, to be run on these."""

    def add(fun):
        PROGRAMS.append((fun, args))
        return fun

    return add


class P:
    def __init__(s, x, n=0):
        s.x = x
        s.n = n
        s.log = [0.0, 0.0]

    def hit(s, w):
        s.n += w
        return s.n

    def __eq__(s, o):
        return s.x == o.x


class Q:
    def __init__(s, x):
        s.x = x


@dataclass
class D:
    x: float
    items: list = field(default_factory=list)


@on(2.0)
@on(-2.0)
def chosen_len(x):
    a = [1.0, 2.0]
    b = [3.0]
    t = a if x > 0 else b
    t.append(x)
    return (len(t), len(a), len(b))


@on(2.0)
@on(-2.0)
def chosen_pop(x):
    a = [1.0, 2.0]
    b = [3.0, 4.0]
    t = a if x > 0 else b
    v = t.pop()
    return (v, len(a), len(b))


@on(2.0)
@on(-2.0)
def chosen_insert(x):
    a = [1.0, 2.0]
    b = [3.0, 4.0]
    t = a if x > 0 else b
    t.insert(0, 9.0)
    return (len(a), len(b))


@on(2.0)
@on(-2.0)
def chosen_sort(x):
    a = [4.0, x]
    b = [3.0, 1.0]
    t = a if x > 0 else b
    t.sort()
    return (a, b)


@on(2.0)
@on(-2.0)
def chosen_rev(x):
    a = [4.0, x]
    b = [3.0, 1.0]
    t = a if x > 0 else b
    t.reverse()
    return (a, b)


@on(2.0)
@on(-2.0)
def chosen_iadd(x):
    a = [4.0, x]
    b = [3.0, 1.0]
    t = a if x > 0 else b
    t += [x]
    return (len(a), len(b), len(t))


@on(2.0)
@on(-2.0)
def chosen_del(x):
    a = [4.0, x]
    b = [3.0, 1.0]
    t = a if x > 0 else b
    del t[0]
    return (len(a), len(b))


@on(2.0)
@on(-2.0)
def chosen_in(x):
    a = [4.0, x]
    b = [3.0, 1.0]
    t = a if x > 0 else b
    return (4.0 in t, 3.0 in t, x in t)


@on(2.0)
@on(-2.0)
def chosen_iter(x):
    a = [4.0, x]
    b = [3.0, 1.0]
    t = a if x > 0 else b
    s = 0.0
    for k in t:
        s += k
    return (s, sum(t), max(t), [y * 2 for y in t], sorted(t), list(t))


@on(2.0)
@on(-2.0)
def chosen_unpack(x):
    a = [4.0, x]
    b = [3.0, 1.0]
    p, q = a if x > 0 else b
    return p - q


@on(2.0)
@on(-2.0)
def chosen_truth(x):
    a = []
    b = [3.0, 1.0]
    t = a if x > 0 else b
    return (1 if t else 2, 1 if not t else 2)


@on(2.0)
@on(-2.0)
def chosen_eq(x):
    a = [1.0, 2.0]
    b = [3.0, 1.0]
    t = a if x > 0 else b
    return (t == [1.0, 2.0], t is a, t is b, t is not a)


@on(2.0)
@on(-2.0)
def chosen_slice(x):
    a = [1.0, 2.0, x]
    b = [3.0, 1.0, 2.0]
    t = a if x > 0 else b
    return (t[1:], t[::-1], t[-1])


@on(2.0)
@on(-2.0)
def chosen_slice_write(x):
    a = [1.0, 2.0, x]
    b = [3.0, 1.0, 2.0]
    t = a if x > 0 else b
    t[1:] = [7.0, 8.0]
    return (a, b)


@on(2.0)
@on(-2.0)
def chosen_add(x):
    a = [1.0, 2.0, x]
    b = [3.0, 1.0, 2.0]
    t = a if x > 0 else b
    u = t + b[:1]
    u[0] = 50.0
    return (a, b, u, t * 2)


@on(2.0)
@on(-2.0)
def chosen_copy(x):
    a = [1.0, 2.0, x]
    b = [3.0, 1.0, 2.0]
    t = (a if x > 0 else b).copy()
    t[0] = 99.0
    return (a, b, t)


@on(2.0)
@on(-2.0)
def chosen_index(x):
    a = [1.0, 2.0]
    b = [3.0, 1.0]
    t = a if x > 0 else b
    return t.index(1.0)


@on(2.0)
@on(-2.0)
def alias3(x):
    a = [1.0]
    b = a
    c_ = [2.0]
    t = a if x > 0 else c_
    t[0] = 5.0
    return (a, b, c_, t)


@on(2.0)
@on(-2.0)
def nested_choice(x):
    a, b, d = ([1.0], [2.0], [3.0])
    t = a if x > 0 else b
    u = t if x > 1 else d
    u[0] += 10
    t[0] += 100
    return (a, b, d)


@on(2.0)
@on(-2.0)
def choice_then_alias(x):
    a, b = ([1.0], [2.0])
    t = a if x > 0 else b
    u = t
    u.append(5.0)
    return (len(a), len(b), len(t), len(u))


@on(2.0)
@on(-2.0)
def if_stmt(x):
    a, b = ([1.0], [2.0])
    if x > 0:
        t = a
    else:
        t = b
    t[0] = 7.0
    return (a, b)


@on(2.0)
@on(-2.0)
def if_one(x):
    a, b = ([1.0], [2.0])
    t = a
    if x > 0:
        t = b
    t[0] = 7.0
    a[0] += 1
    return (a, b, t)


@on(2.0)
@on(-2.0)
def if_none(x):
    a = [1.0]
    t = None
    if x > 0:
        t = a
    if t is not None:
        t[0] = 7.0
    return a


@on(2.0)
@on(-2.0)
def rebind_new(x):
    a = [1.0, 2.0]
    t = a
    if x > 0:
        t = [5.0, 6.0]
    t[0] = 9.0
    return (a, t)


@on(2.0)
@on(-2.0)
def made_aliased(x):
    if x > 0:
        a = [x]
        b = a
    else:
        a = [1.0]
        b = a
    b.append(3.0)
    return (len(a), len(b))


@on(2.0)
@on(-2.0)
def made_aliased_write(x):
    if x > 0:
        a = [x, 1.0]
        b = a
    else:
        a = [1.0, 2.0]
        b = a
    b[0] = 3.0
    return (a, b)


@on(2.0)
@on(-2.0)
def tup_mut(x):
    a = [1.0]
    b = [2.0]
    t = (a, b) if x > 0 else (b, a)
    t[0].append(1.0)
    t[1][0] = 9.0
    return (a[0], b[0], len(a), len(b))


@on(2.0)
@on(-2.0)
def nt_mut(x):
    a = [1.0]
    b = [2.0]
    t = NT(a, b) if x > 0 else NT(b, a)
    t.a[0] += 5
    return (a, b)


@on(2.0)
@on(-2.0)
def dict_choice(x):
    a = {"k": 1.0}
    b = {"k": 2.0}
    t = a if x > 0 else b
    t["k"] *= 3
    t.update(k=t["k"] + 1)
    return (a, b, t["k"], t.get("k"), len(t), "k" in t)


@on(2.0)
@on(-2.0)
def dict_choice_items(x):
    a = {"k": 1.0, "l": 5.0}
    b = {"k": 2.0, "l": x}
    t = a if x > 0 else b
    s = 0.0
    for _, v in t.items():
        s += v
    return (s, sum(t.values()), len(list(t)))


@on(2.0)
@on(-2.0)
def dict_of_lists_bool(x):
    g = {True: [1.0], False: []}
    g[x > 0].append(x)
    return (len(g[True]), len(g[False]))


@on(2.0)
@on(-2.0)
def dict_str(x):
    g = {"a": 1.0, "b": [1.0, 2.0][1]}
    k = "a" if x > 0 else "b"
    g[k] += x
    return g


@on(2.0)
@on(-2.0)
def dict_str_list(x):
    g = {"a": [1.0], "b": [2.0]}
    k = "a" if x > 0 else "b"
    g[k].append(x)
    g[k][0] = 7.0
    return ([len(v) for v in g.values()], [v[0] for v in g.values()])


@on(2.0)
@on(-2.0)
def attr_choice(x):
    p, q = (P(1.0), P(2.0))
    h = Q(None)
    h.x = p if x > 0 else q
    h.x.n += 5
    h.x.log[1] = 3.0
    return (p.n, q.n, p.log, q.log)


@on(2.0)
@on(-2.0)
def method_chosen(x):
    p, q = (P(1.0), P(2.0))
    r = p if x > 0 else q
    w = r.hit(3) + r.hit(2)
    return (p.n, q.n, w)


@on(2.0)
@on(-2.0)
def arr_choice_shapes(x):
    a = np.zeros(2)
    b = np.zeros(3)
    t = a if x > 0 else b
    t[0] = x
    t += 1
    return (a, b)


@on(2.0)
@on(-2.0)
def arr_choice_none(x):
    a = np.zeros(2)
    t = None
    if x > 0:
        t = a
    if t is not None:
        t[0] = 5.0
        t += 1
    return a


@on(2.0)
@on(-2.0)
def arr_in_list_if(x):
    a = np.zeros(2)
    b = np.ones(2)
    g = [a, b]
    if x > 0:
        g[0], g[1] = (g[1], g[0])
    g[0][0] = 9.0
    return (a, b, g[0], g[1])


@on(2.0)
@on(-2.0)
def arr_alias_both(x):
    a = np.zeros(2)
    b = np.ones(2)
    if x > 0:
        w = a
        u = w
    else:
        w = b
        u = a
    w[0] = 5.0
    u[1] = 7.0
    return (a, b, w, u)


@on(2.0)
@on(-2.0)
def arr_seq(x):
    a = np.zeros(2)
    b = np.ones(2)
    d = np.ones(2) * 2
    w = a
    if x > 0:
        w = b
    if x > 1:
        w = d
    w[0] = 5.0
    return (a, b, d, w)


@on(2.0)
@on(-2.0)
def mult_rebind(x):
    a = [0.0]
    g = [a] * 2
    if x > 0:
        g[0] = [5.0]
    g[1].append(1.0)
    g[0][0] += 1
    return (len(a), g[0][0], g[1][0])


@on(2.0)
@on(-2.0)
def obj_mult(x):
    ps = [P(0.0)] * 3
    if x > 0:
        ps[1] = P(1.0)
    ps[0].n = 4
    return [p.n for p in ps]
