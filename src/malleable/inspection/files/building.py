"""From a `Program` to a jaxpr: each equation is bound again, and has to give the recorded type.

Nothing of the file runs: an operation is looked up in a table, by its name, and traced.
"""

import contextlib
from collections.abc import Iterator, Sequence

import jax
from jax.experimental.compute_on import compute_on
from jax.experimental.xla_metadata import set_xla_metadata

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection.files import constructs, names
from malleable.inspection.files.format import parameters, types
from malleable.inspection.files.format.program import Atom, Body, Equation, Number, Program, Ref


def build(program: Program, results: Sequence[str]) -> compat.Jaxpr:
    """The jaxpr of a program with results of some types.

    Raises MalleableError where it is no well-typed program.
    """
    builder = Builder(program)
    main = builder.body(Ref(program.main))
    avals = [types.parse(kind).aval for _, kind in main.ins]

    def run(*xs):
        outs = builder.run(Ref(main.name), xs)
        if len(outs) != len(results):
            raise MalleableError(f"the program has {len(outs)} results, and not {len(results)}")
        named = zip(outs, results, range(len(outs)), strict=True)
        return [constructs.fit_type(x, kind, f"result {i}") for x, kind, i in named]

    with jax.threefry_partitionable(True), compat.apart():
        made = compat.trace(run, *avals)
        for body in program.bodies.values():  # rules are run when a derivative is taken: try now
            builder.try_out(body)
    return made


class Builder:
    """Runs bodies while they are traced. run(ref, args) -> results."""

    def __init__(self, program: Program):
        self.program = program
        self.constants = {name: constructs.array(c) for name, c in program.constants.items()}
        self.made: dict = {}  # functions that stand for a body, so that JAX traces them once
        self._tracebacks: dict = {}

    def body(self, ref) -> Body:
        """The body of a reference."""
        found = self.program.bodies.get(ref.name) if isinstance(ref, Ref) else None
        if found is None:
            raise MalleableError(f"{ref!r} is no body of the program")
        return found

    def run(self, ref: Ref, args: Sequence) -> list:
        """The results of a body on arguments of its types."""
        body = self.body(ref)
        if len(args) != len(body.ins):
            what = f"`{body.name}` takes {len(body.ins)} values and is given {len(args)}"
            raise MalleableError(what)
        given = zip(args, body.ins, strict=True)
        env = {name: constructs.fit_type(x, kind, f"`{name}`") for x, (name, kind) in given}
        for eqn in body.equations:
            try:
                outs = self.equation(eqn, [self.read(env, a) for a in eqn.ins])
            except MalleableError as err:
                place = names.spell_frames(eqn.at)
                raise err if err.where else type(err)(err.what, where=place, hint=err.hint) from err
            env.update({name: x for (name, _), x in zip(eqn.outs, outs, strict=True)})
        return [self.read(env, a) for a in body.outs]

    def read(self, env: dict, atom: Atom):
        if isinstance(atom, Number):
            if atom.value.dtype == jax.dtypes.float0:
                return atom.value
            return compat.literal(atom.value, types.parse(atom.type).aval).val
        found = env.get(atom, self.constants.get(atom))
        if found is None:
            raise MalleableError(f"the program reads {atom!r} before it is made")
        return found

    def equation(self, eqn: Equation, args: list) -> list:
        """Run one equation under the line it came from, and look at what it gives."""
        with self.under(eqn):
            outs = self.perform(eqn, args)
        if len(outs) != len(eqn.outs):
            what = f"`{eqn.operation}` gives {len(outs)} results, the file says {len(eqn.outs)}"
            raise MalleableError(what)
        for x, (name, kind) in zip(outs, eqn.outs, strict=True):
            constructs.check(x, kind, f"{name!r}, of `{eqn.operation}`")
        return list(outs)

    def perform(self, eqn: Equation, args: list) -> list:
        make = constructs.TABLE.get(eqn.operation)
        try:
            if make is not None:
                return list(make(self, eqn.params, args))
            prim = compat.named_primitives().get(eqn.operation)
            if prim is None and eqn.operation in parameters.STAND_INS:
                return [parameters.STAND_INS[eqn.operation](*args, **eqn.params)]
            if prim is None or prim.name in constructs.RESERVED:
                raise MalleableError(
                    f"there is no primitive `{eqn.operation}` in JAX {jax.__version__}",
                    hint="load it with the JAX that wrote it, as the metadata says",
                )
            given = parameters.completed(eqn.operation, eqn.params)
            outs = prim.bind(*args, **given)
            return list(outs) if prim.multiple_results else [outs]
        except MalleableError:
            raise
        except Exception as err:  # what a rule of JAX's raises for what does not fit
            kinds = ", ".join(types.unparse(jax.typeof(x)) for x in args)
            raise MalleableError(
                f"`{eqn.operation}` does not take what the file gives it, ({kinds}): {err}",
                hint="was it edited, or written by a JAX far from this one?",
            ) from err

    @contextlib.contextmanager
    def under(self, eqn: Equation) -> Iterator[None]:
        """The source line, the name stack and the context of an equation."""
        if eqn.at not in self._tracebacks:
            self._tracebacks[eqn.at] = compat.traceback_of(eqn.at)
        with contextlib.ExitStack() as stack:
            stack.enter_context(compat.restored(self._tracebacks[eqn.at], eqn.names))
            how = eqn.context
            if "threefry_partitionable" in how:
                stack.enter_context(jax.threefry_partitionable(bool(how["threefry_partitionable"])))
            if how.get("compute_type"):
                stack.enter_context(compute_on(how["compute_type"]))
            if how.get("xla_metadata"):
                stack.enter_context(set_xla_metadata(**how["xla_metadata"]))
            yield

    def try_out(self, body: Body) -> None:
        """Trace a body that was not reached, if it can be by itself."""
        if body.name not in self.rules():
            return
        avals = [types.parse(kind) for _, kind in body.ins]
        if not any(t.varies for t in avals):  # else it needs the mesh around it
            compat.trace(lambda *xs: self.run(Ref(body.name), xs), *(t.aval for t in avals))

    def rules(self) -> set[str]:
        """The bodies that are rules of custom derivatives."""
        roles = ("jvp", "forward", "backward", "transpose")
        every = (eqn for body in self.program.bodies.values() for eqn in body.equations)
        refs = (eqn.params.get(role) for eqn in every for role in roles)
        return {ref.name for ref in refs if isinstance(ref, Ref)}
