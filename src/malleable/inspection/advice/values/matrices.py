"""Linear algebra with arrays that are not square matrices, or do not fit one."""

import ast

from malleable.inspection.advice.evidence.diagnosis import sure
from malleable.inspection.advice.evidence.operands import Operand
from malleable.inspection.advice.evidence.sources import text

_INSTEAD = {
    "inv": "the pseudo-inverse is jnp.linalg.pinv({a})",
    "solve": "the least-squares solution is jnp.linalg.lstsq({a}, {b})[0]",
    "eig": "the singular values are in jnp.linalg.svd({a})",
    "eigh": "the singular values are in jnp.linalg.svd({a})",
    "eigvals": "the singular values are jnp.linalg.svd({a}, compute_uv=False)",
    "eigvalsh": "the singular values are jnp.linalg.svd({a}, compute_uv=False)",
}
_SQUARE = {*_INSTEAD, "det", "slogdet", "cholesky", "matrix_power", "expm", "sqrtm", "lu_solve"}
_SQUARE |= {"solve_triangular", "cho_factor", "cho_solve", "schur", "logm", "triangular_solve"}


def square(found, node: ast.AST, known: list[Operand]) -> tuple[str, str]:
    """(what, way out) for a function of linear algebra that takes a square matrix first."""
    name = text(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    arrays = [one for one in known if one.shape and len(one.shape) > 1]
    one = sure(name in _SQUARE and arrays)[0]
    rows, columns = one.shape[-2:]
    others = [other for other in known if other.shape and other is not one]
    if rows != columns:
        what = f"{name} takes a square matrix, or many of them in leading axes, and {one}: "
        what += f"its last two axes are {rows} and {columns}"
        hint = "pass a square one, of which the last two axes are equal"
        instead = _INSTEAD.get(name, "").format(a=one.name, b=others[0].name if others else "b")
        return what, hint + (f"; of this one, {instead}" if instead else "")
    other = sure(name != "matrix_power" and others)[0]
    size = other.shape[-2] if len(other.shape) > 1 else other.shape[-1]
    sure(size != rows)
    what = f"{one} and {other}: a right side for {rows} equations has {rows} rows, not {size}"
    turned = len(other.shape) == 2 and other.shape[-1] == rows
    return what, f"write {other.name}.T" if turned else f"pass a `{other.name}` of {rows} rows"
