"""Arithmetic, comparisons, functions and conversions of NumPy for the elementwise primitives."""

import dataclasses
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.names import NAMES
from malleable.execution.numpy.writer import (
    AND,
    ATOM,
    CHOICE,
    COMPARE,
    OR,
    PRODUCT,
    RULES,
    SHIFT,
    SIGN,
    SUM,
    XOR,
    Value,
    Writer,
    is_one,
    numpy_rule,
    same_sizes,
)

OPERATORS = {  # primitive -> (operator, how tightly it binds)
    "add": ("+", SUM),
    "add_any": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "and": ("&", AND),
    "or": ("|", OR),
    "xor": ("^", XOR),
    "shift_left": ("<<", SHIFT),
    "eq": ("==", COMPARE),
    "ne": ("!=", COMPARE),
    "lt": ("<", COMPARE),
    "le": ("<=", COMPARE),
    "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
}

FUNCTIONS = {  # primitive -> function of NumPy, or of numpy_names where it has no dot
    "acos": "np.arccos",
    "acosh": "np.arccosh",
    "asin": "np.arcsin",
    "asinh": "np.arcsinh",
    "atan": "np.arctan",
    "atan2": "np.arctan2",
    "atanh": "np.arctanh",
    "cbrt": "np.cbrt",
    "ceil": "np.ceil",
    "clz": "leading_zeros",
    "complex": "make_complex",
    "conj": "np.conj",
    "cos": "np.cos",
    "cosh": "np.cosh",
    "exp": "np.exp",
    "exp2": "np.exp2",
    "expm1": "np.expm1",
    "floor": "np.floor",
    "is_finite": "np.isfinite",
    "log": "np.log",
    "log1p": "np.log1p",
    "log2": "np.log2",
    "max": "np.maximum",
    "min": "np.minimum",
    "nextafter": "np.nextafter",
    "population_count": "bit_count",
    "shift_right_arithmetic": "shift_right_signed",
    "shift_right_logical": "shift_right",
    "sin": "np.sin",
    "sinh": "np.sinh",
    "sqrt": "np.sqrt",
    "square": "np.square",
    "tan": "np.tan",
    "tanh": "np.tanh",
}


def broadcast(ins: Sequence[Value]) -> tuple:
    """The sizes of an elementwise result."""
    rank = max(len(x.sizes) for x in ins)
    sizes = []
    for k in range(rank, 0, -1):
        dims = [x.sizes[-k] for x in ins if len(x.sizes) >= k]
        sizes.append(next((d for d in dims if not is_one(d)), 1))
    return tuple(sizes)


def elementwise(w: Writer, eqn, form, ins: Sequence[Value], binding=ATOM, inner=None) -> Value:
    """form(expressions) -> expression, of operands that broadcast; computed now if all are known.

    binding: of the result; inner: how tightly the operands bind, if not as it does.
    """
    aval = eqn.outvars[0].aval
    if all(x.weak for x in ins):
        text = form(*(w.typed(x) for x in ins))
        with np.errstate(all="ignore"):
            return w.literal(eval(text, NAMES | w.globals), aval)
    last = len(ins) - 1
    bindings = [
        min(binding + (i == last), ATOM) if inner is None else inner for i in range(last + 1)
    ]
    texts = [w.text(x, b) for x, b in zip(ins, bindings, strict=True)]
    return w.value(aval, form(*texts), broadcast(ins), binding)


def _operator(symbol: str, binding: int):
    def rule(w: Writer, eqn, x: Value, y: Value) -> Value:
        if binding == COMPARE and x.binding == COMPARE:  # not a chain
            w.name(x)
        return elementwise(w, eqn, lambda a, b: f"{a} {symbol} {b}", (x, y), binding)

    return rule


def _called_by_name(name: str):
    def rule(w: Writer, eqn, *ins: Value) -> Value:
        return elementwise(w, eqn, lambda *xs: f"{name}({', '.join(xs)})", ins, ATOM, 0)

    return rule


def called(w: Writer, eqn, name: str, *ins: Value) -> Value:
    """A function of NumPy or of numpy_runtime, elementwise."""
    return _called_by_name(name)(w, eqn, *ins)


RULES.update({p: _operator(*operator) for p, operator in OPERATORS.items()})
RULES.update({p: _called_by_name(name) for p, name in FUNCTIONS.items()})


_SELECTED = frozenset(map(np.dtype, ["float32", "float64", "complex64", "complex128"]))


