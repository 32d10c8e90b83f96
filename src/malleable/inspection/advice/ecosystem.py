"""What Flax, Equinox, Optax, Diffrax, NumPyro and Haiku refuse, in their own words or JAX's, and
how the user's line says it instead.
"""

import ast
import dataclasses
import re
import sys
import types
from typing import Any

import jax

from malleable.compat import Place, frames
from malleable.inspection.advice.evidence import creation, sources, tried
from malleable.inspection.advice.evidence.diagnosis import (
    Diagnosis,
    Probe,
    Said,
    Unsure,
    sure,
    topic,
)
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.tried import Rewrite
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import leaves, of_type
from malleable.inspection.advice.hint import Way

Told = tuple[str, str | tuple[Way, ...]] | tuple[str, str | tuple[Way, ...], Place | None]


def _within(trouble: Trouble, library: str) -> list[Step]:
    """The steps in the files of a library, innermost first."""
    return [s for s in reversed(trouble.steps) if f"/{library}/" in s.place.file]


def _alias(library: str, step: Step) -> str:
    """What the user's file calls a library."""
    held = {**step.frame.f_globals, **step.values}.items()
    names = (k for k, v in held if isinstance(v, types.ModuleType) and v.__name__ == library)
    return next(names, library)


def _ways(step: Step, *ways: Rewrite | str) -> tuple[Way, ...]:
    return tuple(tried.way(way, step, values=False) for way in ways)


# ---------------------------------------------------------------- Equinox

_FILTERED = {"jit": "filter_jit", "grad": "filter_grad", "vmap": "filter_vmap"}
_FILTERED |= {"value_and_grad": "filter_value_and_grad"}


def is_equinox(x: Any) -> bool:
    """Whether a value is a module of Equinox."""
    return any(kind.__module__.startswith("equinox.") for kind in type(x).__mro__[1:])


def _module(found: re.Match, trouble: Trouble, step: Step) -> Told:
    """jax.jit and jax.grad of a function that takes a module, which holds functions, too."""
    inner = sure(trouble.within(*frames.GRAD, *frames.VMAP, *frames.JIT))
    fun, args = sure(inner.held.fun), inner.held.args or ()
    held = zip(sources.parameters(fun), args, strict=False)
    name, module = sure([(name, x) for name, x in held if is_equinox(x)])[0]
    made = creation.how(tuple(_FILTERED), fun)
    usual = "grad" if inner.name in frames.GRAD else "vmap" if inner.name in frames.VMAP else "jit"
    kind = made.kind if made is not None else usual
    place = made.place if made is not None else creation.find(kind, fun, trouble)
    odd = next((p for p, x in leaves(module, name) if not hasattr(x, "dtype")), name)
    what = f"`{name}` is a module of Equinox, and `{odd}` in it is no array; jax.{kind} takes "
    what += f"arrays and trees of them (it is called at {here(step.place)})"
    new = f"{_alias('equinox', step)}.{_FILTERED[kind]}"
    node = sources.expression(place) if place is not None else None
    node = node.func if isinstance(node, ast.Call) else node
    edits = (tried.replaced(node, new, place.file),) if node is not None and place else ()
    filtered = getattr(sys.modules["equinox"], _FILTERED[kind])
    trace = lambda: sys.modules["equinox"].filter_eval_shape(filtered(fun), *args)  # noqa: E731
    way = f"write {new} in the place of jax.{kind}"
    # if it fails, there may be a jax.grad in it, which is the next to be replaced
    return what, (Way(way, edits, lambda: tried.succeeds(fun, trace) or None),), place


