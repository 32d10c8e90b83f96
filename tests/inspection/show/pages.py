"""Programs for the tests of the page, and the page in a real Chromium."""

import inspect
import shutil

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import malleable as mal
from malleable.inspection.show.rows.outline import Body, Row

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def body(c, t):
    c = jnp.sin(c) * t
    return c, c + t


@jax.jit
def doubled(x):
    return x * 2.0


def model(x):
    mal.note("kept the loop", f"{__file__}:{model.__code__.co_firstlineno + 2} in model", "of <3>")
    y = doubled(x) + doubled(x)
    y, ys = lax.scan(
        body,
        y,
        jnp.arange(3.0),
    )
    z = lax.cond(y.sum() > 0, lambda z: jnp.cos(z), lambda z: z - 1.0, y)
    return z, ys


def hostile(x):
    """Shows </script><script>document.title = "owned"</script> and <img src=x onerror=owned()>."""
    return jnp.sin(x) + 1.0  # </script><b id="owned">&amp;{{data}}


def long(x):
    for i in range(2500):
        x = jnp.sin(x) + i
        x = jnp.cos(x * x)
    return lax.scan(lambda c, t: (c * t, c), x, jnp.arange(3.0))[0]


def line_of(fun, text):
    """The number of the line of this file that contains a text, in a function."""
    with open(__file__) as file:
        lines = file.read().splitlines()
    start = inspect.unwrap(fun).__code__.co_firstlineno - 1
    return next(i + 1 for i in range(start, len(lines)) if text in lines[i])


def rows(body: Body) -> list[Row]:
    """Every row, in program order."""
    return [r for row in body.rows for r in (row, *(x for b in row.bodies for x in rows(b)))]


def chromium():
    """Where Chromium is; skips where it is not installed, or what drives it."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip(f"no browser: none of {', '.join(names)} is installed")
    return found
