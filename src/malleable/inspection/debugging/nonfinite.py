"""Find where the first NaN is made: `first_nonfinite(fun)(*args)` names line, step and lane.

What a user asks is "where does the NaN in my result come from". So a NaN in a result is followed
back to the equation that made it of finite operands; if that is an Inf which became NaN later,
the Inf is named, and where it became NaN. An Inf in a result counts where there is no NaN. A NaN
that no result shows is named last, and said to be hidden. An Inf that the user wrote, such as the
-inf of a mask, is nobody's mistake: it is never blamed, only what makes NaN of it.
"""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage, staged_arguments
from malleable.errors import MalleableError
from malleable.inspection import places
from malleable.inspection.debugging import blame, remedies, variables
from malleable.inspection.debugging.hidden import count, first_made
from malleable.inspection.debugging.spreading import has_nan, needless
from malleable.inspection.debugging.stepping import Level, spell_path
from malleable.inspection.debugging.timeline import refs
from malleable.inspection.modules import module_scopes
from malleable.inspection.show.arguments import argument_names
from malleable.notes import Told, note
from malleable.programs.evaluate import evaluate
from malleable.progress import working
from malleable.python_source.changes import links, unchanged
from malleable.python_source.misuse import called_as
from malleable.signatures import P

_FEW = 4  # operands that are worth reading


@dataclass(frozen=True, repr=False)
class Finding(Told):
    """Where a bad value is made. kind: "nan", "inf" or "large".

    primitive: what made it, "" for an `argument` that had it already; place: the user's line;
    path: the bodies around it, outermost first; inputs: the operands, by the user's names where
    they are known; element: the index of the first bad element of the output; in_gradient:
    whether the line's derivative made it; reaches_result: whether a result of the function shows
    it; becomes: where an inf turns into a nan; comes_from: the argument that held it as an inf;
    module: the modules and name scopes around it, such as Model/blocks[1]/norm; hint: a way out.
    """

    kind: str
    primitive: str
    place: compat.Place | None
    path: tuple[Level, ...]
    inputs: dict[str, Any]
    output: Any
    element: tuple[int, ...]
    hint: str
    in_gradient: bool = False
    differentiated: bool = False
    reaches_result: bool = True
    argument: str = ""
    becomes: "Finding | None" = None
    comes_from: str = ""
    module: str = ""

    @property
    def line(self) -> int | None:
        return self.place.line if self.place else None

    @property
    def source(self) -> str:
        """The text of the user's line."""
        return places.line_of(self.place)

    @property
    def steps(self) -> tuple[int, ...]:
        """Which step of each loop, outermost first; of a reversed scan, which slice."""
        return self._indices("scan", "while")

    @property
    def lanes(self) -> tuple[int, ...]:
        """Which example of each vmap, or device of each shard_map, outermost first."""
        return self._indices("vmap", "shard_map")

    def _indices(self, *kinds):
        return tuple(at.index for at in self.path if at.kind in kinds and at.index is not None)

    def __str__(self):
        if self.argument:
            return f"{self.argument} is already {self.kind}\n  a way out: {self.hint}"
        what = self.kind if self.kind != "large" else "a large value"
        lines = [f"{what} made by `{self.primitive}`{self._at()}"]
        if self.in_gradient:
            lines.append("in the gradient of that line")
        elif self.differentiated:
            lines.append("in what differentiation makes of that line")
        if self.module:
            lines.append(f"of {self.module}")
        if self.path:
            lines.append(f"in {spell_path(self.path)}")
        if self.inputs:
            given = list(self.inputs.items())
            shown = [_shown_value(k, x, self.element, self.output) for k, x in given[:_FEW]]
            lines.append(f"inputs: {', '.join(shown)}" + ", ..." * (len(given) > _FEW))
        if self.element:
            lines.append(f"at {list(self.element)} of {_type(self.output)}")
        if self.comes_from:
            lines.append(f"{self.comes_from} is inf to begin with")
        if self.becomes:
            b = self.becomes
            lines.append(
                f"it becomes nan by `{b.primitive}`{b._at()}, "
                f"in {spell_path(b.path) or 'the program'}"
            )
        if not self.reaches_result:
            lines.append("hidden: the result does not show it, though a gradient may")
        lines.append(f"a way out: {self.hint}")
        return "\n  ".join(lines)

    def _at(self):
        where = places.spell(self.place)
        return (f" at {where}" * bool(where)) + (f": `{self.source}`" * bool(self.source))


