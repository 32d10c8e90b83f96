"""What `malleable.errors.explain` adds to the messages of programs that fail."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from benchmarks.errors import WITH, ours
from tests.golden.said import said

FILE = pathlib.Path(__file__).parents[2] / "benchmarks" / "error_programs.py"
SHARE = 3  # one program in so many, which takes half of the time otherwise


def texts():
    """The programs of `benchmarks/error_programs.py`, in a process with four devices."""
    names = re.findall(r'^@case\("(\w+)"', FILE.read_text(), re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        devices = "--xla_force_host_platform_device_count=4"
        flags = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {devices}"}
        command = [sys.executable, str(FILE), *(names[::SHARE]), "--smoke"]
        command += ["--quiet", "--with", WITH, "--json", str(out)]
        run = subprocess.run(command, capture_output=True, text=True, env=os.environ | flags)
        if not out.exists():
            raise RuntimeError(run.stderr[-2000:])
        for record in json.loads(out.read_text()):
            if record["name"].startswith("oom"):  # what a machine has room for
                continue
            yield record["name"], [f"{record['raised']}", *said(ours(record)).splitlines()]
