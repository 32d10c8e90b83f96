"""What the benchmarks of `mal.jit` make of their times; their programs run by hand."""

import math
import types

import pytest

from benchmarks import selective_cases, selective_report
from benchmarks.selective_programs import PROGRAMS, agree

ONES = dict.fromkeys(("eager", "numpy", "hand", "ours"), 1.0)
RECORD = {
    "why": "a mask",
    "jit": "ConcretizationTypeError",
    "wrong": {},
    "first": {"eager": 10.0, "numpy": 0.1, "hand": 1.0, "ours": 12.0},
    "stream": {"eager": 8.0, "numpy": 0.1, "hand": 0.5, "ours": 1.0},
    "steady": {"eager": 1.0, "numpy": 0.1, "hand": 0.01, "ours": 0.1},
}


def failed(records):
    return [what for what, _, passed in selective_report.gates(records) if not passed]


def test_captured_is_a_share_of_logarithms():
    assert selective_report.captured([RECORD], "steady") == pytest.approx(0.5)
    assert selective_report.captured([RECORD], "stream") == pytest.approx(0.75)


def test_captured_of_several_is_that_of_geometric_means():
    both = [RECORD, RECORD | {"steady": ONES}]
    assert selective_report.captured(both, "steady") == pytest.approx(0.5)


def test_gates_name_what_fails():
    assert failed({"mask": RECORD}) == ["captured, steady >= 0.85"]
    slow = RECORD | {"stream": RECORD["stream"] | {"ours": 9.0}, "wrong": {"ours": "seed 0"}}
    assert failed({"mask": slow})[:2] == ["mask agrees", "mask stream <= 1.1 eager"]
    first = RECORD | {"first": RECORD["first"] | {"ours": 16.0}}
    assert "mask first call <= 1.5 eager" in failed({"mask": first})


def test_a_variant_without_a_time_passes_no_gate():
    assert len(failed({"mask": RECORD | {"steady": RECORD["steady"] | {"ours": math.nan}}})) == 2


def test_the_table_has_a_row_per_program(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    monkeypatch.setattr("benchmarks.page.PAGE", page)
    for _ in range(2):
        selective_report.write_docs({"mask": RECORD}, "some")
    assert page.read_text().count("| mask | 1e+03 ms | 10 x | 100 x | 10 x | 0.50 |") == 1


def test_printed_numbers_may_round_otherwise():
    suite = types.SimpleNamespace(agree=lambda *_: True)
    program = types.SimpleNamespace(tol=1e-2)
    differs = lambda a, b: selective_cases.differs(suite, program, (0, 0, a), (0, 0, b))
    assert not differs("step 10 loss 0.1234", "step 10 loss 0.1235")
    assert differs("step 10 loss 0.5", "step 10 loss 0.6")
    assert differs("step 10", "stop 10") and differs("", "step 10")


def test_a_program_has_other_inputs_for_another_seed():
    for program in PROGRAMS.values():
        one, other = program.make(0), program.make(1)
        assert agree(program, one, program.make(0)) and not agree(program, one, other)
