"""More programs for `test_places`: picked by an index, and in loops."""

import numpy as np

from tests.frontend.place_programs import D, P, Q, V, on


@on(V, 2)
def idx_list(v, k):
    g = [[0.0] * 3 for _ in range(4)]
    g[k][1] = 5.0
    g[k] += [1.0]
    return ([len(r) for r in g], [r[1] for r in g])


@on(V, 2)
def idx_list_row(v, k):
    g = [[0.0] * 3 for _ in range(4)]
    r = g[k]
    r[0] = 1.0
    r[k] = 2.0
    g[2][1] = 7.0
    return (g, r)


@on(V, 2)
def idx_arr(v, k):
    g = [np.zeros(3) for _ in range(4)]
    r = g[k]
    r[0] = 1.0
    r += 2
    g[2][1] = 70.0
    g[k] *= 2
    g[k][1:] = r[:2]
    return (g, r)


@on(V, 2)
def idx_arr_shapes(v, k):
    g = [np.zeros(2), np.zeros(3), np.zeros(4)]
    g[k][0] = 1.0
    g[k] += 2
    return g


@on(V, 2)
def idx_views(v, k):
    a = v.reshape(4, 2)
    rows = [a[0], a[1], a[2]]
    rows[k][0] = 100.0
    rows[k] += 1
    return v


@on(V, 1)
def idx_overlap(v, k):
    rows = [v[0:3], v[2:5], v[4:7]]
    rows[k][0] = 100.0
    rows[k] *= 2
    return v


@on(V, 2)
def idx_set_list(v, k):
    g = [[1.0], [2.0], [3.0]]
    new = [9.0]
    g[k] = new
    new.append(4.0)
    g[0][0] = 8.0
    return ([len(r) for r in g], [r[0] for r in g])


@on(V, 2)
def idx_set_arr(v, k):
    g = [np.zeros(2), np.zeros(2), np.zeros(2)]
    new = np.ones(2)
    g[k] = new
    new[0] = 4.0
    return g


@on(V, 0, 2)
def swap_objs(v, i, j):
    ps = [P(x) for x in v[:4]]
    ps[i], ps[j] = (ps[j], ps[i])
    ps[0].n = 1
    ps[2].n += 5
    return ([p.x for p in ps], [p.n for p in ps])


@on(V)
def bubble_objs(v):
    ps = [P(x, i) for i, x in enumerate(v[:4])]
    for i in range(4):
        for j in range(3 - i):
            if ps[j].x > ps[j + 1].x:
                ps[j], ps[j + 1] = (ps[j + 1], ps[j])
    ps[0].n += 100
    return ([p.x for p in ps], [p.n for p in ps])


@on(V)
def best_loop(v):
    ps = [P(x) for x in v[:5]]
    best = ps[0]
    for p in ps:
        if p.x > best.x:
            best = p
    best.n += 1
    best.log[0] = 4.0
    return ([p.n for p in ps], [p.log[0] for p in ps], best is ps[4])


@on(V)
def best_loop_compiled(v):
    rows = [[0.0, 0.0], [0.0, 0.0]]
    cur = rows[0]
    for x in v:
        if x > 2:
            cur = rows[1]
        else:
            cur = rows[0]
        cur[0] += x
    cur[1] = 1.0
    return rows


@on(V)
def while_idx(v):
    g = [[0.0], [0.0], [0.0]]
    i = 0
    k = 0
    while k < v[0] * 2:
        g[i][0] += k
        i = (i + 1) % 3
        k += 1
    return g


@on(V)
def while_choice(v):
    a = [0.0]
    b = [0.0]
    cur = a
    k = 0
    while k < v[0] * 2:
        cur[0] += k
        cur = b if cur is a else a
        k += 1
    return (a, b)


@on(V)
def swap_lists_loop(v):
    a = [0.0, 0.0]
    b = [1.0, 1.0]
    a0 = a
    for x in v:
        b[0] = a[0] + x
        a, b = (b, a)
    return (a, b, a0)


@on(V)
def swap_views_loop(v):
    g = np.zeros((2, 3))
    a = g[0]
    b = g[1]
    for x in v[:3]:
        b[:] = a + x
        a, b = (b, a)
    return (g, a, b)


@on(V)
def swap_arr_alias(v):
    p = np.zeros(3)
    q = np.ones(3)
    a = p
    b = q
    for x in v[:3]:
        b[:] = a + x
        a, b = (b, a)
    return (p, q, a, b)


@on(V)
def min_max(v):
    ps = [P(x) for x in v[:5]]
    lo = min(ps, key=lambda p: p.x)
    hi = max(ps, key=lambda p: p.x)
    lo.n += 1
    hi.n += 2
    lo.x, hi.x = (hi.x, lo.x)
    return ([p.n for p in ps], [p.x for p in ps])


@on(V)
def sorted_all(v):
    ps = [P(x) for x in v[:5]]
    for r, p in enumerate(sorted(ps, key=lambda p: -p.x)):
        p.n = r
    return [p.n for p in ps]