@numpy_rule("mul")
def product(w, eqn, x, y):
    """A product; with a mask, 0 where that is False, also for NaN, as XLA has it."""
    for one, other in ((x, y), (y, x)):
        if one.mask is not None and other.mask is None and one.shape == other.shape:
            zero = f"{w.dtype(one.dtype)}(0)"
            form = lambda m, a: f"np.where({m}, {a}, {zero})"  # noqa: B023, E731
            return elementwise(w, eqn, form, (one.mask, other), ATOM, 0)
    return _operator(*OPERATORS["mul"])(w, eqn, x, y)


@numpy_rule("max", "min")
def extremum(w, eqn, x, y):
    least = "(-np.inf)" if eqn.primitive.name == "max" else "np.inf"
    for one, other in ((x, y), (y, x)):
        if one.weak and one.text == least and other.rank == len(eqn.outvars[0].aval.shape):
            return other
    return called(w, eqn, FUNCTIONS[eqn.primitive.name], x, y)


@numpy_rule("lt")
def less(w, eqn, x, y):
    if x.natural and y.weak and y.text == "0":
        return w.value(eqn.outvars[0].aval, "False", (), weak=True, named=True)
    return _operator(*OPERATORS["lt"])(w, eqn, x, y)


@numpy_rule("neg")
def neg(w, eqn, x):
    return elementwise(w, eqn, lambda a: f"-{a}", (x,), SIGN)


@numpy_rule("not")
def not_(w, eqn, x):
    return elementwise(w, eqn, lambda a: f"~{a}", (x,), SIGN)


@numpy_rule("sign")
def sign(w, eqn, x):
    return called(w, eqn, "sign" if x.dtype.kind == "f" else "np.sign", x)


@numpy_rule("abs")
def abs_(w, eqn, x):
    return x if x.dtype.kind == "u" else called(w, eqn, "np.abs", x)


@numpy_rule("div")
def div(w, eqn, x, y):
    if x.dtype.kind in "iu":
        return called(w, eqn, "divide", x, y)
    return _operator("/", PRODUCT)(w, eqn, x, y)


@numpy_rule("rem")
def rem(w, eqn, x, y):
    return called(w, eqn, "remainder" if x.dtype.kind in "iu" else "np.fmod", x, y)


@numpy_rule("rsqrt")
def rsqrt(w, eqn, x):
    return elementwise(w, eqn, lambda a: f"1.0 / np.sqrt({a})", (x,), PRODUCT, 0)


@numpy_rule("logistic")
def logistic(w, eqn, x):
    return elementwise(w, eqn, lambda a: f"1.0 / (1.0 + np.exp(-{a}))", (x,), PRODUCT, SIGN)


@numpy_rule("one_minus_square")
def one_minus_square(w, eqn, x):
    return elementwise(w, eqn, lambda a: f"1.0 - np.square({a})", (x,), SUM, 0)


@numpy_rule("integer_pow")
def integer_pow(w, eqn, x):
    n = eqn.params["y"]
    if n == 2:
        return called(w, eqn, "np.square", x)
    if n == 3:
        w.name(x)
        return elementwise(w, eqn, lambda a: f"{a} * {a} * {a}", (x,), PRODUCT)
    return elementwise(w, eqn, lambda a: f"power({a}, {n})", (x,), ATOM, 0)


@numpy_rule("pow")
def pow_(w, eqn, x, y):
    if x.dtype.kind not in "fc":
        raise Unsupported("pow of integers")
    if x.dtype == y.dtype:
        return called(w, eqn, "np.power", x, y)
    return elementwise(w, eqn, lambda a, b: f"np.power({a}, {_as(w, b, x.dtype)})", (x, y), ATOM)


def _as(w: Writer, text: str, dtype) -> str:
    return f"np.asarray({text}).astype({w.dtype(dtype)})"


@numpy_rule("round")
def round_(w, eqn, x):
    away = int(eqn.params["rounding_method"]) == 0
    return called(w, eqn, "round_away" if away else "np.rint", x)


@numpy_rule("real", "imag")
def part(w, eqn, x):
    return elementwise(w, eqn, lambda a: f"{a}.{eqn.primitive.name}", (x,), ATOM)


@numpy_rule("clamp")
def clamp(w, eqn, low, x, high):
    form = lambda a, b, c: f"np.minimum(np.maximum({b}, {a}), {c})"  # noqa: E731
    return elementwise(w, eqn, form, (low, x, high), ATOM, 0)


