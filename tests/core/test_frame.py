"""What a rule may see and change, and how values written twice combine."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import Masked, TransformError, interpret
from malleable.core.frame import Write, fold, path_of, quoted, select, spell_type
from tests.rules import assert_same, twice


def under(rule, program=jnp.sin, **state):
    """(out, carry, writes) of a program under a rule for sin."""
    return interpret(program, {lax.sin_p: rule}, **state)(0.5)


def sines(n):
    """A program with n sines in a row."""

    def program(x):
        for _ in range(n):
            x = jnp.sin(x)
        return x

    return program


def writing(mode, *values, name="v"):
    """A program's writes by rules that write one value after the other."""
    rest = iter(values)

    def rule(frame, x, **params):
        frame.write(name, next(rest), mode)
        return frame.bind(x)

    return under(rule, sines(len(values)))[2]


# ------------------------------------------------------------ read


def test_a_feed_is_read_by_name():
    assert under(lambda frame, x, **_: frame.read("w") * x, feeds={"w": 4.0})[0] == 2.0


def test_a_feed_goes_before_what_is_shared():
    rule = lambda frame, x, **_: frame.read("w") * x
    assert under(rule, feeds={"w": 4.0}, shared={"w": 8.0})[0] == 2.0


def test_a_name_nobody_feeds_reads_as_the_value_given_for_that():
    assert under(lambda frame, x, **_: frame.read("w", 6.0) * x)[0] == 3.0


def test_a_path_is_a_name_too():
    rule = lambda frame, x, **_: frame.read(("a", "w")) * x
    assert under(rule, shared={("a", "w"): 4.0})[0] == 2.0


def test_a_pytree_is_read_as_it_is():
    rule = lambda frame, x, **_: frame.read("w")["b"][0]
    assert under(rule, feeds={"w": {"b": (4.0,)}})[0] == 4.0


# ------------------------------------------------------------ write


@pytest.mark.parametrize("mode", ["stack", "unique", "masked", "last", "sum"])
def test_a_single_write_comes_out_as_it_is(mode):
    assert_same(writing(mode, {"a": 3}), {"v": {"a": jnp.asarray(3)}})


def test_a_path_comes_out_as_a_path():
    assert writing("stack", 1.0, name=("a", "v")).keys() == {("a", "v")}


@pytest.mark.parametrize(("mode", "wanted"), [("last", 3.0), ("sum", 6.0)])
def test_later_writes_replace_or_add(mode, wanted):
    assert writing(mode, 1.0, 2.0, 3.0)["v"] == wanted


@pytest.mark.parametrize("mode", ["stack", "unique", "masked"])
def test_a_second_write_is_refused_where_one_is_expected(mode):
    with pytest.raises(TransformError, match="'v' is written twice"):
        writing(mode, 1.0, 2.0)


def test_a_name_has_one_mode():
    def rule(frame, x, **params):
        frame.write("v", x, "last")
        frame.write("v", x, "sum")
        return frame.bind(x)

    with pytest.raises(TransformError, match="'v' is written with mode 'last' and with 'sum'"):
        under(rule)


@pytest.mark.parametrize("other", [jnp.zeros(2), 1, {"a": 1.0}])
def test_a_name_has_one_type(other):
    with pytest.raises(TransformError, match=r"'v' is written as float32\[\] and as"):
        writing("last", 1.0, other)


# ------------------------------------------------------------ keys, and the equation at hand


def test_keys_are_counted_from_the_root():
    def rule(frame, x, **params):
        frame.write("k", jax.random.key_data(frame.next_key()), "last")
        return frame.bind(x)

    root = jax.random.key(3)
    _, _, writes = under(rule, sines(3), key=root)
    assert jnp.array_equal(writes["k"], jax.random.key_data(jax.random.fold_in(root, 2)))


def test_bind_gives_what_the_equation_gives():
    assert under(lambda frame, x, **_: frame.bind(x))[0] == jnp.sin(0.5)
    assert under(lambda frame, x, **_: frame.bind(2 * x))[0] == jnp.sin(1.0)


def test_bind_of_several_results_is_a_list():
    rule = lambda frame, *args, **_: [-x for x in frame.bind(*args)]
    out, *_ = interpret(lambda x: lax.top_k(x, 1), {lax.top_k_p: rule})(jnp.arange(3.0))
    assert [x.tolist() for x in out] == [[-2.0], [-2]]


