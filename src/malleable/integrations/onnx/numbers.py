"""Numbers for ONNX: types that onnxruntime's kernels lack, bits, division by zero, rounding.

Most kernels know float32 and int32. Other types go there and back around an operation where the
result is the same, bit for bit; those in half precision are rounded once per operation, as in JAX.
"""

import functools
import operator

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.integrations.onnx.lowering import UNABLE, rule
from malleable.rewriting.axis.picks import fill_of

SMALL = [np.dtype(t) for t in ("int8", "uint8", "int16", "uint16")]
BFLOAT = np.dtype(jnp.bfloat16)
BOOL = np.dtype(bool)
ORDERED = "sort reduce_max reduce_min argmax argmin cummax cummin top_k"
MOVES = """reshape transpose squeeze expand_dims slice concatenate rev convert_element_type
bitcast_convert_type dynamic_slice"""  # there for all types

# by type: the primitives that have a kernel for it
NATIVE = {
    BOOL: MOVES + " and or xor not eq ne pad broadcast_in_dim reduce_and reduce_or",
    BFLOAT: MOVES,
    **dict.fromkeys(SMALL, MOVES + " broadcast_in_dim"),
    np.dtype("float16"): MOVES
    + """ broadcast_in_dim add sub mul div neg abs max min sqrt rsqrt exp log tanh logistic square
    select_n pad eq ne lt le gt ge reduce_sum reduce_max reduce_min dot_general add_any iota
    integer_pow conv_general_dilated is_finite nextafter clamp""",
}

# by type: the primitives that have none; all others do
FOREIGN = {
    np.dtype("uint32"): ORDERED + " neg integer_pow cumsum cumprod dot_general reduce_prod abs sign"
}
TOP = np.uint32(2**31)


@rule("")
def elsewhere(eqn):
    """An operation in a wider type, and back."""
    name = eqn.primitive.name
    first = int(name == "select_n")  # before it: what selects
    types = {v.aval.dtype for v in eqn.invars[first:] or eqn.outvars}
    if name in KEPT.split() or not (
        wide := {t: w for t in types if (w := carrier(name, t)) is not None}
    ):
        return None

    def there(x):
        if x.dtype not in wide:
            return x
        if x.dtype == np.uint32 and name in ORDERED.split():  # in the order of the signed ones
            return (x ^ TOP).astype(np.int32)
        return x.astype(wide[x.dtype])

    def back(x, dtype):
        if x.dtype == dtype:
            return x
        if dtype == BOOL:
            return x != 0
        x = x.astype(dtype)
        return x ^ TOP if dtype == np.uint32 and name in ORDERED.split() else x

    def fun(*xs):
        params: dict = {k: wide.get(as_dtype(p), p) for k, p in eqn.params.items()}
        if params.get("fill_value", 0) is None:  # of a gather: NaN, or by type
            params["fill_value"] = fill_of(eqn.outvars[0].aval.dtype)
        out = eqn.primitive.bind(*xs[:first], *map(there, xs[first:]), **params)
        outs = out if eqn.primitive.multiple_results else [out]
        return [back(x, v.aval.dtype) for x, v in zip(outs, eqn.outvars, strict=True)]

    return fun


def carrier(name: str, dtype):
    """The type in which onnxruntime can do this; None for the type itself."""
    if dtype in FOREIGN:
        return np.dtype("int32") if name in FOREIGN[dtype].split() else None
    if dtype not in NATIVE or name in NATIVE[dtype].split():
        return None
    return np.dtype("float32" if dtype in (BFLOAT, np.float16) else "int32")


def as_dtype(p):
    """A parameter that is a dtype, as one that compares; None for another."""
    return np.dtype(p) if isinstance(p, np.dtype | type) else None


def is_int(aval) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.integer)


def known(atom):
    """The value of a literal, None for a variable."""
    return atom.val if isinstance(atom, compat.Literal) else None


# ---------------------------------------------------------------- integers


KEPT = "nextafter shift_left shift_right_logical shift_right_arithmetic population_count clz"