@numpy_rule("select_n")
def select_n(w, eqn, which, *cases):
    aval = eqn.outvars[0].aval
    if all(x.named and x.text == cases[0].text for x in cases) and same_sizes(
        *(x.sizes for x in (cases[0], cases[-1]))
    ):
        return cases[0]
    if which.weak:
        case = cases[int(eval(which.text))]
        return case
    if len(cases) > 2:
        return _select_many(w, eqn, which, cases)
    no, yes = list(cases)
    if not which.sizes and which.dtype == bool:  # one of the two, as it is
        alike = same_sizes(no.sizes, yes.sizes)
        read = w.typed if alike else w.whole
        form = f"{read(yes)} if {w.text(which, COMPARE)} else {read(no)}"
        return w.value(aval, form, no.sizes if alike else None, CHOICE)
    if all(x.weak for x in cases):
        yes_text = w.typed(yes)
    else:
        yes_text = w.text(yes, COMPARE)
    if which.dtype != bool:
        which = Value(f"{w.text(which, COMPARE + 1)} != 0", which.shape, which.dtype, which.sizes)
    text = f"np.where({w.text(which)}, {yes_text}, {w.text(no, COMPARE)})"
    return w.value(aval, text, broadcast((which, no, yes)))


def _select_many(w, eqn, which, cases):
    index = w.name(which)
    text = w.typed(cases[-1])
    for i in reversed(range(len(cases) - 1)):
        text = f"np.where({index} <= {i}, {w.text(cases[i])}, {text})"
    return w.value(eqn.outvars[0].aval, text, broadcast((which, *cases)))


@numpy_rule("convert_element_type")
def convert_element_type(w, eqn, x):
    aval, old, new = eqn.outvars[0].aval, x.dtype, np.dtype(eqn.params["new_dtype"])
    if old == new:
        return x
    form = lambda a: converted_text(w, a, old, new)  # noqa: E731
    if x.weak:
        return elementwise(w, eqn, form, (x,))
    made = w.value(aval, form(w.array(x)), x.sizes)
    return dataclasses.replace(made, mask=x) if old.kind == "b" and new in _SELECTED else made


def converted_text(w: Writer, text: str, old: np.dtype, new: np.dtype) -> str:
    """An array, written with an operand's tightness, as one of another type."""
    wide = old == ml_dtypes.bfloat16 or old.kind == "f"
    if old.kind == "c" and new.kind != "c":
        text, wide, old = f"{text}.real", True, np.dtype(f"f{old.itemsize // 2}")
    if new.kind == "b":
        return f"({text} != 0)"
    if wide and new.kind in "iu":
        return f"to_integer({text}, {w.dtype(new)})"
    return text if old == new else f"{text}.astype({w.dtype(new)})"


@numpy_rule("bitcast_convert_type")
def bitcast_convert_type(w, eqn, x):
    aval, new = eqn.outvars[0].aval, np.dtype(eqn.params["new_dtype"])
    if x.dtype == new:
        return x
    if x.dtype.itemsize == new.itemsize:
        return w.value(aval, f"{w.array(x)}.view({w.dtype(new)})", x.sizes)
    shape = w.shape(aval.shape)
    flat = f"np.ascontiguousarray({w.whole(x)})"
    if x.dtype.itemsize > new.itemsize:
        flat = f"{flat}.reshape(-1)"
    return f"{flat}.view({w.dtype(new)}).reshape({shape})"


@numpy_rule("reduce_precision")
def reduce_precision(w, eqn, x):
    bits = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
    own = np.finfo(x.dtype) if x.dtype != ml_dtypes.bfloat16 else ml_dtypes.finfo(x.dtype)
    if bits[0] >= own.nexp and bits[1] >= own.nmant:
        return x
    if bits != (8, 7):
        raise Unsupported(f"reduce_precision to {bits[0]} and {bits[1]} bits")
    form = lambda a: f"{a}.astype(bfloat16).astype({w.dtype(x.dtype)})"  # noqa: E731
    return elementwise(w, eqn, form, (x,), ATOM)


@numpy_rule("copy", "copy_p", "stop_gradient", "optimization_barrier", "device_put", "name",
            "pvary", "sharding_constraint", "layout_constraint", "reshard")  # fmt: skip
def identity(w, eqn, *xs):
    return xs
