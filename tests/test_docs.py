"""The pages of docs/ tell the truth: their code runs, and the table of modes is what happens."""

import collections
import contextlib
import doctest
import importlib.util
import io
import itertools
import json
import linecache
import pathlib
import pkgutil
import re
import shlex
import tomllib

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import malleable as mal
from malleable.__main__ import main
from tests.example_code import compiled

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
REFERENCE = sorted((DOCS / "reference").glob("*.md"))


def name_of(path):
    return str(path.relative_to(DOCS).with_suffix(""))


# ------------------------------------------------------------ the code of the pages
#
# ```python                                    runs, in the order of the page
# ```python title="model.py"                   is that file, too, for what comes below
# ```python title="needs malleable[onnx]"      runs where the extra is installed
# ```text title="prints"                       what the block above prints
# ```console                                   `$ malleable ...` and what that prints
#
# In what is printed, `...` stands for anything, `model.py:3` is the third line of the block with
# that title, and `here.py:3` that of one without.

EXTRAS = {"onnx": ("jax2onnx", "onnx", "onnxruntime")}
INFO = re.compile(r'(python|text|console|bash|svg|)(?: title="([^"]*)")?')


def fences(path):
    """(language, title, number of lines before it, text) of every fenced block of a page."""
    lines = iter(enumerate(path.read_text().splitlines(), 1))
    for start, line in lines:
        if line.startswith("```"):
            found = INFO.fullmatch(line[3:])
            assert found, f"{path}:{start}: no test knows what to do with {line}"
            inside = itertools.takewhile(lambda pair: pair[1] != "```", lines)
            yield found[1], found[2] or "", start, "".join(f"{text}\n" for _, text in inside)


def is_missing(title):
    """Whether a block needs an extra that is not installed."""
    extra = re.fullmatch(r"needs malleable\[(\w+)\]", title)
    return bool(extra) and not all(map(importlib.util.find_spec, EXTRAS[extra[1]]))


def printed_by(run, *args):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(*args)
    return out.getvalue()


def check(path, line, got, wanted):
    """Compare what was printed with what the page says, but for spaces at the ends of lines."""
    blocks = [(start, title) for language, title, start, _ in fences(path) if language == "python"]

    def within(found):
        at = int(found[1])
        start, title = max(block for block in blocks if block[0] < at)
        return f"{title if title.endswith('.py') else 'here.py'}:{at - start}"

    got = re.sub(r"[^\s`'\"]*\.md\.py:(\d+)", within, got)
    got, wanted = ("".join(f"{t.rstrip()}\n" for t in x.splitlines()) for x in (got, wanted))
    same = doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)
    assert same, f"{path}:{line} says\n{wanted}\nand this is printed:\n{got}"


def check_console(path, line, text):
    """Run the commands of a block, and compare what they print."""
    for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, wanted = command.partition("\n")
        name, *argv = shlex.split(command)
        assert name == "malleable", f"{path}:{line}: {command} is not run by a test"
        check(path, line, printed_by(main, argv), wanted)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_code_of_a_page_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = [*fences(path)]
    code, name = ["\n"] * len(path.read_text().splitlines()), f"{path}.py"
    for language, _, start, text in blocks:
        if language == "python":
            code[start : start + text.count("\n")] = text.splitlines(True)
    monkeypatch.setitem(linecache.cache, name, (len("".join(code)), None, code, name))
    known, printed = {"__name__": path.stem}, None
    for language, title, start, text in blocks:
        if language == "python":
            if title.endswith(".py"):
                pathlib.Path(title).write_text(text)
            program = compiled("\n" * start + text, name)
            printed = None if is_missing(title) else printed_by(exec, program, known)
        elif language == "console":
            check_console(path, start, text)
        elif title == "prints" and printed is not None:
            check(path, start, printed, text)


def test_code_that_needs_an_extra_waits_for_it(monkeypatch, tmp_path):
    monkeypatch.setitem(EXTRAS, "onnx", ("no_such_module",))
    assert is_missing("needs malleable[onnx]") and not is_missing("model.py")
    test_the_code_of_a_page_runs(DOCS / "howto" / "export.md", monkeypatch, tmp_path)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_no_code_of_a_page_is_left_out(path):
    assert not re.search(r"^[ \t]+(```|~~~)|^~~~", path.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(path):
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for page, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w.-]+))?\)", prose):
        target = (path.parent / page).resolve() if page else path
        assert target.exists(), page
        if anchor:
            assert anchor in anchors(target), f"{page}#{anchor}"


def anchors(path):
    text = path.read_text()
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    ours = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    return ours | set(re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE))


def test_every_page_is_in_the_navigation_and_every_picture_in_a_page():
    said = (DOCS.parent / "mkdocs.yml").read_text()
    assert [p for p in PAGES if f" {p.relative_to(DOCS)}\n" not in said] == []
    text = "".join(path.read_text() for path in PAGES)
    assert [p.name for p in (DOCS / "images").iterdir() if f"images/{p.name}" not in text] == []


