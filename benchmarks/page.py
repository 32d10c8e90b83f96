"""The page of benchmarks: each table stands between its own two markers."""

import pathlib

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "benchmarks.md"


def put_table(mark: str, title: str, table: str) -> None:
    """Put a table between its markers on the page, or in a new section at its end."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    text = PAGE.read_text()
    if begin not in text:
        text = f"{text.rstrip()}\n\n## {title}\n\n{begin}\n{end}\n"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    PAGE.write_text(f"{before}{begin}\n{table}\n{end}{after}")
