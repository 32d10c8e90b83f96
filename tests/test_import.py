"""`import malleable` loads one module, starts nothing and leaves JAX as it is."""

import ast
import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys

import pytest

import malleable as mal

ROOT = pathlib.Path(__file__).parent.parent
STUB = ROOT / "src" / "malleable" / "__init__.pyi"
MODULES, TIMES, ROUNDS = 80, 1.25, 5  # at most so many of ours; of JAX's import; of each

EVERY_NAME = "[getattr(malleable, name) for name in dir(malleable)]"
LOADED = "sum(name.partition('.')[0] == 'malleable' for name in sys.modules)"


def printed(*lines):
    """What a program prints as JSON, in a process of its own and on the CPU."""
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-c", "\n".join(["import json", *lines])]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def changes():
    """The names of JAX that the import changes, and these with what a program then changes."""
    return printed(
        "import jax, jax.numpy, jax.export",
        "from tests import jax_names",
        "before = jax_names.names()",
        "import malleable",
        EVERY_NAME,
        "ours = jax_names.changed(before, jax_names.names())",
        "jax.lax.sin = jax.lax.cos",
        "jax.Array.mine = 1",
        "jax.lax.scan.__closure__[0].cell_contents = None",
        "print(json.dumps([ours, jax_names.changed(before, jax_names.names())]))",
    )


def test_no_name_method_rule_or_closure_cell_of_jax_is_changed(changes, record_property):
    changed, _ = changes
    record_property("figure", f"names of JAX changed, also by every public name: {len(changed)}")
    assert changed == []


def test_a_change_of_jax_is_seen(changes):
    _, changed = changes
    assert {"jax.lax.sin", "jax.Array.mine"} <= {*changed}
    assert any(where.startswith("jax.lax.scan.<") for where in changed)


def test_every_public_name_leaves_jax_as_it_is_and_what_it_has_compiled(record_property):
    *changed, traced, cached = printed(
        "import jax, jax.numpy, jax.export, jax.scipy.stats, jax.ad_checkpoint",
        "import jax.experimental.compute_on, jax.experimental.xla_metadata",
        "from tests import jax_names",
        "times = []",
        "fun = jax.jit(lambda x: times.append(1) or x + 1)",
        "fun(1.0)",
        "before = jax_names.names()",
        "import malleable",
        EVERY_NAME,
        "malleable.reap(lambda x: malleable.tag(x, 'x'))(2.0)",
        "fun(1.0)",
        "changed = jax_names.changed(before, jax_names.names())",
        "print(json.dumps([*changed, len(times), fun._cache_size()]))",
    )
    record_property("figure", f"names of JAX changed by every public name: {len(changed)}")
    assert changed == [] and (traced, cached) == (1, 1)


@pytest.fixture(scope="module")
def imported():
    """What one process sees of the import, of the public names, and of the first `explain`."""
    return printed(
        "import sys, types, malleable",
        "from jax._src import xla_bridge",
        f"loaded = lambda: {LOADED}",
        "found = {'first': loaded(), 'early': len(malleable.errors.advisers)}",
        "from malleable import *",
        "found['lacking'] = [n for n in dir(malleable) if n not in globals()]",
        EVERY_NAME,
        "found |= {'all': loaded(), 'backends': [*xla_bridge._backends]}",
        "import malleable.execution.jit, malleable.execution.explain.explain",
        "both = [malleable.jit, malleable.explain, malleable.export, malleable.errors]",
        "found['modules'] = [isinstance(x, types.ModuleType) for x in both]",
        "with malleable.errors.explain(): found['late'] = len(malleable.errors.advisers)",
        "print(json.dumps(found))",
    )


def test_no_backend_is_started_by_the_import_and_by_any_public_name(imported, record_property):
    started = imported["backends"]
    record_property("figure", f"backends started, also by every public name: {len(started)}")
    assert started == []


def test_processes_can_join_after_the_import(record_property):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    joined = printed(
        "import malleable",
        EVERY_NAME,
        "import jax",
        "jax.config.update('jax_cpu_collectives_implementation', 'gloo')",
        f"jax.distributed.initialize({address!r}, num_processes=1, process_id=0)",
        "print(json.dumps([jax.process_count(), float(jax.numpy.ones(3).sum())]))",
    )
    record_property("figure", "jax.distributed.initialize after the import: joined")
    assert joined == [1, 3.0]


def test_the_platform_can_be_chosen_after_the_import():
    lines = ["import malleable", EVERY_NAME, "import jax", "jax.config.update('jax_platforms', '')"]
    asked = ["jax.config.update('jax_num_cpu_devices', 3)", "print(jax.device_count('cpu'))"]
    assert printed(*lines, *asked) == 3


def test_no_name_that_is_first_asked_for_under_a_trace_keeps_a_tracer():
    assert (
        printed(
            "import jax, malleable",
            f"f = lambda x: ({EVERY_NAME}, x + 1)[1]",
            "with jax.checking_leaks(): out = jax.jit(f)(1.0)",
            "print(float(out))",
        )
        == 2.0
    )


def test_few_modules_are_loaded(imported, record_property):
    loaded, every = imported["first"], imported["all"]
    record_property("figure", f"modules loaded: {loaded} (at most {MODULES}; by all names {every})")
    assert loaded <= MODULES < every


def test_the_import_takes_little_more_than_that_of_jax(record_property):
    lines = ["import time", "start = time.process_time()", "import jax, jax.numpy"]
    lines += ["then = time.process_time()", "import malleable", "end = time.process_time()"]
    rounds = [printed(*lines, "print([then - start, end - start])") for _ in range(ROUNDS)]
    jax, ours = map(min, zip(*rounds))  # in one process: what else the machine does meets both
    text = (
        f"import jax, jax.numpy: {jax:.2f} s; and malleable: {ours:.2f} s, {ours / jax:.2f} times"
    )
    record_property("figure", f"{text} (at most {TIMES}, minimum of {ROUNDS})")
    assert ours <= TIMES * jax


# ------------------------------------------------------------ the names


def test_the_public_names_are_those_of_the_stub():
    tree = ast.parse(STUB.read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = [(alias.name, alias.asname) for node in imports for alias in node.names]
    assert all(name == shown for name, shown in names)  # `as`: a type checker hands it on
    assert dir(mal) == mal.__all__ == sorted(name for name, _ in names)
    assert not any(name.startswith("_") for name in dir(mal))


def test_every_name_is_what_its_module_has():
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                there = (
                    vars(sys.modules[node.module])[alias.name] if getattr(mal, alias.name) else 0
                )
                assert getattr(mal, alias.name) is there


def test_a_function_stays_a_function_where_a_module_has_its_name(imported):
    assert imported["modules"] == [False, False, True, True]


def test_a_star_gives_the_public_names(imported):
    assert imported["lacking"] == []


def test_a_name_that_is_not_there_is_an_attribute_error_with_a_near_one():
    with pytest.raises(AttributeError, match="module 'malleable' has no attribute 'optimise'") as e:
        _ = mal.optimise
    assert (e.value.name, e.value.obj) == ("optimise", mal)  # Python then asks: optimize?
    with pytest.raises(ImportError, match="optimise"):
        from malleable import optimise  # noqa: F401


def test_a_public_function_goes_to_another_process():
    assert pickle.loads(pickle.dumps(mal.reap)) is mal.reap


def test_what_knows_jax_is_loaded_with_the_first_explain(imported):
    assert (imported["early"], imported["late"]) == (0, 1)