def test_the_extras_that_pages_name_exist():
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    named = {x for page in PAGES for x in re.findall(r"malleable\[(\w+)\]", page.read_text())}
    assert named - project["optional-dependencies"].keys() == set()


def test_pictures_are_small():
    assert [p for p in (DOCS / "images").iterdir() if p.stat().st_size > 300_000] == []


# ------------------------------------------------------------ the reference


def described():
    """How often each name is described in the reference."""
    text = "\n".join(path.read_text() for path in REFERENCE)
    return collections.Counter(re.findall(r"^::: malleable\.(\S+)$", text, flags=re.MULTILINE))


NAMESPACES = {"errors", "export", "prob"}  # modules: their names are described, one by one


def test_every_public_name_is_in_the_reference_once():
    counts = described()
    assert {n: counts[n] for n in dir(mal) if counts[n] != 1 and n not in NAMESPACES} == {}


def test_the_reference_describes_what_there_is_and_has_a_docstring():
    for name in described():
        if not name.startswith("integrations.pytensor"):  # its import sets jax_enable_x64
            value = pkgutil.resolve_name(f"malleable.{name}")
            assert isinstance(value, list | tuple) or value.__doc__, f"{name} has no docstring"


def test_docstrings_become_markdown():
    pytest.importorskip("griffe")
    path = DOCS / "docstrings.py"
    spec = importlib.util.spec_from_file_location("docstrings", path)
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    assert doctest.testmod(module) == (0, 1)  # failed, attempted
    assert module.markdown("`*a` and *b") == "`*a` and \\*b"


# ------------------------------------------------------------ the table of modes

MODES = ["stack", "unique", "masked", "last", "sum"]
X = jnp.array([1.0, 2.0])

# name of a column -> (a program that writes, what it writes in order)
COLUMNS = {
    "in a scan of n steps": (
        lambda t: lax.scan(lambda c, i: (c, t(i * X)), 0.0, jnp.arange(3.0)),
        [0 * X, X, 2 * X],
    ),
    "in a while loop": (
        lambda t: lax.while_loop(lambda c: c < 4, lambda c: c + t(c * X)[0] / c, 1.0),
        [X, 2 * X, 3 * X],
    ),
    "in one branch of a cond": (lambda t: lax.cond(X[0] > 0, lambda: t(X), lambda: X), [X]),
    "twice in a row": (lambda t: (t(X), t(2 * X)), [X, 2 * X]),
}

# what a cell says -> what `reap` gives for these writes
CELLS = {
    "`(n, *s)`": lambda writes: jnp.stack(writes),
    "the last": lambda writes: writes[-1],
    "the sum": lambda writes: sum(writes),
    "`Masked`": lambda writes: mal.Masked(writes[-1], True),
    "`Masked`, the last": lambda writes: mal.Masked(writes[-1], True),
    "`Masked`, the sum": lambda writes: mal.Masked(sum(writes), True),
}


def cells():
    """(mode, column, cell) for every cell of the table."""
    lines = (DOCS / "effects.md").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| mode |"))
    _, *columns = [cell.strip() for cell in lines[at].strip("|").split("|")]
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            return
        mode, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        yield from ((mode.strip('`"'), column, cell) for column, cell in zip(columns, cells))


@pytest.mark.parametrize(("mode", "column", "cell"), [*cells()])
def test_a_mode_does_what_its_cell_says(mode, column, cell):
    program, writes = COLUMNS[column]
    reaped = mal.reap(lambda: program(lambda x: mal.tag(x, "x", mode=mode)))
    if cell == "refused":
        with pytest.raises(mal.TransformError, match=r"at .*test_docs\.py:\d+"):
            reaped()
        return
    got, expected = reaped()[1]["x"], CELLS[cell](writes)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    assert all(map(jnp.array_equal, jax.tree.leaves(got), jax.tree.leaves(expected)))


def test_the_table_has_every_mode_and_column():
    pairs = {(mode, column) for mode, column, _ in cells()}
    assert pairs == set(itertools.product(MODES, COLUMNS))


# ------------------------------------------------------------ what the pages say in prose


@pytest.mark.parametrize("mode", MODES)
def test_a_tag_in_every_branch_is_there_in_every_mode(mode):
    tag = lambda x: mal.tag(x, "x", mode=mode)
    program = lambda x: lax.cond(x > 0, lambda: tag(x), lambda: tag(-x))
    assert mal.reap(program)(-2.0)[1] == {"x": 2.0}


@pytest.mark.parametrize("mode", MODES)
def test_lanes_come_in_front_in_every_mode(mode):
    _, tags = mal.reap(jax.vmap(lambda x: mal.tag(x, "x", mode=mode)))(jnp.ones((4, 2)))
    assert tags["x"].shape == (4, 2)


