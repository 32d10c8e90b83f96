"""What takes long is shown: on a terminal, after a while, and with rich."""

import contextlib
import io
import time

import pytest

from malleable import progress
from malleable.progress import working


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_what_takes_long_is_shown(terminal):
    with contextlib.redirect_stderr(terminal), working("explain train"):
        time.sleep(0.3)
    assert "explain train" in terminal.getvalue()


def test_what_is_quick_is_not_shown(terminal, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 60.0)
    with contextlib.redirect_stderr(terminal), working("explain train"):
        pass
    assert terminal.getvalue() == ""


def test_the_outermost_alone_is_shown(terminal):
    with contextlib.redirect_stderr(terminal), working("outer"), working("inner"):
        time.sleep(0.3)
    assert "outer" in terminal.getvalue() and "inner" not in terminal.getvalue()


def test_nothing_is_written_into_a_file(terminal):
    with contextlib.redirect_stderr(io.StringIO()) as file, working("explain train"):
        time.sleep(0.3)
    assert file.getvalue() == ""


def test_without_rich_it_works_on(terminal, monkeypatch):
    monkeypatch.setattr(progress, "Console", None)
    with contextlib.redirect_stderr(terminal), working("explain train"):
        time.sleep(0.1)
    assert terminal.getvalue() == ""


def test_an_error_goes_through(terminal):
    with contextlib.redirect_stderr(terminal):
        with pytest.raises(ZeroDivisionError), working("explain train"):
            raise ZeroDivisionError
        with working("again"):
            time.sleep(0.3)
    assert "again" in terminal.getvalue()