@rule("shift_left", "shift_right_logical", "shift_right_arithmetic", once=True)
def shift(eqn):
    """ONNX shifts unsigned numbers only, by less than their width."""
    name, aval = eqn.primitive.name, eqn.outvars[0].aval
    width = aval.dtype.itemsize * 8
    unsigned = np.dtype(f"uint{width}")
    count = known(eqn.invars[1])
    small = count is not None and np.all((np.asarray(count) >= 0) & (np.asarray(count) < width))

    def fun(x, n):
        n = lax.convert_element_type(n, unsigned)
        inside = True if small else n < width
        n = n if small else jnp.minimum(n, unsigned.type(width - 1))
        bits = lax.convert_element_type(x, unsigned)
        wide = np.dtype("uint32") if width < 32 else unsigned
        a, b = bits.astype(wide), n.astype(wide)
        out = (lax.shift_left if name == "shift_left" else lax.shift_right_logical)(a, b)
        if name == "shift_right_arithmetic":  # of the complement, where the first bit is set
            flip = a >= wide.type(2 ** (width - 1))
            out = lax.shift_right_logical(jnp.where(flip, (~bits).astype(wide), a), b)
            out = jnp.where(flip, ~out, out)
            return out.astype(aval.dtype)
        out = out.astype(aval.dtype)
        return out if inside is True else jnp.where(inside, out, jnp.zeros_like(out))

    fits = name != "shift_right_arithmetic" and aval.dtype == np.uint32 and small
    return None if fits else fun


@rule("population_count", "clz", once=True)
def bits_of_small(eqn):
    """Of 8 or 16 bits: as of 32, with zeros in front."""
    dtype = eqn.invars[0].aval.dtype
    width = dtype.itemsize * 8
    if width >= 32:
        return None
    less = 32 - width if eqn.primitive.name == "clz" else 0

    def fun(x):
        wide = lax.convert_element_type(x, f"uint{width}").astype(np.uint32)
        return (eqn.primitive.bind(wide) - np.uint32(less)).astype(dtype)

    return fun


@rule("div", "rem", once=True)
def divide(eqn):
    """Where XLA gives -1 or the number itself for a division by zero, a processor traps."""
    aval, divisor = eqn.outvars[0].aval, known(eqn.invars[1])
    safe = divisor is not None and np.all(np.asarray(divisor) > 0)
    rest = eqn.primitive.name == "rem"  # of the division: the plugin forgets the type in a loop
    if not is_int(aval) or (safe and not rest):
        return None
    signed = jnp.issubdtype(aval.dtype, jnp.signedinteger)

    def fun(x, y):
        if safe:
            return x - lax.div(x, y) * y
        odd = (y == 0) | (y == -1) if signed else y == 0  # the least number has no negative
        zero, y = y == 0, jnp.where(odd, jnp.ones_like(y), y)
        out = lax.div(x, y)
        if rest:
            return jnp.where(zero, x, x - out * y)
        out = jnp.where(odd, -x, out) if signed else out
        return jnp.where(zero, jnp.full_like(x, np.array(-1).astype(aval.dtype)), out)

    return fun


@rule("integer_pow")
def multiplied(eqn):
    """An integer to a power: multiplied out; onnxruntime would go through float64."""
    n = eqn.params["y"]
    if not is_int(eqn.outvars[0].aval) or n < 0:
        return None
    return lambda x: functools.reduce(operator.mul, [x] * n) if n else jnp.ones_like(x)


@rule("abs", "sign")
def of_unsigned(eqn):
    """What is trivial for what is not negative."""
    if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.unsignedinteger):
        return None
    return (lambda x: x) if eqn.primitive.name == "abs" else (lambda x: jnp.minimum(x, 1))


@rule("convert_element_type", once=True)
def saturate(eqn):
    """XLA takes a number out of the range of an integer type to its end, and NaN to 0."""
    old, new = eqn.invars[0].aval.dtype, np.dtype(eqn.params["new_dtype"])
    if not (jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.integer)):
        return None
    ends = jnp.iinfo(new)
    below = 2.0 ** (ends.bits - (new.kind == "i"))  # the first number too large; exact as a float
    wide = np.float32 if old.itemsize < 4 else old
    direct = ends.bits >= 32
    via = new if direct else np.dtype("int32")

    def fun(x):
        x = x.astype(wide)
        x = jnp.where(x == x, x, jnp.zeros_like(x))
        whole = jnp.maximum(x, wide(ends.min) if isinstance(wide, type) else wide.type(ends.min))
        limit = np.asarray(below, wide)
        large = whole >= limit
        out = lax.convert_element_type(jnp.where(large, jnp.zeros_like(whole), whole), via)
        out = jnp.where(large, jnp.full_like(out, ends.max), out)
        return lax.convert_element_type(out, new)

    return fun


# ---------------------------------------------------------------- bits of floating point


@rule("bitcast_convert_type")
def bitcast(eqn):
    """32 bits as another type, by arithmetic: BitCast is younger than most runtimes."""
    old, new = eqn.invars[0].aval.dtype, np.dtype(eqn.params["new_dtype"])
    if old == new:
        return lambda x: x
    if old.kind in "iu" and new.kind in "iu" and old.itemsize == new.itemsize:
        return lambda x: lax.convert_element_type(x, new)
    if old in (np.int32, np.uint32) and new == np.float32:
        return lambda x: from_bits(lax.convert_element_type(x, np.uint32))
    if old == np.float32 and new in (np.int32, np.uint32):
        return lambda x: lax.convert_element_type(to_bits(x), new)
    if old == np.uint16 and new == BFLOAT:  # the upper half of a float32
        return lambda x: from_bits(x.astype(np.uint32) << 16).astype(new)
    if old == np.uint16 and new == np.float16:
        return lambda x: from_bits(x.astype(np.uint32), 10, 5).astype(new)
    return None


