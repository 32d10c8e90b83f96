"""Differentiate through an integrator that chooses its own steps, written as one would in NumPy.

How many steps it takes, and which of them it rejects, depends on the numbers. That is a `while`
with an `if` inside, so it compiles, runs for many starts at once, and has a gradient as soon as
`loop` says how many steps there may be.
"""

import jax
import numpy as np

import malleable as mal


def swing(state, length):
    angle, speed = state
    return np.array([speed, -9.81 / length * np.sin(angle)])


@mal.autograph
def integrate(state, length, until, tolerance=1e-5):
    """(the state at a time, accepted steps, rejected steps), by Heun's method inside of Euler's."""
    time, step, accepted, rejected = 0.0, 0.01, 0, 0
    while mal.loop(time < until, max_steps=2000):
        step = min(step, until - time)
        slope = swing(state, length)
        euler = state + step * slope
        heun = state + step / 2 * (slope + swing(euler, length))
        error = np.sum(np.abs(heun - euler))
        if error <= tolerance:
            time += step
            state = heun
            accepted += 1
        else:
            rejected += 1
        step *= min(2.0, max(0.2, 0.9 * (tolerance / (error + 1e-30)) ** 0.5))
    return state, accepted, rejected


def main():
    with jax.enable_x64(True):
        start, length, until = np.array([1.0, 0.0]), 1.0, 1.5
        state, accepted, rejected = jax.jit(integrate)(start, length, until)
        print(f"angle {state[0]:.4f} after {accepted} steps, {rejected} rejected")

        angle = lambda length: integrate(start, length, until)[0][0]
        slope = jax.jit(jax.grad(angle))(length)
        apart = (angle(length + 1e-3) - angle(length - 1e-3)) / 2e-3
        print(f"d angle / d length {slope:.3f}, by differences {apart:.3f}")

        starts = np.stack([np.linspace(0.1, 3.0, 100), np.zeros(100)], axis=1)
        _, steps, _ = jax.jit(jax.vmap(integrate, (0, None, None)))(starts, length, until)
        print(f"100 starts at once: {steps.min()} to {steps.max()} steps")


if __name__ == "__main__":
    main()
