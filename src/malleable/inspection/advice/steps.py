"""Generators and coroutines that are watched in each of their steps, and not between them."""

import functools
import inspect
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from malleable import errors

Open = Callable[[], AbstractContextManager]


def stepwise(func: Callable, opened: Open) -> Callable | None:
    """A generator or coroutine function with each step in a block; None for any other."""

    def generator(*args, **kwargs):
        return (yield from _steps(func(*args, **kwargs), opened))

    async def coroutine(*args, **kwargs):
        return await _awaited(func(*args, **kwargs), opened)

    async def generator_of_coroutines(*args, **kwargs):
        going = func(*args, **kwargs)
        step = going.__anext__()
        while True:
            try:
                out = await _awaited(step, opened)
            except StopAsyncIteration:
                return
            try:
                step = going.asend((yield out))
            except GeneratorExit:
                await _awaited(going.aclose(), opened)
                raise
            except BaseException as error:  # thrown in by whoever goes through it
                step = going.athrow(error)

    for is_one, like in (
        (inspect.isgeneratorfunction, generator),
        (inspect.iscoroutinefunction, coroutine),
        (inspect.isasyncgenfunction, generator_of_coroutines),
    ):
        if is_one(func):
            return functools.wraps(func)(like)
    return None


def _steps(going: Any, opened: Open):
    """`yield from going`, each of its steps in a block of its own."""
    step = functools.partial(going.send, None)
    while True:
        ended = None
        with opened():
            try:
                out = step()
            except StopIteration as end:
                return end.value
            except StopAsyncIteration as end:  # no error, but what an `async for` ends with
                ended = end
        if ended is not None:
            raise ended
        try:
            step = functools.partial(going.send, (yield out))
        except GeneratorExit:
            with opened():
                going.close()
            raise
        except BaseException as error:  # thrown in by whoever goes through it
            step = functools.partial(going.throw, error)


@types.coroutine
def _awaited(going: Any, opened: Open):
    """`await going`, each of its steps in a block of its own."""
    return (yield from _steps(going.__await__(), opened))


errors.wrappers.append(stepwise)
