"""Shapes that do not fit: broadcasting, products, joining, reshaping, axes and indices."""

import ast
import contextlib
import math
import re

from malleable.compat import frames
from malleable.inspection.advice.evidence import sources, tried
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, Unsure, sure, topic
from malleable.inspection.advice.evidence.fitting import closed, fitted
from malleable.inspection.advice.evidence.mapped import is_pmap
from malleable.inspection.advice.evidence.operands import Operand, operands
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.tried import Rewrite
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import listed

_INSTEAD = {
    "inv": "the pseudo-inverse is jnp.linalg.pinv({a})",
    "solve": "the least-squares solution is jnp.linalg.lstsq({a}, {b})[0]",
    "eig": "the singular values are in jnp.linalg.svd({a})",
    "eigh": "the singular values are in jnp.linalg.svd({a})",
    "eigvals": "the singular values are jnp.linalg.svd({a}, compute_uv=False)",
    "eigvalsh": "the singular values are jnp.linalg.svd({a}, compute_uv=False)",
}
_SQUARE = {*_INSTEAD, "det", "slogdet", "cholesky", "matrix_power", "expm", "sqrtm", "lu_solve"}
_SQUARE |= {"solve_triangular", "cho_factor", "cho_solve", "schur", "logm", "triangular_solve"}


