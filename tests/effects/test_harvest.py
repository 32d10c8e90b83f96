"""What is planted has to fit, and to have a name that is there."""

import jax.numpy as jnp
import pytest

from malleable import TransformError, plant, reap, tag


def program(x):
    return tag(jnp.sin(x), "y") ** 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (jnp.ones(3), r"'y' is given as float32\[3\], and float32\[\] belongs here"),
        (1j, r"'y' is given as complex64\[\], and float32\[\] belongs here"),
        (None, r"'y' is given as None, and float32\[\] belongs here"),
        ({"a": 1.0}, r"'y' is given as {a: float32\[\]}, and float32\[\] belongs here"),
    ],
)
def test_a_planted_value_of_another_type_is_refused(given, text):
    with pytest.raises(TransformError, match=text + r"\n  at .*test_harvest\.py:\d+"):
        plant(program)({"y": given}, 1.0)


@pytest.mark.parametrize("values", [None, 5.0, [1.0]])
def test_values_are_given_by_name(values):
    with pytest.raises(TypeError, match="values are given as a dict, not as"):
        plant(program)(values, 1.0)


@pytest.mark.parametrize(
    "ask", [lambda f: plant(f)({"z": 1.0}, 1.0), lambda f: reap(f, only="z")(1.0)]
)
def test_an_unknown_name_is_refused_with_the_known_ones(ask):
    with pytest.raises(TransformError, match=r"no tag named 'z'\n.*\n  hint: known names: 'y'"):
        ask(program)