def _channels(found: re.Match, trouble: Trouble, step: Step) -> Told:
    """An image with its channels last."""
    layers = [s for s in _within(trouble, "equinox") if "weight" in dir(s.values.get("self"))]
    given, layer = sure(layers)[0].values.get("x"), layers[0].values["self"]
    shape, wanted = tuple(getattr(given, "shape", ()))[-layer.num_spatial_dims - 1 :], int(found[2])
    what = f"{type(layer).__name__} of Equinox takes one example with its channels first, "
    what += f"({wanted}, ...), and is given one of shape {shape}"
    way = f"pass an example with {wanted} channels, and these first"
    if shape[-1:] == (wanted,):
        way = "move the channels to the front of each example: jnp.moveaxis(x, -1, 0); of a batch, "
        way += "before jax.vmap, jnp.moveaxis(x, -1, 1)"
    return what, way


def _frozen(found: re.Match, trouble: Trouble, step: Step) -> Told:
    """model.w = w."""
    node, target = _stored(step)
    sure(is_equinox(sources.value(target.value, step)))
    owner, value = text(target.value), ast.unparse(node.value)
    what = f"`{owner}` is a module of Equinox, which cannot be changed in place"
    new = f"{_alias('equinox', step)}.tree_at(lambda m: m.{target.attr}, {owner}, {value})"
    if isinstance(target.value, ast.Name) and owner != "self":
        new = f"{owner} = {new}"
        return what, _ways(step, Rewrite(f"make a new one: {new}", node, new))
    return what, f"make a new one: {new}, and return it"


def _stored(step: Step) -> tuple[ast.Assign, ast.Attribute]:
    """The statement that sets an attribute, and its target."""
    match node := sources.statement(sources.expression(step.place)):
        case ast.Assign(targets=[ast.Attribute() as target, *_]):
            return node, target
    raise Unsure


# ---------------------------------------------------------------- Optax


def _state(found: re.Match, trouble: Trouble, step: Step) -> Told:
    """opt.init(model)."""
    call = sure(sources.call_at(step.place))
    given = sure(next((n for n in call.args if is_equinox(sources.value(n, step))), None))
    eqx, name = _alias("equinox", step), text(given)
    new = f"{eqx}.filter({name}, {eqx}.is_inexact_array)"
    what = f"`{name}` is a module of Equinox, and holds what is no array; `{text(call.func)}` "
    what += "makes a state for arrays"
    return what, _ways(step, Rewrite(f"pass its arrays only: {new}", given, new))


def _labels(found: re.Match, trouble: Trouble, step: Step) -> Told:
    """Labels that are not integers, or have one axis too many."""
    call = sure(sources.call_at(step.place))
    inner = sure([s for s in _within(trouble, "optax") if {"logits", "labels"} <= set(s.values)])[0]
    sure("integer" in inner.name and len(call.args) > 1)
    logits, labels = inner.values["logits"], inner.values["labels"]
    name, given = text(call.func), call.args[1]
    what = f"`{text(given)}` is {of_type(labels)}; `{name}` takes whole numbers, one for each row "
    what += f"of `{text(call.args[0])}`, which is {of_type(logits)}"
    if "int" not in str(labels.dtype):
        new = f"{tried.closed(given)}.astype(jnp.int32)"
        soft = f"{name.removesuffix('_with_integer_labels')}, if each row holds probabilities"
        return what, _ways(step, Rewrite(f"write {new}", given, new), soft)
    if tuple(labels.shape) == (*logits.shape[:-1], 1):
        new = f"{tried.closed(given)}[..., 0]"
        return what, _ways(step, Rewrite(f"write {new}", given, new))
    return what, f"pass labels of shape {tuple(logits.shape[:-1])}"


def _updates(found: re.Match, trouble: Trouble, step: Step) -> Told:
    """optax.apply_updates(params, optimizer.update(...))."""
    call = sure(sources.call_at(step.place))
    values = sure([s for s in _within(trouble, "optax") if s.name == "apply_updates"])[0].values
    params, updates = values.get("params"), values.get("updates", ())
    pair = isinstance(updates, tuple) and not hasattr(updates, "_fields") and len(updates) == 2
    sure(len(call.args) > 1 and pair)
    sure(jax.tree.structure(updates[0]) == jax.tree.structure(params))
    name = text(call.args[1])
    what = f"`{name}` is a pair, (updates, state), as the update of an optimizer returns it; "
    what += f"`{text(call.func)}` takes the updates"
    new = f"{tried.closed(call.args[1])}[0]"
    way = Rewrite(f"pass {new}, and keep {name}[1], the new state", call.args[1], new)
    return what, _ways(step, way)


