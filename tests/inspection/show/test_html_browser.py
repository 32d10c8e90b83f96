"""The page in a real, headless Chromium: what is pointed at, what is lit, what is found."""

import re

import jax.numpy as jnp
import pytest

import malleable as mal
from malleable.inspection.show.diff import diff
from malleable.inspection.show.page import html
from tests.inspection.show.pages import (
    FLAGS,
    body,
    chromium,
    doubled,
    hostile,
    line_of,
    long,
    model,
    rows,
)

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


@pytest.fixture(scope="module")
def browser():
    path = chromium()
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Open a page from a file; it may neither fail nor ask for anything else."""
    wrong, asked, contexts = [], [], []

    def opened(text, **settings):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        url = (tmp_path / "page.html").as_uri()
        context = browser.new_context(viewport={"width": 1400, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        expect(page.locator("body.ready")).to_be_visible()
        return page

    opened.wrong = wrong
    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith("file:")] == []
    assert len(asked) == len(contexts)


@pytest.fixture(scope="module")
def shown():
    return mal.show(model, passes=(mal.cse, mal.dce), hlo=True, quiet=True)(jnp.ones(4))


@pytest.fixture(scope="module")
def text(shown):
    return shown.html()


@pytest.fixture(scope="module")
def all_rows(shown):
    return rows(next(stage.body for stage in shown.stages if stage.body))


def numbers(page, selector):
    """The numbers of the equations of the first program that are selected, in order."""
    found = page.locator(f"#program {selector}")
    return [int(item.get_attribute("data-n")) for item in found.all()]


def line(page, number):
    return page.locator(f'#source .line[data-line="{number}"]')


def lit_lines(page, name="lit"):
    return [int(x.get_attribute("data-line")) for x in page.locator(f"#source .line.{name}").all()]


def equation(page, row):
    return page.locator(f'#program .eqn[data-n="{row.number}"]')


def row_of(all_rows, primitive):
    return next(row for row in all_rows if row.primitive == primitive)


def test_a_clicked_line_lights_exactly_its_equations(open_page, text, all_rows):
    page = open_page(text)
    page.click("#fold")
    lines = sorted({row.place.line for row in all_rows})
    assert len(lines) >= 6
    for number in lines:
        line(page, number).click()
        wanted = [row.number for row in all_rows if row.place.line == number]
        assert numbers(page, ".eqn.lit") == wanted, number
        assert lit_lines(page) == [number]


def test_the_equations_of_a_line_are_those_written_there(open_page, text):
    page = open_page(text)
    line(page, line_of(body, "jnp.sin(c) * t")).click()
    expect(page.locator("#program .eqn.lit .prim")).to_have_text(["sin", "mul"])
    line(page, line_of(model, "lax.cond")).click()
    lit = page.locator("#program .eqn.lit .prim").all_inner_texts()
    assert {"cond", "cos", "sub", "gt"} <= set(lit) and "sin" not in lit


def test_a_line_that_continues_a_call_lights_the_call(open_page, text, all_rows):
    page = open_page(text)
    line(page, line_of(model, "        body,")).click()
    assert row_of(all_rows, "scan").number in numbers(page, ".eqn.lit")


def test_what_a_line_calls_is_lit_dimly(open_page, text, all_rows):
    page = open_page(text)
    page.click("#unfold")
    number = line_of(model, "doubled(x) + doubled(x)")
    line(page, number).hover()
    inner = [r.number for r in all_rows if r.place.line == line_of(doubled, "x * 2.0")]
    expect(page.locator("#program .eqn.near").first).to_be_visible()
    assert inner and set(inner) <= set(numbers(page, ".eqn.near"))
    assert not set(inner) & set(numbers(page, ".eqn.lit"))


def test_a_hovered_equation_lights_its_line_and_dimly_those_around_it(open_page, text, all_rows):
    page = open_page(text)
    page.click("#unfold")
    row = row_of(all_rows, "sin")
    equation(page, row).hover()
    expect(page.locator("#source .line.lit")).to_have_count(1)
    assert lit_lines(page) == [line_of(body, "jnp.sin(c) * t")]
    assert line_of(model, "lax.scan(") in lit_lines(page, "near")
    assert numbers(page, ".eqn.lit") == [row.number]
    expect(page.locator("#detail")).to_contain_text(f"{row.place.line} in body")
    page.mouse.move(700, 5)
    expect(page.locator("#source .line.lit")).to_have_count(0)


def test_a_folded_equation_says_how_many_are_lit_inside(open_page, text, all_rows):
    page = open_page(text)
    page.click("#fold")
    line(page, line_of(body, "jnp.sin(c) * t")).hover()
    scan = equation(page, row_of(all_rows, "scan"))
    expect(scan).to_have_class(re.compile("holds"))
    expect(scan.locator(".inside")).to_have_attribute("data-lit", "2 of ")
    assert numbers(page, ".eqn.lit") == []
    scan.click()
    expect(scan).not_to_have_class(re.compile("holds"))
    page.mouse.move(700, 5)
    line(page, line_of(body, "jnp.sin(c) * t")).hover()
    expect(page.locator("#program .eqn.lit")).to_have_count(2)


def test_everything_folds_and_unfolds(open_page, text, shown, all_rows):
    page = open_page(text)
    top = next(stage.body for stage in shown.stages if stage.body).rows
    page.click("#fold")
    assert page.locator("#program .eqn:visible").count() == len(top)
    page.click("#unfold")
    assert numbers(page, ".eqn:visible") == [row.number for row in all_rows]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("query", "keeps"),
    [
        ("sin", lambda r: "sin" in r.primitive),
        ("dot_general", lambda r: r.primitive == "dot_general"),
        (f":{line_of(body, 'jnp.sin(c)')}", lambda r: r.place.line == line_of(body, "jnp.sin(c)")),
        (
            f"pages.py:{line_of(model, 'lax.cond')} cos",
            lambda r: r.place.line == line_of(model, "lax.cond") and r.primitive == "cos",
        ),
        ("f32[3]", lambda r: any("f32[3]" in out.type for out in r.outs)),
        ("b", lambda r: "b" in r.primitive or "b" in r.ins or "b" in [o.name for o in r.outs]),
    ],
)
def test_a_search_leaves_what_it_finds_and_what_is_around_it(
    open_page, text, all_rows, query, keeps
):
    page = open_page(text)
    before = numbers(page, ".eqn:visible")
    page.fill("#find", query)
    found = [row.number for row in all_rows if keeps(row) or keeps_name(row, query)]
    expect(page.locator("#found")).to_contain_text(f"{len(found)} ")
    left = numbers(page, ".eqn:visible")
    around = {
        row.number
        for row in all_rows
        if any(inner.number in found for b in row.bodies for inner in rows(b))
    }
    assert left == sorted({*found, *around})
    page.keyboard.press("Escape")
    expect(page.locator("#found")).to_have_text("")
    assert numbers(page, ".eqn:visible") == before


def keeps_name(row, query):
    return query in row.eqn.params.get("name", "")


def test_a_variable_lights_where_it_is_made_and_used(open_page, text, all_rows):
    page = open_page(text)
    page.click("#unfold")
    row = row_of(all_rows, "sin")
    name = row.outs[0].name
    equation(page, row).locator(".typed .v").hover()
    same = page.locator("#program .v.same")
    expect(same).to_have_text([name, name])
    uses = [r.number for r in all_rows if name in r.ins]
    for use in uses:
        expect(page.locator(f'#program .eqn[data-n="{use}"] .v.same')).to_have_count(1)


def test_a_variable_of_a_body_that_is_called_twice_is_lit_in_one_call(open_page, text, all_rows):
    page = open_page(text)
    page.click("#unfold")
    first, second = (row for row in all_rows if row.place.line == line_of(doubled, "x * 2.0"))
    assert first.outs == second.outs
    equation(page, first).locator(".typed .v").hover()
    expect(equation(page, first).locator(".v.same")).to_have_count(1)
    expect(page.locator("#program .v.same")).to_have_count(2)  # its result, and the body's
    expect(equation(page, second).locator(".v.same")).to_have_count(0)


def test_the_expression_of_a_hovered_equation_is_underlined(open_page, text, all_rows):
    page = open_page(text)
    page.click("#unfold")
    equation(page, row_of(all_rows, "sin")).hover()
    expect(page.locator("#source .line.lit")).to_have_count(1)
    underlined = "() => [...CSS.highlights.get('expression')].map(String)"
    assert page.evaluate(underlined) == ["jnp.sin(c)"]


def test_keys_do_what_the_pointer_does(open_page, text, all_rows):
    page = open_page(text)
    page.click("#fold")
    page.locator("#program .eqn").first.focus()
    focused = page.locator("#program .eqn:focus")
    scan = row_of(all_rows, "scan")
    for _ in range(20):
        if focused.get_attribute("data-n") == str(scan.number):
            break
        page.keyboard.press("ArrowDown")
    expect(focused).to_have_attribute("data-n", str(scan.number))
    expect(page.locator("#source .line.lit")).to_have_attribute("data-line", str(scan.place.line))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(focused).to_have_attribute("data-n", str(scan.number + 1))
    page.keyboard.press("ArrowLeft")
    expect(focused).to_have_attribute("data-n", str(scan.number))
    page.keyboard.press("ArrowLeft")
    expect(equation(page, row_of(all_rows, "sin"))).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.locator("#source .line.has").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("body")).to_have_class(re.compile("pinned"))
    page.keyboard.press("Escape")
    expect(page.locator("body")).not_to_have_class(re.compile("pinned"))


def test_each_stage_has_a_tab(open_page, text, shown):
    page = open_page(text)
    tabs = page.get_by_role("tab")
    names = [s.name for s in shown.stages if s.name not in ("source", "jaxpr")]
    assert [t.split("\n")[0].rstrip("0123456789,") for t in tabs.all_inner_texts()] == names
    page.get_by_role("tab", name="stablehlo").click()
    expect(page.locator("#stages .plain")).to_contain_text("stablehlo.sine")
    page.fill("#find", "stablehlo.sine")
    expect(page.locator("#stages .plain .line:visible")).to_have_count(1)


@pytest.mark.parametrize(
    ("tab", "wanted"),
    [("stablehlo", re.compile(r"\.sine\b")), ("optimised hlo", re.compile(r" sine\("))],
)
def test_lines_light_what_xla_is_given_and_makes_of_it(open_page, tab, wanted):
    page = open_page(mal.show(model, hlo="optimised", quiet=True)(jnp.ones(4)).html())
    page.get_by_role("tab", name=tab).click()
    number = line_of(body, "jnp.sin(c) * t")
    line(page, number).click()
    lit = page.locator("#stages .line.lit")
    expect(lit.filter(has_text=wanted)).not_to_have_count(0)
    assert {item.get_attribute("data-line") for item in lit.all()} == {str(number)}
    page.keyboard.press("Escape")
    page.locator("#stages .line.has", has_text=wanted).first.hover()
    expect(page.locator("#source .line.lit")).to_have_attribute("data-line", str(number))
    expect(page.locator("#program .eqn.holds, #program .eqn.near")).not_to_have_count(0)


def test_a_pass_shows_what_it_changed(open_page, text, all_rows):
    page = open_page(text)
    expect(page.get_by_role("tab", name="pass cse")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#stages .eqn.removed")).not_to_have_count(0)
    page.get_by_role("button", name="show the program").click()
    expect(page.locator("#stages .eqn.removed")).to_have_count(0)
    line(page, line_of(body, "jnp.sin(c) * t")).click()
    expect(page.locator("#stages .eqn.lit .prim")).to_have_text(["sin", "mul"])


def test_a_note_lights_its_line(open_page, text):
    page = open_page(text)
    note = page.locator("#notes .note")
    expect(note).to_contain_text("kept the loop")
    expect(note).to_contain_text("of <3>")
    note.click()
    assert lit_lines(page) == [line_of(model, "doubled(x) + doubled(x)")]


def test_what_looks_like_html_is_text(open_page):
    page = open_page(mal.show(hostile, quiet=True)(1.0).html())
    expect(page).to_have_title("hostile")
    expect(page.locator("#owned, #source img")).to_have_count(0)
    expect(page.locator("#source")).to_contain_text('</script><b id="owned">&amp;{{data}}')


def test_no_other_script_is_run(open_page, text):
    page = open_page(text)
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'owned'";
        document.body.append(script);
    }""")
    expect(page).to_have_title("model")
    assert "Content Security Policy" in open_page.wrong.pop()


