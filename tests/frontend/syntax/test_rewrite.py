"""What the rewritten source does under plain Python operators: just what the original does."""

import copy
import functools
import gc
import linecache
import math
import re
import threading
import traceback
import types
import weakref

import pytest

from malleable.frontend.syntax.rewrite import NoSource, rewrite, source_of
from tests.frontend import plain
from tests.frontend.syntax import snippets


def outcome(fun, args):
    """Result or error with its text and lines, and the arguments afterwards."""
    args = copy.deepcopy(args)
    try:
        result = fun(*args)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        mine = [f for f in frames if f.filename == snippets.__file__]
        text = re.sub("free variable|local variable", "variable", str(error))
        kind = NameError if isinstance(error, NameError) else type(error)
        result = (
            kind,
            text.replace(" in enclosing scope", ""),
            [f.lineno for f in mine[-1:]],
            {f.name for f in mine},
            type(error.__cause__),
        )
    return repr(result), repr(args)


@pytest.mark.parametrize(
    "fun, inputs",
    [pytest.param(f, i, id=f"{f.__name__}{n}") for n, (f, i) in enumerate(snippets.CASES)],
)
def test_a_rewritten_function_does_what_the_original_does(fun, inputs):
    for args in inputs:
        assert outcome(rewrite(fun, plain), args) == outcome(fun, args)


@pytest.mark.parametrize("fun, inputs", snippets.CASES)
def test_explicit_style_leaves_unmarked_code_alone(fun, inputs):
    for args in inputs:
        assert outcome(rewrite(fun, plain, mode="explicit"), args) == outcome(fun, args)


class Base:
    def __init__(self, v):
        self.__v = v

    def value(self):
        if self.__v:
            return self.__v
        return 0


class Child(Base):
    def value(self):
        if self:
            return super().value(), (lambda: super(Child, self).value())()

    def __bool__(self):
        return True


def test_super_and_private_names_work_in_blocks():
    child = Child(4)
    expected = child.value()
    assert rewrite(Child.value, plain)(child) == expected
    assert rewrite(Base.value, plain)(child) == 4
    assert "_Base__v" in source_of(Base.value)


def test_names_defaults_and_attributes_are_those_of_the_original():
    def fun(a, b=2, *, c: int = 3):
        "Doc."
        if a:
            return b
        return c

    fun.mark = object()
    new = rewrite(fun, plain)
    assert (new.__name__, new.__qualname__, new.__doc__) == (
        fun.__name__,
        fun.__qualname__,
        fun.__doc__,
    )
    assert (new.__defaults__, new.__kwdefaults__) == (fun.__defaults__, fun.__kwdefaults__)
    assert new.__annotations__ == fun.__annotations__ and new.mark is fun.mark
    assert new.__globals__ is fun.__globals__
    assert new.__code__.co_firstlineno == fun.__code__.co_firstlineno


def test_cells_are_shared():
    n = 1

    def fun():
        nonlocal n
        if n:
            n += 1
        return n

    new = rewrite(fun, plain)
    assert (new(), fun(), n) == (2, 3, 3)


def test_a_wrapper_is_found_and_not_what_it_wraps():
    def wrapped(x):
        return "wrapped"

    @functools.wraps(wrapped)
    def wrapper(x):
        if x:
            return "wrapper"

    assert rewrite(wrapper, plain)(1) == "wrapper"


def test_the_code_is_made_once_and_not_kept_alive():
    names = {}
    exec(compile("def f(x): return x", snippets.__file__, "exec"), names)
    with pytest.raises(NoSource, match="has changed"):
        rewrite(names["f"], plain)
    fun = defined("<made>", "def f(x):\n    if x:\n        return 1\n")
    assert rewrite(fun, plain).__code__ is rewrite(fun, plain).__code__
    code = weakref.ref(fun.__code__)
    del fun
    gc.collect()
    assert code() is None


def defined(filename, text):
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names = {}
    exec(compile(text, filename, "exec"), names)
    return names["f"]


