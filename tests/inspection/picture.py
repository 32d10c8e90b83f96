"""Make the picture of the page in the docs: `python -m tests.inspection.picture`."""

import importlib
import os
import pathlib
import tempfile

import malleable as mal
from tests.inspection import transformer
from tests.inspection.show.pages import FLAGS, chromium

PICTURE = pathlib.Path(__file__).parents[2] / "docs" / "images" / "malleable-show.png"


def main(path=PICTURE, scheme="light"):
    start = importlib.import_module("playwright.sync_api").sync_playwright
    image = importlib.import_module("PIL.Image")
    os.chdir(pathlib.Path(__file__).parent)  # files are named as seen from here
    show = mal.show(transformer.loss, passes=(mal.cse, mal.stream), hlo=True, quiet=True)
    text = show(*transformer.arguments()).html()
    with tempfile.TemporaryDirectory() as folder, start() as driver:
        (file := pathlib.Path(folder) / "page.html").write_text(text, encoding="utf-8")
        browser = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        size = {"width": 1400, "height": 900}
        page = browser.new_page(viewport=size, color_scheme=scheme)
        page.goto(file.as_uri())
        page.get_by_role("tab", name="pass stream").click()
        page.locator("#source .line", has_text="jax.nn.softmax").click()
        page.locator("#program .eqn.lit", has_text="reduce_sum").hover()
        page.wait_for_timeout(200)
        page.screenshot(path=path)
        browser.close()
    image.open(path).quantize(256).save(path, optimize=True)  # a third of the size


if __name__ == "__main__":
    main()
