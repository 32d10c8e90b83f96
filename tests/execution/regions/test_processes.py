"""Several processes that decide alone, by `mal.jit`, what they do together."""

import pathlib
import socket
import subprocess
import sys

WORKER = pathlib.Path(__file__).with_name("process_worker.py")


def test_two_processes_run_the_schedule_that_each_decides():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(WORKER)]
    started = [
        subprocess.Popen([*command, str(i), port], stdout=-1, stderr=-1, text=True) for i in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    decided = [line for out, _ in said for line in out.splitlines() if line.startswith("DECIDED")]
    assert len(decided) == 2, said
    assert decided[0] == decided[1]
    assert decided[0].split()[1] == "40"  # one kind of bits
    assert decided[0].endswith("False")  # XLA ran the regions
