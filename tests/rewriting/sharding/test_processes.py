"""Several processes with other seeds of hashes: the same programs, and the results of one."""

import json

import numpy as np
import pytest

from tests.compat.loopback import told_by

WORKER = "tests.rewriting.sharding.process_worker"


def found(count, order):
    """What each of some processes finds, that share four devices."""
    lines = told_by(WORKER, count, str(count), order, mark="TOLD ", devices=4 // count)
    return list(map(json.loads, lines))


@pytest.fixture(scope="module")
def alone():
    return found(1, "before")[0]


@pytest.mark.parametrize(
    ("count", "order"), [(2, "before"), pytest.param(4, "after", marks=pytest.mark.slow)]
)
def test_processes_compile_the_same_and_get_what_one_gets(count, order, alone):
    first, *others = found(count, order)
    for other in others:
        assert other == first
    for name, (_, numbers) in alone.items():
        np.testing.assert_allclose(numbers, first[name][1], rtol=1e-4, atol=1e-5, err_msg=name)
