"""A file of user code is read once, and again when its text changes."""

import ast
import linecache

from malleable.compat import Place
from malleable.python_source.files import KEPT, around, read


def written(path, text):
    path.write_text(text)
    linecache.checkcache(str(path))
    return str(path)


def test_a_file_is_parsed_once_until_it_changes(tmp_path):
    file = written(tmp_path / "some.py", "y = x + 1\n")
    first = read(file)
    assert read(file) is first and read(file).tree is first.tree
    linecache.clearcache()  # the same lines in another list
    assert read(file) is first
    assert [n.value for n in read(file).nodes if isinstance(n, ast.Constant)] == [1]
    written(tmp_path / "some.py", "y = x + 22\n")
    assert [n.value for n in read(file).nodes if isinstance(n, ast.Constant)] == [22]


def test_the_innermost_expression_stands_at_a_place(tmp_path):
    file = written(tmp_path / "some.py", "def f(x):\n    y = (x + 1) * 2\n    return y\n")
    node = read(file).at(Place(file, 2, "f", 9, 2, 14))
    assert isinstance(node, ast.BinOp) and ast.unparse(node) == "x + 1"
    function = around(node, ast.FunctionDef)
    assert function is not None and function.name == "f"
    assert around(node, ast.ClassDef) is None
    assert read(file).at(Place(file, 2, "f", 9, 2, 13)) is None


def test_what_is_no_python_has_no_nodes(tmp_path):
    file = written(tmp_path / "some.py", "def f(:\n")
    assert read(file).tree is None and read(file).nodes == ()
    assert read(str(tmp_path / "none.py")).nodes[1:] == ()


def test_few_files_are_kept(tmp_path):
    files = [written(tmp_path / f"f{i}.py", f"x = {i}\n") for i in range(KEPT + 1)]
    found = [read(file) for file in files]
    assert read(files[-1]) is found[-1]
    assert read(files[0]) is not found[0]
