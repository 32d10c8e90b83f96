import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import (
    LEAST,
    bucket_size,
    equal_sizes,
    pad_to,
    size_room,
    size_values,
    trace_symbolic,
)

VECTOR = [jax.ShapeDtypeStruct((7,), np.float32)]
N = {(0, 0): "n"}


def sizes_of(fun, n):
    return trace_symbolic(fun, VECTOR, N).sizes([np.zeros(n, np.float32)])


def test_a_trace_holds_every_size_as_text():
    symbolic = trace_symbolic(lambda x: (x[1:] / x.shape[0], jnp.tile(x, 2)), VECTOR, N)
    assert set(symbolic.texts) == {"n", "n - 1", "2*n"}
    assert symbolic.symbols == ("n",)
    assert sizes_of(lambda x: x * 2, 5) == {"n": 5}


def test_the_tree_of_the_results_is_kept():
    symbolic = trace_symbolic(lambda x: {"a": x, "b": (x, x)}, VECTOR, N)
    assert symbolic.out_tree.num_leaves == 3


def test_equal_sizes_are_one_symbol():
    pair = [*VECTOR, *VECTOR]
    symbolic = trace_symbolic(lambda x, y: x + y, pair, N | {(1, 0): "n"})
    assert symbolic.sizes([np.zeros(4), np.zeros(4)]) == {"n": 4}
    with pytest.raises(Unsupported, match="sizes 4 and 5"):
        symbolic.sizes([np.zeros(4), np.zeros(5)])


@pytest.mark.parametrize("n", range(LEAST))
def test_sizes_that_broadcast_are_refused(n):
    with pytest.raises(Unsupported, match=f"size {n} runs exactly"):
        sizes_of(lambda x: x * 2, n)


@pytest.mark.parametrize(
    "test",
    [
        lambda n: n == 5,
        lambda n: n != 5,
        lambda n: n - 5,
        lambda n: n % 5 == 0,
        lambda n: (n, 3) == (5, 3),
        lambda n: n == np.int64(5),
    ],
)
def test_a_size_the_program_asks_for_is_refused(test):
    fun = lambda x: x if test(x.shape[0]) else x * 2
    with pytest.raises(Unsupported, match="compares"):
        sizes_of(fun, 5)
    assert sizes_of(fun, 6) == {"n": 6}


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x if x.shape[0] in {5, 6} else x * 2,
        lambda x: x * {5: 1}.get(x.shape[0], 2),
        lambda x: x if x.shape[0] > 5 else x * 2,
        lambda x: [x * i for i in range(x.shape[0])],
        lambda x: x * float(x.shape[0]),
    ],
)
def test_a_trace_that_needs_the_number_is_refused(fun):
    with pytest.raises(Unsupported):
        trace_symbolic(fun, VECTOR, N)


def test_two_traces_do_not_mix():
    fun = lambda x, y: jnp.where(x[:, None] > y, x[:, None], y)
    pair = [*VECTOR, *VECTOR]
    first = trace_symbolic(fun, pair, {(0, 0): "n", (1, 0): "m"})
    again = trace_symbolic(fun, pair, {(0, 0): "n", (1, 0): "k"})
    assert {name for p in first.apart for name in p} <= {"n", "m", "1", "0"}
    assert {name for p in again.apart for name in p} <= {"n", "k", "1", "0"}


def test_a_size_of_another_trace_is_not_part_of_this_one():
    older = []
    trace_symbolic(lambda x: older.append(x.shape[0]) or x, VECTOR, N)

    def meets(x):  # as caches of JAX do
        return x if older[0] != 7 else x + 1

    made = trace_symbolic(meets, VECTOR, {(0, 0): "n0"})
    assert not any("n" in pair for pair in made.apart)
    assert made.sizes([np.zeros(7, np.float32)]) == {"n0": 7}


def test_a_size_beyond_32_bits_is_refused():
    symbolic = trace_symbolic(lambda x: x / x.shape[0] ** 4, VECTOR, N)
    assert symbolic.flat_sizes({"n": 100})
    with pytest.raises(Unsupported, match="32 bits"):
        symbolic.flat_sizes({"n": 1000})


def test_buckets_hold_and_waste_little():
    for n in range(1, 3000, 7):
        size = bucket_size(n)
        assert size >= max(n, 16)
        assert bucket_size(size) == size
        assert size <= (1.25 * n + 1 if n > 128 else max(2 * n, 16))


def test_padding_is_zero_and_at_the_end():
    padded = pad_to(np.ones((2, 3), np.int32), [0], [4])
    assert padded.tolist() == [[1, 1, 1]] * 2 + [[0, 0, 0]] * 2
    assert padded.dtype == np.int32


def test_axes_of_one_size_are_a_class():
    x, y = np.zeros((3, 5)), np.zeros((5,))
    assert equal_sizes([x, y, 1.0]) == ((0, 1), (1,), ())
    assert equal_sizes([x, y]) != equal_sizes([x, np.zeros(4)])


@pytest.mark.parametrize(
    "text",
    [
        "n",
        "2*n + 1",
        "n - 1",
        "- n + 40",
        "floordiv(n, 2)",
        "mod(n, 3)",
        "max(n, 7)",
        "min(n, 7)",
        "n^2 - n",
        "m*n",
        "- floordiv(n, 2) + n",
        "floordiv(- n, 2)",
        "max(0, n - m)",
    ],
)
def test_the_room_of_a_size_bounds_it(text):
    value, symbols = size_values((text,), ("n", "m")), {"n": 20, "m": 9}
    room = size_room(text, symbols)
    values = [value({"n": n, "m": m})[0] for n in range(LEAST, 21) for m in range(LEAST, 10)]
    assert max(values) <= room