@called_as("first_nonfinite(fun)(*args)")
def first_nonfinite(
    fun: Callable[P, Any], *, large: float | None = None, hidden: bool = True
) -> Callable[P, Finding | None]:
    """Return a function that runs `fun` and says where the first NaN is made, or None.

    A NaN that a result shows comes first, then an Inf that a result shows, then a NaN that no
    result shows (hidden=False leaves these out, and makes the search as fast as `fun` where all
    is finite). large: also look for values of a larger magnitude than this. The search compiles
    `fun` anew; callbacks in it run more than once. Called again with arguments of the same types
    it runs what it compiled: as under jit, what `fun` closes over is as it was the first time.
    Raises MalleableError on values being traced.

    >>> import jax.numpy as jnp
    >>> def loss(xs):
    ...     return jnp.log(xs).sum()
    >>> found = first_nonfinite(loss)(jnp.array([1.0, 2.0, -3.0]))
    >>> found.kind, found.primitive, found.element
    ('nan', 'log', (2,))
    >>> first_nonfinite(loss)(jnp.array([1.0, 2.0])) is None
    True
    """
    if not isinstance(large, int | float | None):
        raise TypeError(f"large is a number, the largest that is not reported, not {large!r}")
    checks: dict = {}

    def find(*args, **kwargs) -> Finding | None:
        with working(f"looking for nan in {getattr(fun, '__name__', 'it')}"):
            return searched(args, kwargs)

    def searched(args, kwargs) -> Finding | None:
        leaves, tree, traced = staged_arguments(fun, args, kwargs)
        if any(isinstance(x, compat.Tracer) for x in leaves):
            raise MalleableError(
                "the search for a NaN needs concrete values, and these are being traced",
                hint="call this outside of jit, vmap, grad and their like",
            )
        key = _program_key((tree, links((args, kwargs))), leaves, traced)
        if key is None or key not in checks:
            checks.clear()  # one signature at a time is what a training loop has
            with unchanged(fun, (args, kwargs)):
                checks[key] = _check(fun, args, kwargs, large, hidden)
        suspected, certain = checks[key]([x for x, t in zip(leaves, traced, strict=True) if t])
        if not suspected:
            return None
        names = argument_names(fun, args, kwargs)
        for apart in (True, False):  # examples of a vmap one by one; then together, as they ran
            together = compat.staged_vmap() if apart else contextlib.nullcontext()
            with unchanged(fun, (args, kwargs)), together, compat.apart(), module_scopes():
                staged = stage(fun)(*args, **kwargs)
            search = _Search(staged.jaxpr, staged.args, names, large)
            if (found := search.result()) is not None:
                return found
            if not certain:
                return search.hidden() if hidden else None
        raise MalleableError(
            "a result is nan, but not where the program runs in parts: it is so by rounding",
            hint="look for operands at the edge of what a function is defined on",
        )

    return find


