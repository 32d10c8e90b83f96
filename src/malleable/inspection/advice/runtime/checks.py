"""Errors of `checkify`, and numbers that do not fit into the type they get."""

import ast
import re

from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.watching import indices

# ---------------------------------------------------------------- checkify


def raised_from(trouble: Trouble) -> Step | None:
    """The user's innermost line in the trace that an error of JAX was raised from."""
    cause = trouble.error.__cause__
    own = Trouble(cause).own if cause is not None else []
    return own[-1] if own else None


def unchecked(found: re.Match, trouble: Trouble, last: Step) -> dict | None:
    """A check that nobody functionalized."""
    step = raised_from(trouble)
    return step and {"check": places.spell(step.place), "call": here(last.place)}


def checkified(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """A check that failed."""
    step, made = sure(raised_from(trouble)), type(trouble.error.__cause__)
    sure(made.__module__.endswith("checkify"))
    kind, text = made.__name__, trouble.text.strip().rstrip(".")
    node = failing(step.place, text)
    shown = f"`{sources.text_of(node)}`" if node is not None else "this line"
    used = ", ".join(f"`{n}`" for n in dict.fromkeys(names(node)))
    if kind == "OOBError":
        return out_of_bounds(step, text, node)
    what = f"{shown} failed its check: {text}" + (f"; it is computed from {used}" if used else "")
    hint = "see which values come in here"
    if kind == "NaNError" or "nan" in text or "division" in text:
        hint = "keep its operands in its domain, jnp.maximum(x, eps) or jnp.clip, or mask what "
        hint += "goes in with jnp.where"
    return Said(what, hint, step.place)


def failing(place: Place, text: str) -> ast.expr | None:
    """The expression a check is about, if there is but one on its line that may be."""
    primitive = re.search(r"primitive:? (\w+)", text)
    found: list = sources.calls_on(place, primitive[1]) if primitive else []
    if "out-of-bounds" in text:
        found = sources.on_line(place, ast.Subscript)
    return found[0] if len(found) == 1 else None


def out_of_bounds(step: Step, text: str, node: ast.expr | None) -> Said:
    wrote = indices.wrote(node)
    base, index = (wrote.base, wrote.index) if wrote else ("x", "i")
    found = re.search(r"index (-?\d+) is out of bounds for axis (\d+) with size (\d+)", text)
    at, of = (f"`{index}`", f" of `{base}`") if wrote else ("an index", "")
    what = f"{at} is {found[1]}, and axis {found[2]}{of} has size {found[3]}" if found else text
    hint = f'correct the index, or say what shall happen: {base}.at[{index}].get(mode="clip") or '
    return Said(what, f'{hint}mode="fill"', step.place)


def names(node: ast.AST | None) -> list[str]:
    """The variables in an expression, without the functions it calls."""
    if node is None:
        return []
    functions = {id(f) for c in ast.walk(node) if isinstance(c, ast.Call) for f in ast.walk(c.func)}
    found = [n for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in functions]
    return [n.id for n in sorted(found, key=lambda n: (n.lineno, n.col_offset))]


# ---------------------------------------------------------------- integers


def overflow(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str]:
    """A Python integer that does not fit."""
    value, dtype = found[1] or found[2], found[3] or "int32"
    node = sources.expression_at(step.place)
    shown = f" in `{sources.text_of(node)}`" if node is not None else ""
    limits = {"int32": "-2**31 to 2**31 - 1", "int64": "-2**63 to 2**63 - 1"}.get(dtype)
    reach = f" ({limits})" if limits else ""
    what = f"the Python integer {value}{shown} does not fit into {dtype}{reach}"
    if not limits:
        return what, f"use a wider dtype, or a value within {dtype}"
    hint = "turn on 64-bit types at the start, jax.config.update('jax_enable_x64', True); or write "
    return what, f"{hint}it as a float ({value}.0); or, below 2**32, as jnp.uint32({value})"


CHECKS = (
    Diagnosis(
        "not functionalized",
        unchecked,
        "checkify.check at {check} is part of a program that is compiled without "
        "checkify.checkify around it ({call})",
        "wrap the function: err, out = checkify.checkify(jax.jit(f))(x), then err.throw(); for "
        "a check that only runs while debugging, checkify.debug_check",
    ),
    Diagnosis("", checkified),
    Diagnosis(
        r"with value (-?\d+)|integer (-?\d+) out of bounds for (\w+)",
        overflow,
        kind="OverflowError",
    ),
)
