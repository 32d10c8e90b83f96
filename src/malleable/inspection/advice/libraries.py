"""What Flax, Optax and Equinox refuse in words of their own: parameters, keys, states, batches."""

import ast
import re
from typing import Any

from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Probe, Said, sure, topic
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here

Told = tuple[str, str]


def _entry(trouble: Trouble) -> Step | None:
    """The user's line that gives parameters and keys to a module of Flax."""
    doors = [s for s in trouble.steps if not s.own and s.name in ("apply", "init_with_output")]
    return trouble.caller(doors[0]) if doors else None


def _keys(scope: str, name: str = "") -> str:
    """`['Dense_0']['kernel']` for the scope /Dense_0 of Flax."""
    keys = [key for key in (*scope.split("/"), name) if key]
    return "".join(f"[{key!r}]" for key in keys)


def _other_shape(found, trouble: Trouble, step: Step) -> Told:
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


def _no_parameter(found, trouble: Trouble, step: Step) -> Told:
    name, scope = found.groups()
    apply = trouble.within("wrapper", "apply")
    held = apply.values.get("variables") if apply else None
    known = held.get("params") if isinstance(held, dict) else None
    what = f"there is no params{_keys(scope, name)} among the parameters"
    what += f"; they have {', '.join(map(repr, known))}" if isinstance(known, dict) else ""
    way = "make the parameters with .init of this module, as it is now; or use the module and the "
    return what, way + "names of its parts that they were made with"


def _no_key(found, trouble: Trouble, step: Step) -> Told:
    layer, name = found.groups()
    what = f"{layer} draws random numbers from a key called {name!r}, and none is passed"
    if trouble.within("init", "init_with_output"):
        return what, f"pass both keys: .init({{'params': key1, {name!r}: key2}}, ...)"
    return what, f"pass one: .apply(..., rngs={{{name!r}: key}})"


def _immutable(found, trouble: Trouble, step: Step) -> Told:
    name, scope, collection = found.groups()
    what = f"{scope.strip('/') or 'the module'} writes {name!r} of the collection {collection!r}, "
    what += "and only collections that are named in mutable= can be written"
    way = f"write `out, changed = model.apply(..., mutable=[{collection!r}])` and keep "
    return what, way + "`changed` for the next call; or run it without updates, as in evaluation"


def _collections(found, trouble: Trouble, step: Step) -> Told:
    given = _variables(trouble)
    what = f"`{given}` is passed as the variables of the module, and is no dictionary of "
    what += "collections"
    return what, f"write {{'params': {given}}} for it, or pass all that .init has returned"


def _empty(found, trouble: Trouble, step: Step) -> Told:
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
    named = {k.arg: k.value for k in call.keywords} if call is not None else {}
    first = call.args[0] if call is not None and call.args else named.get("variables")
    return text(first) if first is not None else "variables"


def _submodule(found, trouble: Trouble, step: Step) -> Told:
    what = f"{found[1]} is made in a method that Flax does not know to make modules"
    way = "write @nn.compact before the method (one method per module can have it), or make "
    return what, f"{way}{found[1]} in `def setup(self)` and call it here"


def _no_params(found, trouble: Trouble, step: Step) -> Told:
    call = sources.call_at(step.place)
    given = ", ".join(map(text, call.args)) if call is not None else "grads, state"
    name = text(call.func) if call is not None else "update"
    what = f"`{name}` needs the parameters, too, for what this optimizer does (weight decay, say)"
    return what, f"pass them third: {name}({given}, params)"


def _no_rngs(found, trouble: Trouble, step: Step) -> Told:
    what = f"{found[1]} draws random numbers, and has no key to draw them from"
    way = "make it with rngs=nnx.Rngs(0), or pass rngs= in the call, or call it with "
    return what, f"{way}deterministic=True where nothing is to be random"


def _rank(found, trouble: Trouble, step: Step) -> Told:
    call, rank = sure(sources.call_at(step.place)), int(found[1])
    shape = tuple(map(int, re.findall(r"\d+", found[2])))
    what = f"`{text(call.func)}` takes an array with {rank} axes, and is given one of shape {shape}"
    if len(shape) == rank + 1:
        return what, f"map it over the leading axis: {_mapped(call)}"
    return what, f"pass an array with {rank} axes"


def _mapped(call: ast.Call) -> str:
    return f"jax.vmap({text(call.func)})({', '.join(map(text, call.args))})"


def _batch(found, trouble: Trouble, step: Step) -> Told:
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
