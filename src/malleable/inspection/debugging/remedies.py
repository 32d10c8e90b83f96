"""One way out for each way to make a NaN or an Inf: `of("log", ...)`."""

import numpy as np

from malleable.programs.primitives import has

_DOUBLE_WHERE = (
    "mask what goes in as well as what comes out: "
    "`jnp.where(ok, f(jnp.where(ok, x, 1.0)), 0.0)`; a gradient goes through both sides of a where"
)
_MASKED = (
    "see that every row of a mask keeps something, or use a large finite number such as "
    "jnp.finfo(x.dtype).min in place of -inf"
)
_OVERFLOW = "{primitive} overflows {dtype}: scale the operands down, or use a wider dtype"
_SUMS = has("sum")
_DOMAIN = {
    "log": "log is nan below 0, -inf at 0: keep its operand above 0, jnp.log(jnp.maximum(x, eps))",
    "log1p": "log1p is nan below -1 and -inf at -1: keep its operand above -1",
    "sqrt": "sqrt is nan below 0: keep its operand at or above 0, jnp.sqrt(jnp.maximum(x, 0.0))",
    "rsqrt": "rsqrt is inf at 0 and nan below: add a small number to its operand",
    "acos": "acos is nan outside of [-1, 1], which rounding may leave: clip its operand",
    "asin": "asin is nan outside of [-1, 1], which rounding may leave: clip its operand",
    "atanh": "atanh is infinite at -1 and 1 and nan beyond: clip its operand",
    "acosh": "acosh is nan below 1: clip its operand",
    "erf_inv": "erf_inv is infinite at -1 and 1 and nan beyond: clip its operand",
    "pow": "a power is nan for a negative base, inf for 0 to a negative power or a large result",
    "integer_pow": "0 to a negative power is infinite: keep the base away from 0",
    "cholesky": "the matrix is not positive definite: add a small multiple of the identity to it",
    "lgamma": "lgamma is infinite at 0 and at negative integers",
    "digamma": "digamma is nan at 0 and at negative integers",
    "eigh": "derivatives of eigenvectors are infinite where two eigenvalues are equal",
    "exp": "exp overflows {dtype} above {exp:.0f}: subtract the maximum first, as jax.nn.softmax "
    "and jax.nn.logsumexp do",
    "exp2": "exp2 overflows {dtype}: subtract the maximum first",
    "expm1": "expm1 overflows {dtype} above {exp:.0f}",
    "sinh": "sinh overflows {dtype} above {exp:.0f}",
    "cosh": "cosh overflows {dtype} above {exp:.0f}",
    "convert_element_type": "the value does not fit into {dtype}: scale it, or use a wider dtype",
    "reduce_max": "the maximum of nothing is -inf: give `initial=`, or keep an element",
    "reduce_min": "the minimum of nothing is inf: give `initial=`, or keep an element",
    "triangular_solve": "the matrix has a 0 on its diagonal: it is singular",
    "lu": "the matrix is singular",
    "custom_linear_solve": "the matrix is singular, or nearly so",
}


def of(primitive: str, kind: str, inputs: list, dtype, differentiated: bool) -> str:
    """What to do about a nan or an inf ("large" too) that an operation makes of its operands.

    dtype: that of the result; differentiated: whether the operation belongs to a derivative.

    >>> of("div", "nan", [0.0, 0.0], np.float32, False)
    '0 / 0: keep the divisor away from 0, or mask both operands with jnp.where before dividing'
    """
    name = np.dtype(dtype).name if dtype is not None else "this dtype"
    infinite = any(_has(np.isinf, x) for x in inputs)
    if kind == "large":
        return "follow its operands: a step size too large, or a product that grows with each step"
    match primitive:
        case "div" if _has(lambda x: x == 0, inputs[1]) and differentiated:
            return f"a division by 0 in a derivative, which is infinite there; {_DOUBLE_WHERE}"
        case "div" if _has(lambda x: x == 0, inputs[1]):
            zeros = "0 / 0" if _has(lambda x: x == 0, inputs[0]) and kind == "nan" else "x / 0"
            return (
                f"{zeros}: keep the divisor away from 0, or mask both operands with jnp.where "
                "before dividing"
            )
        case "rem":
            return "a remainder by 0: keep the divisor away from 0"
        case "mul" | "dot_general" if infinite and kind == "nan" and differentiated:
            return f"0 * inf in a derivative; {_DOUBLE_WHERE}"
        case "mul" | "dot_general" if infinite and kind == "nan":
            return "0 * inf: find out where the inf comes from, or mask before multiplying"
        case _ if primitive in _SUMS and infinite and kind == "nan":
            return f"inf - inf; if the inf is a mask: {_MASKED}"
        case "pow" | "integer_pow" | "log" | "sqrt" if differentiated and kind == "inf":
            return f"{_DOMAIN[primitive]}; if this is a derivative: {_DOUBLE_WHERE}"
    text = _DOMAIN.get(primitive, _OVERFLOW if kind == "inf" else "keep its operands in its domain")
    largest = float(np.log(float(_largest(dtype)))) if dtype is not None else 0.0
    return text.format(primitive=primitive, dtype=name, exp=largest)


def _largest(dtype) -> float:
    try:
        return np.finfo(dtype).max
    except ValueError:  # bfloat16 and narrower
        return 3.4e38


def _has(test, x) -> bool:
    x = np.asarray(x)
    return x.dtype.kind in "fciu" and bool(np.any(test(x)))
