"""NumPy code for special functions, Fourier transforms, matrices, windows and random numbers."""

import functools

import jax
import numpy as np

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.reductions import narrow
from malleable.execution.numpy.rules import broadcast, called, elementwise
from malleable.execution.numpy.writer import ATOM, Value, numpy_rule

SPECIAL = {
    "erf": "special.erf",
    "erfc": "special.erfc",
    "erf_inv": "erf_inv",
    "lgamma": "lgamma",
    "igamma": "igamma",
    "igammac": "igammac",
    "bessel_i0e": "special.i0e",
    "bessel_i1e": "special.i1e",
    "zeta": "zeta",
    "polygamma": "polygamma",
    "regularized_incomplete_beta": "special.betainc",
}


@numpy_rule(*SPECIAL)
def special(w, eqn, *ins):
    name, dtype = SPECIAL[eqn.primitive.name], eqn.outvars[0].aval.dtype
    if not narrow(dtype):
        return called(w, eqn, name, *ins)
    wide = "np.float32"
    form = lambda *xs: (  # noqa: E731
        f"{name}({', '.join(f'{x}.astype({wide})' for x in xs)}).astype({w.dtype(dtype)})"
    )
    ins = [
        x if not x.weak else w.value(v.aval, w.typed(x), ())
        for x, v in zip(ins, eqn.invars, strict=True)
    ]
    return elementwise(w, eqn, form, ins, ATOM)


@numpy_rule("digamma")
def digamma(w, eqn, x):
    x = Value(w.array(x), x.shape, x.dtype, x.sizes)
    form = lambda a: f"digamma({a}, {_digamma_of_zero()})"  # noqa: E731
    if narrow(x.dtype):
        form = lambda a: (  # noqa: E731
            f"digamma({a}.astype(np.float32), {_digamma_of_zero()}).astype({w.dtype(x.dtype)})"
        )
    return elementwise(w, eqn, form, (x,), ATOM)


@functools.cache
def _digamma_of_zero() -> str:
    """What this version of XLA says at the pole."""
    with jax.ensure_compile_time_eval():
        found = float(jax.lax.digamma(np.float32(0)))
    return "np.nan" if np.isnan(found) else "-np.inf" if found < 0 else "np.inf"


@numpy_rule("lt_to", "le_to", "eq_to")
def in_total_order(w, eqn, x, y):
    symbol = {"lt": "<", "le": "<=", "eq": "=="}[eqn.primitive.name[:2]]
    if x.dtype.kind == "f":
        form = lambda a, b: f"(total_order({a}) {symbol} total_order({b}))"  # noqa: E731
        ins = [v if not v.weak else Value(w.typed(v), v.shape, v.dtype, v.sizes) for v in (x, y)]
    elif x.dtype.kind in "iub":
        form, ins = (lambda a, b: f"({a} {symbol} {b})"), (x, y)
    else:
        raise Unsupported(f"the total order of {x.dtype}")
    return elementwise(w, eqn, form, ins, ATOM)


