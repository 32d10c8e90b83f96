"""The package as a type checker is to see it: what is no public name starts with an underscore.

pyright takes every module for public whose name has no underscore in front. Ours are public by
`__init__.pyi` (see docs/policy.md), so for the check the others are copied under such a name.
"""

import pathlib
import re
import shutil

SRC = pathlib.Path(__file__).parents[2] / "src" / "malleable"
PUBLIC = {"errors", "prob"}  # modules that are public themselves


def copy_public(site: pathlib.Path) -> None:
    """Copy the package into `site`, every module that is not public under a private name."""
    out = site / "malleable"
    left_out = shutil.ignore_patterns("__pycache__", "tour", "integrations")
    shutil.copytree(SRC, out, ignore=left_out)
    private = sorted(
        path.stem
        for path in out.iterdir()
        if path.stem not in PUBLIC and not path.name.startswith("_") and path.suffix in ("", ".py")
    )
    names = "|".join(private)
    for path in out.rglob("*.py*"):
        text = re.sub(rf"\bmalleable\.({names})\b", r"malleable._\1", path.read_text())
        text = re.sub(
            rf"from malleable import ({names})\b", r"from malleable import _\1 as \1", text
        )
        path.write_text(text)
    for name in private:
        for path in (out / name, out / f"{name}.py"):
            if path.exists():
                path.rename(path.with_name(f"_{path.name}"))
