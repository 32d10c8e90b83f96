"""An error says what happened, where, and one way out."""

import contextlib
import pickle

import jax.numpy as jnp
import pytest
from jax import lax

import malleable as mal
from malleable import MalleableError, RuleError, TransformError, UnhandledError, errors
from malleable.inspection import advice as advice  # appends to the lists of advisers
from malleable.inspection.advice.hint import Advice

CLASSES = [RuleError, TransformError, UnhandledError]


def test_the_text_has_one_line_each_for_what_where_and_hint():
    error = MalleableError("'x' is lost", where="model.py:3 in net", hint="find it")
    assert str(error).splitlines() == ["'x' is lost", "  at model.py:3 in net", "  hint: find it"]


def test_an_unknown_line_and_a_missing_hint_leave_no_trace():
    assert str(MalleableError("'x' is lost")) == "'x' is lost"


def test_the_parts_can_be_read_off():
    error = MalleableError("'x' is lost", where="model.py:3", hint="find it")
    assert (error.what, error.where, error.hint) == ("'x' is lost", "model.py:3", "find it")


@pytest.mark.parametrize("cls", CLASSES)
def test_one_except_clause_catches_every_error(cls):
    with pytest.raises(MalleableError):
        raise cls("'x' is lost")


@pytest.mark.parametrize("cls", [MalleableError, *CLASSES])
def test_an_error_survives_the_way_between_processes(cls):
    error = cls("'x' is lost", where="model.py:3", hint="find it")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert copy.hint == "find it"


# ------------------------------------------------------------ advice


@pytest.fixture
def adviser(monkeypatch):
    """Lets a test be the only adviser."""

    def hire(*advice):
        @contextlib.contextmanager
        def watch():
            yield lambda error: advice

        monkeypatch.setattr(errors, "advisers", [watch])

    return hire


def advised():
    try:
        with errors.explain():
            raise NameError("unbound name", "more")
    except NameError as error:
        return error


def test_the_heaviest_advice_is_a_note_and_the_text_stays(adviser):
    adviser("look here", Advice("edit this", "model.py:3", "so", 3))
    error = advised()
    assert error.args == ("unbound name", "more")
    assert error.__notes__ == ["malleable: edit this\n  at model.py:3\n  hint: perhaps so"]


def test_words_that_are_false_are_put_right_and_kept(adviser):
    adviser(Advice("edit this", weight=3, instead="it is not bound"))
    error = advised()
    assert error.args == ("it is not bound", "more")
    assert error.jax_message == str(NameError("unbound name", "more"))


# ---------------------------------------------------------------- misuse


TAKERS = [
    *("apply", "autograph", "communication", "cost", "cotangents", "diff", "explain"),
    *("first_nonfinite", "harvest", "init", "jit", "mutable", "optimize", "plant", "reap"),
    *("seed", "show", "skip", "stage", "step", "trace_calls", "unstage"),
]


@pytest.mark.parametrize("name", TAKERS)
def test_a_result_in_the_place_of_a_function_is_refused_by_name(name):
    with pytest.raises(
        TypeError, match=rf"^{name} takes a function, not Array.*\n  at .*\n.*{name}\(fun"
    ):
        getattr(mal, name)(jnp.ones(3))


def test_a_function_in_the_wrong_place_is_told_the_order():
    with pytest.raises(TypeError, match=r"save\(path, fun, \*args\)"):
        mal.save(jnp.sin, "sin.mal", jnp.ones(3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"as_scan\(fun, xs\)"):
        mal.as_scan(jnp.ones(3), jnp.cumsum)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"interpret\(fun, \{primitive: rule\}\)"):
        mal.interpret({}, jnp.sin)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        TypeError,
        match=r"name is a string or a tuple of strings, not Array.*\n  at .*\n  hint: write tag",
    ):
        mal.tag("y", jnp.ones(3))  # pyright: ignore[reportArgumentType]


def test_rules_are_a_dict_of_functions_that_take_parameters():
    with pytest.raises(TypeError, match="rules are given as"):
        mal.interpret(jnp.sin, [lax.sin_p])  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuleError, match=r"cannot be called for `sin`: .*\n  at .*\n.*\*\*params"):
        mal.interpret(lambda x: jnp.sin(x), {lax.sin_p: lambda frame, x: x})(1.0)


def test_an_error_inside_of_a_rule_goes_through():
    def rule(frame, x, **params):
        return len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        mal.interpret(jnp.sin, {lax.sin_p: rule})(1.0)


def test_what_makes_a_pass_is_no_pass():
    for maker in (mal.remat, mal.microbatch, mal.rewrite):
        with pytest.raises(TypeError, match=rf"write optimize\(fun, {maker.__name__}\(\.\.\."):
            mal.optimize(jnp.sin, maker)  # pyright: ignore[reportArgumentType]


def test_an_unknown_option_is_told_those_there_are():
    with pytest.raises(
        TypeError, match=r"jit has no option 'static'\n  at .*\n  hint: write static_argnums="
    ):
        mal.jit(static="x")  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="large is a number"):
        mal.first_nonfinite(jnp.sin, large="a")  # pyright: ignore[reportArgumentType]


async def waits(x):
    return x


def yields(x):
    yield x


@pytest.mark.parametrize("fun", [waits, yields])
def test_code_that_has_not_run_is_not_transformed(fun):
    for transformed in (mal.optimize(fun), mal.reap(fun), mal.cost(fun), mal.first_nonfinite(fun)):
        with pytest.raises(TransformError, match=f"{fun.__name__} gives a .*has not run yet"):
            transformed(jnp.ones(3))
