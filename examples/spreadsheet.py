"""A sheet of cells and formulas, of which one cell changes: only what depends on it is computed."""

import jax
import jax.numpy as jnp

import malleable as mal

PRODUCTS, MONTHS = 400, 600


def sheet(prices, sold):
    """prices, sold: (PRODUCTS, MONTHS); totals by product, by month, and of all, after tax."""
    income = prices * sold
    tax = 0.19 * jnp.maximum(income - 100.0, 0.0)
    net = income - tax
    by_product, by_month = net.sum(1), net.sum(0)
    return {
        "by product": by_product,
        "by month": by_month,
        "best": by_product.max(),
        "all": net.sum(),
    }


def main():
    prices, sold = jax.random.uniform(jax.random.key(0), (2, PRODUCTS, MONTHS), maxval=20.0)
    init, update = mal.incremental(sheet, change={"prices": (1, 1)})
    totals, state = init(prices=prices, sold=sold)
    totals, state = jax.jit(update)(state, {"prices": (jnp.full((1, 1), 99.0), (7, 11))})

    wanted = sheet(prices.at[7, 11].set(99.0), sold)
    same = all(jnp.allclose(totals[name], wanted[name], rtol=1e-4) for name in wanted)
    whole = mal.cost(sheet)(prices, sold).flops
    part = mal.cost(lambda s: update(s, {"prices": (jnp.ones((1, 1)), (7, 11))}))(state).flops
    print("as the whole sheet:", same)
    print("less than a hundredth of its work:", 100 * part < whole)


if __name__ == "__main__":
    main()
