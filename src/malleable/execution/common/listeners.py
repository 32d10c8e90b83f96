"""Whether a handler of a library, entered outside of a region, hears what runs in it."""

import sys

# Where a library keeps the handlers that are entered: what `numpyro.sample` or `hk.get_parameter`
# does is told to them, or asked of them, which a compiled region does only where it is traced.
_STACKS = (("numpyro.primitives", "_PYRO_STACK"), ("haiku._src.base", "frame_stack"))


def is_heard() -> bool:
    """Whether such a handler is entered now: a region then runs in Python."""
    get = sys.modules.get
    for module, name in _STACKS:  # asked at every call of a region
        found = get(module)
        if found is not None and getattr(found, name, ()):
            return True
    return False