def _order(found: re.Match, trouble: Trouble, step: Step) -> Told:
    """optimizer.update(grads, params, state)."""
    call = sure(sources.call_at(step.place))
    inner = sure([s for s in _within(trouble, "optax") if {"updates", "state"} <= set(s.values)])[
        -1
    ]
    given, args = inner.values, [text(arg) for arg in call.args]
    sure(len(args) > 1 and text(call.func).endswith(".update"))
    sure(jax.tree.structure(given["updates"]) == jax.tree.structure(given["state"]))
    name = text(call.func)
    what = f"`{args[1]}` is passed to `{name}` as the state of the optimizer, and is no state"
    if len(args) == 2:
        made = f"{name.removesuffix('update')}init(params)"
        return what, f"pass what {made} returned, or the update before this one, as its second"
    return what, f"the state comes second: {name}({args[0]}, {args[2]}, {args[1]})"


# ---------------------------------------------------------------- Diffrax, NumPyro, Haiku, nnx


def _field(met: re.Match, trouble: Trouble, step: Step) -> Told:
    """A vector field of another shape, or with other arguments."""
    inner = [s.values["self"] for s in _within(trouble, "diffrax") if "self" in s.values]
    fields = [f for f in (getattr(x, "vector_field", None) for x in inner) if f is not None]
    fun = sources.users(sure(fields)[0])
    sure(sources.definition(fun))
    name, place, ends = sources.name_of(fun), sources.where_defined(fun), sources.returns(fun)
    found = re.search(r"input type=(\S+) and requested type=(\S+)", trouble.text)
    if found is not None:
        what = f"the vector field {name} returns {found[1]}, and the state y is {found[2]}"
        what += f"\n  it is solved at {here(step.place)}"
        way = "return the derivative of y, of the shape that y has"
        return what, way, ends[-1][1] if ends else place
    given = sure(re.search(rf"\b{re.escape(name)}\(\) takes (\d+) positional", trouble.text))
    what = f"Diffrax calls the vector field {name} with three arguments, (t, y, args), and it "
    what += f"takes {given[1]}\n  it is solved at {here(step.place)}"
    return what, f"let it take all three: {name}(t, y, args)", place


def _site(met: re.Match, trouble: Trouble, step: Step) -> Told:
    """A site of NumPyro whose values do not fit the plates around it, or without a key."""
    inner = _within(trouble, "numpyro")
    if trouble.kind == "AssertionError" and inner[0].values.get("key", 0) is None:
        call = sources.call_at(step.place)
        site = text(call.args[0]) if call is not None and call.args else "a site"
        what = f"numpyro.sample({site}, ...) draws, and there is no key to draw from"
        way = "give the model one: numpyro.handlers.seed(model, jax.random.key(0))(...); or pass "
        return what, way + "the model to MCMC, SVI or Predictive, and the key to these"
    sites = (s.values["site"] for s in inner if isinstance(s.values.get("site"), dict))
    found: dict[str, Any] = next(sites, {})
    plates = {p.name: p.size for p in found.get("cond_indep_stack", ())}
    value: Any = found.get("value")
    sure(trouble.kind == "ValueError" and plates and hasattr(value, "shape"))
    sizes = ", ".join(f"{name!r} of size {size}" for name, size in plates.items())
    what = f"the value of the site {found['name']!r} is {of_type(value)}, within the plate {sizes}"
    if len(plates) == 1 and len(value.shape) == 1:
        size, name = value.shape[0], next(iter(plates))
        return what, f"make the plate {name!r} of size {size}, or pass {plates[name]} values"
    return what, "let each plate have the size of its axis of the value"