@numpy_rule("polynomial")
def polynomial(w, eqn, x, *terms):
    coefficients = list(terms)
    if len(coefficients) > 16:
        raise Unsupported("a polynomial of degree above 15")
    point, text = w.name(x) if not x.weak else w.typed(x), w.typed(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        text = w.assign(f"{text} * {point} + {w.text(c, ATOM)}")
    return w.value(eqn.outvars[0].aval, text, broadcast((x, *terms)))


@numpy_rule("mulhi")
def mulhi(w, eqn, x, y):
    if x.dtype.itemsize != 4:
        raise Unsupported(f"mulhi of {x.dtype}")
    wide = "np.int64" if x.dtype.kind == "i" else "np.uint64"
    form = lambda a, b: f"(({a}.astype({wide}) * {b}) >> 32).astype({w.dtype(x.dtype)})"  # noqa: E731
    return elementwise(w, eqn, form, (x, y), ATOM)


@numpy_rule("empty", "empty2")
def empty(w, eqn):
    return w.value(eqn.outvars[0].aval, "0", (), weak=True, named=True)


@numpy_rule("platform_index")
def platform_index(w, eqn):
    for i, platforms in enumerate(eqn.params["platforms"]):
        if platforms is None or "cpu" in platforms:
            return w.literal(np.int32(i), eqn.outvars[0].aval)
    raise Unsupported("a program that is not for the CPU")


@numpy_rule("call_hi_primitive")
def call_hi_primitive(w, eqn, *ins):
    hidden = eqn.params["_prim"]
    if type(hidden).__name__ == "SearchSorted" and ins[0].rank == 1:
        return searchsorted(w, eqn, ins, hidden.side)
    with compat.source(eqn):
        return w.inline(compat.expanded(eqn), ins)


def searchsorted(w, eqn, ins, side: str) -> str:
    """Where points belong in a sorted array: of ins = (array, points)."""
    x, points = ins
    dtype = w.dtype(eqn.outvars[0].aval.dtype)
    return f'np.searchsorted({w.argument(x)}, {w.argument(points)}, "{side}").astype({dtype})'


# ---------------------------------------------------------------- matrices


def _named_results(w, eqn, text: str) -> list[Value]:
    """The results of a call that gives several, named."""
    outs = [w.new_name() for _ in eqn.outvars]
    w.line(f"{', '.join(outs)}{',' if len(outs) == 1 else ''} = {text}")
    return [w.named(v.aval, name) for v, name in zip(eqn.outvars, outs, strict=True)]


@numpy_rule("fft")
def fft(w, eqn, x):
    name = str(eqn.params["fft_type"]).rpartition(".")[2].lower()
    names = {"0": "fft", "1": "ifft", "2": "rfft", "3": "irfft"}
    name, lengths = names.get(name, name), eqn.params["fft_lengths"]
    axes = tuple(range(x.rank - len(lengths), x.rank))
    return f"np.fft.{name}n({w.argument(x)}, {w.shape(lengths)}, {axes})"


def _check_width(x: Value) -> None:
    if narrow(x.dtype):
        raise Unsupported(f"linear algebra of {x.dtype}")


@numpy_rule("cholesky")
def cholesky(w, eqn, a):
    _check_width(a)
    return f"cholesky({w.argument(a)})"


@numpy_rule("lu")
def lu(w, eqn, a):
    _check_width(a)
    return _named_results(w, eqn, f"lu({w.argument(a)})")


@numpy_rule("lu_pivots_to_permutation")
def permutation(w, eqn, pivots):
    return f"permutation_of({w.argument(pivots)}, {w.size(eqn.params['permutation_size'])})"


@numpy_rule("triangular_solve")
def triangular_solve(w, eqn, a, b):
    _check_width(a)
    p = eqn.params
    flags = p["left_side"], p["lower"], p["transpose_a"], p["conjugate_a"], p["unit_diagonal"]
    names = "left", "lower", "transposed", "conjugate", "unit"
    options = ", ".join(f"{n}={bool(f)}" for n, f in zip(names, flags, strict=True))
    return f"triangular_solve({w.argument(a)}, {w.argument(b)}, {options})"


@numpy_rule("eigh")
def eigh(w, eqn, a):
    _check_width(a)
    p = eqn.params
    if p.get("subset_by_index") or p.get("algorithm") is not None:
        raise Unsupported("eigh by an algorithm that is asked for, or of a part")
    return _named_results(w, eqn, f"eigh({w.argument(a)}, lower={p['lower']})")


@numpy_rule("svd")
def svd(w, eqn, a):
    _check_width(a)
    p = eqn.params
    if p.get("subset_by_index") or p.get("algorithm") is not None:
        raise Unsupported("svd by an algorithm that is asked for, or of a part")
    options = f"full={p['full_matrices']}, vectors={p['compute_uv']}"
    return _named_results(w, eqn, f"svd({w.argument(a)}, {options})")


@numpy_rule("qr")
def qr(w, eqn, a):
    _check_width(a)
    if eqn.params.get("pivoting"):
        raise Unsupported("qr with pivoting")
    return _named_results(w, eqn, f"qr({w.argument(a)}, full={eqn.params['full_matrices']})")


@numpy_rule("geqrf")
def geqrf(w, eqn, a):
    _check_width(a)
    return _named_results(w, eqn, f"geqrf({w.argument(a)})")


@numpy_rule("householder_product")
def householder_product(w, eqn, a, scales):
    _check_width(a)
    return f"householder_product({w.argument(a)}, {w.argument(scales)})"


@numpy_rule("schur")
def schur(w, eqn, a):
    p = eqn.params
    if p["sort_eig_vals"] or not p["compute_schur_vectors"]:
        raise Unsupported("schur with sorted values or without vectors")
    return _named_results(w, eqn, f"schur({w.argument(a)})")


@numpy_rule("eig")
def eig(w, eqn, a):
    p = eqn.params
    left, right = p["compute_left_eigenvectors"], p["compute_right_eigenvectors"]
    return _named_results(w, eqn, f"eig({w.argument(a)}, left={left}, right={right})")


@numpy_rule("tridiagonal_solve")
def tridiagonal_solve(w, eqn, low, middle, high, b):
    if eqn.params.get("perturb_singular"):
        raise Unsupported("tridiagonal_solve of what is singular")
    return f"tridiagonal_solve({', '.join(map(w.argument, (low, middle, high, b)))})"


# ---------------------------------------------------------------- windows

WINDOWS = {
    "reduce_window_sum": ("np.add", lambda d: "0"),
    "reduce_window_max": ("np.maximum", lambda d: "-np.inf" if d.kind == "f" else np.iinfo(d).min),
    "reduce_window_min": ("np.minimum", lambda d: "np.inf" if d.kind == "f" else np.iinfo(d).max),
}


@numpy_rule(*WINDOWS)
def reduce_window(w, eqn, x):
    p, (ufunc, fill) = eqn.params, WINDOWS[eqn.primitive.name]
    if x.dtype.kind not in "iuf" or narrow(x.dtype):
        raise Unsupported(f"{eqn.primitive.name} of {x.dtype}")
    names = "window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation"
    sizes = ", ".join(_nested(w, p[name]) for name in names)
    return f"reduce_window({ufunc}, {w.argument(x)}, {fill(x.dtype)}, {sizes})"


def _nested(w, sizes) -> str:
    if isinstance(sizes, tuple | list):
        texts = [_nested(w, s) for s in sizes]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
    return w.size(sizes)


@numpy_rule("conv_general_dilated")
def convolve(w, eqn, x, kernel):
    p, aval = eqn.params, eqn.outvars[0].aval
    if p["batch_group_count"] != 1 or narrow(x.dtype) or x.dtype != aval.dtype:
        raise Unsupported("a convolution with groups of the batch or of narrow types")
    spec = p["dimension_numbers"]
    texts = [
        _moved(w.whole(v), list(order))
        for v, order in ((x, spec.lhs_spec), (kernel, spec.rhs_spec))
    ]
    names = "window_strides", "padding", "lhs_dilation", "rhs_dilation", "feature_group_count"
    options = ", ".join(_nested(w, p[name]) for name in names)
    back = [list(spec.out_spec).index(d) for d in range(x.rank)]
    return w.value(aval, _moved(f"convolve({', '.join(texts)}, {options})", back))


def _moved(text: str, order: list[int]) -> str:
    if order == list(range(len(order))):
        return text
    return f"{text}.transpose({', '.join(map(str, order))})"