def _program_key(tree, leaves, traced):
    """What decides the program; None where it cannot be compared."""
    types = [jax.typeof(x) if t else x for x, t in zip(leaves, traced, strict=True)]
    key = tree, tuple(types)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _check(fun, args, kwargs, large, inside) -> Callable[[list], tuple[bool, bool]]:
    """A compiled check of flat arrays: whether anything may be bad, whether a result is nan."""
    staged = stage(fun)(*args, **kwargs)
    program = staged.jaxpr
    shown = _nonfinite if large is None else _over(large)
    wrong = jnp.isnan if large is None else lambda x: ~(jnp.abs(x) <= large)

    def results(consts, args):
        return evaluate(program, args, consts=consts), False

    def everything(consts, args):
        return count(program, consts, args, wrong, needless(program) if large is None else set())

    def check(run):
        def check(consts, args):
            outs, found = run(consts, list(map(compat.as_array, args)))
            outs = [x for x in outs if blame.checkable(jax.typeof(x))]
            bad = jnp.array([*map(shown, outs), found]).any()
            return bad, jnp.array([*map(has_nan, outs), False]).any()

        return check

    chosen = check(everything if inside else results)
    hasty = blame.compiled(chosen)
    try:
        hasty.trace(program.consts, staged.args)
    except MalleableError as error:  # state cannot cross some control flow
        if not inside:
            raise
        note("no search for what no result shows", error.where, error.what)
        chosen = check(results)
        hasty = blame.compiled(chosen)
    lasting = blame.compiled(chosen, once=False)  # for a loop that asks at each step
    asked = itertools.chain([hasty], itertools.repeat(lasting))

    def run(given):
        held = refs((*given, *program.consts))
        suspected, certain = next(asked)(program.consts, given)
        for ref, value in held:  # the check has run the program
            ref[...] = value
        return bool(suspected), bool(certain)

    return run


def _nonfinite(x):
    return ~jnp.isfinite(x).all()


def _over(limit):
    return lambda x: ~(jnp.abs(x) <= limit).all()


class _Search:
    """One search, on one set of arguments."""

    def __init__(self, program, args, names, large):
        self.top = blame.Body(program, list(map(compat.as_array, args)), (), ())
        self.names, self.large = names, large
        self.unseen: Any = None  # the first step that makes what is bad, where all are looked at

    def result(self) -> Finding | None:
        """What a result shows: NaN before Inf before what is large."""
        outs = self.top.program.jaxpr.outvars
        tests = [has_nan, _nonfinite, *([] if self.large is None else [_over(self.large)])]
        if compat.mutates(self.top.program):
            return self.one_by_one(tests)
        for test in tests:
            try:
                found = blame.origin(self.top, outs, test, made=test is not has_nan)
            except blame.Lost:
                continue
            if test is has_nan:
                return self.nan(found)
            if found.is_made or found.argument is not None:
                return self.told(found, test)
        return None

    def one_by_one(self, tests) -> Finding | None:
        """The first equation of all to make what a result shows, or else what none does."""
        note("searched equation by equation", "", "the program works on mutable references")
        body = self.top
        steps, outs = blame.first_steps(body.program, body.args, tests)
        shown = [t for t in tests if any(blame.is_bad(x, t) for x in outs)]
        self.unseen = steps.get(tests[0] if self.large is None else tests[-1])
        for test in shown:
            if test in steps:
                step = steps[test]
                return self.told(blame.Origin(body, step.eqn, step=step), test)
            for i, x in enumerate(body.args):
                if blame.is_bad(x, test):
                    return self.told(blame.Origin(body, argument=i), test)
            for x in body.program.consts:
                if blame.is_bad(x, test):
                    return self.told(blame.Origin(body, constant=blame.held(x)), test)
        return None

    def nan(self, found: blame.Origin) -> Finding:
        """A NaN, or the Inf it was before."""
        here = self.told(found, has_nan)
        if found.eqn is None or found.step:
            return here
        pairs = zip(found.eqn.invars, found.values[0], strict=True)
        bad = [v for v, x in pairs if blame.is_bad(x, _nonfinite)]
        if not bad:
            return here
        try:
            earlier = blame.origin(found.body, bad, _nonfinite, made=True)
        except blame.Lost:
            return here
        made = self.told(earlier, _nonfinite)
        if earlier.is_made:
            return replace(made, becomes=here)
        return here if earlier.argument is None else replace(here, comes_from=made.argument)

    def hidden(self) -> Finding | None:
        test = has_nan if self.large is None else _over(self.large)
        if compat.mutates(self.top.program):
            step = self.unseen
            made = step and self.told(blame.Origin(self.top, step.eqn, step=step), test)
            return made and replace(made, reaches_result=False)
        found = first_made(self.top, test)
        return found and replace(self.told(found, test), reaches_result=False)

    def told(self, found: blame.Origin, test) -> Finding:
        """What was found, in words and values."""
        eqn, done = found.eqn, found.transformed
        if eqn is None:
            return self.given(found, test)
        inputs, outputs = found.values
        bad = [x for x in outputs if blame.is_bad(x, test)] or outputs[:1]
        kind = _bad_kind(bad[0])
        transposed = "transpose(" in done
        differentiated = "jvp(" in done and not variables.is_written(eqn)
        names = {} if transposed else variables.every(found.program)
        return Finding(
            kind=kind,
            primitive=eqn.primitive.name,
            place=places.own(list(found.chain)),
            path=found.path,
            inputs=_named_values(eqn.invars, inputs, names),
            output=bad[0],
            element=_first(bad[0], kind, self.large),
            hint=remedies.of(
                eqn.primitive.name, kind, inputs, bad[0].dtype, transposed or differentiated
            ),
            in_gradient=transposed,
            differentiated=differentiated,
            module=found.module,
        )

    def given(self, found: blame.Origin, test) -> Finding:
        """An argument or a constant that is bad as it comes."""
        value, name = found.constant, "a constant"
        if found.argument is not None:
            value, name = self.top.args[found.argument], f"argument {self.names[found.argument]}"
            value = blame.held(value)
        kind = _bad_kind(value)
        at = _first(value, kind, self.large)
        return Finding(
            kind=kind,
            primitive="",
            place=places.own(list(found.chain)),
            path=found.path,
            inputs={},
            output=value,
            element=at,
            hint="see where it comes from: it is so before the function begins",
            argument=name + (f"[{', '.join(map(str, at))}]" if at else "") + _used(found),
        )