def _transformed(met: re.Match, trouble: Trouble, step: Step) -> Told:
    """Haiku's functions, which are transformed before they are called."""
    words = trouble.text
    if "must be initialized inside an `hk.transform`" in words:
        what = "modules of Haiku are made inside of a function that hk.transform is given"
        way = "write net = hk.transform(f), then params = net.init(key, x) and "
        return what, f"{way}net.apply(params, key, x)"
    if "non-None PRNGKey" in words:
        what = "the function draws random numbers (hk.next_rng_key), and no key is passed"
        return what, "pass one second: .apply(params, key, ...)"
    mismatch = r"'(\S+?)' with retrieved shape (\(.*?\)) does not match shape=\[(.*?)\]"
    name, has, needs = sure(re.search(mismatch, words)).groups()
    what = (
        f"the parameter {name!r} has shape {has}, and this module, for this input, needs ({needs})"
    )
    way = "pass an input of the width that they were made for, or make new ones, .init(key, x)"
    return what, way


# ---------------------------------------------------------------- what is left out of a call


def _lacking(met: re.Match, trouble: Trouble, step: Step) -> Told:
    """A module that is made or called without one of its arguments."""
    name, kind, argument = met[1].split(".")[-2:], met[2], met[3]
    inner = [s for s in _within(trouble, "flax") if s.name in ("init", "init_with_output")]
    if inner and name[-1] == "__call__":
        caller = trouble.caller(inner[-1])
        what = f"{met[1].rpartition('.')[0].rpartition('.')[2]}.__call__ needs `{argument}`, too: "
        what += f".{inner[-1].name} runs the module once, with what comes after the key"
        way = f"pass {argument} there as well: .{inner[-1].name}(key, ..., {argument}=...)"
        return what, way, caller.place if caller else None
    call = sure(sources.call_at(step.place))
    sure(argument == "rngs" and "keyword" in kind)
    given = ", ".join([*map(ast.unparse, [*call.args, *call.keywords]), "rngs=nnx.Rngs(0)"])
    new = f"{ast.unparse(call.func)}({given})"
    what = f"{name[0]} makes its parameters from random numbers, and has no key to draw them from"
    return what, _ways(step, Rewrite(f"write {new}", call, new))


def _swapped(met: re.Match, trouble: Trouble, step: Step) -> Told:
    """net.apply(out, x), where out, params = net.init_with_output(key, x)."""
    call = sure(sources.call_at(step.place))
    given = sources.value(sure(call.args)[0], step)
    sure(hasattr(given, "dtype"))
    what = f"`{text(call.args[0])}` is {of_type(given)}, and {text(call.func)} takes the variables "
    what += "of the module first, a dictionary of collections"
    return what, "pass what .init has returned; .init_with_output returns (output, variables)"


def _replaced(met: re.Match, trouble: Trouble, step: Step) -> Told:
    """state.params = params."""
    node, target = _stored(step)
    owner, value = sources.value(target.value, step), ast.unparse(node.value)
    name = text(target.value)
    what = f"`{name}` is a {type(owner).__name__}, a dataclass that cannot be changed in place"
    new = f"dataclasses.replace({name}, {target.attr}={value})"
    if callable(getattr(type(owner), "replace", None)):
        new = f"{name}.replace({target.attr}={value})"
    sure(dataclasses.is_dataclass(owner) and isinstance(target.value, ast.Name))
    return what, f"make a new one: {name} = {new}"


def _tokens(met: re.Match, trouble: Trouble, step: Step) -> Told:
    """Floats where an embedding takes whole numbers."""
    layers = [s for s in _within(trouble, "flax") if type(s.values.get("self")).__name__ == "Embed"]
    given = sure(layers)[0].values.get("inputs")
    sure(given is not None)
    what = f"Embed looks up rows by whole numbers, and is given {of_type(given)}"
    return what, "make its input a whole number: .astype(jnp.int32)"


