"""What a traced bool is where others are known: a flag of `return`, after the test that sets it.

`decided` makes a bool, and `remember` says which combinations the results of a branch can have.
`implied` looks a bool up where a test came out so; None is unknown.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from malleable import compat
from malleable.frontend.common.session import session

MOST = 6  # traced bools of which all combinations are gone through
FAR = 5  # steps back to what a bool was made of


def decided(pred, one, other):
    """`one if pred else other`, for two values that are there already; pred is traced."""
    one, other = (x.item() if _is_known_bool(x) else x for x in (one, other))
    if isinstance(one, bool) and one is other:
        return one
    if one is True and other is False:
        return pred
    if one is False and other is True:
        if (found := opposed(pred)) is not None:
            return found
        out = ~pred
    else:
        out = lax.select(jnp.asarray(pred), jnp.asarray(one), jnp.asarray(other))
    if isinstance(out, compat.Tracer) and out.dtype == bool and not out.shape:
        note_choice(out, pred, one, other)
    return out


def note_choice(out, pred, one, other) -> None:
    """A bool is `one if pred else other`, each a bool, too; known until its trace ends."""
    session().chosen[id(out)] = weakref.ref(out), pred, one, other


def opposite(test):
    """`not test`, of a traced bool or a number that counts as one."""
    one = test.dtype == bool and not test.shape
    return decided(test, False, True) if one else jnp.logical_not(test)


def combinations(bools: Sequence) -> set[tuple]:
    """The values that bools may have together, some of them traced: rows of True and False."""
    traced = {id(x): x for x in bools if not isinstance(x, bool)}
    if len(traced) > MOST:
        return set()
    rows, assumed = set(), _assumed()
    for values in itertools.product((True, False), repeat=len(traced)):
        given, known = dict(zip(traced, values, strict=True)), dict(assumed)
        for key, x in traced.items():
            if looked_up(x, known) is (not given[key]):
                break
            _assume(x, given[key], known)
        else:
            rows.add(tuple(x if isinstance(x, bool) else given[id(x)] for x in bools))
    return rows


def remember(test, bools: Sequence, rows: set[tuple]) -> None:
    """The test and these bools have the values of one of the rows; known until their trace ends."""
    if not rows or len(rows) == 2 ** (1 + len(bools)):
        return
    if (found := opposed(test)) is not None:
        test, rows = found, {(not first, *rest) for first, *rest in rows}
    bools = [test, *bools]
    group = tuple(map(_weakly, bools)), rows
    for x in bools:
        session().joint.setdefault(id(x), []).append(group)


def assuming(test, holds: bool, run: Callable, *args, tells=()):
    """run(*args), of what happens where the test came out so, which may tell more of choices.

    vmap runs both paths, and what is printed asks for its own.
    """
    path = session().path
    path.append((test, holds, tells))
    try:
        return run(*args)
    finally:
        path.pop()


def known_now() -> tuple:
    """A mark for `forget_since`."""
    here = session()
    return {*here.chosen}, {key: len(groups) for key, groups in here.joint.items()}, {*here.looked}


def forget_since(mark: tuple) -> None:
    """Forget what was learned of bools and of keys since the mark: the trace ends that it is of."""
    chosen, joint = session().chosen, session().joint
    session().looked &= mark[2]
    for key in [key for key in chosen if key not in mark[0]]:
        del chosen[key]
    for key in list(joint):
        del joint[key][mark[1].get(key, 0) :]
        if not joint[key]:
            del joint[key]


def implied(flag, test, holds: bool) -> bool | None:
    """What a bool is where `test` holds, or does not, if that is known."""
    known = _assumed()
    _assume(test, holds, known)
    return looked_up(flag, known)


def _assumed() -> dict:
    known: dict = {}
    for test, holds, _ in session().path:
        _assume(test, holds, known)
    return known


def _is_known_bool(x) -> bool:
    return isinstance(x, np.ndarray | np.generic) and x.dtype == bool and x.size == 1


def _weakly(x):
    return weakref.ref(x) if isinstance(x, compat.Tracer) else lambda: x


def chosen_from(x) -> tuple | None:
    """(pred, one, other) of a bool that was chosen."""
    found = session().chosen.get(id(x))
    return found[1:] if found and found[0]() is x else None


def opposed(x):
    """That of which a bool is the `not`."""
    test, yes, no = chosen_from(x) or (None, None, None)
    return test if yes is False and no is True else None


def _assume(x, value: bool, known: dict, left: int = FAR) -> None:
    """Add to what is known that x is so, and what follows for what it was chosen from."""
    if isinstance(x, bool):
        return
    known[id(x)] = value
    parts = chosen_from(x)
    if parts is None or not left:
        return
    pred, one, other = parts
    if one is (not value):
        _assume(pred, False, known, left - 1)
        _assume(other, value, known, left - 1)
    elif other is (not value):
        _assume(pred, True, known, left - 1)
        _assume(one, value, known, left - 1)


def looked_up(x, known: dict, left: int = FAR) -> bool | None:
    if isinstance(x, bool):
        return x
    if id(x) in known:
        return known[id(x)]
    for refs, rows in session().joint.get(id(x), ()):
        bools = [ref() for ref in refs]
        at = next((k for k, b in enumerate(bools) if b is x), None)
        if at is not None:
            told = [(k, known[id(b)]) for k, b in enumerate(bools) if id(b) in known]
            values = {row[at] for row in rows if all(row[k] is so for k, so in told)}
            if len(values) == 1:
                return values.pop()
    parts = chosen_from(x)
    if parts is None or not left:
        return None
    pred, one, other = parts
    found = looked_up(pred, known, left - 1)
    if found is not None:
        return looked_up(one if found else other, known, left - 1)
    paths = {True: dict(known), False: dict(known)}
    for holds, path in paths.items():
        _assume(pred, holds, path, left - 1)
    found = looked_up(one, paths[True], left - 1)
    return found if found is looked_up(other, paths[False], left - 1) else None
