"""Several processes that decide alone, by `mal.jit`, what they do together."""

from tests.compat.loopback import told_by


def test_two_processes_run_the_schedule_that_each_decides():
    decided = told_by("tests.execution.regions.process_worker", 2, mark="DECIDED")
    assert decided[0] == decided[1]
    assert decided[0].split()[0] == "40"  # one kind of bits
    assert decided[0].endswith("False")  # XLA ran the regions
