"""What stands at the masked places of a value, through the operations of a program."""

import enum
from collections.abc import Sequence

import jax
import numpy as np
from jax import numpy as jnp

from malleable.programs.primitives import has, kind
from malleable.rewriting.boxes.dependence import DERIVED, ELEMENTWISE
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.plan import Plan, execute


class Beyond(enum.Enum):
    """What stands beyond the present: all but ODD and LOW does not depend on what comes later."""

    ODD = "anything, also inf or NaN: no zero takes it away"
    LOW = "a number below MASKED, which one is not known"
    NEGATIVE = "a number below MASKED"
    INFINITE = "-inf"
    ZERO = "0"
    ONE = "1"
    KNOWN = "numbers"
    SHUT = "a number below MASKED, in rows that may hold nothing else"
    LARGE = "numbers, some of which undo a mask that they are added to"


SURE = {*Beyond} - {Beyond.ODD, Beyond.LOW}
NEGATIVES = {Beyond.LOW, Beyond.NEGATIVE, Beyond.INFINITE}
# added to a score, or in its place: its weight is exp(this - the largest) = 0; -1e9 in bfloat16
MASKED = -998244352.0
FINITE = "what a mask leaves out is taken to be finite"
NO_NUMBER = (
    "inf or NaN behind a 0 or a -inf makes all of a row NaN in the function, but not in a step, "
    "which reads rows in reach only; replace it by `where` before the product or the sum"
)
OPEN = "each row is taken to have a score that is not masked"
ALL_MASKED = (
    "a row of which all is masked by a finite number weighs later rows too in the function, but "
    "not in a step; mask by -inf, or leave the row's own place unmasked"
)


def sort_of(c: np.ndarray) -> Beyond:
    """What some constants have in common.

    >>> sort_of(np.array([-np.inf, -1e10])).name, sort_of(np.zeros(2)).name
    ('NEGATIVE', 'ZERO')
    """
    if (c == 0).all():
        return Beyond.ZERO
    if (c == 1).all():
        return Beyond.ONE
    if c.dtype.kind != "f":
        return Beyond.KNOWN
    if is_low(c).all():
        return Beyond.INFINITE if np.isneginf(c).all() else Beyond.NEGATIVE
    return Beyond.KNOWN if (c < -MASKED / 2).all() else Beyond.LARGE


def sort_of_negative(c: np.ndarray) -> Beyond:
    """`sort_of` of what is added where a constant is taken away."""
    return sort_of(-c)


MOVES = kind("dims", "cast", "same") - {"bitcast_convert_type"}
MOVES |= {"name", "sharding_constraint", "reduce_max"}
PARTIAL = has("partial", "special")
LEVEL = has("levels", "extremum") | {"clamp", "select_n"}


