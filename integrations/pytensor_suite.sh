#!/usr/bin/env bash
# PyTensor's own tests of JAX against the mode "JAX_SELECTIVE": integrations/pytensor_suite.sh DIR
#
# DIR is a checkout of PyTensor at the tag of the installed version (its `tests` are used, never its
# `pytensor`). Runs tests/link/jax twice, with PyTensor's linker and with ours, and compares: which
# expected failures pass, what fails, and which of that asserts the failure itself. PYTHON names
# the interpreter. More options: integrations/pytensor_suite.sh --help. Takes about fifteen minutes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python}" "$here/pytensor_suite.py" "$@"
