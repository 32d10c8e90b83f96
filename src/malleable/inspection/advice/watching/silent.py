"""Says which 64-bit numbers lose their value: without jax_enable_x64, JAX keeps 32 bits."""

from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.compat import Place
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.trouble import here
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import indices, running
from malleable.inspection.advice.watching.running import Observer, Run

_WIDE = "turn on 64-bit types at the start, jax.config.update('jax_enable_x64', True)"
_NARROW = {"int64": np.int32, "uint64": np.uint32, "float64": np.float32}


class Truncations(Observer):
    """Looks at the NumPy arrays that are handed to JAX."""

    def __init__(self):
        super().__init__()
        self.written: dict[Place, str] = {}

    def follows(self, running: compat.Running) -> bool:
        if jax.config.read("jax_enable_x64"):
            return False
        made = compat.name_of(running.program) == "stage"  # jnp.asarray of what is on the host
        return any(is_wide(x) or (made and is_narrow(x)) for x in running.leaves)

    def called(self, run: Run, caller):
        if jax.config.read("jax_enable_x64"):
            return
        for name, leaf in zip(run.names, run.leaves, strict=True):
            if is_wide(leaf):
                self.look(name if run.own else "", leaf, caller)
        if not run.own and caller is not None:
            place = running.place_in(caller)
            assert place is not None
            if place not in self.written:
                self.written[place] = handed_over(place)
            name = self.written[place]
            value = caller.f_locals.get(name, caller.f_globals.get(name)) if name else None
            if is_wide(value):
                self.look(name, value, caller)

    def narrowed(self, asked, given, caller):
        if (place := running.place_in(caller)) is None:
            return
        asked, given = np.dtype(asked).name, np.dtype(given).name
        what = f"{asked} is asked for, and JAX makes {given} of it: 64-bit types are off"
        hint = f"write {given} if that is enough; else {_WIDE}"
        self.tell(place, Advice(what, here(place), hint))

    def converted(self, given, kept, caller):
        place = running.place_in(caller)
        wrote = indices.written(place)
        node = wrote.node if wrote else None
        value = sources.argument(node, 0, "values")
        if place is not None and wrote is not None and value is not None:
            self.tell(place, converts(wrote.base, sources.text_of(value), given, kept, place))

    def look(self, name: str, value, caller):
        lost, place = overflowing(value), running.place_in(caller)
        if lost is not None and place is not None:
            name = running.name_in(caller, value) or name or "an array"
            self.tell(place, advice(name, np.asarray(value).dtype.name, *lost, place))


def converts(base: str, value: str, given, kept, place: Place) -> Advice:
    """A value that loses something where it is written."""
    given, kept = np.dtype(given), np.dtype(kept)
    lost = {"f": "what is after the point", "c": "the imaginary part"}.get(given.kind, "")
    lost = f" and drops {lost}" if lost and kept.kind != given.kind else ""
    what = f"`{value}` is {given} and `{base}`, into which it is written, is {kept}: JAX converts "
    what += f"it to {kept}{lost}"
    hint = f"make `{base}` an array of {given}, {base}.astype(jnp.{given}); or convert what is "
    hint += f"written, jnp.asarray({value}, jnp.{kept}), if that is meant"
    return Advice(what, here(place), hint)


def advice(name: str, dtype: str, value, becomes, place: Place) -> Advice:
    narrow = np.dtype(_NARROW[dtype]).name
    what = f"`{name}` is {dtype} and holds {value}, which does not fit into {narrow}: JAX makes "
    what += f"{becomes} of it, silently"
    check = f"np.iinfo('{narrow}')" if narrow != "float32" else "np.finfo('float32').max"
    hint = f"{_WIDE}; or keep the numbers within {check}"
    return Advice(what, here(place), hint)


def is_wide(x) -> bool:
    return isinstance(x, np.ndarray | np.generic) and x.dtype.name in _NARROW


def is_narrow(x) -> bool:
    """Whether this may have been a 64-bit array before JAX took it over from the host."""
    dtype = getattr(x, "dtype", None)
    return not isinstance(x, compat.HostArray) and getattr(dtype, "name", "") in _NARROWED


_NARROWED = {np.dtype(narrow).name for narrow in _NARROW.values()}


def overflowing(x) -> tuple[Any, Any] | None:
    """(a value that 32 bits cannot hold, what becomes of it), None if there is none."""
    x = np.asarray(x)
    if not x.size:
        return None
    narrow = _NARROW[x.dtype.name]
    if x.dtype.kind == "f":
        bad = np.isfinite(x) & (np.abs(x) > np.finfo(narrow).max)
    else:
        limits = np.iinfo(narrow)
        bad = (x < limits.min) | (x > limits.max)
    if not bad.any():
        return None
    value = x[bad].ravel()[0] if x.ndim else x[()]
    with np.errstate(all="ignore"):
        return value, value.astype(narrow)


def handed_over(place: Place) -> str:
    """What a line of user code turns into an array of JAX."""
    node = sources.expression_at(place)
    if sources.called(node) not in ("asarray", "array", "device_put"):
        return ""
    return sources.text_of(sources.argument(node, 0, "object") or sources.argument(node, 0, "a"))
