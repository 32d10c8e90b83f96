"""Draw the layers of the package from the rows that a test holds: `python -m docs.layers`.

Who is above may import who is below. What a folder is for is the first line of its README.
"""

import ast
import html
import pathlib
import textwrap

from tests.test_layers import ROWS, SRC

PICTURE = pathlib.Path(__file__).parent / "images" / "malleable-layers.svg"
WIDTH, GAP, LINE = 960, 12, 17  # pixels: of the picture, between boxes, of a line of text
LETTER = 6.6  # pixels, at most, of a letter of 12 pixels' height
HIDDEN = {"__init__", "__main__"}  # which names it, and which runs it
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #3a2d28 }
  .name { font: bold 14px ui-monospace, monospace }
  .inner { font: 11.5px ui-monospace, monospace; fill: #7a5c50 }
  rect { fill: #fbf6f2; stroke: #b08d7d; rx: 6px }
"""


def caption(name: str) -> str:
    """What a folder, or a module beside the folders, is for."""
    readme, module = SRC / name / "README.md", SRC / f"{name}.py"
    if readme.exists():
        return readme.read_text().partition("\n")[0].partition(": ")[2]
    if not module.exists():
        module = SRC / name / "__init__.py"
    told = ast.get_docstring(ast.parse(module.read_text())) or ""
    return told.partition("\n")[0].partition(": ")[0].rstrip(".")


def inside(name: str) -> str:
    """The rows of a folder, those that import first: "region < schedule < emit"."""
    rows = [sorted(row - HIDDEN - {"."}) for row in ROWS.get(name, ())]
    return " < ".join(" ".join(row) for row in rows if row)


def box(name: str, width: float) -> list[tuple[str, str]]:
    """(class, text) of the lines in a box of a folder."""
    letters = int((width - 2 * GAP) / LETTER)
    wrapped = [("", line) for line in textwrap.wrap(caption(name), letters)]
    below = [("inner", line) for line in textwrap.wrap(inside(name), int(letters * 0.88))]
    return [("name", name), *wrapped, *below]


def svg() -> str:
    """The picture: a band for each row, the topmost for what imports the most."""
    out, y = [], GAP
    for row in reversed([sorted(row - HIDDEN) for row in ROWS[""]]):
        if not row:
            continue
        width = (WIDTH - GAP * (len(row) + 1)) / len(row)
        boxes = [box(name, width) for name in row]
        height = LINE * max(map(len, boxes)) + GAP
        for i, lines in enumerate(boxes):
            x = GAP + i * (width + GAP)
            out.append(f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}"/>')
            for k, (kind, text) in enumerate(lines, 1):
                at = f'x="{x + GAP:.0f}" y="{y + LINE * k}"'
                out.append(f'<text {at} class="{kind}">{html.escape(text)}</text>')
        y += height + GAP
    size = f'viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *out, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(svg())
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.1f} kB")
