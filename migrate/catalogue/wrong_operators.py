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
# Divide by another number where two of their arguments meet.
AVERAGE_POOLS = words("torch.nn.functional.avg_pool2d torch.nn.functional.avg_pool3d")
# Pack other rows than those of the sequences.
PACKS = words("torch.nn.utils.rnn.pack_padded_sequence torch.nn.utils.rnn.pack_sequence")
# Integer types that torch sums in int64, and torch_xla in the same type.
SMALL_TYPES = words("torch.uint8 torch.int8 torch.int16 torch.short")
# Functions that accept no host tensor beside device tensors, not even one with a single number.
ONLY_OF_DEVICE = words("where clamp clip lerp remainder atan2 xlogy index_fill index_fill_")
LOSSES = words("mse_loss smooth_l1_loss l1_loss")
# Give a wrong gradient where their input is negative, unless they work in place; with their parameters.
ELU = {
    "torch.nn.ELU": ("alpha", "inplace"),
    "torch.nn.CELU": ("alpha", "inplace"),
    "torch.nn.SELU": ("inplace",),
    "torch.nn.functional.elu": ("input", "alpha", "inplace"),
    "torch.nn.functional.celu": ("input", "alpha", "inplace"),
    "torch.nn.functional.selu": ("input", "inplace"),
    "torch.celu": ("input", "alpha"),
    "torch.selu": ("input",),
}
# Compute with the alpha of the first call of the process.
CELU = words("torch.nn.CELU torch.nn.functional.celu torch.celu")
# Layers whose backward pass does not need their output.
NEED_NO_OUTPUT = words(
    "torch.nn.Linear torch.nn.Conv1d torch.nn.Conv2d torch.nn.Conv3d torch.nn.ConvTranspose1d "
    "torch.nn.ConvTranspose2d torch.nn.ConvTranspose3d torch.nn.BatchNorm1d torch.nn.BatchNorm2d "
    "torch.nn.BatchNorm3d torch.nn.SyncBatchNorm torch.nn.LayerNorm torch.nn.GroupNorm "
    "torch.nn.InstanceNorm1d torch.nn.InstanceNorm2d torch.nn.InstanceNorm3d"
)