def from_bits(x, digits: int = 23, exponents: int = 8):
    """IEEE 754: (-1)^s m 2^(e - bias - digits), exact as a product of two float32.

    x: uint32; digits, exponents: bits of the mantissa and of the exponent, by default of float32.
    """
    most, bias = 2**exponents - 1, 2 ** (exponents - 1) - 1
    exponent = ((x >> digits) & np.uint32(most)).astype(np.int32)
    mantissa = x & np.uint32(2**digits - 1)
    whole = mantissa | jnp.where(exponent > 0, np.uint32(2**digits), np.uint32(0))
    powers = np.ldexp(np.float32(1), np.maximum(np.arange(most), 1) - bias - digits)
    power = jnp.asarray(powers.astype(np.float32))[jnp.minimum(exponent, most - 1)]
    special = jnp.where(mantissa == 0, np.float32(np.inf), np.float32(np.nan))
    size = jnp.where(exponent == most, special, whole.astype(np.float32) * power)
    return jnp.where(x >= np.uint32(2 ** (digits + exponents)), -size, size)


def to_bits(x):
    """The sign, the exponent by bisection, the mantissa scaled to an integer."""
    size, exponent = abs(x), jnp.full(x.shape, 127, np.int32)
    small = size < np.float32(2.0**-126)  # no leading one; scaled in two steps
    finite = size < np.float32(np.inf)
    y = jnp.where(small | ~finite, np.float32(1), size)
    for step in (64, 32, 16, 8, 4, 2, 1):
        large = y >= np.float32(2.0**step)
        y = jnp.where(large, y * np.float32(2.0**-step), y)
        exponent = exponent + jnp.where(large, step, 0)
        low = y < np.float32(2.0 ** (1 - step))
        y = jnp.where(low, y * np.float32(2.0**step), y)
        exponent = exponent - jnp.where(low, step, 0)
    normal = exponent.astype(np.uint32) * np.uint32(2**23)
    normal = normal + ((y - 1) * np.float32(2**23)).astype(np.uint32)
    tiny = (jnp.where(small, size, 0) * np.float32(2.0**75) * np.float32(2.0**74)).astype(np.uint32)
    odd = jnp.where(x == x, np.uint32(0x7F800000), np.uint32(0x7FC00000))
    out = jnp.where(finite, jnp.where(small, tiny, normal), odd)
    negative = (x < 0) | ((x == 0) & (1 / x < 0))
    return out + jnp.where(negative, TOP, np.uint32(0))


def other_width(eqn):
    """Why a change of type without a change of bits cannot be, or ""."""
    old, new = eqn.invars[0].aval.dtype, np.dtype(eqn.params["new_dtype"])
    return "" if old == new else f"it reads the bits of {old} as {new}"


UNABLE["bitcast_convert_type"] = other_width


# ---------------------------------------------------------------- floating point


@rule("round")
def round_away(eqn):
    """ONNX rounds halves to even numbers."""
    if str(eqn.params["rounding_method"]).rpartition(".")[2] in ("1", "TO_NEAREST_EVEN"):
        return None

    def fun(x):
        size = abs(x)
        whole = jnp.floor(size)
        return jnp.sign(x) * (whole + (size - whole >= 0.5).astype(x.dtype))

    return fun


@rule("log2")
def log2(eqn):
    """ONNX has the natural one."""
    return lambda x: jnp.log(x) * np.asarray(1 / np.log(2), x.dtype)


@rule("lt_to", "le_to", "eq_to")
def total_order(eqn):
    """The order of all floating-point numbers: -0 before 0, NaN at the end."""
    name = eqn.primitive.name

    def fun(x, y):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return {"lt_to": operator.lt, "le_to": operator.le, "eq_to": operator.eq}[name](x, y)
        zeros = (x == 0) & (y == 0)
        less = jnp.where(zeros, 1 / x < 1 / y, x < y) | ((x == x) & (y != y))
        same = jnp.where(zeros, 1 / x == 1 / y, x == y) | ((x != x) & (y != y))
        return {"lt_to": less, "le_to": less | same, "eq_to": same}[name]

    return fun


@rule("clamp")
def bounded(eqn):
    """Of the types without a kernel: two steps."""
    if carrier("clamp", eqn.outvars[0].aval.dtype) is None:
        return None
    return lambda low, x, high: jnp.minimum(jnp.maximum(x, low), high)