def _used(found: blame.Origin) -> str:
    where = places.spell(places.own(list(found.chain)))
    return f", used at {where}," if where and found.argument is None else ""


def _values(x) -> np.ndarray:
    """The numbers of an array, which have to be here."""
    if compat.is_elsewhere(x):
        raise MalleableError(
            "a value that is not finite has parts on devices of other processes: no process can "
            "say which element",
            hint="gather the arguments first (multihost_utils.process_allgather(x, tiled=True)), "
            "or look in each process at what x.addressable_shards holds",
        )
    return np.asarray(x)


def _bad_kind(x) -> str:
    x = _values(x)
    if x.dtype.kind not in "fc":  # bfloat16 and narrower
        x = x.astype(np.float32)
    return "nan" if np.isnan(x).any() else "inf" if np.isinf(x).any() else "large"


def _first(x, kind, large) -> tuple[int, ...]:
    """The index of the first bad element, () for a scalar."""
    x = _values(x)
    if x.dtype.kind not in "fc":
        x = x.astype(np.float32)
    bad = {"nan": np.isnan, "inf": np.isinf, "large": lambda x: np.abs(x) > large}[kind](x)
    return tuple(map(int, np.argwhere(bad)[0])) if x.ndim and bad.any() else ()


def _named_values(atoms, values, names) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, (atom, x) in enumerate(zip(atoms, values, strict=True)):
        name = names.get(atom, "") if not isinstance(atom, compat.Literal) else ""
        found[name if name and name not in found else f"operand {i}"] = x
    return found


def _shown_value(name, x, element, output) -> str:
    """`p = -0.3`, or one element of what is as large as the output."""
    x = _values(x)
    if x.dtype.kind not in "fciub":
        x = x.astype(np.float32) if x.dtype.kind == "V" else x
    if element and x.shape == np.shape(output):
        x, name = x[element], f"{name}{list(element)}"
    if x.size <= 8:
        text = np.array2string(x, precision=4, separator=", ").replace("\n", "")
    else:
        text = _type(x)
        text += f" from {np.nanmin(x):.4g} to {np.nanmax(x):.4g}" * (x.dtype.kind in "fiu")
    return text if name.startswith("operand ") else f"{name} = {text}"


def _type(x) -> str:
    return f"{np.dtype(x.dtype).name}[{','.join(map(str, np.shape(x)))}]"