def masked(node: Node, kinds: Sequence[Beyond | None], name: str) -> Beyond | None:
    """What stands beyond in the result of a node, by what stands beyond in its operands."""
    if name == DERIVED:
        return kinds[0]
    sure = Beyond.KNOWN if SURE.issuperset(kinds) else None
    if not sure and name in PARTIAL:
        sure = Beyond.ODD if _holds_floats(node) else None
    if NEGATIVES.intersection(kinds) and name not in LEVEL:
        sure = Beyond.ODD if _holds_floats(node) else sure
    if Beyond.ODD in kinds and name != "select_n":
        return Beyond.ODD if _holds_floats(node) else None
    is_bool = np.dtype(node.eqn.outvars[0].aval.dtype).kind == "b"
    match name, tuple(kinds):
        case "select_n", (Beyond.ZERO, one, *_):
            return one
        case "select_n", (Beyond.ONE, _, other, *_):
            return other
        case "select_n", (which, *cases):
            if which in SURE and len({*cases}) == 1:
                return cases[0]
            return Beyond.ODD if Beyond.ODD in cases else sure
        case "mul", both if Beyond.ZERO in both:
            return Beyond.ZERO
        case (("mul" | "and"), (one, other)) if Beyond.ONE in (one, other):
            return other if one == Beyond.ONE else one
        case ("and", both) if Beyond.ZERO in both:
            return Beyond.ZERO
        case ("or", both) if Beyond.ONE in both and is_bool:
            return Beyond.ONE
        case (("or" | "add" | "add_any"), (one, other)) if Beyond.ZERO in (one, other):
            return other if one == Beyond.ZERO else one
        case "sub", (one, other) if other == Beyond.ZERO:
            return one
        case "sub", (one, Beyond.ONE) if one == Beyond.ONE:
            return Beyond.ZERO
        case (("add" | "add_any"), both) if Beyond.LARGE in both:
            return sure
        case (("add" | "add_any"), both) if NEGATIVES.intersection(both):
            return (
                Beyond.INFINITE
                if Beyond.INFINITE in both
                else Beyond.NEGATIVE
                if SURE.issuperset(both)
                else Beyond.LOW
            )
        case "sub", (one, other) if one in NEGATIVES and other not in NEGATIVES:
            return one if one == Beyond.INFINITE or other in SURE else Beyond.LOW
        case "max", both if NEGATIVES.issuperset(both):
            return Beyond.NEGATIVE if Beyond.LOW not in both else Beyond.LOW
        case "max", both if NEGATIVES.intersection(both) and Beyond.ZERO in both:
            return Beyond.ZERO
        case "not", (Beyond.ZERO,) if is_bool:
            return Beyond.ONE
        case "not", (Beyond.ONE,) if is_bool:
            return Beyond.ZERO
        case (("exp" | "exp2" | "logistic"), (one,)) if one in NEGATIVES:
            return Beyond.ZERO
        case "div", (Beyond.ZERO, other) if other in SURE:
            return Beyond.ZERO
        case (("slice" | "concatenate"), (one, *others)) if {one} >= {*others}:
            return one
        case _, (one,) if name in MOVES and (
            one in (Beyond.ZERO, Beyond.ONE) or _holds_floats(node)
        ):
            return one
        case _, (Beyond.ZERO | Beyond.ONE as one,) if name in ELEMENTWISE:
            with jax.ensure_compile_time_eval():  # of a number
                number = jnp.asarray(one is Beyond.ONE, node.eqn.invars[0].aval.dtype)
                return sort_of(np.asarray(execute(node, [number])[0]))
        case "reduce_sum", (one,) if one in (Beyond.ZERO, Beyond.NEGATIVE, Beyond.INFINITE):
            return one
        case "dot_general", both if Beyond.ZERO in both:
            return Beyond.ZERO
    return sure


def needs_finite(kinds: Sequence[Beyond | None], name: str) -> bool:
    """Whether a mask undoes only finite numbers: 0 * inf and inf - inf are NaN, where(...) is none.

    >>> needs_finite([None, Beyond.ZERO], "mul"), needs_finite([Beyond.ONE, None], "select_n")
    (True, False)
    """
    if Beyond.ZERO in kinds and name in ("mul", "dot_general"):
        return not SURE.issuperset(kinds)
    masks = bool(NEGATIVES.intersection(kinds)) and name in ("add", "add_any", "sub")
    return masks and not {*NEGATIVES, *SURE}.issuperset(kinds)


def _holds_floats(node: Node) -> bool:
    return np.dtype(node.eqn.outvars[0].aval.dtype).kind in "fV"


def is_taken_away(plan: Plan, node: Node, k: int) -> bool:
    """Whether an operand is a constant of which the negative is added."""
    return node.name == "sub" and k == 1 and plan.is_constant(node.ins[1])


def as_if(plan: Plan, node: Node) -> str:
    """The name of a node; of one with a constant that makes it a simpler one, of that."""
    if is_taken_away(plan, node, 1):
        return "add"
    if node.name == "div" and (c := plan.small_constant(node.ins[1])) is not None:
        return "mul" if np.all(c != 0) and np.all(np.isfinite(c)) else "div"
    if node.name == "integer_pow" and node.params["y"] > 0:
        return "square"
    if node.name == "pow" and (c := plan.small_constant(node.ins[1])) is not None:
        return "square" if np.all((c > 0) & (c == np.round(c))) else "pow"
    return node.name


def is_zero(c: np.ndarray) -> np.ndarray:
    return c == 0


def is_one(c: np.ndarray) -> np.ndarray:
    return c == 1


def is_low(c: np.ndarray) -> np.ndarray:
    """Where a constant masks: half precision has no number below MASKED but -inf."""
    least = float(np.finfo(c.dtype).min) if c.dtype.kind == "f" else MASKED
    return c <= max(MASKED, least)


def is_high(c: np.ndarray) -> np.ndarray:
    return is_low(-c)
