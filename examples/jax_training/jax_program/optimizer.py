"""SGD of ddp_toy/before.py:47."""

import optax

learning_rate = 0.05


optimizer = optax.sgd(learning_rate, momentum=0.9)


def learning_rate_of(count):
    """Learning rate of the first group in an update."""
    rate = learning_rate
    return rate(count) if callable(rate) else rate
