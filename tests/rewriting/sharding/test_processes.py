"""Several processes with other seeds of hashes: the same programs, and the results of one."""

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

WORKER = pathlib.Path(__file__).with_name("process_worker.py")


@functools.cache
def told_by(count, order):
    """What each of some processes tells, that share four devices."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(i), str(count), port, order],
            env={**os.environ, "PYTHONHASHSEED": str(17 * i + 1)},
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for i in range(count)
    ]
    try:
        said = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    lines = [line for out, _ in said for line in out.splitlines() if line.startswith("TOLD ")]
    assert len(lines) == count, said
    return [json.loads(line[5:]) for line in lines]


@pytest.mark.parametrize(("count", "order"), [(2, "before"), (4, "after")])
def test_processes_compile_the_same_and_get_what_one_gets(count, order):
    (alone,) = told_by(1, "before")
    first, *others = told_by(count, order)
    for other in others:
        assert other == first
    for name, (_, numbers) in alone.items():
        np.testing.assert_allclose(numbers, first[name][1], rtol=1e-4, atol=1e-5, err_msg=name)