def test_a_rule_sees_the_equation_its_operands_and_its_line():
    def rule(frame, x, **params):
        assert frame.eqn.primitive is lax.sin_p
        assert frame.args == (x,)
        assert frame.where.split("/")[-1].startswith("test_frame.py:")
        return frame.bind(x)

    under(rule, lambda x: jnp.sin(x))


def test_a_rule_sees_the_equations_around():
    def rule(frame, x, **params):
        assert [eqn.primitive.name for eqn in frame.outer] == ["cond", "scan"]
        return frame.bind(x)

    inner = lambda c: lax.cond(c > 0, jnp.sin, jnp.cos, c)
    under(rule, lambda x: lax.scan(lambda c, _: (inner(c), None), x, length=2)[0])


def test_what_a_rule_binds_is_not_ruled_again():
    assert under(lambda frame, x, **_: jnp.sin(jnp.sin(x)))[0] == jnp.sin(jnp.sin(0.5))


def test_a_rule_may_start_another_transformation():
    nested = lambda frame, x, **_: interpret(jnp.sin, {lax.sin_p: twice})(x)[0]
    assert under(nested)[0] == 2 * jnp.sin(0.5)


# ------------------------------------------------------------ folding

NOT, YES = jnp.array(False), jnp.array(True)


@pytest.mark.parametrize(
    ("mode", "old", "new", "value", "written"),
    [
        ("last", None, None, 5.0, None),
        ("last", None, NOT, 2.0, None),
        ("last", None, YES, 5.0, None),
        ("last", NOT, None, 5.0, None),
        ("last", YES, NOT, 2.0, True),
        ("last", NOT, YES, 5.0, True),
        ("last", NOT, NOT, 2.0, False),
        ("sum", None, NOT, 7.0, None),
        ("sum", YES, NOT, 7.0, True),
        ("sum", NOT, NOT, 7.0, False),
    ],
)
def test_two_writes_become_one(mode, old, new, value, written):
    folded = fold(Write(jnp.array(2.0), old, mode, ""), Write(jnp.array(5.0), new, mode, ""))
    assert folded.value == value
    assert (folded.written is None) == (written is None)
    assert folded.written == written


def test_lanes_fold_each_for_itself():
    old = Write(jnp.array([[1.0, 1.0], [2.0, 2.0]]), jnp.array([True, False]), "last", "")
    new = Write(jnp.array([[3.0, 3.0], [4.0, 4.0]]), jnp.array([False, False]), "last", "")
    folded = fold(old, new)
    assert folded.value.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert folded.written.tolist() == [True, False]


def test_a_mask_selects_by_leading_axes():
    assert select(jnp.array([True, False]), jnp.ones((2, 2)), jnp.zeros((2, 2))).tolist() == [
        [1.0, 1.0],
        [0.0, 0.0],
    ]


def test_what_lanes_share_changes_while_any_is_at_work():
    assert select(jnp.array([True, False]), jnp.ones(3), jnp.zeros(3)).tolist() == [1.0, 1.0, 1.0]


def test_a_value_that_may_be_missing_says_whether_it_is():
    def rule(frame, x, **params):
        frame.write("v", x, "masked")
        return frame.bind(x)

    _, _, writes = under(rule, lambda x: lax.cond(x > 1, jnp.sin, jnp.cos, x))
    assert_same(writes, {"v": Masked(jnp.float32(0.0), jnp.array(False))})


# ------------------------------------------------------------ names


@pytest.mark.parametrize(("name", "path"), [("x", ("x",)), (("a", "x"), ("a", "x"))])
def test_a_name_is_a_path_of_one(name, path):
    assert path_of(name) == path


@pytest.mark.parametrize("name", [1, None, ["x"], ("a", 1)])
def test_a_name_is_a_string_or_a_tuple_of_them(name):
    with pytest.raises(TypeError, match="a name is a string or a tuple of strings"):
        path_of(name)


def test_names_and_types_are_spelled_as_the_user_writes_them():
    assert quoted(("a", "x")) == "'a/x'"
    assert spell_type(jnp.ones((2, 3))) == "float32[2,3]"
    assert spell_type({"a": (1.0, True)}) == "{a: (float32[], bool[])}"
