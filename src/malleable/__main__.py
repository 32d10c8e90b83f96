"""The command line: `malleable tour`, or `python -m malleable tour`."""

import argparse
import sys

try:
    from malleable.tour import tour
except ModuleNotFoundError as error:  # the rest of the command line works without the extra
    tour, missing = None, error.name


def main(argv=None):
    """Run one command; returns the exit status: 0 if all is well, 1 if not, 2 for a wrong call."""
    parser = argparse.ArgumentParser("malleable", description="Change what JAX programs do.")
    commands = parser.add_subparsers(dest="command", required=True)
    guided = commands.add_parser("tour", help="a guided run on real data, checked as it goes")
    guided.add_argument("--steps", type=int, default=300, help="of training (default: 300)")
    args = parser.parse_args(argv)
    if tour is None:
        parser.exit(1, f"malleable: the tour needs {missing}: pip install 'malleable[tour]'\n")
    return 0 if tour(args.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
