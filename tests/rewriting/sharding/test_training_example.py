"""The example of a training step, sharded in three ways: losses of plain JAX, with less memory."""

import inspect
import re

import pytest

from examples.training import sharded, transformer


@pytest.mark.slow
def test_the_step_learns_as_plain_jax_does_and_fits_into_less_memory(capsys):
    sharded.main()  # it compares the losses
    printed = capsys.readouterr().out
    losses = re.findall(r"losses ([\d.]+), [\d.]+, ([\d.]+), off", printed)
    rows = re.findall(r"(\d+) collectives +([\d.]+) MiB, memory +([\d.]+) MiB", printed)
    figures = [tuple(map(float, row)) for row in rows]
    assert len(losses) == 3 and all(float(last) < float(first) - 0.5 for first, last in losses)
    for name, plain, ours in zip(sharded.WAYS, figures[::2], figures[1::2], strict=True):
        assert ours[2] < plain[2] / 3, name
        if name == "tensor parallel":  # each step sends its share, and what remat works out again
            assert ours[1] < 1.3 * plain[1]
        else:
            assert ours[0] < plain[0] and ours[1] <= plain[1], name


def test_the_example_is_short():
    assert all(len(inspect.getsource(m).splitlines()) < 90 for m in (sharded, transformer))
