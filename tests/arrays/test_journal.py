"""What was written is put back: every kind of place."""

import collections
import types

import numpy as np
import pytest

from malleable.arrays import journal
from malleable.arrays.box import Box


def cell_of(value):
    return types.CellType(value)


class Slotted:
    __slots__ = ("x",)


def attribute(obj):
    journal.touch_attr(obj, "x")
    obj.x = 5
    return lambda: getattr(obj, "x", "absent")


def content(box):
    box[0] = 7.0
    return lambda: box.tolist()


def changed(touch, change, look):
    def run(thing):
        touch(thing)
        change(thing)
        return lambda: look(thing)

    return run


KINDS = {
    "attribute": (attribute, types.SimpleNamespace(x=1)),
    "new attribute": (attribute, types.SimpleNamespace()),
    "slot": (attribute, Slotted()),
    "class attribute": (attribute, type("Some", (), {"x": 1})),
    "box": (content, Box(np.zeros(2))),
    "list": (changed(journal.touch_list, lambda xs: xs.append(3), list), [1, 2]),
    "dict": (changed(journal.touch_dict, lambda d: d.pop("a"), dict), {"a": 1}),
    "set": (changed(journal.touch_set, lambda s: s.add(2), sorted), {1}),
    "deque": (
        changed(journal.touch_object, lambda d: d.appendleft(0), list),
        collections.deque([1]),
    ),
    "ndarray": (changed(journal.touch_object, lambda a: a.fill(2), np.ndarray.tolist), np.ones(2)),
    "cell": (
        changed(
            journal.touch_cell,
            lambda c: setattr(c, "cell_contents", 2),
            lambda c: c.cell_contents,
        ),
        cell_of(1),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_undo_puts_back_what_was_there(kind):
    change, thing = KINDS[kind]
    with journal.opened() as book:
        look = change(thing)
        after = look()
        book.undo()
    assert look() != after
    with journal.opened() as book:
        again = change(thing)()
        book.undo()
    assert again == after


def test_nothing_is_kept_where_no_block_is_traced():
    journal.touch_list([1])
    assert journal.current() is None
    assert journal.depth() == 0


def test_the_journal_of_a_whole_call_is_no_staged_block():
    with journal.opened(base=True):
        assert journal.depth() == 0
        with journal.opened():
            assert journal.depth() == 1


def test_a_global_that_was_not_there_is_gone_again():
    variables = {}
    with journal.opened() as book:
        journal.touch_global(variables, "x")
        variables["x"] = 1
        book.undo()
    assert variables == {}