def test_ten_thousand_equations_open_and_answer(open_page):
    shown = mal.show(long, quiet=True)(1.0)
    found = rows(shown.stages[-1].body)
    assert len(found) >= 10_000
    page = open_page(shown.html())
    assert page.locator(".eqn").count() < 1000
    line(page, line_of(long, "lax.scan(lambda")).click()
    wanted = [r.number for r in found if r.place.line == line_of(long, "lax.scan(lambda")]
    expect(page.locator("#program .eqn.lit").last).to_be_in_viewport()
    assert numbers(page, ".eqn.lit") == wanted
    page.fill("#find", found[6000].outs[0].name)
    expect(page.locator("#found")).to_have_text("2 found")
    assert numbers(page, ".eqn:visible") == [6001, 6002]
    page.keyboard.press("Escape")
    page.click("#unfold")
    page.locator("#program .eqn").first.focus()
    page.keyboard.press("End")
    expect(page.locator("#program .eqn:focus")).to_have_attribute("data-n", str(len(found)))
    expect(page.locator("#program .eqn:focus")).to_be_in_viewport()
    assert page.locator(".eqn").count() < 2000


def test_a_difference_shows_what_became_of_each_equation(open_page):
    found = diff(model, mal.cse, quiet=True)(jnp.ones(4))
    page = open_page(html.diff_page(found))
    for mark in ("removed", "changed", "kept"):
        expect(page.locator(f".legend .{mark}")).to_have_text(f"{found.marks[mark]} {mark}")
    page.click("#unfold")
    removed = page.locator("#program .eqn.removed").first
    removed.hover()
    expect(page.locator("#source .line.lit")).to_have_count(1)
    line(page, line_of(model, "doubled(x) + doubled(x)")).click()
    expect(page.locator("#program .eqn.lit.removed")).not_to_have_count(0)
    page.fill("#find", "sin")
    expect(page.locator("#program .eqn .prim", has_text="sin")).to_have_text(["sin"])