def square(found, node: ast.AST, known: list[Operand]) -> tuple[str, str]:
    """(what, way out) for a function of linear algebra that takes a square matrix first."""
    name = text(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    arrays = [one for one in known if one.shape and len(one.shape) > 1]
    one = sure(name in _SQUARE and arrays)[0]
    rows, columns = one.shape[-2:]
    others = [other for other in known if other.shape and other is not one]
    if rows != columns:
        what = f"{name} takes a square matrix, or many of them in leading axes, and {one}: "
        what += f"its last two axes are {rows} and {columns}"
        hint = "pass a square one, of which the last two axes are equal"
        instead = _INSTEAD.get(name, "").format(a=one.name, b=others[0].name if others else "b")
        return what, hint + (f"; of this one, {instead}" if instead else "")
    other = sure(name != "matrix_power" and others)[0]
    size = other.shape[-2] if len(other.shape) > 1 else other.shape[-1]
    sure(size != rows)
    what = f"{one} and {other}: a right side for {rows} equations has {rows} rows, not {size}"
    turned = len(other.shape) == 2 and other.shape[-1] == rows
    return what, f"write {other.name}.T" if turned else f"pass a `{other.name}` of {rows} rows"


# ---------------------------------------------------------------- square matrices

Told = tuple[str, str | Rewrite]


def _misfit(met: re.Match, trouble: Trouble, step: Step) -> Said:
    """An operation on arrays whose shapes do not fit together."""
    if (foreign := trouble.foreign) is not None:
        said, _ = sure(_by_table(trouble, foreign))
        told = re.findall(r"\(\d[\d, ]*\)", trouble.text)
        if "broadcast" in trouble.text and told and not all(one in said for one in told):
            said = f"arrays of the shapes {' and '.join(told)} do not broadcast"
        inside = f"inside of a library, at {here(foreign.place)}, {said}"
        return Said(inside, _passed(trouble), weight=2)
    sure(not _mapped(trouble))
    if (found := _by_table(trouble, step)) is not None:
        way = _by_pairs(trouble, step) or found[1]
        return Said(found[0], (tried.way(way, step, values=False),))
    sure(trouble.steps[-1] is not step)
    node, known = operands(trouble)  # a library refuses what this line gives to it
    known = [one for one in known if one.shape is not None and hasattr(one.value, "dtype")]
    sure(known and _is_about(trouble.text, known))
    name = text(node.func) if isinstance(node, ast.Call) else "this operation"
    return Said(f"{name} refuses what it is given here: {_shown(known)}", "", weight=1)


shapes = topic(Diagnosis("", _misfit, kind="TypeError|ValueError|IndexError"))


def _passed(trouble: Trouble) -> str:
    """What the user's line gives to a library, which alone the user can change."""
    _, known = operands(trouble)
    known = [one for one in known if one.shape]
    return "check what is passed to it here" + (f": {_shown(known)}" if known else "")


def _is_about(words: str, known: list[Operand]) -> bool:
    """Whether a message speaks of the shape or the dtype of one of these arrays."""
    shapes = {str(one.shape) for one in known if one.shape}
    shapes |= {str(list(one.shape)).replace(" ", "") for one in known if one.shape}
    types = {str(one.value.dtype) for one in known}
    return any(told in words or told in words.replace(" ", "") for told in shapes | types)


def _by_pairs(trouble: Trouble, step: Step) -> str:
    """The way out for a function that associative_scan gives many elements at once."""
    scan = trouble.within(*frames.ASSOCIATIVE)
    fun = scan.held.body if scan is not None else None
    plain = sources.plain(fun) if fun is not None else None
    if plain is None or plain.__code__ is not step.frame.f_code:
        return ""
    name = sources.name_of(fun)
    name = "fn" if name == "<lambda>" else name
    return (
        f"associative_scan gives {name} many elements at once, along axis 0: pass jax.vmap({name}) "
        "for one that is written for two single elements"
    )


def _by_table(trouble: Trouble, step: Step) -> Told | None:
    """(what, way out) by the first row of the table that fits the error."""
    for pattern, say in _TABLE:
        found = re.search(pattern, trouble.text, re.S | re.I)
        if found is not None:
            node, known = operands(trouble, deep=True, step=step)
            with contextlib.suppress(Unsure):
                return say(found, node, [one for one in known if one.shape is not None])
    return None


def _mapped(trouble: Trouble) -> bool:
    """Whether the line only passes a function on, which fails inside of a library."""
    callee = trouble.callee
    return callee is not None and (callee.name in frames.TRANSFORMATIONS or is_pmap(callee))


def _shown(known: list[Operand]) -> str:
    return ", ".join(map(str, known))


def _broadcast(found, node, known) -> Told:
    arrays = [one for one in known if one.shape]
    pair = _clash(sure(arrays))
    if pair is None:
        return f"these shapes do not broadcast: {_shown(arrays)}", _ANY_SHAPE
    one, other = pair
    axis, a, b = _where(one.shape, other.shape) or (0, 0, 0)
    what = f"{one} and {other}, which do not broadcast: aligned at the right, axis {axis} is {a} "
    what += f"in `{one.name}` and {b} in `{other.name}`"
    return what, _fit(one, other)


def _promotion(found, node, known) -> Told:
    """Arrays that broadcast, and jax_numpy_rank_promotion forbids it."""
    arrays = sure([one for one in known if one.shape])
    few, many = min(arrays, key=_count), max(arrays, key=_count)
    sure(_count(few) != _count(many) and not _clash(arrays))
    what = f"{few} and {many}: they broadcast, but the setting jax_numpy_rank_promotion='raise' "
    what += "forbids to broadcast arrays with different numbers of axes"
    index = ", ".join(["None"] * (_count(many) - _count(few)) + [":"] * _count(few))
    new = f"{closed(few.name)}[{index}]"
    return what, Rewrite(f"say which axes are new: {new}", few.node, new)


def _count(one: Operand) -> int:
    return len(one.shape or ())


_ANY_SHAPE = "make every axis equal or 1, aligned at the right: x[:, None], x.reshape(...)"


def _clash(arrays: list[Operand]) -> tuple[Operand, Operand] | None:
    for i, one in enumerate(arrays):
        for other in arrays[i + 1 :]:
            if _where(one.shape, other.shape) is not None:
                return one, other
    return None


def _where(a: tuple, b: tuple) -> tuple[int, int, int] | None:
    """(axis counted from the right, sizes) where two shapes do not broadcast."""
    for i, (m, n) in enumerate(zip(reversed(a), reversed(b), strict=False)):
        if m != n and 1 not in (m, n):
            return -1 - i, m, n
    return None


def _fit(one: Operand, other: Operand) -> str | Rewrite:
    small, big = sorted((one, other), key=lambda x: len(x.shape))
    name = small.name if small.name.isidentifier() else f"({small.name})"
    if len(small.shape) < len(big.shape):
        for start in range(len(big.shape) - len(small.shape) + 1):
            part = big.shape[start : start + len(small.shape)]
            if all(m == n or 1 in (m, n) for m, n in zip(part, small.shape, strict=True)):
                after = len(big.shape) - start - len(small.shape)
                index = ", ".join([":"] * len(small.shape) + ["None"] * after)
                new = f"{name}[{index}]"
                way = f"line up the axes: write {new} (or reshape it), of shape "
                return Rewrite(f"{way}{small.shape + (1,) * after}", small.node, new)
    if len(small.shape) == len(big.shape) >= 2 and _where(small.shape[::-1], big.shape) is None:
        return Rewrite(f"transpose one of them: {name}.T", small.node, f"{name}.T")
    if len(small.shape) == len(big.shape) == 1:
        n = min(small.shape[0], big.shape[0])
        longer = big if big.shape[0] > n else small
        outer = f"for all pairs write {name}[:, None]"
        return f"make them equally long, e.g. {longer.name}[:{n}]; or, {outer}"
    return f"{_ANY_SHAPE}, or reduce one, e.g. `{big.name}`.sum(axis=...)"


# ---------------------------------------------------------------- products


def _product(found, node, known) -> Told:
    arrays = [one for one in known if one.shape]
    if len(arrays) == 1 and _twice(node):
        arrays *= 2
    one, other = sure(len(arrays) > 1 and arrays)[:2]
    inner = one.shape[-1], other.shape[-2] if len(other.shape) > 1 else other.shape[0]
    of = "the second last axis" if len(other.shape) > 1 else "the axis"
    what = f"{one} and {other}: the last axis of `{one.name}` has size {inner[0]} and {of} of "
    what += f"`{other.name}` has size {inner[1]}; a product sums over both, so they must be equal"
    if inner[0] == inner[1]:
        what = f"{one} and {other}: the axes that are summed over are not of the same size"
    at = isinstance(node, ast.BinOp)
    signs = (("", ""), ("", ".T"), (".T", ""), (".T", ".T"))
    pairs = ((one.name, other.name), (other.name, one.name))
    ways = [(a + first, b + last) for first, last in signs for a, b in pairs]
    known_shapes = {one.name: one.shape, other.name: other.shape}
    for a, b in ways:
        if _multiplies(_transposed(a, known_shapes), _transposed(b, known_shapes)):
            made = f"{a} @ {b}" if at else f"jnp.dot({a}, {b})"
            return what, f"write {made}, if that is what you mean; or give one another shape"
    return what, "give them a common axis: check the shape in which each is made"


def _twice(node: ast.AST) -> bool:
    """Whether both operands are written alike: `a @ a`."""
    match node:
        case ast.BinOp(left=left, right=right) | ast.Call(args=[left, right]):
            return text(left) == text(right)
    return False


def _transposed(name: str, known: dict) -> tuple:
    return known[name[:-2]][::-1] if name.endswith(".T") and name not in known else known[name]


def _multiplies(a: tuple, b: tuple) -> bool:
    return bool(a) and bool(b) and a[-1] == b[-2:][0]


def _einsum(found, node, known) -> Told:
    spec = getattr(_call(node, 1).args[0], "value", None)
    arrays = [one for one in known if one.shape is not None]
    if not isinstance(spec, str) or "..." in spec:
        return f"in this einsum {_shown(sure(arrays))}", ""
    terms = spec.split("->")[0].replace(" ", "").split(",")
    given = node.args[1:]
    if len(terms) != len(given):
        what = f"`{spec}` speaks of {len(terms)} arrays, and {len(given)} are passed"
        return what, "write one group of letters for each array"
    sure(len(arrays) == len(terms))  # else the shape of one of them is not known
    sizes: dict[str, tuple[int, str]] = {}
    for term, one in zip(terms, arrays, strict=True):
        shape = one.shape or ()
        if len(term) != len(shape):
            what = f"`{term}` in `{spec}` has {len(term)} letters, but {one}"
            return what, f"write {len(shape)} letters for `{one.name}`, one per axis"
        for letter, size in zip(term, shape, strict=True):
            if letter in sizes and sizes[letter][0] != size:
                first, name = sizes[letter]
                what = f"the letter {letter} of `{spec}` is {first} in `{name}` and {size} in "
                what += f"`{one.name}`: {_shown(arrays)}"
                return what, f"use another letter for one of them, or the same size for {letter}"
            sizes.setdefault(letter, (size, one.name))
    raise Unsure


def _call(node: ast.AST, count: int) -> ast.Call:
    """The call that fails, with so many arguments by position at least."""
    match node:
        case ast.Call(args=args) if len(args) >= count:
            return node
    raise Unsure


# ---------------------------------------------------------------- joining and reshaping


def _join(found, node, known) -> Told:
    arrays = [one for one in known if one.shape is not None and hasattr(one.value, "dtype")]
    name = text(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else "this"
    if len(arrays) < 2:
        return _join_parts(found.string, name, node)
    names = [one.name for one in arrays]
    usual = max({one.shape for one in arrays}, key=[one.shape for one in arrays].count)
    odd = next((one for one in arrays if one.shape != usual), arrays[-1])
    other = next((one for one in arrays if one.shape == usual), arrays[0])
    what = f"{name} cannot join these: {_shown(arrays)}"
    if all(one.shape == () for one in arrays):
        new = f"jnp.stack([{', '.join(names)}])"
        return what, Rewrite(f"single numbers have no axis to join along: {new}", node, new)
    few, many = sorted((odd, other), key=lambda one: len(one.shape))
    if len(few.shape) + 1 == len(many.shape):
        matches = [i for i in range(len(many.shape)) if _drop(many.shape, i) == few.shape]
        axis = matches[0] if matches else 0
        index = ", ".join([":"] * axis + ["None"])
        new = f"{closed(few.name)}[{index}]"
        way = f"give `{few.name}` the axis it lacks: {new} (jnp.expand_dims)"
        return what, Rewrite(way, few.node, new)
    if name == "stack":
        way = fitted(odd.name, odd.shape, usual)
        way = f"give all the shape {usual}: {way}" if way else "pad or cut them to one shape"
        return what, f"stack needs the same shape for all: {way}"
    if len(few.shape) == len(many.shape):
        differ = [i for i, (m, n) in enumerate(zip(few.shape, many.shape, strict=True)) if m != n]
        if len(differ) == 1:
            joined = f"jnp.concatenate([{', '.join(names)}], axis={differ[0]})"
            way = f"only axis {differ[0]} differs: join along it, {joined}"
            return what, Rewrite(way, node, joined)
    return what, _ALIKE


_ALIKE = "make them alike in every axis but the one along which they are joined, axis=..."


def _join_parts(message: str, name: str, node: ast.AST) -> Told:
    """Of a list that is made in the call, whose parts have no names."""
    shapes = dict.fromkeys(re.findall(r"\(\d*(?:, ?\d*)*\)", message))
    sure(len(shapes) > 1)
    what = f"{name} cannot join the parts of `{text(_call(node, 1).args[0])}`: their shapes are "
    same = "pad or cut them to one shape" if name == "stack" else _ALIKE
    return f"{what}{listed(shapes, quote='')}", same


def _drop(shape: tuple, axis: int) -> tuple:
    return shape[:axis] + shape[axis + 1 :]


def _reshape(found, node, known) -> Told:
    arrays = [one for one in known if one.shape and hasattr(one.value, "dtype")]
    one, call = sure(arrays)[0], _call(node, 0)
    size = math.prod(one.shape)
    wanted = [text(a) for a in call.args[0 if isinstance(call.func, ast.Attribute) else 1 :]]
    shape = ", ".join(w for w in wanted if w != one.name)
    shape = shape if shape.startswith("(") else f"({shape})"
    what = f"{one}, which are {size} elements, and they do not fill the shape {shape}"
    fits = [n for n in (_whole_number(a) for a in call.args) if n and n > 0 and size % n == 0]
    way = f"choose a shape whose product is {size}; -1 stands for what is left, e.g. "
    return what, way + f"{one.name}.reshape({fits[0] if fits else one.shape[0]}, -1)"


def _whole_number(node: ast.AST) -> int | None:
    """The whole number that is written there."""
    inner = node.elts[0] if isinstance(node, ast.Tuple) and node.elts else node
    value = inner.value if isinstance(inner, ast.Constant) else None
    return value if isinstance(value, int) else None


def _axis(found, node, known) -> Told:
    axis, count = int(found[1]), int(found[2])
    arrays = [one for one in known if one.shape is not None and len(one.shape) == count]
    named = [one for one in known if type(one.value) is int and one.value == axis]
    sure(str(abs(axis)) in text(node) or named)
    name = f"the array has {count} axes"
    if arrays:
        name = f"`{arrays[0].name}` has shape {arrays[0].shape}"
    what = f"axis {axis} is asked for, but {name}: its {count} axes are 0 to {count - 1}"
    if count == 0:
        return f"axis {axis} is asked for, but {name}, and no axis", "drop axis=, or pass an array"
    return what, f"use axes 0 to {count - 1}; the last is axis={count - 1}, or axis=-1"


def _exchanged(found, node, known) -> Told:
    """An axis that swapaxes or moveaxis looks up in the list of axes."""
    sure(text(_call(node, 1).func).rpartition(".")[2] in ("swapaxes", "moveaxis"))
    return _axis(found, node, known)


def _unspread(found, node, known) -> Told:
    """lax.add(x, y) of arrays that only jax.numpy broadcasts."""
    arrays, name = sure([one for one in known if one.shape is not None]), text(_call(node, 2).func)
    return f"`{name}` takes arrays of one shape: {_shown(arrays)}", (
        "use the operator or the function of jax.numpy, which broadcasts"
    )


def _no_axis(found, node, known) -> Told:
    """axis=2 of an array with two axes, where JAX says only that a tuple has no such entry."""
    arrays = sure([one for one in known if one.shape is not None and hasattr(one.value, "dtype")])
    axis = sources.option(node, "axis")
    given = next((one.value for one in known if one.node is axis), None)
    count = len(arrays[0].shape)
    sure(axis is not None and type(given) is int and not -count <= given < count)
    return _axis((None, given, count), node, known)


def _indices(found, node, known) -> Told:
    count, given = int(found[1]), int(found[2])
    arrays = [one for one in known if one.shape is not None and len(one.shape) == count]
    item = text(node) if isinstance(node, ast.Subscript) else "it"
    name = arrays[0].name if arrays else "the array"
    shape = f", its shape is {arrays[0].shape}" if arrays else ""
    what = f"`{item}` has {given} indices, too many: `{name}` has {count} axes{shape}"
    kept = ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        kept = ", ".join(map(text, node.slice.elts[:count]))
    way = f"use at most {count}: {name}[{kept}]" if kept and count else f"use at most {count}"
    return what, f"{way}; or add an axis before, {name}[..., None]"


def _convolution(found, node, known) -> Told:
    arrays = [one for one in known if len(one.shape or ()) > 2][:2]
    image, kernel = sure(len(arrays) > 1 and arrays)
    what = f"{image} and {kernel}: the image has {found[1]} channels and the kernel expects "
    what += found[2]
    way = "make the numbers of channels equal; or say which axis is which with dimension_numbers="
    if isinstance(node, ast.Call) and text(node.func).endswith("lax.conv"):
        given = ", ".join(map(text, node.args))
        way = "make the numbers of channels equal; or say which axis is which: "
        way += f"lax.conv_general_dilated({given}, dimension_numbers="
        return what, f"{way}('NHWC', 'HWIO', 'NHWC'))"
    if isinstance(node, ast.Call) and any(k.arg == "dimension_numbers" for k in node.keywords):
        return what, "make the numbers of channels equal, or set feature_group_count"
    return what, f"{way}('NHWC', 'HWIO', 'NHWC')"


def _update(found, node, known) -> Told:
    call = _call(node, 1)
    name, owner = text(call.args[0]), sure(getattr(call.func, "value", None))
    if ".at[" not in text(call.func):
        way = "give it a shape that broadcasts to it, one whose axes are equal or 1"
        return f"`{name}` is {found[1]}, and {found[2]} is wanted there", way
    place = text(owner).replace(".at", "")
    what = f"`{name}` is {found[1]}, and the place it is written to, `{place}`, is {found[2]}"
    got, wanted = (tuple(map(int, re.findall(r"\d+", t.partition("[")[2]))) for t in found.groups())
    fits = fitted(name, got, wanted)
    return what, "give it that shape, or one that broadcasts to it" + f", e.g. {fits}" * bool(fits)


def _squeezed(found, node, known) -> Told:
    one = sure([one for one in known if one.shape])[0]
    ones = [i for i, n in enumerate(one.shape or ()) if n == 1]
    what = f"`{one.name}` has shape {one.shape}: only an axis of size 1 can be squeezed out, and "
    what += f"axis {found[1]} is not"
    if ones:
        return what, f"write axis={ones[0]}"
    return what, f"take one entry of the axis, {one.name}[:, 0], or sum"


def _uneven(found, node, known) -> Told:
    one, args = sure([one for one in known if one.shape])[0], _call(node, 2).args
    given = ", ".join(map(text, args))
    what = f"{one}, and it cannot be split into {text(args[1])} equal parts"
    return what, f"write jnp.array_split({given}), whose parts may differ in size; or pad it"


def _picked(found, node, known) -> Told:
    """take_along_axis with indices of fewer axes than the array."""
    name, (one, few) = text(_call(node, 2).func), sure(known[:2] if len(known) > 1 else None)
    what = f"`{name}` takes indices with as many axes as the array has: {one}, and {few}"
    axis = sources.argument(node, 2, "axis")
    shape, place = one.shape or (), getattr(axis, "value", None) if axis is not None else None
    if text(axis) == "-1" if axis is not None else False:
        place = len(shape) - 1
    if isinstance(place, int) and shape[:place] + shape[place + 1 :] == few.shape:
        new = f"jnp.expand_dims({few.name}, {place})"
        return what, Rewrite(f"give `{few.name}` the axis it lacks: {new}", few.node, new)
    return what, f"give `{few.name}` {len(shape)} axes, those of size 1 broadcast"


def _too_large(found, node, known) -> Told:
    shown = _shown(sure([one for one in known if one.shape and hasattr(one.value, "dtype")]))
    what = f"the slice, of shape {found[1]}, is larger than the array, of shape {found[2]}: {shown}"
    return what, f"take a slice of at most {found[2]}, or pad the array with jnp.pad"


_TABLE = (
    (r"indices and arr must have the same number of dimensions", _picked),
    (r"split does not result in an equal division", _uneven),
    (r"(?:less|smaller) than.* operand shape, got .*?(\([\d, ]*\)).*?(\([\d, ]*\))", _too_large),
    (r"input type=(\S+) and requested type=(\S+)", _update),
    (r"squeeze out which has size not equal to one, .*dimensions=\((\d+)", _squeezed),
    (r"lhs feature dimension size .*? but (\d+) // 1 != (\d+)", _convolution),
    (r"square|shape \[\.\.\., n, n\]|for broadcasting|core dimension", square),
    (r"jax_numpy_rank_promotion='raise'", _promotion),
    (r"einsum|Size of label|[Ee]instein", _einsum),
    (r"ncompatible shapes for broadcasting|got incompatible shapes|broadcast", _broadcast),
    (r"contracting dimensions|matmul|dot_general|inner dimension", _product),
    (r"concatenate|All input arrays must have the same shape|stack", _join),
    (r"cannot reshape|reshape total size|cannot divide evenly", _reshape),
    (r"axis (-?\d+) is out of bounds for array of dimension (\d+)", _axis),
    (r"index (-?\d+) is out of bounds for axis 0 with size (\d+)", _exchanged),
    (r": arrays must have the same number of dimensions, got {", _unspread),
    (r"tuple index out of range", _no_axis),
    (r"array is (\d+)-dimensional, but (\d+) were indexed", _indices),
)
