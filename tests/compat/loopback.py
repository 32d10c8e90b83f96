"""Several processes of JAX on one machine, which find each other on loopback."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
from jax._src import xla_bridge  # noqa: TID251  (gloo has no public setting of its address)

ROOT = pathlib.Path(__file__).parents[2]
made = xla_bridge._jax


class Loopback:
    """gloo asks for the address of the host's name, which may have none."""

    def __getattr__(self, name):
        return getattr(made, name)

    @staticmethod
    def make_gloo_tcp_collectives(distributed_client, **kwargs):
        return made.make_gloo_tcp_collectives(
            distributed_client=distributed_client, hostname="127.0.0.1", interface="lo"
        )


def connect(number, count, port):
    """Join the others: one of `count` processes, before JAX looks for its devices."""
    xla_bridge._jax = Loopback()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    at = f"127.0.0.1:{port}"
    jax.distributed.initialize(at, count, number, coordinator_bind_address=at)


def leave():
    """End this process once all are at their end: those who still compute need the first."""
    sys.stdout.flush()
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    os._exit(0)


def told_by(module, count, *arguments, mark, devices=None):
    """What each of `count` processes, `python -m module ID PORT *arguments`, prints after a mark.

    Each has another seed of hashes. devices: how many each has on its CPU; as many as there are
    here if it is not given.
    """
    flag = f"--xla_force_host_platform_device_count={devices}"
    flags = {} if devices is None else {"XLA_FLAGS": flag}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(i), port, *arguments],
            env={**os.environ, **flags, "PYTHONHASHSEED": str(17 * i + 1)},
            cwd=ROOT,
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
    lines = [line for out, _ in said for line in out.splitlines() if line.startswith(mark)]
    assert len(lines) == count, said
    return [line.removeprefix(mark) for line in lines]
