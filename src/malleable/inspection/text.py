"""Print a staged program under the source lines it comes from: `show(fun)(*args)`."""
# pyright: reportOptionalCall=false

import itertools
import linecache
import os
import string
from collections.abc import Callable
from typing import Any

from malleable import compat
from malleable.core.stage import stage
from malleable.errors import MalleableError

try:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree
except ImportError:  # comes with the extra `show`
    Console = Text = Tree = None

_ROLES = {"cond": ("if false", "if true"), "while": ("test", "body")}
_DULL = {"None", "False", "()", "(UnspecifiedValue,)", "(False,)", "(None,)"}
_COUNTS = {"num_consts", "num_carry", "cond_nconsts", "body_nconsts", "unroll", "name"}


def show(fun: Callable, *, file: Any = None, width: int | None = None) -> Callable[..., None]:
    """Return a function that prints the program `fun` is on its arguments, and does not run it.

    Each equation stands under the source line it comes from; one without a line of its own
    stands under the line of the equation around it. Bodies of scan, cond and their like are
    nested. file: where to print; width: in characters. Raises MalleableError without rich.

    >>> import jax
    >>> show(lambda x: jax.numpy.sin(x) + 1, width=60)(0.5)
    program: a:f32[] -> c:f32[]
    └── <doctest malleable.inspection.text.show[1]>:1
        │ show(lambda x: jax.numpy.sin(x) + 1, width=60)(0.5)
        ├── b:f32[] = sin a
        └── c:f32[] = add b 1.0
    """
    if Console is None or Tree is None:
        raise MalleableError(
            "show needs rich, which is not installed", hint="pip install 'malleable[show]'"
        )
    console, tree_of = Console(file=file, width=width, highlight=False, soft_wrap=True), Tree

    def shown(*args, **kwargs):
        program = stage(fun)(*args, **kwargs).jaxpr
        names = name_variables(program)
        tree = tree_of(_signature("program", program, names), guide_style="dim")
        _grow(tree, program, names, ())
        console.print(tree)

    return shown


def name_variables(program: compat.Jaxpr) -> dict:
    """Short names for the variables of a program and its bodies, in program order."""
    letters = string.ascii_lowercase
    fresh = ("".join(w) for n in itertools.count(1) for w in itertools.product(letters, repeat=n))
    names: dict = {}

    def walk(jaxpr):
        for v in (*jaxpr.jaxpr.constvars, *jaxpr.jaxpr.invars):
            names.setdefault(v, next(fresh))
        for eqn in jaxpr.jaxpr.eqns:
            for body in compat.bodies(eqn.params):
                walk(body)
            for v in eqn.outvars:
                names.setdefault(v, next(fresh))

    walk(program)
    return names


def _grow(tree, program, names, outer, last=None) -> None:
    """Add the equations of a body to a tree, each under its source line if that is a new one."""
    branch = tree
    for eqn in program.jaxpr.eqns:
        found = compat.place(eqn, *outer)
        if found and found[:2] != last:
            last = found[:2]
            branch = tree.add(_source_line(*last))
        leaf = branch.add(_equation(eqn, names))
        inside = compat.bodies(eqn.params)
        roles = _ROLES.get(eqn.primitive.name, ())
        for i, body in enumerate(inside):
            role = roles[i] if len(roles) == len(inside) else f"body {i}" if inside[1:] else "body"
            _grow(leaf.add(_signature(role, body, names)), body, names, (eqn, *outer), last)


def _source_line(file, line):
    text = Text(f"{os.path.relpath(file) if os.path.exists(file) else file}:{line}", "cyan")
    code = linecache.getline(file, line).strip()
    return text.append(f"\n│ {code}", "dim") if code else text


def _equation(eqn, names):
    text = Text(_typed(eqn.outvars, names) or "()", "green").append(" = ", "dim")
    text.append(str(eqn.primitive), "bold")
    plain = {k: str(v) for k, v in eqn.params.items() if not compat.bodies({k: v})}
    short = [
        f"{k}={v}" for k, v in plain.items() if k not in _COUNTS and v not in _DULL and len(v) <= 24
    ]
    text.append(f"[{' '.join(short)}]" if short else "", "magenta")
    return text.append("".join(" " + _name(v, names) for v in eqn.invars))


def _signature(role, program, names):
    ins, outs = (_typed(vs, names) for vs in (program.jaxpr.invars, program.jaxpr.outvars))
    return Text(f"{role}: ", "italic").append(f"{ins} -> {outs}", "green")


def _typed(atoms, names) -> str:
    return " ".join(f"{_name(v, names)}:{v.aval.str_short(short_dtypes=True)}" for v in atoms)


def _name(atom, names) -> str:
    return str(atom.val) if isinstance(atom, compat.Literal) else names.get(atom, "_")
