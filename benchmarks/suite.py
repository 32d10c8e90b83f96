"""Files of cases written by other people."""

import importlib.util
import pathlib
import sys


def load(path):
    """The module at `path`, imported under a name by which its own paths resolve."""
    name = f"cases_{pathlib.Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
