"""`%load_ext malleable`: every cell of a notebook runs inside `malleable.errors.explain()`."""

from typing import Any

from malleable import errors

_loaded: dict[int, tuple] = {}  # by the identity of the shell: what unloading takes back


def load_ipython_extension(ipython: Any) -> None:
    """Explain the errors of JAX in every cell from now on; called by `%load_ext malleable`.

    A handler that was set before with `set_custom_exc` is put aside until the extension is
    unloaded.
    """
    if id(ipython) in _loaded:
        return
    before = ipython.CustomTB, ipython.custom_exceptions
    explaining = errors.explain()
    explaining.__enter__()  # the rest of this cell; each later cell begins anew

    def begin(*_):
        nonlocal explaining
        before, explaining = explaining, errors.explain()
        explaining.__enter__()  # first: what earlier cells made stays known
        before.__exit__(None, None, None)

    def show(shell, kind, error, traceback, tb_offset=None):
        explaining.explain(error)
        if isinstance(error, IndentationError):
            shell.showindentationerror()
        else:
            shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)

    ipython.set_custom_exc((Exception,), show)
    ipython.events.register("pre_run_cell", begin)
    _loaded[id(ipython)] = begin, before, lambda: explaining.__exit__(None, None, None)


def unload_ipython_extension(ipython: Any) -> None:
    """Leave errors as they are again; called by `%unload_ext malleable`."""
    if id(ipython) in _loaded:
        begin, before, end = _loaded.pop(id(ipython))
        ipython.events.unregister("pre_run_cell", begin)
        ipython.CustomTB, ipython.custom_exceptions = before
        end()