def test_a_variable_of_a_folded_run_is_lit_outside_of_it(open_page):
    def twice(x):
        y = jnp.sin(x)
        z = jnp.tanh(jnp.cos(y) + 1.0) * 2.0 - 3.0
        return z * y, jnp.sin(x) * z

    page = open_page(html.diff_page(diff(twice, mal.cse, quiet=True)(1.0)))
    run = page.locator("#program .kept-run")
    expect(run).to_contain_text("5 equations as before")
    expect(page.locator("#program .eqn", has_text="tanh")).to_be_hidden()
    run.click()
    expect(page.locator("#program .eqn", has_text="tanh")).to_be_visible()
    page.locator("#program .eqn .v", has_text=re.compile("^b$")).last.hover()
    made_and_used = page.locator("#program .eqn", has=page.locator(".v.same"))
    expect(made_and_used.locator(".prim")).to_have_text(["sin", "cos", "mul"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_colours_of_the_desktop(open_page, text, scheme):
    page = open_page(text, color_scheme=scheme)
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", color)[:3])) > 380) == (scheme == "light")


def test_on_a_narrow_screen_the_panes_are_one_below_the_other(open_page, text):
    page = open_page(text)
    page.set_viewport_size({"width": 600, "height": 900})
    boxes = [page.locator(f"#{pane}").bounding_box() for pane in ("source", "program", "stages")]
    assert all(box["x"] == boxes[0]["x"] and box["width"] > 500 for box in boxes)
    assert boxes[0]["y"] < boxes[1]["y"] < boxes[2]["y"]
