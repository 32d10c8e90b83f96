"""A pytest plugin: keep what became of each test in the file that OUTCOMES names, as JSON."""

import json
import os
import pathlib

FOUND: dict[str, dict] = {}


def pytest_runtest_logreport(report):
    """Note the call of a test, and its setup or teardown if that is where it ends."""
    if report.when != "call" and report.passed:
        return
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = {"passed": "xpassed", "skipped": "xfailed"}[outcome]
    text = "" if report.passed else report.longreprtext
    FOUND[report.nodeid] = {
        "outcome": outcome,
        "seconds": report.duration,
        "why": [line[1:].strip() for line in text.splitlines() if line.startswith("E ")][:3],
    }


def pytest_sessionfinish():
    pathlib.Path(os.environ["OUTCOMES"]).write_text(json.dumps(FOUND, indent=1))
