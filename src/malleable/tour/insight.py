"""A chapter: a loss whose gradient is NaN on real data; found, explained, counted and saved."""

import pathlib
import tempfile

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from sklearn.datasets import load_digits

import malleable as mal
from malleable import errors
from malleable.tour.rows import Row, close, equal

PAGE = "malleable-program.html"
IMAGES, HIDDEN = 64, 16
WRONG = "the carry changes its type"


def length(column):
    return jnp.sqrt(jnp.sum(column**2))  # the slope of a blank column is 0 * inf


def mended(column):
    square = jnp.sum(column**2)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def loss(weights, images, norm=length):
    """The mean square of states that read images column by column, each weighed by its length."""

    def read(image):
        def step(state, column):
            return jnp.tanh(state + norm(column) * (weights @ column)), None

        return lax.scan(step, jnp.zeros(HIDDEN), image.T)[0]

    return jnp.mean(jax.vmap(read)(images) ** 2)


def mended_loss(weights, images):
    return loss(weights, images, mended)


def explained(weights, images):
    """The note on an error of JAX: the carry of a scan that becomes longer."""
    try:
        with errors.explain():
            lax.scan(lambda state, column: (weights @ column, None), images[0, 0], images[0])
    except TypeError as error:
        notes = [n for n in error.__notes__ if n.startswith("malleable: ")]
        at = error.__traceback__
        return "".join(notes), at.tb_lineno if at else 0
    return "", 0


def nothing_hidden(steps, console):
    """A NaN found by line, step and lane; costs, errors and files with nothing hidden"""
    images = load_digits(return_X_y=True)[0][:IMAGES].reshape(-1, 8, 8)
    images = jnp.asarray(images / 16, jnp.float32)
    weights = jax.random.normal(jax.random.key(0), (HIDDEN, 8)) / 4
    blank = np.argwhere(np.all(np.asarray(images) == 0, axis=1))  # (image, column)

    with console.status("looking for the NaN"):
        found = mal.first_nonfinite(jax.jit(jax.grad(loss, argnums=1)))(weights, images)
    console.print(str(found))
    made, at = (found.line, (*found.lanes, *found.steps)) if found else (None, ())
    line = length.__code__.co_firstlineno + 1

    slope = jax.grad(mended_loss, argnums=1)  # by the pixels: a saliency map
    finite = bool(jnp.isfinite(slope(weights, images)).all())
    cost = mal.cost(mended_loss)(weights, images)
    products = sum(c.flops for stack, c in cost.stacks.items() if stack[-1] == "dot_general")

    with tempfile.TemporaryDirectory() as folder, console.status("saving and loading"):
        file = pathlib.Path(folder) / "loss.mal"
        mal.save(file, mended_loss, weights, images, transformable=True)
        again = jax.grad(mal.load(file), argnums=1)(weights, images)

    page = pathlib.Path(PAGE).absolute()
    mal.show(slope, passes=[mal.cse], quiet=True)(weights, images).html(page)
    console.print(f"the gradient as a page: {page}")
    note, wrong_line = explained(weights, images)
    said, at_line = note.partition(":")[2].partition(":")[0].strip(), f"py:{wrong_line}" in note
    return [
        Row("NaN made in line", f"{made}", f"{line}", made == line),
        Row("at (image, column)", f"{at}", "a blank one", list(at) in blank.tolist()),
        Row("finite, once mended", f"{finite}", "True", finite),
        equal("flop of its products (cost)", products, IMAGES * 8 * 2 * HIDDEN * 8),
        close("gradient after save and load", again, slope(weights, images)),
        Row("an error explained", said, WRONG, at_line and said == WRONG),
    ]
