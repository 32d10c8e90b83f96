"""The tests of PyTensor's JAX backend under two linkers, compared: see `pytensor_suite.sh`."""

import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
PARTS = ("tests", "conftest.py", "pyproject.toml")  # of a checkout: all but the package itself
FLAGS = "warn__ignore_bug_before=all,on_opt_error=raise,on_shape_error=raise"
ENOUGH = 5  # expected failures that must pass
# A test that asserts the failure says so when there is none.
ASSERTS_FAILURE = ("Failed: DID NOT RAISE", "Failed: DID NOT WARN")


def outcomes(linker, tests, home, selection):
    """Run the tests in `home` with a linker; {test: {"outcome", "seconds", "why"}}."""
    found = home / f"{linker}.json"
    command = [sys.executable, "-m", "pytest", "-p", f"integrations.pytensor_{linker}"]
    command += ["-p", "no:cacheprovider", "-o", "addopts=", "-o", "xfail_strict=false", "-q"]
    environment = {
        "JAX_PLATFORMS": "cpu",
        **os.environ,
        "OUTCOMES": str(found),
        "PYTENSOR_FLAGS": f"{FLAGS},base_compiledir={home / linker}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.getenv("PYTHONPATH")])),
    }
    print(f"{linker}: {tests}", *selection, flush=True)
    subprocess.run([*command, tests, *selection], cwd=home, env=environment, check=False)
    return json.loads(found.read_text())


def report(own, ours):
    """Print the comparison; return whether it is good enough."""
    for name, results in (("own linker", own), ("JAX_SELECTIVE", ours)):
        counts = collections.Counter(result["outcome"] for result in results.values())
        seconds = sum(result["seconds"] for result in results.values())
        print(f"\n{name}:", *[f"{n} {what}" for what, n in sorted(counts.items())], end="")
        print(f", {seconds:.0f} s")

    expected = [test for test, result in own.items() if result["outcome"] == "xfailed"]
    passing = [test for test in expected if ours[test]["outcome"] == "xpassed"]
    print(f"\nexpected failures that pass: {len(passing)} of {len(expected)}")
    for test in expected:
        print(f"  {ours[test]['outcome']:8} {test}", *why(ours[test]), sep="\n           ")

    broken = [
        test
        for test, result in own.items()
        if result["outcome"] != "failed" and ours[test]["outcome"] == "failed"
    ]
    asserting = [test for test in broken if " ".join(ours[test]["why"]).startswith(ASSERTS_FAILURE)]
    lost = [test for test in broken if test not in asserting]
    print(f"\nfail because they assert the failure itself: {len(asserting)}")
    for test in asserting:
        print(f"  {test}", *why(ours[test]), sep="\n           ")
    print(f"\nfail though they pass with PyTensor's own linker: {len(lost)}")
    for test in lost:
        print(f"  {test}", *why(ours[test]), sep="\n           ")
    mended = [t for t in own if own[t]["outcome"] == "failed" and ours[t]["outcome"] == "passed"]
    print(f"\npass though they fail with PyTensor's own linker: {len(mended)}")
    for test in mended:
        print(f"  {test}")
    return len(passing) >= min(ENOUGH, len(expected)) and not lost


def why(result):
    return result["why"][:2] if result["outcome"] in ("failed", "xfailed") else []


def main():
    """Run and compare; 0 if enough expected failures pass and nothing else is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=pathlib.Path, help="of PyTensor, at the installed version")
    parser.add_argument("--tests", default="tests/link/jax")
    parser.add_argument("--own", type=pathlib.Path, help="outcomes kept from an earlier run")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for own.json, selective.json")
    parser.epilog = "Options that are not of these go to pytest: -k scan"
    options, selection = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        for part in PARTS:
            source = options.checkout / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, home / part)
        if options.own:
            own = json.loads(options.own.read_text())
            print(f"own: as in {options.own}")
        else:
            own = outcomes("own", options.tests, home, selection)
        ours = outcomes("selective", options.tests, home, selection)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for name, results in (("own", own), ("selective", ours)):
                (options.keep / f"{name}.json").write_text(json.dumps(results, indent=1))
    return 0 if report({test: own[test] for test in ours if test in own}, ours) else 1


if __name__ == "__main__":
    sys.exit(main())
