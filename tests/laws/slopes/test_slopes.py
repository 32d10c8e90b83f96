"""The gradient of `autograph` of random Python programs is the slope of plain Python."""

import jax
import pytest

import malleable as mal
from tests.flags import OTHER
from tests.generators.python.programs import PythonProgram
from tests.laws.batches import batches
from tests.laws.python_laws import REFUSED, SAME
from tests.laws.slopes.slope_laws import KINK, point, slope, try_seeds

BATCH, PROGRAMS = 5, 60
FIRST = 300 + PROGRAMS * OTHER

pytestmark = pytest.mark.caches  # leak checks would trace everything anew


@pytest.mark.parametrize("first", batches(FIRST, PROGRAMS, BATCH, 3 * BATCH))
def test_gradients_are_the_slopes_of_plain_python(first):
    found = try_seeds(range(first, first + BATCH))
    wrong = {k: text for k, text in found.items() if not text.startswith((SAME, KINK, REFUSED))}
    assert not wrong, wrong
    assert SAME in found.values(), found


def program(result):
    return PythonProgram(f"def program(x, y, n, m, v, a):\n    return ({result},)\n")


def test_a_wrong_gradient_is_seen(monkeypatch):
    made = program("x * x + 0.5 * v.sum()")
    assert try_seeds([0], lambda seed: made) == {0: SAME}

    def constant(fun, **options):
        return lambda x, *rest: fun(jax.lax.stop_gradient(x), *rest)

    monkeypatch.setattr(mal, "autograph", constant)
    assert try_seeds([0], lambda seed: made)[0].startswith("the gradient gives")


@pytest.mark.parametrize("result", ["1 // (n - n)", "float(x > 0.7) if x < 9 else y", "abs(x - x)"])
def test_where_plain_python_has_no_slope_none_is_asked_for(result):
    args, direction = point(0)
    args[0] = 0.7
    assert (slope(program(result), args, direction) is None) == (result != "abs(x - x)")
