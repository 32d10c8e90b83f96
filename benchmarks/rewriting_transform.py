"""Passes as transformations of functions, for programs that ask for one by name.

    PYTHONPATH=. python ../shared/cases/realworld.py --transform benchmarks.rewriting_transform:all

A name is that of a pass (`cse`, `push_up_reductions`, ...), `ours` (what the benchmarks run),
`rules` (the shipped library), or `all`: every pass, one after the other.
"""

import malleable as mal

PASSES = [
    "dce",
    "cse",
    "fold",
    "hoist",
    "scan_trim",
    "scan_merge",
    "matmul_order",
    "reroll",
    "push_up_reductions",
    "stream",
    "merge_dims",
]


def __getattr__(name):
    chosen = {"ours": PASSES[-3:], "all": ["rules", *PASSES]}.get(name, [name])
    if unknown := set(chosen) - {"rules", *PASSES}:
        raise AttributeError(f"no pass {unknown.pop()!r}; there are {', '.join(PASSES)}")
    return lambda fun: mal.optimize(fun, *map(named, chosen))


def named(name):
    return mal.rewrite(*mal.LIBRARY) if name == "rules" else getattr(mal, name)
