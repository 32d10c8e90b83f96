"""What the benchmarks make of their figures; their programs run by hand."""

import pytest

from benchmarks import ratios, rewriting_report

PAGE = "# Page\n\n<!-- rewriting cpu -->\nold\n<!-- end of rewriting cpu -->\n\nthe end\n"
ROW = {
    "name": "sines",
    "kind": "forward",
    "ms": {"plain": 4.0, "ours": 2.0},
    "speed": {"plain": ratios.Ratio(1, 1, 1), "ours": ratios.Ratio(2, 1.9, 2.1)},
    "temp": {"plain": 2**24, "ours": 2**20},
    "shown": {},
    "same": False,
}


def test_a_ratio_is_the_median_of_rounds():
    assert ratios.ratio([2.0, 6.0, 4.0], [1.0, 1.0, 1.0]) == (4.0, 2.0, 6.0)


def test_of_many_rounds_the_odd_ones_are_outside_the_interval():
    found = ratios.ratio([2.0] * 10 + [100.0, 0.1], [1.0] * 12)
    assert found == (2.0, 2.0, 2.0)


def test_two_programs_that_differ_in_names_have_the_same_instructions():
    one = '%a.1 = f32[] add(%x, %y), metadata={op_name="one"}'
    other = "%b = f32[] add(%p.0, %q.7)"
    assert ratios.instructions(one) == ratios.instructions(other)


def test_a_race_takes_three_rounds_at_least():
    times = ratios.race({"one": lambda: None, "two": lambda: None}, budget=0.0)
    assert [len(ts) for ts in times.values()] in ([3, 3], [1, 1])


@pytest.fixture
def page(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    monkeypatch.setattr("benchmarks.page.PAGE", path)
    return path


def test_the_table_replaces_what_is_between_the_markers(page):
    page.write_text(PAGE)
    rewriting_report.write_docs([ROW], "cpu")
    text = page.read_text()
    assert "| sines | forward | 4 ms | 2.00 x |" in text
    assert "old" not in text and text.endswith("the end\n")


def test_a_page_without_markers_gets_a_section(page):
    page.write_text("# Page\n")
    rewriting_report.write_docs([ROW], "gpu")
    assert page.read_text().count("<!-- rewriting gpu -->") == 1
