"""Operators with wrong results in torch_xla 2.9, and operators that need scalars of their own.

Measured on CPU devices of XLA against torch on the CPU: `benchmarks/api_sweep.py` does it again.
"""

from __future__ import annotations

from migrate.catalogue.words import words

# Reduce nothing without a dimension; with `dim=()` the others do so too.
REDUCES_NOTHING = words("amax amin")
REDUCTIONS = REDUCES_NOTHING | words("sum mean var std logsumexp")
# Keep the type of an integer tensor if a bound is a float.
CLAMPS = words("clamp clamp_ clip clip_ clamp_min clamp_min_ clamp_max clamp_max_")
# Are 1 for every element if p is infinite.
INFINITE_NORMS = words(
    "torch.norm torch.nn.functional.normalize torch.nn.functional.pairwise_distance"
)
# Pack rows other than those of the sequences.
PACKS = words("torch.nn.utils.rnn.pack_padded_sequence torch.nn.utils.rnn.pack_sequence")
# Integer types that torch sums in int64, and torch_xla in the same type.
SMALL_TYPES = words("torch.uint8 torch.int8 torch.int16 torch.short")
# Functions that accept no host tensor beside device tensors, not even one with a single number.
ONLY_OF_DEVICE = words("where clamp clip lerp remainder atan2 xlogy index_fill index_fill_")
LOSSES = words("mse_loss smooth_l1_loss l1_loss")
