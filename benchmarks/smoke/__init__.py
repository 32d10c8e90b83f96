"""`python -m benchmarks.NAME --smoke`: all that a benchmark does, in seconds, on small sizes.

A test runs each of them so. Results must still agree; what was measured is not judged.
"""

import pathlib
import sys

SMOKE = "--smoke" in sys.argv  # processes that a benchmark starts are given it, too
CASES = pathlib.Path(__file__).parent  # small files in the forms of ../shared/cases


def size(full, small):
    """How large, how many or how often."""
    return small if SMOKE else full


def add_argument(parser):
    parser.add_argument("--smoke", action="store_true", help="whether it runs, on small sizes")


def case_file(name):
    """The argument `file` of a benchmark of other people's programs: none under `--smoke`."""
    return {"nargs": "?", "default": str(CASES / name)} if SMOKE else {}
