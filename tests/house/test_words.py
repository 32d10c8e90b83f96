"""The map and the glossary are true: what they name is there, the picture is that of the rows."""

import re

from docs import layers
from tests.test_layers import ROOT, SRC

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def test_the_picture_of_the_layers_is_drawn_from_the_rows():
    assert layers.PICTURE.read_text() == layers.svg(), "python -m docs.layers"


def test_the_picture_shows_every_folder():
    drawn = set(re.findall(r'class="name">(\w+)<', layers.svg()))
    assert drawn >= {path.parent.name for path in SRC.glob("*/__init__.py")} | {"errors", "notes"}


def test_the_map_is_short():
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 120


def test_what_a_word_stands_for_lies_where_the_glossary_says():
    rows = [line.split("|")[1:-1] for line in GLOSSARY.splitlines() if line.startswith("| ")]
    places = [row[-1].strip().strip("`") for row in rows if row[-1].strip() != "where it lives"]
    assert len(places) > 50 and [path for path in places if not (SRC / path).exists()] == []


def test_a_word_is_explained_once():
    words = re.findall(r"^\| [^|]*\| ([^|]*) \|", GLOSSARY, flags=re.MULTILINE)
    twice = {word for word in words if words.count(word) > 1} - {"ours"}
    assert twice <= {"region"}  # of equations, and of statements: two parts of the library