@on(V)
def linked(v):

    class N:
        def __init__(s, x, nxt):
            s.x = x
            s.nxt = nxt

    head = None
    for i in range(4):
        head = N(v[i], head)
    cur = head
    best = head
    while cur is not None:
        if cur.x > best.x:
            best = cur
        cur = cur.nxt
    best.x = 0.0
    out = []
    cur = head
    while cur is not None:
        out.append(cur.x)
        cur = cur.nxt
    return out


@on(V)
def dc_lists(v):
    ds = [D(x) for x in v[:3]]
    for i in range(6):
        ds[int(v[i]) % 3].items.append(v[i])
    return [len(d.items) for d in ds]


@on(V)
def zip_rows(v):
    g = [[0.0, 0.0] for _ in range(8)]
    for r, x in zip(g, v):
        r[0] = x
        r[1] += 1
    return g


@on(V)
def enum_rows(v):
    g = [[0.0, 0.0] for _ in range(3)]
    for x in v:
        for _, r in enumerate(g):
            if x > r[0]:
                r[0] = x
                break
    return g


@on(V)
def kmeans(v):
    cs = [[v[0], 0], [v[4], 0]]
    for _ in range(2):
        for c_ in cs:
            c_[1] = 0
        for x in v:
            n = min(cs, key=lambda c_: (c_[0] - x) ** 2)
            n[1] += 1
    return cs


@on(V)
def bank(v):
    acc = {"a": D(10.0), "b": D(20.0)}
    for x in v:
        src = acc["a"] if x > 3 else acc["b"]
        dst = acc["b"] if x > 3 else acc["a"]
        if src.x >= x:
            src.x -= x
            dst.x += x
    return (acc["a"].x, acc["b"].x)


@on(V, 1)
def obj_in_obj(v, k):
    hs = [Q(P(x)) for x in v[:3]]
    hs[k].x.n += 1
    p = hs[k].x
    p.x = 0.0
    hs[k].x = P(50.0)
    p.n += 1
    return ([h.x.n for h in hs], [h.x.x for h in hs], p.n)


class Grid:
    def __init__(s):
        s.d = [[0.0] * 3 for _ in range(3)]

    def __getitem__(s, k):
        return s.d[k]

    def __setitem__(s, k, v):
        s.d[k] = v

    def __iadd__(s, o):
        s.d[0][0] += o
        return s

    @property
    def first(s):
        return s.d[0][0]

    @first.setter
    def first(s, v):
        s.d[0][0] = v


@on(V, 1)
def user_item(v, k):
    g = Grid()
    h = Grid()
    t = g if v[0] > v[1] else h
    t[k][k] += 5
    t[0] = [1.0, 1.0, 1.0]
    t += 3.0
    t.first *= 2
    return (g.d, h.d)


@on(V, 2)
def args_list(v, k):

    def bump(r):
        r[0] += 1
        return r

    g = [[0.0], [1.0], [2.0]]
    bump(g[k])[0] += 10
    return g


@on(V, 2)
def neg_index(v, k):
    g = [[0.0], [1.0], [2.0]]
    g[-k][0] = 9.0
    g[k - 3][0] += 1
    return g


@on(V)
def loop_rebind_alias(v):
    pos = [0.0, 0.0]
    keep = pos
    for x in v[:3]:
        pos[0] += x
        pos = [pos[0], pos[1] + 1]
    pos[0] += 100
    return (pos, keep)


@on(V)
def while_rebind_alias(v):
    pos = [0.0, 0.0]
    keep = pos
    k = 0
    while k < v[0]:
        pos = [pos[0] + v[0], pos[1] + 1]
        k += 1
    pos[0] += 100
    return (pos, keep)


@on(V, 0)
def while_rebind_zero(v, n):
    pos = [0.0, 0.0]
    keep = pos
    k = 0
    while k < n:
        pos = [pos[0] + v[0], pos[1] + 1]
        k += 1
    pos[0] += 100
    return (pos, keep)


@on(V)
def self_head(v):

    class L:
        def __init__(s):
            s.head = None
            s.n = 0

        def add(s, o):
            s.head = o if s.head is None or o.x > s.head.x else s.head
            s.n += 1

    held = L()
    ps = [P(x) for x in v[:4]]
    for p in ps:
        held.add(p)
    held.head.n = 9
    return [p.n for p in ps]


@on(V)
def grow_obj(v):
    out = []
    for x in v:
        p = P(x)
        out.append(p)
        p.n = 3
    out[2].n += 1
    return [p.n for p in out]


@on(V)
def iterate_chosen_rows(v):
    a = [[0.0], [1.0]]
    b = [[2.0], [3.0]]
    for r in a if v[0] > 2 else b:
        r[0] += 10
    return (a, b)


@on(V)
def comp_chosen(v):
    a = [P(1.0), P(2.0)]
    b = [P(3.0), P(4.0)]
    t = a if v[0] > 2 else b
    [p.hit(2) for p in t]
    t[0].n += 1
    return ([p.n for p in a + b], [p.x for p in t])
