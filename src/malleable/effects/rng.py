"""Random keys without plumbing: `next_key()` inside, `seed(fun)(key, ...)` outside."""

from collections.abc import Callable
from typing import Any, Concatenate

import jax

from malleable import compat
from malleable.core.frame import Frame
from malleable.core.interpret import Rulebook, run_staged
from malleable.core.marker import marker
from malleable.core.stage import stage
from malleable.errors import TransformError
from malleable.programs.types import is_key
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R

_MISSING = {
    "missing": "next_key() is called, and no key is around",
    "hint": "run the function as seed(fun)(key, ...)",
}


def _key(*, shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)


own_key_p = marker("next_key", out=_key, lanes="each", **_MISSING)
shared_key_p = marker("next_key:shared", out=_key, lanes="shared", **_MISSING)
_type = compat.user_context(None)  # of the keys of the nearest seed: part of the key of every cache


@called_as("next_key(), inside of seed(fun)(key, *args)")
def next_key(*, shared: bool = False) -> jax.Array:
    """A fresh key, supplied by the nearest enclosing `seed`.

    Under `vmap` each lane gets a key of its own, under `shard_map` each device; with shared=True
    all get the same one. Where `out_specs` say that a result is the same along a mesh axis, the
    keys it comes of are the same along that axis, and a note says so.
    (jacfwd and hessian are a vmap too: write jacfwd(seed(f)), or share the key.)

    >>> draws = lambda: jax.vmap(lambda _: jax.random.uniform(next_key()))(jax.numpy.zeros(2))
    >>> a, b = seed(draws)(jax.random.key(0))
    >>> bool(a != b)
    True
    """
    prim = shared_key_p if shared else own_key_p
    if not prim.active:
        return prim()  # raises
    dtype = _type.value or jax.eval_shape(lambda: jax.random.key(0)).dtype
    return prim(shape=(), dtype=dtype)


@called_as("seed(fun)(key, *args)")
def seed(fun: Callable[P, R]) -> Callable[Concatenate[Any, P], R]:
    """fun(*args) -> out  becomes  seed(fun)(key, *args) -> out.

    The n-th key of a body is fold_in(root, n), n counted while tracing; each step of a loop has
    a root of its own, and each device of a mesh folds its place in. So jit, remat,
    grad and inlining do not change the numbers: `seed(grad(fun))` and `grad(seed(fun))` draw the
    same, as long as the rule of a custom derivative draws as many keys as its function.
    """

    @called_as("seed(fun)(key, *args)", of=fun)
    def seeded(key: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        key = typed(key)
        with _type(key.dtype):  # also while it runs: derivatives of a user's are traced then
            staged = stage(fun, _BOOK.markers, raises=False)(*args, **kwargs)
            return run_staged(staged, _BOOK, Frame(key=key))

    return seeded


def typed(key):
    """A key array, also from the raw bits that `jax.random.PRNGKey` gives."""
    if is_key(key) and key.ndim == 0:
        return key
    dtype = getattr(key, "dtype", None)
    if dtype == "uint32" and key.shape in [(2,), (4,)]:
        impl = "threefry2x32" if key.shape == (2,) else "rbg"
        return jax.random.wrap_key_data(key, impl=impl)
    raise TransformError(
        f"a single random key is needed, not {getattr(key, 'aval', None) or repr(key)}",
        hint="pass jax.random.key(0); for several keys, vmap over them",
    )


def _own(frame, *, shape, dtype):
    key = frame.next_key()
    return jax.random.split(key, shape) if shape else key


def _shared(frame, *, shape, dtype):
    return frame.next_key(shared=True)


_BOOK = Rulebook({own_key_p: _own, shared_key_p: _shared})
