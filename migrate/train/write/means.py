"""Texts of a program whose micro-batches are weighted by the number of their elements."""

from __future__ import annotations

from migrate.train.write.counts import COUNT, CountedSource

_COUNT_OF = "def count_of(params, state, inputs):"
# Functions of `train.py`.
COUNTS = """
count = jax.jit(count_of, out_shardings=EVERYWHERE)
"""
_SHARES_OF = "def shares_of(counts):"
SHARES = f'''{COUNTS}

@functools.partial(jax.jit, out_shardings=EVERYWHERE)
{_SHARES_OF}
    """Factor of each micro-batch, by its part of all elements that count: 1 if all have the same number."""
    counts = jnp.stack(counts).astype(jnp.float32)
    return list(counts * len(counts) / counts.sum())


@functools.partial(jax.jit, out_shardings=EVERYWHERE)
def weighted(tree, share):
    """Loss and gradients times their factor: zero for a micro-batch in which no element counts."""
    return jax.tree.map(lambda x: jnp.where(share == 0, 0, share * x), tree)

'''


def count_text(counted: CountedSource) -> list[str]:
    """The function of `loss.py` that counts the elements of a micro-batch."""
    arguments = [f"{name}=inputs[{name!r}]" for name in counted.inputs]
    arguments += ["deterministic=True"] if counted.takes_mode else []
    return [
        "",
        "",
        _COUNT_OF,
        f'    """Number of elements over which the loss of a micro-batch is a {counted.form}."""',
        "    variables = {**state, 'params': params}",
        f"    return STEP.apply(variables, {', '.join(arguments)}, method={COUNT!r})",
    ]


def has_global_mean(source: str) -> bool:
    """Whether a text of `train.py` is that of a program that weights its micro-batches."""
    return f"\n{_SHARES_OF}\n" in source
