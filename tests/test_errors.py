"""An error says what happened, where, and one way out."""

import contextlib
import pickle

import pytest

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
