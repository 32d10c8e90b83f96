"""The names that generated NumPy code may mention."""

import ml_dtypes
import numpy as np
from scipy import special

from malleable.execution.numpy import lapack as numpy_lapack
from malleable.execution.numpy import runtime as numpy_runtime
from malleable.execution.numpy import windows as numpy_windows

MODULES = numpy_runtime, numpy_lapack, numpy_windows

FUNCTIONS = {
    name: f
    for module in MODULES
    for name, f in vars(module).items()
    if callable(f) and f.__module__ == module.__name__ and not name.startswith("_")
}
NAMES = FUNCTIONS | {
    "np": np,
    "special": special,
    "bfloat16": ml_dtypes.bfloat16,
    "max": max,
    "min": min,
}