def test_a_changed_file_is_read_again():
    fun = defined("<changing>", "def f(x):\n    return 1 if x else 2\n")
    old = rewrite(fun, plain)
    text = "def f(x):\n    return 3 if x else 4\n"
    linecache.cache["<changing>"] = (len(text), None, text.splitlines(keepends=True), "<changing>")
    assert (old(1), rewrite(fun, plain)(1)) == (1, 3)


@pytest.mark.parametrize("name", ["ag__", "_ag_if1"])
def test_reserved_names_are_refused(name):
    with pytest.raises(NoSource, match="reserved"):
        rewrite(defined("<reserved>", f"def f(x):\n    {name} = x\n"), plain)


def test_functions_without_source_say_so():
    names = {}
    exec("def f(x):\n    return x", names)
    with pytest.raises(NoSource, match="not at hand"):
        rewrite(names["f"], plain)


def test_coroutines_and_rewritten_functions_come_back_as_they_are():
    async def later(x):
        return x

    new = rewrite(outcome, plain)
    assert rewrite(later, plain) is later
    assert rewrite(new, plain) is new


def test_threads_share_one_code_object():
    fun = defined("<threads>", "def f(x):\n    while x:\n        x -= 1\n    return x\n")
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(rewrite(fun, plain))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({new.__code__ for new in seen}) == 1 and all(new(3) == 0 for new in seen)


def inline_cond(x):
    return x


inline_while = inline_cond


def inline_scan(xs):
    return iter(xs)


def marked(xs, n):
    out = []
    for x in inline_scan(xs):
        if x == 2:
            continue
        for y in range(3):
            if y > x:
                break
            if x > 9:
                return out
        if inline_cond(x > 5):
            n += 1
        out.append((x, y))
    while inline_while(n > 0):
        n -= 1
        if n == 4:
            break
    else:
        return "else", out
    for z in xs:
        if inline_cond(z > 3):
            break
    return out, n, z


@pytest.mark.parametrize("xs", [[1, 2, 3], [6, 7], [10], []])
@pytest.mark.parametrize("n", [0, 3, 8])
def test_explicit_style_converts_marked_statements(xs, n):
    assert outcome(rewrite(marked, plain, mode="explicit"), (xs, n)) == outcome(marked, (xs, n))
    text = source_of(marked, mode="explicit")
    assert "ag__.for_(ag__.call(inline_scan, xs)" in text and "if x > 9" not in text


def recording():
    """The plain operators, with a record of (operator, state, live)."""
    calls = []
    ag = types.SimpleNamespace(**vars(plain))

    def recorder(name):
        def operator(*args):
            calls.append((name, *args[4:], args[3 if name != "while_" else 2]))
            return getattr(plain, name)(*args)

        return operator

    def if_(test, body, orelse, state, live):
        calls.append(("if_", state and state.__code__.co_freevars, live))
        return plain.if_(test, body, orelse, state, live)

    def while_(test, body, state, live, rebound, exits):
        calls.append(("while_", state and state.__code__.co_freevars, live, rebound))
        return plain.while_(test, body, state, live, rebound, exits)

    ag.if_, ag.while_ = if_, while_
    return ag, calls


def test_names_that_do_not_leave_a_block_are_not_state():
    def fun(x):
        if x > 0:
            tmp = x * 2
            y = tmp + 1
        else:
            y = x
        while y > 10:
            half = y / 2
            y -= half
        return math.floor(y)

    ag, calls = recording()
    assert rewrite(fun, ag)(7) == fun(7)
    assert calls == [("if_", ("y",), ("y",)), ("while_", ("y",), ("y",), ())]


def test_a_lambda_in_a_comprehension_is_found_under_its_target():
    """Whose name is another in the code where a variable around the comprehension has it, too."""

    def fun(x):
        for k in range(2):
            x += k
        late = [lambda: (k, x) for k in range(3)]  # noqa: B023
        return late[0]

    ag, _ = recording()
    late = rewrite(fun, ag)(7)
    assert rewrite(late, ag)() == late() == fun(7)() == (2, 8)


def test_captured_names_are_state():
    def fun(x):
        if x:
            k = 1
            get = lambda: k
        return get()

    ag, calls = recording()
    assert rewrite(fun, ag)(7) == 1
    assert calls == [("if_", ("get", "k"), ("get", "k"))]
