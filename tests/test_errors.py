"""An error says what happened, where, and one way out."""

import pickle

import pytest

from malleable import MalleableError, RuleError, TransformError, UnhandledError

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
