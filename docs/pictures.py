"""Make the pictures of the gallery again, from its code: `python docs/pictures.py`.

Needs flax, matplotlib, scipy, and for pages playwright with a Chromium.
"""

import importlib
import linecache
import os
import pathlib
import re
import shutil
import tempfile

DOCS = pathlib.Path(__file__).parent
IMAGES = DOCS / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main():
    text = (DOCS / "gallery.md").read_text().replace("SIDE = 4 ", "SIDE = 300 ")
    blocks = re.findall(r'^```python(?: title="(.*?)")?\n(.*?)^```', text, flags=re.DOTALL | re.M)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        known = {"__name__": "gallery"}
        for i, (title, code) in enumerate(blocks):
            name = os.path.join(folder, title or f"gallery{i}.py")
            linecache.cache[name] = (len(code), None, code.splitlines(True), name)
            exec(compile(code, name, "exec"), known)
        photograph(pathlib.Path("malleable-diff.html"), "malleable-diff.png")
        for made in pathlib.Path(folder).glob("malleable-*.*"):
            if made.suffix == ".png":
                importlib.import_module("PIL.Image").open(made).convert("RGB").quantize(256).save(
                    made, optimize=True
                )
            if made.suffix in (".svg", ".png"):
                shutil.copy(made, IMAGES)
                print(f"{made.name}: {made.stat().st_size // 1000} kB")
        os.chdir(DOCS)


def photograph(page, picture, size=(1200, 620)):
    """A picture of a page, as Chromium shows it."""
    start = importlib.import_module("playwright.sync_api").sync_playwright
    with start() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        tab = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
        tab.goto(page.absolute().as_uri())
        tab.wait_for_timeout(500)
        tab.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()
