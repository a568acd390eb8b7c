"""SGD of ddp_toy/before.py:47."""

import optax

learning_rate = 0.05


optimizer = optax.sgd(learning_rate, momentum=0.9)


# Learning rate of the first group in an update.
learning_rate_of = optax.constant_schedule(learning_rate)
