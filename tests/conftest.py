"""How the tests run: on eight virtual CPU devices, with tracer-leak checks, without deadlines.

What XLA compiles is kept for the run, and shared by its processes: most of it are single
operations on an array of a new shape, in many tests the same. It takes a fifth of the time to load
one. `JAX_COMPILATION_CACHE_DIR` names a directory that is kept from run to run.

In JAX 0.10 leak checks bypass the caches: of 103 compilations of a file they make 258, in
0.12 none more. There they are on, elsewhere with MALLEABLE_LEAKS=1; with 0 nowhere. Tests of the
checks have them always.
"""

import atexit
import gc
import itertools
import os
import shutil
import tempfile

from tests.flags import FAST

# JAX reads these variables when it is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} {FAST} --xla_force_host_platform_device_count=8"
)
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers have that of the first process
    os.environ["JAX_COMPILATION_CACHE_DIR"] = kept = tempfile.mkdtemp(prefix="malleable-xla-")
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import hypothesis
import jax
import pytest

FREE = jax.__version_info__ >= (0, 12)  # the checks take no time to speak of
LEAKS = os.environ.get("MALLEABLE_LEAKS", "1" if FREE else "0") != "0"

hypothesis.settings.register_profile(
    "malleable",
    deadline=None,  # the first example of a shape pays for its compilation
    derandomize="MALLEABLE_NEW_PROGRAMS" not in os.environ,  # which `make soak` sets
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("malleable")


def pytest_collection_finish():
    """Look for garbage less often, and not among what was imported."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


def pytest_terminal_summary(terminalreporter):
    """Print what tests measured: `record_property("figure", "modules loaded: 1 of 80")`."""
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    properties = [x for report in reports for x in getattr(report, "user_properties", ())]
    if figures := [text for name, text in properties if name == "figure"]:
        terminalreporter.section("figures")
        terminalreporter.line("\n".join(dict.fromkeys(figures)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that lets a tracer outlive its trace, unless it is marked `caches`."""
    if item.get_closest_marker("caches") or not (LEAKS or item.get_closest_marker("leaks")):
        return (yield)
    gc.freeze()  # the check collects garbage after each trace: let it look at this test's only
    with jax.checking_leaks():
        return (yield)
