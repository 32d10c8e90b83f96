"""Ask why a function does not compile as a whole, write it as suggested, and see what that changes.

The function drops outliers until nothing changes. `mal.jit` runs it as it is; how many numbers are
left after a step depends on their values, so that step is Python's. `mal.explain` says so, and has
tried another way to write it.
"""

import jax.numpy as jnp
import numpy as np

import malleable as mal


def above(x, share):
    """The sum and mean of the numbers above a share of the largest."""
    least = share * jnp.max(x)
    total = jnp.sum(x[x > least])
    mean = x[x > least].mean()
    if mean > 100:
        mean = mean - 100
    return jnp.sqrt(total), mean


def rewritten(x, share):
    """The same, with what the report suggests."""
    least = share * jnp.max(x)
    total = jnp.where(x > least, x, 0).sum()
    mean = jnp.mean(x, where=x > least)
    if mean > 100:
        mean = mean - 100
    return jnp.sqrt(total), mean


def main():
    args = jnp.asarray(np.random.default_rng(0).exponential(size=1000), jnp.float32), 0.5
    before = mal.explain(mal.jit(above, control_flow="host"))(*args)
    for found in before.breaks:
        print(f"line: {found.text}\n  asks for {', '.join(found.avals)} from {found.inputs}")
        print(f"  try {found.suggestion.after if found.suggestion else 'nothing'}")
    after = mal.explain(rewritten)(*args)
    print(f"breaks: {len(before.breaks)}, then {len(after.breaks)}")
    print(f"compiled: {before.share:.0%}, then {after.share:.0%}")
    same = all(np.allclose(a, b, rtol=1e-5) for a, b in zip(before.out, after.out))
    print(f"same results: {same}")


if __name__ == "__main__":
    main()
