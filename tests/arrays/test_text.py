"""Text that shows traced values may be printed and stored, not compared or measured."""

import dataclasses
import json
import re

import jax
import pytest

from malleable import autograph
from malleable.errors import TransformError


@dataclasses.dataclass
class Point:
    x: float


class Named:
    def __init__(self, x):
        self.x = x

    def __repr__(self):
        return f"Named({self.x:.2f})"


READS = {
    "fstring": lambda a, b: f"{a},{b}" == f"{b},{a}",
    "str": lambda a, b: str(a) == str(b),
    "repr": lambda a, b: repr(Point(a)) == repr(Point(b)),
    "own": lambda a, b: str(Named(a)) != str(Named(b)),
    "list": lambda a, b: len({str([a]), str([b])}),
    "join": lambda a, b: ",".join([str(a), str(b)]) < "1",
    "format": lambda a, b: f"{a}" == f"{b}",
    "percent": lambda a, b: "%.1f" % a == "%.1f" % b,  # noqa: UP031
    "float": lambda a, b: float(f"{a:.2f}"),
    "json": lambda a, b: json.dumps({"a": str(a)}) == "1",
    "match": lambda a, b: bool(re.match("1", f"{a}")),
    "key": lambda a, b: {str(a): 1}.get(str(b), 0),
    "len": lambda a, b: len(str(a)),
    "starts": lambda a, b: "1.0".startswith(str(a)),
    "in": lambda a, b: "1" in str(a),
    "index": lambda a, b: str(a)[0],
    "method": lambda a, b: a.__str__() == b.__str__(),
}


@pytest.mark.parametrize("name", READS)
def test_digits_that_are_not_known_are_refused(name):
    with pytest.raises(TransformError, match=r"digits(.|\n)*test_text\.py:\d+"):
        jax.jit(autograph(READS[name]))(1.0, 2.0)


def test_text_is_printed_and_stored_as_before(capsys):
    def fun(a):
        text = "a" + f"={a:.3f}" + "%s" % a  # noqa: UP031
        held = {"text": [text]}
        print(held["text"][0], f"{text.upper()}!", f"{3:>{4}}{'b'!r}")
        return a if text else 0.0

    assert jax.jit(autograph(fun))(2.0) == 2.0
    jax.effects_barrier()
    assert capsys.readouterr().out.startswith("a=<float32[]><float32[]> A=<FLOAT32[]>")


def test_what_stands_around_the_digits_is_known():
    @jax.jit
    @autograph
    def fun(a):
        text = f"a={a};"
        return text.startswith("a="), text.startswith("b"), text.endswith(";"), text.endswith("!")

    assert [bool(x) for x in fun(1.0)] == [True, False, True, False]


def test_text_goes_with_an_exception_and_round_a_loop():
    @jax.jit
    @autograph
    def fun(n):
        k, said = 0, ""
        while k < n:
            k += 1
            said = f"step {k}"
            if k > 5:
                raise ValueError(f"{k} is too many")
        return k if said else n

    assert fun(3) == 3
