"""Print a program under the source lines it comes from: `show(fun)(*args)`."""
# pyright: reportOptionalCall=false

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from malleable.errors import MalleableError
from malleable.inspection.show import listing
from malleable.inspection.show.rows import lines
from malleable.inspection.show.shown import Shown
from malleable.inspection.show.stages import gather_stages
from malleable.python_source.misuse import called_as
from malleable.rewriting.passes.passes import Pass

try:
    from rich.console import Console
    from rich.text import Text
except ImportError:  # comes with the extra `show`
    Console = Text = None


@called_as("show(fun)(*args)")
def show(
    fun: Callable[..., Any],
    *,
    passes: Sequence[Pass] = (),
    hlo: bool | Literal["optimised"] = False,
    file: Any = None,
    width: int | None = None,
    limit: int | None = 500,
    quiet: bool = False,
) -> Callable[..., Shown]:
    """Return a function that prints the program `fun` is on its arguments, and does not run it.

    Each equation stands under the source line it comes from, the nearest in the user's own files;
    bodies of scan, cond and their like are nested. Results of a MiB or more, steps of loops, and
    what makes up 1% or more of the work are said behind a #.

    passes: what each of them does is shown too; they run one after the other, with nothing pruned
    in between, unlike under `optimize`. hlo: True for what XLA is given, "optimised" for what it
    makes of that too. limit: equations to print, None for all; more are folded, the deepest first.
    file: where to print; width: in characters. quiet: print nothing.

    The result has every stage as data, `str()` is all of it as text, `.html(path)` writes a page;
    a notebook displays it. Arguments may be jax.ShapeDtypeStruct. Raises MalleableError without
    rich, unless quiet; TypeError for what is no pass, RuleError for a pass that breaks the program.

    >>> import jax
    >>> shown = show(lambda x: jax.numpy.sin(x) + 1, width=80)(0.5)
    program: a:f32[] -> c:f32[]
    └── <doctest malleable.inspection.show.text.show[1]>:1
        │ shown = show(lambda x: jax.numpy.sin(x) + 1, width=80)(0.5)
        ├── b:f32[] = sin a
        └── c:f32[] = add b 1.0
    >>> [stage.name for stage in shown.stages]
    ['source', 'jaxpr']
    """
    console = None if quiet else console_for("show", file, width)

    def shown(*args, **kwargs) -> Shown:
        found = gather_stages(fun, args, kwargs, passes=passes, hlo=hlo, limit=limit)
        if console is not None and not (console.is_jupyter and file is None):
            printed(listing.of_shown(found, limit, brief=True), console, width)
        return found

    return shown


def console_for(what: str, file: Any, width: int | None) -> Any:
    """Where to print. Raises MalleableError without rich."""
    if Console is None:
        raise MalleableError(
            f"{what} needs rich, which is not installed",
            hint="pip install 'malleable[show]', or quiet=True and str() of the result",
        )
    return Console(file=file, width=width, highlight=False, soft_wrap=True)


def printed(found: Iterable[lines.Line], console: Any, width: int | None) -> None:
    """Print lines, those too long for the terminal broken at spaces."""
    room = width or (console.width if console.is_terminal else None)
    assert Text is not None
    console.print(Text("\n").join(Text.assemble(*line) for line in lines.wrap_lines(found, room)))