def _dropout(met: re.Match, trouble: Trouble, step: Step) -> Told:
    call = sure(sources.call_at(step.place))
    name, given = text(call.func), ", ".join(map(text, call.args))
    what = f"`{name}` draws random numbers, and is given no key"
    way = f"pass one: {name}({given}, key=key); or inference=True, or eqx.nn.inference_mode, where "
    return what, f"{way}nothing is to be dropped"


def _parameters(met: re.Match, trouble: Trouble, step: Step) -> Told:
    """dist.Normal(mu, scale) with parameters that do not broadcast."""
    inner = [s for s in _within(trouble, "numpyro") if s.name == "__init__"]
    values = sure([s.values for s in inner if "self" in s.values])[-1]
    made = type(values["self"])
    given = {n: values.get(n) for n in getattr(made, "arg_constraints", ())}
    shown = [f"`{n}` is {of_type(x)}" for n, x in given.items() if x is not None]
    sure(len(shown) > 1)
    what = f"the parameters of {made.__name__} do not broadcast to one shape: {', '.join(shown)}"
    return what, "give them shapes that broadcast; independent variables belong into a plate"


ecosystem = topic(
    Diagnosis("not a valid JAX type|Error interpreting argument to", _module),
    Diagnosis(r"lhs feature dimension size .*? but (\d+) // 1 != (\d+)", _channels),
    Diagnosis("", _frozen, kind="FrozenInstanceError"),
    Diagnosis("", _replaced, kind="FrozenInstanceError"),
    Diagnosis(r"(\S+)\(\) missing 1 required (.*) argument: '(\w+)'", _lacking),
    Diagnosis(r"unsupported operand type <class 'str'>", _swapped, library="flax"),
    Diagnosis(r"^Input type must be an integer or unsigned integer", _tokens, library="flax"),
    Diagnosis(r"^Dropout requires a key", _dropout, library="equinox"),
    Diagnosis(r"^Incompatible shapes for broadcasting", _parameters, library="numpyro"),
    Diagnosis(
        r"^all sites must have unique names but got `(.*?)` duplicated",
        what="two sites of the model are called {_1!r}",
        hint="give each a name of its own; in a loop, f'{_1}_{{i}}', or a plate",
    ),
    Diagnosis(
        r"^(\w+) distribution got invalid (\w+) parameter",
        what="the parameter {_2} of {_1} is outside of what it may be",
        hint="make it so: jnp.exp or jax.nn.softplus of a free value is positive",
    ),
    Diagnosis(
        r"maximum number of solver steps was reached",
        what="the solver of Diffrax ends after max_steps steps, and is not at t1 by then",
        hint="pass a larger max_steps= (None: no limit), or larger steps: an adaptive "
        "diffrax.PIDController, and for a stiff equation an implicit solver, diffrax.Kvaerno5()",
    ),
    Diagnosis(
        r"assigned to static attribute '(\w+)' of Pytree type",
        what="self.{_1} is a list or a dict that holds parts of the module, and nnx keeps these "
        "in lists and dicts of its own",
        hint="write self.{_1} = nnx.List([...]), or nnx.Dict(...)",
    ),
    Diagnosis("zeros_like requires", _state, library="optax"),
    Diagnosis("", _labels, library="optax"),
    Diagnosis("", _updates, library="optax"),
    Diagnosis("", _order, library="optax"),
    Diagnosis("", _field, library="diffrax"),
    Diagnosis("", _site, library="numpyro"),
    Diagnosis("", _transformed, library="haiku"),
    Diagnosis(
        r"Cannot mutate (\w+) from a different trace level",
        what="a {_1} of a module is changed here, inside of a function that JAX traces, and the "
        "module was made outside of it",
        hint="pass the module to the function as an argument, and transform it with nnx.jit, "
        "nnx.grad or nnx.value_and_grad, which carry the change out",
    ),
    Diagnosis(
        r"Can't set (\w+)=",
        what="self.{_1} is set while the module runs, and a module of Flax is frozen then",
        hint="keep it in a variable, or return it; or self.sow('intermediates', {_1!r}, ...) and "
        "apply(..., mutable=['intermediates'])",
        kind="SetAttributeFrozenModuleError",
    ),
    weight=3.5,
)

