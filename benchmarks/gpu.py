"""The table of `rewriting.py` on a GPU.

    python -m benchmarks.gpu [--only WORD ...] [--quick] [--json] [--docs] [--smoke]

The gates are those of the CPU and are printed to compare; only a wrong result fails the run.
`--smoke` needs no GPU.
"""

import json
import sys

import jax

from benchmarks.rewriting import arguments, run, verdict
from benchmarks.rewriting_report import write_docs
from benchmarks.smoke import SMOKE


def main():
    options = arguments().parse_args()
    if not has_gpu() and not SMOKE:
        print("No GPU: JAX finds none. Install `jax[cuda13]` on a machine that has one.")
        return 2
    options.peers = options.resident_rows = False  # of the CPU
    print(f"Rewriting, JAX {jax.__version__}, {jax.devices()[0].device_kind}\n")
    rows = run(options)
    verdict(rows)
    if options.docs:
        write_docs(rows, "gpu")
    if options.json:
        print(json.dumps(rows))
    return 1 if any(row["wrong"] for row in rows) else 0


def has_gpu():
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:  # what JAX raises for a platform that is not there
        return False


if __name__ == "__main__":
    sys.exit(main())
