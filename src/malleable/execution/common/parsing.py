"""Text to syntax trees, from several threads."""

import ast
from typing import Any


def parse(text: str, mode: str = "exec") -> Any:
    """`ast.parse`, tried again where CPython 3.11 mistakes another thread's depth for ours."""
    for _ in range(5):
        try:
            return ast.parse(text, mode=mode)
        except SystemError:  # "AST constructor recursion depth mismatch", cpython#106905
            continue
    return ast.parse(text, mode=mode)