@pytest.mark.parametrize(("mode", "shape"), [("stack", (3, 4)), ("last", (4,)), ("sum", (4,))])
def test_steps_come_before_lanes(mode, shape):
    step = lambda c, _: (mal.tag(c, "c", mode=mode), None)
    _, tags = mal.reap(jax.vmap(lambda x: lax.scan(step, x, length=3)[0]))(jnp.ones(4))
    assert tags["c"].shape == shape


def test_a_tag_in_a_cond_in_a_vmap_is_refused_and_a_vmap_of_a_reap_is_right():
    tag = lambda x: mal.tag(x, "x", mode="masked")
    program = lambda x: lax.cond(x > 0, tag, lambda x: x, x)
    xs = jnp.array([-1.0, 1.0])
    with pytest.raises(mal.TransformError, match=r"at .*test_docs\.py:\d+"):
        mal.reap(jax.vmap(program))(xs)
    assert jax.vmap(mal.reap(program))(xs)[1]["x"].written.tolist() == [False, True]


def test_a_rule_for_an_operation_sees_both_branches_of_a_cond_in_a_vmap():
    def rule(frame, x, **params):
        frame.carry += x.size
        return frame.bind(x)

    program = lambda x: lax.cond(x > 0, jnp.sin, lambda x: jnp.sin(-x), x)
    count = lambda *fun: mal.interpret(*fun, {lax.sin_p: rule}, carry=0)
    assert count(jax.vmap(program))(jnp.ones(2))[1] == 4
    assert jax.vmap(count(program))(jnp.ones(2))[1].tolist() == [1, 1]


def test_a_planted_or_nudged_sum_stands_at_every_write():
    tag = lambda x: mal.tag(x, "x", mode="sum")
    both = lambda x: tag(x) + 10 * tag(x)
    assert mal.plant(both)({"x": 2.0}, 1.0) == 22.0
    assert mal.cotangents(both)(1.0)[1] == {"x": 11.0}


def test_cotangents_leave_out_what_has_none():
    program = lambda x: mal.tag(x, "x") * mal.tag(jnp.int32(2), "n")
    assert mal.cotangents(program)(3.0) == (6.0, {"x": 2.0})


def test_a_plant_around_a_grad_changes_the_value_only():
    square = lambda x: mal.tag(x, "x") ** 2
    assert mal.plant(jax.grad(square))({"x": 5.0}, 1.0) == 10.0
    assert jax.grad(mal.plant(square), argnums=1)({"x": 5.0}, 1.0) == 0.0


def test_calls_share_the_count_of_keys_and_a_cond_takes_the_most_of_its_branches():
    draw = lambda: jax.random.uniform(mal.next_key())
    program = lambda x: (jax.jit(draw)(), lax.cond(x > 0, draw, lambda: draw() * draw()), draw())
    first, inside, last = mal.seed(program)(jax.random.key(0), 1.0)
    key = [jax.random.fold_in(jax.random.key(0), n) for n in range(4)]
    assert (first, inside, last) == tuple(jax.random.uniform(key[n]) for n in (0, 1, 3))


def test_one_key_for_a_loop_and_one_for_what_follows():
    draw = lambda: jax.random.uniform(mal.next_key())
    loop = lambda: (lax.while_loop(lambda c: c < 0, lambda c: draw(), 1.0), draw())
    expected = jax.random.uniform(jax.random.fold_in(jax.random.key(0), 1))
    assert mal.seed(loop)(jax.random.key(0))[1] == expected


def test_init_finds_the_parameters_of_all_branches():
    param = lambda name: mal.param(name, jax.nn.initializers.ones, (2,))
    program = lambda x: lax.cond(x > 0, lambda: param("a"), lambda: param("b"))
    assert mal.init(program)(jax.random.key(0), 1.0).keys() == {"a", "b"}


