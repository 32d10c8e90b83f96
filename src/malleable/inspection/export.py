"""Programs for elsewhere, beside `save`: as Python source, as ONNX."""

import importlib
from collections.abc import Callable
from typing import Any

from malleable.errors import MalleableError
from malleable.inspection.source.write import source as source
from malleable.progress import working


def onnx(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The ONNX model of `fun` on some arguments: see `malleable.integrations.onnx.export_onnx`.

    Raises MalleableError where the extra `onnx` is not installed.
    """
    try:
        integration = importlib.import_module("malleable.integrations.onnx")
    except ModuleNotFoundError as err:
        if (err.name or "").startswith("malleable"):
            raise
        raise MalleableError(
            f"export.onnx needs {err.name}, which is not installed",
            hint="pip install 'malleable[onnx]'",
        ) from err
    with working(f"export {getattr(fun, '__name__', 'it')} to ONNX"):
        return integration.export_onnx(fun, *args, **kwargs)
