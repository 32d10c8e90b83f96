"""How the tests run: on eight virtual CPU devices, with tracer-leak checks, without deadlines.

What XLA compiles is kept in `.pytest_cache`, for other workers and for the next run: most of it
are single operations on an array of a new shape, the same in many tests. `--cache-clear` forgets
it, `JAX_COMPILATION_CACHE_DIR` names another place.
"""

import collections
import functools
import gc
import itertools
import os
import shutil
import threading

from tests.flags import FAST, KEPT, OTHER

# JAX reads these variables when it is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} {FAST} --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(KEPT))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import hypothesis
import jax
import pytest
from jax._src import traceback_util  # noqa: TID251  (asked once per file, see below)
from jax._src.interpreters import mlir  # noqa: TID251  (contexts are used again, see below)

FREE = jax.__version_info__ >= (0, 12)  # the checks take no time to speak of
MOST_BYTES = 1 << 30  # a run of all tests keeps a tenth of it
LEAKS = os.environ.get("MALLEABLE_LEAKS", "1" if FREE else "0") != "0"

hypothesis.settings.register_profile(
    "malleable",
    deadline=None,  # the first example of a shape pays for its compilation
    derandomize="MALLEABLE_NEW_PROGRAMS" not in os.environ,  # which `make soak` sets
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("malleable")


def asked_once(is_included):
    """`is_included` of a file's name, once per file and number of folders that are left out.

    JAX asks the file system, of each frame of each error and for each of these 30 folders, whether
    the frame is in it: 50 ms of a processor for an error from within a trace of ours.
    """
    cached = functools.cache(lambda name, _: is_included(name))
    return lambda name: cached(name, len(traceback_util._exclude_paths))


traceback_util.include_filename = asked_once(traceback_util.include_filename)


def is_under_reraiser(error):
    """As JAX's own, which reads each line of the stack, for each function of JAX in it."""
    frame = error.__traceback__ and error.__traceback__.tb_frame.f_back
    while frame and not traceback_util._is_reraiser_frame(frame):
        frame = frame.f_back
    return frame is not None


traceback_util._is_under_reraiser = is_under_reraiser


def used_again(make_context, times=10):
    """`make_context`, which makes a new context for every so many lowerings of a thread.

    As in JAX 0.12: a context takes 4 ms of a processor, of the 21 that a small program takes.
    What is compiled while another program is lowered has one of its own.
    """
    local = threading.local()

    def context():
        if mlir.ir.Context.current is not None:
            return make_context()
        if getattr(local, "left", 0) == 0:
            local.context, local.left = make_context(), times
        local.left -= 1
        return local.context

    return context


if not FREE:
    mlir.make_ir_context = used_again(mlir.make_ir_context)


def pytest_sessionstart(session):
    """Start over with what is kept, once there is much of it."""
    is_first = not hasattr(session.config, "workerinput")
    if is_first and KEPT.exists() and sum(f.stat().st_size for f in KEPT.iterdir()) > MOST_BYTES:
        shutil.rmtree(KEPT)


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` chooses
def pytest_collection_modifyitems(items):
    """Make slow every other case of a test whose cases are taken in turns: see tests/README.md."""
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("in_turns") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for each in cases.values():
        for item in each[OTHER::2] if len(each) > 1 else ():
            item.add_marker(pytest.mark.slow)


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
