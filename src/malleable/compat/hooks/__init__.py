"""Functions of JAX that we stand in front of while a feature needs it: one file for each purpose.

A hook is declared once, with the names of JAX that it is about, and changes nothing before it is
held. As long as anybody holds it, in any thread, these names are replaced; who is not `here` goes
straight to JAX's own function. Afterwards each name is again what it was.
"""

import contextlib
import contextvars
import functools
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any


class Hook:
    """Names of JAX, and what is called instead: instead(JAX's own function, *args, **kwargs).

    names: of (owner, name, instead), where the owner is a module, class, object, table of rules or
    cell. here() says whether it is for this thread, just now; by default it is for the threads,
    and asyncio tasks, that hold it.
    """

    def __init__(self, *names: tuple[Any, Any, Callable], here: Callable[[], Any] | None = None):
        self.names, self.here = names, here or self.opened
        self.holders = 0
        self._open: contextvars.ContextVar[tuple] = contextvars.ContextVar("open", default=())

    @contextlib.contextmanager
    def held(self, by: Any = None) -> Iterator[None]:
        """While open, the hook is installed; `by` is among what is `opened` here."""
        self._hold(1)
        block = types.SimpleNamespace(by=by, closed=False)
        self._open.set((*self._open.get(), block))
        try:
            yield
        finally:
            self._hold(-1)
            block.closed = True  # a task may outlive the block it was begun in
            self._open.set(tuple(b for b in self._open.get() if not b.closed))

    def opened(self) -> list:
        """Who holds it in this thread or task, outermost first."""
        return [block.by for block in self._open.get() if not block.closed]

    def _hold(self, more: int) -> None:
        with _lock:
            before, self.holders = self.holders, self.holders + more
            if bool(before) != bool(self.holders):
                for owner, name, instead in self.names:
                    (_install if self.holders else _remove)(owner, name, self.here, instead)


_lock = threading.RLock()  # garbage collection may end a block in the middle of this
_fronts: dict[tuple, "_Front"] = {}
_NONE: Any = object()


class _Front:
    """One name of JAX, replaced by a function that asks each of its layers, outermost last."""

    def __init__(self, owner, name):
        self.owner, self.name = owner, name
        self.layers: tuple[tuple, ...] = ()  # (whether it is for here, what is called instead)
        self.kept, self.last = _read(owner, name), next(reversed(sys.modules))
        while getattr(self.kept, "__code__", None) is _CODE:  # left where others came between
            self.kept = self.kept.__wrapped__
        own = getattr(owner, name, _true) if self.kept is _NONE else self.kept
        self.function = _in_front_of(own, self)
        _write(owner, name, self.function)

    def restore(self) -> None:
        """Put JAX's own back, unless somebody else came between: then ours only passes on."""
        if _read(self.owner, self.name) is self.function:
            _write(self.owner, self.name, self.kept)
        late = itertools.takewhile(lambda name: name != self.last, reversed(list(sys.modules)))
        for module in map(sys.modules.get, late):
            names = list(vars(module).items()) if isinstance(module, types.ModuleType) else ()
            for name, value in names:
                if value is self.function:  # imported meanwhile
                    setattr(module, name, value.__wrapped__)


def _in_front_of(own: Callable, front) -> Callable:
    @functools.wraps(own)
    def ask(*args, **kwargs):
        call = own
        for here, instead in front.layers:
            if here():
                call = functools.partial(instead, call)
        return call(*args, **kwargs)

    return ask


_CODE = _in_front_of(len, None).__code__


def _install(owner, name, *layer) -> None:
    front = _fronts.get((id(owner), name)) or _fronts.setdefault(
        (id(owner), name), _Front(owner, name)
    )
    front.layers = (*front.layers, layer)


def _remove(owner, name, *layer) -> None:
    front = _fronts[id(owner), name]
    front.layers = tuple(known for known in front.layers if known != layer)
    if not front.layers:
        _fronts.pop((id(owner), name)).restore()


def _read(owner, name) -> Any:
    if isinstance(owner, types.CellType):
        return owner.cell_contents
    return (owner if isinstance(owner, dict) else vars(owner)).get(name, _NONE)


def _write(owner, name, value) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    elif value is _NONE:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _true(self) -> bool:
    """What Python makes of an object without `__bool__`."""
    return True


def cell_of(public: Callable) -> tuple[types.CellType, str]:
    """Where a public function of JAX holds what it does: it is found by all its names."""
    inner = public.__wrapped__  # type: ignore[attr-defined]
    cells = public.__closure__ or ()
    return next(c for c in cells if c.cell_contents is inner), "cell_contents"


def caller() -> types.FrameType:
    """The frame that called what a hook stands in front of."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith(HOOKS):
        frame = frame.f_back
    return frame


HOOKS = __file__.removesuffix("__init__.py")  # where the code of all hooks is