# ---------------------------------------------------------------- Flax in its own words


def _entry(trouble: Trouble) -> Step | None:
    """The user's line that gives parameters and keys to a module of Flax."""
    doors = [s for s in trouble.steps if not s.own and s.name in ("apply", "init_with_output")]
    return trouble.caller(doors[0]) if doors else None


def _keys(scope: str, name: str = "") -> str:
    """`['Dense_0']['kernel']` for the scope /Dense_0 of Flax."""
    keys = [key for key in (*scope.split("/"), name) if key]
    return "".join(f"[{key!r}]" for key in keys)


def _other_shape(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    name, scope, made, has = found.groups()
    wanted, got = (tuple(map(int, re.findall(r"\d+", one))) for one in (made, has))
    layer = trouble.within("__call__")
    given = layer.values.get("inputs") if layer else None
    what = f"the parameter params{_keys(scope, name)} has shape {got}, and this module, for this "
    what += f"input, needs {wanted}"
    shape = tuple(getattr(given, "shape", ()))
    if shape and wanted[-1:] == got[-1:] and len(got) == len(wanted) > 1:
        what += f": the input of the layer has shape {shape}, and its parameters were made for "
        what += f"one whose last axis has size {got[-2]}, not {shape[-1]}"
        way = f"pass an input of the width {got[-2]}, or make new parameters with .init(key, x)"
        return what, way
    return what, "make new parameters with .init(key, x), or use the module they were made with"


def _no_parameter(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    name, scope = found.groups()
    apply = trouble.within("wrapper", "apply")
    held = apply.values.get("variables") if apply else None
    known = held.get("params") if isinstance(held, dict) else None
    what = f"there is no params{_keys(scope, name)} among the parameters"
    what += f"; they have {', '.join(map(repr, known))}" if isinstance(known, dict) else ""
    way = "make the parameters with .init of this module, as it is now; or use the module and the "
    return what, way + "names of its parts that they were made with"


def _no_key(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    layer, name = found.groups()
    what = f"{layer} draws random numbers from a key called {name!r}, and none is passed"
    if trouble.within("init", "init_with_output"):
        return what, f"pass both keys: .init({{'params': key1, {name!r}: key2}}, ...)"
    return what, f"pass one: .apply(..., rngs={{{name!r}: key}})"


def _immutable(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    name, scope, collection = found.groups()
    what = f"{scope.strip('/') or 'the module'} writes {name!r} of the collection {collection!r}, "
    what += "and only collections that are named in mutable= can be written"
    way = f"write `out, changed = model.apply(..., mutable=[{collection!r}])` and keep "
    return what, way + "`changed` for the next call; or run it without updates, as in evaluation"


def _collections(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    given = _variables(trouble)
    what = f"`{given}` is passed as the variables of the module, and is no dictionary of "
    what += "collections"
    return what, f"write {{'params': {given}}} for it, or pass all that .init has returned"


def _empty(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    name, collection, scope = found.groups()
    apply = trouble.within("wrapper", "apply")
    held, given = apply.values.get("variables") if apply else None, _variables(trouble)
    known = ", ".join(map(repr, held)) if isinstance(held, dict) else ""
    what = f"`{given}` is passed as the variables of the module, and has no collection "
    what += f"{collection!r}, where {_keys(scope, name)} is looked for"
    what += f"; its keys are {known}" if known else ""
    return what, f"write {{{collection!r}: {given}}} for it, or pass all that .init has returned"


def _variables(trouble: Trouble) -> str:
    """What is passed first to `.apply`."""
    entry = _entry(trouble)
    call = sources.call_at(entry.place) if entry else None
    return text(sources.argument(call, 0, "variables"), "variables")


def _submodule(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    what = f"{found[1]} is made in a method that Flax does not know to make modules"
    way = "write @nn.compact before the method (one method per module can have it), or make "
    return what, f"{way}{found[1]} in `def setup(self)` and call it here"


def _no_params(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    call = sources.call_at(step.place)
    given = ", ".join(map(text, call.args)) if call is not None else "grads, state"
    name = text(call.func) if call is not None else "update"
    what = f"`{name}` needs the parameters, too, for what this optimizer does (weight decay, say)"
    return what, f"pass them third: {name}({given}, params)"


def _no_rngs(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    what = f"{found[1]} draws random numbers, and has no key to draw them from"
    way = "make it with rngs=nnx.Rngs(0), or pass rngs= in the call, or call it with "
    return what, f"{way}deterministic=True where nothing is to be random"


def _rank(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    call, rank = sure(sources.call_at(step.place)), int(found[1])
    shape = tuple(map(int, re.findall(r"\d+", found[2])))
    what = f"`{text(call.func)}` takes an array with {rank} axes, and is given one of shape {shape}"
    if len(shape) == rank + 1:
        return what, f"map it over the leading axis: {_mapped(call)}"
    return what, f"pass an array with {rank} axes"


def _mapped(call: ast.Call) -> str:
    return f"jax.vmap({text(call.func)})({', '.join(map(text, call.args))})"


def _batch(found, trouble: Trouble, step: Step) -> tuple[str, str]:
    """A batch is passed to a layer of Equinox, which takes one example."""
    layer, call = sure(trouble.foreign), sure(sources.call_at(step.place))
    sure("equinox" in layer.place.file)
    x, weight = layer.values.get("x"), getattr(layer.values.get("self"), "weight", None)
    shape, size = (tuple(map(int, getattr(one, "shape", ()))) for one in (x, weight))
    sure(len(shape) == len(size) == 2 and shape[-1] == size[-1])
    what = f"a layer of Equinox takes one example, of shape ({size[-1]},), and is given many: "
    return what + f"an array of shape {shape}", f"map it over the leading axis: {_mapped(call)}"


_OF_ENTRY = {_empty, _other_shape, _no_parameter, _no_key, _immutable, _collections}

_TABLE: tuple[tuple[str, Probe], ...] = (
    (
        r'For parameter "(\w+)" in "(.*?)", the given initializer is expected to generate shape '
        r"(\(.*?\)), but the existing parameter it received has shape (\(.*?\))",
        _other_shape,
    ),
    (r'Could not find parameter named "(\w+)" in scope "(.*?)"', _no_parameter),
    (r'(\w+) needs PRNG for "(\w+)"', _no_key),
    (r'update variable "(\w+)" in "(.*?)" because collection "(\w+)" is immutable', _immutable),
    (r"passed to an apply function should be a dictionary of collections", _collections),
    (r'access "(\w+)" from collection "(\w+)" in "(.*?)" but the collection is empty', _empty),
    (r"Submodule (\w+) must be defined in `setup\(\)`", _submodule),
    (r"not passing `params` when calling `update`", _no_params),
    (r"no `rngs` argument was provided to (\w+)", _no_rngs),
    (r"needs to have rank (\d+).*?has shape (\(.*?\))", _rank),
)


def _refused(probe: Any) -> Probe:
    """A probe of what a library refuses; for Flax, at the line that gives it the parameters."""

    def probed(found: re.Match, trouble: Trouble, step: Step) -> Said:
        sure(trouble.foreign)
        what, way = probe(found, trouble, step)
        entry = _entry(trouble) if probe in _OF_ENTRY else None
        if entry is None or entry is step:
            return Said(what, way)
        return Said(f"{what}\n  in the layer of {here(step.place)}", way, entry.place)

    return probed


libraries = topic(
    *(Diagnosis(f"(?s){said}", _refused(probe)) for said, probe in _TABLE),
    Diagnosis("", _refused(_batch), library="equinox"),
)
