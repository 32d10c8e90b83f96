"""The command line: `malleable show model.py:loss --args "float32[8,3]" key`, and the tour.

A function is named `module:function` or `file.py:function`, and may be an expression there. Each
argument is a Python expression, in which np, jnp, jax, lax and the names of the function's module
are known, or a type such as float32[8,3], f32[8,3] or key.
"""

import argparse
import importlib
import importlib.util
import inspect
import pathlib
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import malleable as mal
from malleable import compat

_TYPE = re.compile(r"^(bool|bf16|bfloat16|key|(?:f|float|u|uint|i|int|c|complex)\d+)\[([\d,]*)\]$")
_NAMES = {"np": np, "jnp": jnp, "jax": jax, "lax": lax}
_TOUR = "pip install 'malleable[tour]'"
_LETTERS = {"f": "float", "u": "uint", "i": "int", "c": "complex", "bf": "bfloat"}
_EXAMPLES = """examples:
  malleable show model.py:loss --args "float32[8,3]" "jnp.ones(3)"
  malleable show "model.py:jax.grad(loss)" --args "float32[8,3]" --passes cse,stream
  malleable cost package.module:step --args key "float32[32,4]" --steps measured
  malleable show "lambda x: jnp.sin(x) ** 2" --args "float32[3]"

exit status: 0 all is well; 1 the function, or the command on it, failed; 2 a call that is wrong
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 if all is well, 1 if not, 2 for a wrong call."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.command == "tour":
        return _tour(given)
    if given.command == "completion":
        print(completion(parser, given.shell))
        return 0
    try:
        given.passes = [_pass(name) for name in filter(None, given.passes.split(","))]
        fun, known = find_function(given.function)
        args = [argument(text, known) for text in given.args]
    except (mal.MalleableError, OSError) as error:
        print(f"malleable: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # of the user's module
        return _failed(given, error)
    if wrong := _misfit(given.function, fun, args):
        print(f"malleable: {wrong}", file=sys.stderr)
        return 2
    try:
        with mal.errors.explain():
            given.run(fun, args, given)
    except (mal.MalleableError, OSError) as error:
        print(f"malleable: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        return _failed(given, error)
    return 0


def _failed(given: argparse.Namespace, error: Exception) -> int:
    if given.traceback:
        raise error
    print(f"malleable: {_raised(given.function, error)}", file=sys.stderr)
    return 1


def _misfit(name: str, fun: Callable[..., Any], args: list[Any]) -> str:
    """Why a function does not take so many arguments, or ""."""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # it has none
        return ""
    try:
        signature.bind(*args)
    except TypeError as error:
        hint = "give each as an expression or a type: --args 'float32[8,3]' key 0.5"
        return f"{name} takes {signature}, and {len(args)} are given: {error}\n  hint: {hint}"
    return ""


def _raised(name: str, error: Exception) -> str:
    """What the user's function raised, at the lines of the user."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if compat.is_users(f.filename) and not f.filename.startswith("<")]
    lines = [f"{name} raised {type(error).__name__}: {error}"]
    lines += [f"  at {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in own]
    notes = getattr(error, "__notes__", ())
    lines += [f"  {note}" for note in notes if not note.startswith("---")]  # JAX's, on frames
    return "\n".join([*lines, "  hint: --traceback shows all of the calls"])


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    what = "See and change what JAX programs do."
    parser = argparse.ArgumentParser(
        "malleable", description=what, epilog=_EXAMPLES, formatter_class=raw
    )
    parser.add_argument("--version", action="version", version=f"malleable {mal.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Callable, what: str):
        made = commands.add_parser(
            name, help=what, description=what, epilog=_EXAMPLES, formatter_class=raw
        )
        made.set_defaults(run=run, passes="")
        made.add_argument("function", help="module:function, file.py:function, or an expression")
        made.add_argument(
            "--args", nargs="*", default=[], help="expressions, or types: float32[8,3], key"
        )
        made.add_argument("--traceback", action="store_true", help="show where an error comes from")
        return made

    made = add("show", _show, "the program, each equation under its source line")
    made.add_argument("--passes", help="run these first: dce,cse,push_up_reductions")
    made.add_argument("--hlo", action="store_true", help="what XLA is given, too")
    made.add_argument("--html", metavar="FILE", help="write a page instead of printing")
    made = add("cost", _cost, "operations, traffic and memory by source line")
    made.add_argument("--steps", default=None, help="of each while: a number, or 'measured'")
    made.add_argument("--html", metavar="FILE", help="write a picture (SVG) too")
    made = add("explain", _explain, "what mal.jit compiles, what breaks it, and a way out")
    made.add_argument("--html", metavar="FILE", help="write the program as a page too")
    add("step", _step, "a debugger: step through the program on values")
    add("calls", _calls, "which transformation calls which")
    add("source", _source, "the program as Python source that runs")
    made = add("save", _save, "write the program to a file that `malleable.load` reads")
    made.add_argument("path")
    made.add_argument("--transformable", action="store_true", help="to be differentiated later")
    made = add("onnx", _onnx, "write the program as ONNX, checked against onnxruntime")
    made.add_argument("path")
    made = commands.add_parser("completion", help="a script for a shell to complete these commands")
    made.add_argument("shell", choices=("bash", "zsh", "fish"))
    guided = commands.add_parser("tour", help="a guided run on real data, checked as it goes")
    guided.add_argument("--steps", type=int, default=300, help="of training (default: 300)")
    return parser


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """What a shell runs to complete commands and options: `eval "$(malleable completion bash)"`."""
    made = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    told = {a.dest: a.help or "" for a in made._choices_actions}
    options = {
        name: [o for a in command._actions for o in a.option_strings if o.startswith("--")]
        for name, command in made.choices.items()
    }
    if shell == "fish":
        lines = [
            f"complete -c malleable -n __fish_use_subcommand -a {name} -d {shlex.quote(text)}"
            for name, text in told.items()
        ]
        lines += [
            f"complete -c malleable -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
            for name, known in options.items()
            for option in known
        ]
        return "\n".join(lines)
    cases = [f"    *,{name}) words={shlex.quote(' '.join(o))} ;;" for name, o in options.items()]
    head = ["autoload -U +X bashcompinit && bashcompinit"] * (shell == "zsh")
    return "\n".join([*head, _BASH.format(commands=" ".join(told), cases="\n".join(cases))])


_BASH = """_malleable() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} words=""
  case "$COMP_CWORD,${{COMP_WORDS[1]}}" in
    1,*) words="{commands}" ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _malleable malleable"""


# ---------------------------------------------------------------- what is named


def find_function(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function behind `module:function` or `file.py:function`, and the names of its module.

    Raises MalleableError for what is not there.
    """
    if name.lstrip().startswith(("lambda ", "lambda:")):
        return argument(name, {}), {}
    named = re.fullmatch(r"(.+?\.py|[\w.]+):(.+)", name.strip())
    if named is None:
        raise mal.MalleableError(f"{name!r} names no function", hint="module:function or file.py:f")
    where, path = named.groups()
    module = _module(where)
    found: Any = module
    if not path.replace(".", "").isidentifier():
        found, path = argument(path, vars(module)), ""
    for part in filter(None, path.split(".")):
        if not hasattr(found, part):
            has = ", ".join(n for n, v in vars(module).items() if callable(v) and n[0] != "_")
            raise mal.MalleableError(f"there is no {path!r} in {where}", hint=f"there is: {has}")
        found = getattr(found, part)
    if not callable(found):
        raise mal.MalleableError(f"{name} is no function", hint="name one that can be called")
    return found, vars(module)


def _module(where: str):
    sys.path.insert(0, "")
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name != where.partition(".")[0]:
                raise  # something that the module itself wants
            hint = f"a file is named with its ending: {where}.py:function"
            raise mal.MalleableError(f"there is no module {where!r}", hint=hint) from error
    file = pathlib.Path(where)
    if not file.exists():
        raise mal.MalleableError(f"there is no file {where}", hint="name it from this directory")
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    spec.loader.exec_module(module)
    return module


def argument(text: str, known: dict[str, Any]) -> Any:
    """The value of an expression; for a type such as f32[8,3], a sample: normal, or 0, 1, 2, ...

    >>> argument("f32[2,3]", {}).shape, argument("[1, jnp.pi]", {})[0]
    ((2, 3), 1)
    """
    if text.strip() == "key" and "key" not in known:
        return jax.random.key(0)
    if match := _TYPE.match(text.replace(" ", "")):
        kind, sizes = match.groups()
        shape = tuple(int(n) for n in sizes.split(",") if n)
        if kind == "key":
            return jax.random.split(jax.random.key(0), shape)
        letters = kind.rstrip("0123456789")
        name = _LETTERS.get(letters, letters) + kind[len(letters) :]
        try:
            return _sample(shape, jnp.dtype(name))
        except TypeError as error:
            raise mal.MalleableError(f"{text!r} is no type", hint="such as float32[8,3]") from error
    try:
        return eval(text, {**_NAMES, **known})
    except Exception as error:
        what = f"the argument {text!r} is no value: {type(error).__name__}: {error}"
        raise mal.MalleableError(what, hint="an expression, or a type: float32[8,3]") from error


def _sample(shape: tuple[int, ...], dtype) -> jax.Array:
    """Numbers of a type, the same each time."""
    counted = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jax.random.normal(jax.random.key(0), shape).astype(dtype)
    return jnp.asarray(counted % (2 if dtype.kind == "b" else 100), dtype)


# ---------------------------------------------------------------- what is done


def _show(fun, args, given) -> None:
    shown = mal.show(fun, passes=given.passes, hlo=given.hlo, quiet=bool(given.html))(*args)
    if given.html:
        shown.html(given.html)
        print(f"wrote {given.html}")


def _pass(name: str) -> Callable:
    found = getattr(mal, name, None)
    if not callable(found):
        raise mal.MalleableError(f"there is no pass {name!r}", hint="such as dce, cse, stream")
    return found


def _cost(fun, args, given) -> None:
    steps = int(given.steps) if given.steps and given.steps.isdigit() else given.steps
    found = mal.cost(fun, steps=steps)(*args)
    print(found)
    if given.html:
        found.flame(given.html)
        print(f"wrote {given.html}")


def _explain(fun, args, given) -> None:
    print(mal.explain(fun)(*args))
    if given.html:
        mal.show(fun, quiet=True)(*args).html(given.html)
        print(f"wrote {given.html}")


def _step(fun, args, given) -> None:
    mal.step(fun)(*args).interact()


def _calls(fun, args, given) -> None:
    print(mal.trace_calls(fun)(*args))


def _source(fun, args, given) -> None:
    print(mal.export.source(fun, *args))


def _save(fun, args, given) -> None:
    mal.save(given.path, fun, *args, transformable=given.transformable)
    print(f"wrote {given.path}")


def _onnx(fun, args, given) -> None:
    print(mal.export.onnx(fun, *args, path=given.path))


def _tour(given) -> int:
    try:
        tour = importlib.import_module("malleable.tour").tour
    except ModuleNotFoundError as error:
        print(f"malleable: the tour needs {error.name}: {_TOUR}", file=sys.stderr)
        sys.exit(1)
    return 0 if tour(given.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
