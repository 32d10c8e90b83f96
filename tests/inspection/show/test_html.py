"""The page as text: one file that loads nothing, small, with nothing in it but what was shown."""

import base64
import dataclasses
import hashlib
import html.parser
import importlib.resources
import json
import re
import zlib

import jax
import jax.numpy as jnp
import pytest

import malleable as mal
from malleable.inspection.show.diff import diff
from malleable.inspection.show.page import fragment
from malleable.inspection.show.page import html as pages
from malleable.inspection.show.page.packing import as_script
from tests.inspection.show.pages import body, hostile, line_of, long, model, rows

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(html.parser.HTMLParser):
    """The elements of a page, the text of each script and style, and whether all are closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.texts.append((*self.elements[-1], data))

    def one(self, tag, **attrs):
        (found,) = (t for name, a, t in self.texts if name == tag and attrs.items() <= a.items())
        return found


def read(text):
    """The data of a page, as the page itself reads it."""
    page = Page(text)
    kind = next(a["type"] for t, a in page.elements if a.get("id") == "data")
    packed = page.one("script", id="data")
    if kind == "application/zlib":
        packed = zlib.decompress(base64.b64decode(packed))
    return json.loads(packed)


def shown(fun, *args, **options):
    return mal.show(fun, quiet=True, **options)(*args)


@pytest.fixture(scope="module")
def text():
    return shown(model, jnp.ones(4), passes=(mal.cse, mal.dce), hlo=True).html()


@pytest.fixture(scope="module")
def big():
    return shown(long, 1.0, passes=(mal.cse, mal.dce))


def test_every_element_is_closed(text):
    assert Page(text).open == []


def test_the_page_loads_nothing(text):
    loads = {"src", "href", "action", "srcset", "poster", "data"}
    found = [v for _, attrs in Page(text).elements for k, v in attrs.items() if k in loads]
    assert found == ["data:,"]  # no icon: a browser would ask for one
    assert not re.search(r"https?://|@import|\burl\(|\bfetch\(|XMLHttp|\bimport\b *[({\"']", text)
    policy = next(a["content"] for _, a in Page(text).elements if "http-equiv" in a)
    sources = {part.split()[0]: part.split()[1:] for part in policy.split(";")}
    assert sources.pop("default-src") == ["'none'"] and sources.pop("img-src") == ["data:"]
    assert all(s == "'none'" or s.startswith("'sha256-") for (s,) in sources.values())


def test_only_the_script_and_style_of_the_page_are_allowed(text):
    page = Page(text)
    policy = next(a["content"] for _, a in page.elements if "http-equiv" in a)
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (own,) = (t for name, attrs, t in page.texts if name == tag and not attrs)
        hashed = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{kind} 'sha256-{hashed}';" in policy
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert not any("style" in attrs for _, attrs in page.elements)


@pytest.mark.parametrize("render", [pages.page, fragment.of_shown])
def test_text_of_the_user_is_never_markup(render):
    made = shown(hostile, 1.0)
    made = dataclasses.replace(
        made,
        name="</title></script><b id=owned>{{css}}",
        notes=(mal.Note("<b id=owned>", "a.py:1 in <lambda>", "</div></details><i id=owned>"),),
    )
    page = Page(render(made))
    assert page.open == []
    assert "owned" not in [attrs.get("id") for _, attrs in page.elements]
    assert "b id" not in "".join(t for name, _, t in page.texts if name == "style")


def test_data_that_ends_a_script_is_escaped_and_comes_back():
    for word in ("</script>", "<!--", "\u2028", "\ud800", "é", '"'):
        kind, text = as_script([word])
        assert (kind, json.loads(text)) == ("application/json", [word])
        assert "<" not in text and text.isascii()


def test_every_equation_is_in_the_data_with_its_line_and_operands(text):
    data = read(text)
    stage = next(stage for stage in data["stages"] if stage["kind"] == "program")
    words, places = data["words"], data["places"]

    def walk(packed):
        for row in packed[3]:
            yield row
            for inner in row[12] if len(row) > 12 else []:
                yield from walk(inner)

    found = [
        (words[r[0]], places[r[1]][1], r[5] if len(r) > 5 else []) for r in walk(stage["body"])
    ]
    whole = shown(model, jnp.ones(4))
    wanted = rows(next(s.body for s in whole.stages if s.body))
    assert found == [(r.primitive, r.place.line, list(r.ins)) for r in wanted]
    lines = {number: text for _, _, lines in data["files"] for number, text in lines.items()}
    assert "c = jnp.sin(c) * t" in lines[str(line_of(body, "jnp.sin(c)"))]


def test_a_page_of_ten_thousand_equations_is_small(big):
    assert big.stages[-1].size > 10_000
    assert len(big.html()) < 500_000  # three programs of that size
    assert len(fragment.of_shown(big)) < 150_000


@pytest.mark.slow
def test_a_page_of_ten_thousand_changed_equations_is_small():
    text = diff(long, jax.grad(long), quiet=True)(1.0).html()
    assert len(text) < 1_000_000


def test_a_pass_without_effect_costs_nothing(big):
    program, after, *_ = (s for s in read(big.html())["stages"] if s["kind"] == "program")
    assert "body" in program
    assert after["like"] == 1 and "body" not in after


def test_numbers_that_json_lacks_do_not_get_in(big):
    stage = next(s for s in big.stages if s.body)
    costs = {n: c._replace(flops=float("inf"), share=float("nan")) for n, c in stage.costs.items()}
    strange = dataclasses.replace(big, stages=(dataclasses.replace(stage, costs=costs),))
    assert read(strange.html())["stages"]


def test_a_fragment_stands_alone(text):
    made = fragment.of_shown(shown(model, jnp.ones(4), passes=(mal.cse,)))
    page = Page(made)
    assert page.open == []
    assert {tag for tag, _ in page.elements} <= {
        "style", "div", "b", "details", "summary", "p", "i", "span", "pre", "code",
    }  # fmt: skip
    style = page.one("style")
    assert all(".malleable" in selector for selector in re.findall(r"([^{}]+){", style))
    assert "pages.py" in made and "- " in made and "c = jnp.sin(c) * t" in made
    assert "http" not in made


def test_a_fragment_of_a_difference_has_what_changed_and_nothing_else():
    found = diff(model, mal.cse, quiet=True)(jnp.ones(4))
    made = fragment.of_difference(found)
    assert Page(made).open == []
    every = [change for top in found.changes for change in top.all()]
    assert made.count('class="m-removed"') == sum(
        c.mark == "removed" or (c.mark == "changed" and c.was != c.now) for c in every
    )
    assert "<b>" not in html.unescape(made.replace("<b>model</b>", "").replace("<b>cse</b>", ""))


def test_a_function_without_source_still_has_a_page():
    made = shown(jnp.sin, 1.0).html()
    assert Page(made).open == []
    text = "lambda x: x + 1"
    made = shown(eval(text), 1.0).html()
    assert read(made)["title"] == "<lambda>"


def test_the_files_of_the_page_are_in_the_package():
    names = {
        file.name for file in importlib.resources.files("malleable.inspection.show.page").iterdir()
    }
    assert {"page.html", "page.css"} | {f"{name}.js" for name in pages._SCRIPTS} <= names
