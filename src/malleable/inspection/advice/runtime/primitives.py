"""A primitive lacks a rule: which one, where it is used, and what to register."""

import ast
import re

from malleable import compat
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said
from malleable.inspection.advice.evidence.trouble import Step, Trouble

# what JAX says -> (what is missing, what to register for the primitive {p} named {name})
_MISSING = {
    r"Batching rule for '(.+?)' not implemented": (
        "a rule for vmap",
        "from jax.interpreters import batching; batching.primitive_batchers[{p}] = lambda args, "
        "dims, **params: ({p}.bind(*args, **params), dims[0])  # if it works element by element",
    ),
    r"Differentiation rule for '(.+?)' not implemented": (
        "a derivative",
        "from jax.interpreters import ad; ad.primitive_jvps[{p}] = lambda primals, tangents, "
        "**params: ({p}.bind(*primals, **params), tangent_of_the_result); or wrap the function "
        "around it in jax.custom_jvp",
    ),
    r"Transpose rule .*?for '(.+?)' not implemented": (
        "a rule for reverse mode (jax.grad, jax.vjp)",
        "from jax.interpreters import ad; ad.primitive_transposes[{p}] = lambda ct, *args, "
        "**params: (cotangent_of_each_operand, ...); or define its derivative with primitives "
        "that have one",
    ),
    r"(?:MLIR translation|Lowering|[Tt]ranslation) rule for (?:primitive )?'(.+?)' not "
    r"(?:found|impl)": (
        "a way to be compiled",
        "from jax.interpreters import mlir; mlir.register_lowering({p}, mlir.lower_fun("
        "lambda *args, **params: ..., multiple_results=False))",
    ),
    r"Evaluation rule for '(.+?)' not implemented": (
        "a way to run outside of jax.jit",
        "{p}.def_impl(lambda *args, **params: ...); or call it inside of jax.jit, once it has a "
        "lowering",
    ),
    r"Abstract evaluation for '(.+?)' not implemented": (
        "a rule for the type of its result",
        "{p}.def_abstract_eval(lambda x, **params: x)  # for a result of the type of its operand",
    ),
}


def missing_rule(found: re.Match, trouble: Trouble, last: Step) -> Said:
    """NotImplementedError of a primitive."""
    lacks, register = _MISSING[found.re.pattern]
    name = found[1]
    step, variable = bound_at(trouble, name)
    what = f"the primitive `{name}` has no rule yet for this: it lacks {lacks}"
    what += f"; here it is `{variable}`" if variable else ""
    known = variable or f"{re.sub(r'[^a-zA-Z0-9_]', '_', name)}_p"
    hint = "register one, " + register.format(p=known, name=name)
    return Said(what, hint, step.place if step else None)


def bound_at(trouble: Trouble, name: str) -> tuple[Step | None, str]:
    """The user's line that uses a primitive, and the expression that stands for it there."""
    lines = [*traced_at(trouble), *trouble.own]
    bound = []
    for step in lines:
        for call in sources.calls_on(step.place, "bind"):
            if isinstance(call.func, ast.Attribute):
                bound.append((step, sources.text_of(call.func.value)))
    for step, text in bound:  # the outermost: a derivative rule may bind it again
        if primitive_named(step, text) == name:
            return step, text
    if bound:
        step, text = bound[0]
        return step, text if text.isidentifier() or "." in text else ""
    step = lines[-1] if lines else None
    return step, held_by(step, name)


def traced_at(trouble: Trouble) -> list[Step]:
    """The user's lines behind the operation that JAX was about to transform or compile."""
    cause = trouble.error.__cause__
    known = type(cause).__name__ == "JaxStackTraceBeforeTransformation"
    return Trouble(cause).own if cause is not None and known else []


def primitive_named(step: Step, text: str) -> str:
    """The name of the primitive that a variable of a frame holds, "" if it holds none."""
    root = text.partition(".")[0]
    value = step.values.get(root, step.frame.f_globals.get(root))
    for part in text.split(".")[1:]:
        value = getattr(value, part, None)
    return value.name if isinstance(value, compat.Primitive) else ""


def held_by(step: Step | None, name: str) -> str:
    """A variable in sight of a frame that holds a primitive of some name."""
    for scope in (step.values, step.frame.f_globals) if step else ():
        for variable, value in list(scope.items()):
            if isinstance(value, compat.Primitive) and value.name == name:
                return variable
    return ""


RULES = tuple(Diagnosis(said, missing_rule, kind="NotImplementedError") for said in _MISSING)
