"""A number of Python's that meets one of NumPy's takes its type, as in NumPy."""

import jax
import numpy as np
import pytest

from malleable import autograph
from malleable.notes import listen

PIXELS = np.array([100, 200, 50, 70], np.uint8)


def sum_of_some(a):
    s = 0
    for v in a:
        if v > 60:
            s += v
    return s


def sum_by_an_expression(a):
    s = 0
    for v in a:
        s = s + v if v > 60 else s
    return s


def sum_after_the_branch(a):
    s = 0
    for v in a:
        if v > 60:
            s += v
        s += v
    return s


def most_doubled(a):
    m = 0
    for v in a:
        if v > m:
            m = v
    return m * 2


def sums_in_a_dict(a):
    sums = {"some": 0, "rest": 0}
    for v in a:
        sums["some" if v > 60 else "rest"] += v
    return sums["some"] + sums["rest"] * 2


def sums_in_a_list(a):
    sums = [0, 0, 0]
    for v in a:
        sums[int(v) % 3] += v
    return sums[0] + sums[1] + sums[2]


def without_a_loop(a):
    x, s = a[0], 0
    if a[1] > 250:
        x = 7
    if a[2] < 60:
        s += a[1]
    return x + s


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float16])
@pytest.mark.parametrize(
    "program",
    [
        *(sum_of_some, sum_by_an_expression, sum_after_the_branch, most_doubled),
        *(sums_in_a_dict, sums_in_a_list, without_a_loop),
    ],
)
def test_small_numbers_wrap_and_round_as_those_of_numpy(program, dtype):
    a = PIXELS.astype(dtype)
    wanted, got = program(a), jax.jit(autograph(program))(a)
    assert (got, got.dtype) == (wanted, wanted.dtype)


def test_a_number_that_a_type_of_numpy_cannot_hold_is_kept_with_a_note():
    def f(a):
        x = a[0]
        if a[0] > 50:
            x = 300
        return x

    with listen() as notes:
        assert jax.jit(autograph(f))(PIXELS) == 300
    assert any("one of uint8 is int32 from here on" in note.what for note in notes)
