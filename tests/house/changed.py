"""Which tests a change touches, as arguments of pytest: `python -m tests.house.changed [BASE]`.

The change is what differs from where this branch left BASE (main), with what is not committed yet.
`make fast` runs them; it is for while one works, and `make check` for what is to be kept.
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
ALWAYS = ["tests/test_layers.py"]
EVERYTHING = {"pyproject.toml", "tests/conftest.py", "tests/flags.py"}
FOLDERS = {
    "docs": ["tests/test_docs.py", "tests/house"],
    "benchmarks": ["tests/test_benchmarks.py", "tests/test_smoke.py"],
    "examples": ["tests/test_examples.py"],
}
FILES = {"README.md": ["tests/test_readme.py"], "mkdocs.yml": FOLDERS["docs"]}


def touched_by(path: str) -> list[str]:
    """The tests of one file.

    >>> touched_by("src/malleable/core/frame.py")
    ['tests/core', 'src/malleable/core/frame.py']
    >>> touched_by("src/malleable/inspection/unstaging/unstage.py")  # with no folder of its own
    ['tests/inspection', 'src/malleable/inspection/unstaging/unstage.py']
    >>> touched_by("src/malleable/errors.py"), touched_by("docs/install.md")
    (['tests/test_errors.py', 'src/malleable/errors.py'], ['tests/test_docs.py', 'tests/house'])
    """
    first, _, rest = path.partition("/")
    if path in EVERYTHING:
        return ["tests", "src"]
    if path in FILES:
        return FILES[path]
    if path.startswith("src/malleable/"):
        return [*mirrored(path.removeprefix("src/malleable/")), *([path] if exists(path) else [])]
    if first == "tests" and path.endswith(".py"):
        return [path] if rest.rpartition("/")[2].startswith("test_") else users(path)
    return FOLDERS.get(first, [])


def mirrored(path: str) -> list[str]:
    """The folder of tests for a file of the package, or the nearest one above it."""
    folder = pathlib.PurePosixPath("tests", path).parent
    if str(folder) == "tests":
        return [f"tests/test_{path}"]
    while not exists(folder) and folder.parent.name:
        folder = folder.parent
    return [] if str(folder) == "tests" else [str(folder)]


def users(path: str) -> list[str]:
    """The test files that name a file of `tests/` which has no tests itself."""
    name = path.removesuffix(".py").replace("/", ".")
    ways = (name, "from {} import {}".format(*name.rpartition(".")[::2]))
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [f for f in files if any(way in f.read_text() for way in ways)]
    return [f.relative_to(ROOT).as_posix() for f in found]


def exists(path) -> bool:
    return (ROOT / path).exists()


def git(*words: str) -> list[str]:
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.split("\n")[:-1]


def changed(base: str = "main") -> list[str]:
    """The files that differ from where this branch left another one."""
    (start,) = git("merge-base", base, "HEAD")
    return git("diff", "--name-only", start) + git("ls-files", "--others", "--exclude-standard")


def arguments(paths: list[str]) -> list[str]:
    """What pytest is to run for a change of these files: each once, and none that is in another."""
    found = dict.fromkeys([*ALWAYS, *(test for path in paths for test in touched_by(path))])
    there = [test for test in found if exists(test)]
    within = lambda test: any(test.startswith(f"{other}/") for other in there)
    return [test for test in there if not within(test)]


if __name__ == "__main__":
    print(*arguments(changed(*sys.argv[1:])))
