"""Random programs of in-place statements do under `mutable` what they do under NumPy."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malleable import mutable

SHAPES = {"a": (5,), "b": (3, 4)}
NUMBERS = st.sampled_from(["-2", "-1", "0.5", "1.5", "k"])
VIEWS = st.sampled_from(
    ["{}.T", "{}.ravel()", "{}.reshape(-1)[::2]", "{}.swapaxes(0, -1)", "{}[:]", "{}.squeeze()"]
)
COPIES = st.sampled_from(
    [
        "{}.copy()",
        "{} + 1",
        "-{}",
        "{}.astype('float32')",
        "{}[None].sum(0)",
        "xp.where({0} > 0, {0}, k)",
    ]
)
PARTS = st.one_of(
    st.integers(-3, 2).map(str),
    st.sampled_from([":", "1:", ":-1", "::2", "::-1", "-1:0:-1", "k", "k:", "...", "None"]),
    st.sampled_from(["[0, -1]", "xp.array([2, 0])", "[1, 1]"]),
)
INDICES = st.lists(PARTS, min_size=1, max_size=2).map(", ".join)


@dataclass(frozen=True)
class Program:
    """The lines of a function of a vector a, a matrix b and an index k."""

    lines: tuple[str, ...]
    names: tuple[str, ...]

    def __repr__(self):  # what hypothesis prints for an example that fails
        return "\n    ".join(["def f(a, b, k):", *self.lines, f"return {', '.join(self.names)}"])

    def compiled(self, xp):
        space = {"xp": xp}
        exec(repr(self).replace("return ", "return (", 1) + ",)", space)
        return space["f"]


@st.composite
def statements(draw, names):
    """One line that reads and writes names there are, and may make a new one."""
    x, y, new = draw(st.sampled_from(names)), draw(st.sampled_from(names)), f"v{len(names)}"
    i, j = draw(INDICES), draw(INDICES)
    value = draw(NUMBERS | st.sampled_from([y, f"{x}[{i}]", f"{x}[{i}] * 2", f"{x}[{j}]"]))
    op = draw(st.sampled_from(["=", "+=", "*=", "-="]))
    return draw(
        st.sampled_from([
            f"{x}[{i}] {op} {value}",
            f"{x}[{x} > 0.5] {op} {draw(NUMBERS)}",
            f"{draw(VIEWS).format(x)}[...] {op} {value}",
            f"{new} = {x}[{i}]",
            f"{new} = {draw(VIEWS).format(x)}",
            f"{new} = {draw(COPIES).format(x)}",
            f"{new} = {x}",
            f"{x} += {value}",
            f"for row in {x}: row[...] += 0.5",
        ])
    )  # fmt: skip


def inputs():
    rng = np.random.default_rng(0)
    return [rng.integers(-8, 9, shape).astype(np.float32) / 8 for shape in SHAPES.values()]


@st.composite
def programs(draw):
    """Up to six lines, without those that NumPy refuses or that make large numbers."""
    lines, names, arrays = [], [*SHAPES], [*SHAPES]
    for _ in range(draw(st.integers(1, 6))):
        line = draw(statements(names))
        space = {"xp": np, "k": 1, **dict(zip(SHAPES, inputs()))}
        try:
            exec("\n".join([*lines, line]), space)
        except (IndexError, ValueError, TypeError):
            continue
        made = {n: v for n, v in space.items() if isinstance(v, np.ndarray)}
        if all(np.abs(v).max(initial=0) < 1e3 for v in made.values()):
            lines.append(line)
            arrays = [*made]
            # of what is not contiguous NumPy's reshape is a copy, ours a view: leave that alone
            names = [n for n, v in made.items() if v.flags.c_contiguous and v.size]
    return Program(tuple(lines), tuple(arrays))


@pytest.mark.caches  # leak checks make JAX forget what it compiled: this would take for ever
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
def test_a_random_program_does_what_it_does_in_numpy(traced):
    @settings(max_examples=60)
    @given(programs())
    def agrees(program):
        wanted = program.compiled(np)(*inputs(), 1)
        ours = mutable(program.compiled(jnp))
        ours = jax.jit(ours, static_argnums=2) if traced else ours
        for a, b in zip(ours(*map(jnp.asarray, inputs()), 1), wanted, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)

    agrees()
