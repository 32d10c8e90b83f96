"""Notes are kept while somebody listens, in order, and by everybody who does."""

import threading

import jax.numpy as jnp
import pytest
from jax import lax

import malleable as mal
from malleable import Note, interpret, listen, note
from malleable.notes import about
from tests.rules import twice


def test_a_note_keeps_what_where_and_why():
    with listen() as heard:
        note("kept", "model.py:3", "it is small")
    assert heard == [Note(what="kept", where="model.py:3", why="it is small")]


def test_a_note_needs_no_reason():
    with listen() as heard:
        note("kept", "model.py:3")
    assert heard[0].why == ""


def test_a_note_is_nothing_when_nobody_listens():
    note("kept", "model.py:3")
    with listen() as heard:
        pass
    note("kept", "model.py:4")
    assert heard == []


def test_a_note_without_a_line_is_about_the_place_around_it():
    with listen() as heard, about(lambda: "model.py:7"):
        note("kept", "")
        with about(str):
            note("kept again", "")
        note("kept", "model.py:3")
    assert [n.where for n in heard] == ["model.py:7", "model.py:7", "model.py:3"]


def test_notes_come_in_order():
    with listen() as heard:
        for line in range(3):
            note("kept", f"model.py:{line}")
    assert [n.where for n in heard] == ["model.py:0", "model.py:1", "model.py:2"]


def test_every_open_block_hears_a_note():
    with listen() as outer:
        note("first", "")
        with listen() as inner:
            note("second", "")
    assert [n.what for n in outer] == ["first", "second"]
    assert [n.what for n in inner] == ["second"]


def test_an_error_ends_the_listening():
    with pytest.raises(KeyError), listen() as heard:
        raise KeyError
    note("too late", "")
    assert heard == []


def test_another_thread_is_not_heard():
    with listen() as heard:
        other = threading.Thread(target=note, args=("there", ""))
        other.start()
        other.join()
    assert heard == []


def test_a_note_cannot_be_changed():
    with pytest.raises(AttributeError):
        Note("kept", "").what = "lost"


def test_a_transformation_that_decides_nothing_leaves_no_note():
    with listen() as heard:
        interpret(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x), {lax.sin_p: twice})(1.0)
    assert heard == []


def test_a_terminal_shows_a_result_as_it_is_read():
    x = jnp.float32(0.5)
    found = mal.first_nonfinite(lambda x: jnp.log(x - 1))(x)
    calls, breaks = mal.trace_calls(jnp.sin)(x), mal.explain(mal.jit(jnp.sin))(x)
    for result in (found, calls, breaks, mal.cost(jnp.sin)(x)):
        assert repr(result) == str(result) and hasattr(result, "_repr_html_")