def test_a_missing_parameter_names_its_line():
    program = lambda: mal.param("a", jax.nn.initializers.ones, (2,))
    with pytest.raises(mal.TransformError, match=r"'a'.*\n  at .*test_docs\.py:\d+"):
        mal.apply(program)({})
    with pytest.raises(mal.TransformError, match=r"'a' .*\n  at .*test_docs\.py:\d+"):
        mal.apply(program)({"a": jnp.ones(3)})
    assert mal.apply(program)({"a": jnp.ones(2), "b": 1.0}).shape == (2,)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (lambda x: x, [[1.0, 1.0], [0.0, 0.0]]),
        (lambda x: x[1], [[0.0, 0.0], [1.0, 0.0]]),
        (lambda x: x[:, 1], [[0.0, 1.0], [0.0, 0.0]]),
        (lambda x: x.T, [[1.0, 0.0], [1.0, 0.0]]),
        (lambda x: x.reshape(4), [[1.0, 0.0], [0.0, 0.0]]),
        (lambda x: x.ravel(), [[1.0, 0.0], [0.0, 0.0]]),
        (lambda x: jnp.ravel(x), [[0.0, 0.0], [0.0, 0.0]]),
        (lambda x: x[jnp.array([0, 1])], [[0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_methods_and_slices_are_views_and_functions_copy(part, expected):
    def program(x):
        part(x)[0] = 1.0
        return x

    assert mal.mutable(program)(jnp.zeros((2, 2))).tolist() == expected


def test_an_index_known_at_run_time_is_not_checked():
    def program(x, i):
        x[i] = 5.0
        return x, x[i]

    x, read = jax.jit(mal.mutable(program))(jnp.arange(2.0), 7)
    assert x.tolist() == [0.0, 1.0] and read == 1.0


def test_a_mask_known_only_at_run_time_takes_one_value_for_all():
    def program(x):
        x[x > 0] = jnp.array([5.0, 6.0])
        return x

    with pytest.raises(mal.TransformError, match="a mask known only at run time"):
        jax.jit(mal.mutable(program))(jnp.ones(2))
    assert mal.mutable(program)(jnp.ones(2)).tolist() == [5.0, 6.0]


def test_an_array_of_an_enclosing_function_is_not_written_to():
    @mal.mutable
    def program(x):
        @jax.jit
        def inner():
            x[0] = 1.0

        inner()

    with pytest.raises(mal.TransformError, match="an array of an enclosing function"):
        program(jnp.ones(2))


# ------------------------------------------------------------ bodies that cannot be entered


def twice(frame, x, **params):
    return 2 * frame.bind(x)


def solve(x):
    divide = lambda product, b: b / product(jnp.ones_like(b))
    return lax.custom_linear_solve(lambda v: v * jnp.sin(x), x, divide)


def update(x):
    ref = jax.new_ref(x)

    def step(c, _):
        ref[...] = jnp.sin(ref[...])
        return c, None

    lax.scan(step, 0.0, length=2)
    return ref[...]


@pytest.mark.parametrize("program", [solve, update])
def test_a_rule_inside_a_body_that_cannot_be_entered_is_an_error(program):
    with pytest.raises(mal.TransformError, match=r"cannot be entered.*\n  at .*test_docs\.py:\d+"):
        mal.interpret(program, {lax.sin_p: twice})(1.0)


# ------------------------------------------------------------ markers inside vmap and grad


@pytest.mark.parametrize(("lanes", "shapes"), [("front", ((3, 2), ())), ("all", ((3, 2), (3,)))])
def test_lanes_say_which_operands_get_the_axis(lanes, shapes):
    mark, seen = mal.marker("mark", lanes=lanes), []

    def rule(frame, x, y):
        seen.append((x.shape, y.shape))
        return x, y

    program = jax.vmap(lambda x: mark(x, jnp.zeros(()))[0], in_axes=1)
    mal.interpret(program, {mark: rule})(jnp.ones((2, 3)))
    assert seen == [shapes]


def slope_of(tangents):
    mark = mal.marker("mark", out=lambda x: x, tangents=tangents)
    program = jax.grad(lambda x: mark(x) * x)
    return mal.interpret(program, {mark: lambda frame, x: 2 * x})(3.0)[0]


def test_tangents_pass_a_marker_whatever_its_rule_does():
    assert slope_of("pass") == 9.0  # 6 for the value of the marker, 3 for its tangent


def test_tangents_may_stop_at_a_marker():
    assert slope_of("none") == 6.0


def test_tangents_may_be_refused():
    with pytest.raises(mal.TransformError, match=r"goes through `mark`\n  at .*test_docs\.py:\d+"):
        slope_of("refuse")


# ---------------------------------------------------------------- notebooks

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own
@pytest.mark.parametrize(
    "path",  # each starts a kernel, which takes 5 s
    [pytest.param(p, marks=[pytest.mark.slow] * (p != NOTEBOOKS[0])) for p in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs(path):
    notebook = pytest.importorskip("nbformat").read(path, as_version=4)
    client = pytest.importorskip("nbclient").NotebookClient
    client(notebook, timeout=120, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells and all(cell.execution_count for cell in cells)


def test_there_is_one_for_each_job_and_the_page_links_to_it():
    page = (DOCS / "notebooks" / "index.md").read_text()
    assert len(NOTEBOOKS) >= 4 and all(f"({path.name})" in page for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_holds_no_error_and_no_folder_of_a_machine(path):
    cells = json.loads(path.read_text())["cells"]
    outputs = [o for cell in cells for o in cell.get("outputs", ())]
    assert outputs and all(o["output_type"] != "error" for o in outputs)
    assert "/tmp/" not in path.read_text() and "/home/" not in path.read_text()
