"""Every equation of a program, those of bodies included, and what may be asked of them all."""

from collections.abc import Container, Iterable, Iterator
from typing import Any

from malleable import compat


def every(eqns: Iterable[compat.Eqn]) -> Iterator[compat.Eqn]:
    """These equations and those of their bodies, at any depth, in program order.

    >>> import jax
    >>> from malleable import stage
    >>> program = stage(lambda x: jax.jit(jax.numpy.sin)(x) + 1)(1.0).jaxpr
    >>> [eqn.primitive.name for eqn in every(program.jaxpr.eqns)]
    ['jit', 'sin', 'add']
    """
    return (eqn for eqn, _ in every_within(eqns))


def every_within(
    eqns: Iterable[compat.Eqn], around: tuple[compat.Eqn, ...] = ()
) -> Iterator[tuple[compat.Eqn, tuple[compat.Eqn, ...]]]:
    """As `every`, each with the equations whose bodies it is in, innermost first."""
    for eqn in eqns:
        yield eqn, around
        for body in compat.bodies(eqn.params):
            yield from every_within(body.jaxpr.eqns, (eqn, *around))


def variables(atoms: Iterable[Any]) -> list[Any]:
    """The variables among operands or results, in which numbers may stand."""
    return [v for v in atoms if not isinstance(v, compat.Literal)]


def mentions(program: compat.Jaxpr, names: Container[str]) -> bool:
    """Whether a primitive of one of these names is in a program, at any depth."""
    return any(eqn.primitive.name in names for eqn in every(program.jaxpr.eqns))
