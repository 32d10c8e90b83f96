"""The door to JAX: every primitive of the installed JAX that carries a program is in a table."""

import pkgutil
import re

import jax
import jax._src

from malleable import compat

# Param names under which primitives bind programs.
CARRIES = re.compile(r"\b(\w*jaxpr\w*|call|callee|branches|bodies)\s*=")


def source_files():
    """The source of every module of JAX."""
    for module in pkgutil.walk_packages(jax._src.__path__, "jax._src."):
        if "test" in module.name or module.ispkg:
            continue
        spec = module.module_finder.find_spec(module.name)
        with open(spec.origin, encoding="utf-8") as file:
            yield file.read()


def primitives_that_carry_programs():
    """Names of primitives bound with a program among their params, read off JAX's source."""
    names = set()
    for text in source_files():
        made = re.finditer(
            r"(\w+)\s*(?::[^=\n]+)?=\s*(?:\w+\.)*(?:\w*Primitive)\(\s*['\"]([^'\"]+)['\"]", text
        )
        for variable, name in (m.groups() for m in made):
            binds = re.findall(
                re.escape(variable) + r"\.bind\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text
            )
            if any(CARRIES.search(b) for b in binds):
                names.add(name)
    return names


def test_every_primitive_that_carries_a_program_is_in_a_table():
    names = primitives_that_carry_programs()
    assert {"scan", "while", "cond", "jit"} <= names, "the search itself is broken"
    known = {*compat.VIEWS, *compat.INLINED, *compat.OPAQUE}
    assert not names - known
