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

# Arguments that torch takes as Python numbers and reads where they are tensors, by the operator's last name.
# The number is the position behind the first argument, the tensor; -1: by keyword alone. Each is measured by
# the counter `aten::_local_scalar_dense`. `masked_fill`, `clamp`, `pow`, `lerp` and `where` take a tensor.
_METHODS: tuple[tuple[str, dict[str, int]], ...] = (
    ("add add_ sub sub_ subtract subtract_ index_add index_add_", {"alpha": -1}),
    (
        "addmm addmm_ addmv addmv_ addbmm addbmm_ baddbmm baddbmm_ addr addr_",
        {"alpha": -1, "beta": -1},
    ),
    ("addcdiv addcdiv_ addcmul addcmul_", {"value": -1}),
    ("cauchy_", {"median": 0, "sigma": 1}),
    ("clip_grad_norm_", {"max_norm": 0}),  # of a model that FSDP has wrapped
    ("exponential_", {"lambd": 0}),
    ("fill_", {"value": 0}),
    ("fill_diagonal_", {"fill_value": 0}),
    ("geometric_", {"p": 0}),
    ("hardshrink", {"lambd": 0}),
    ("log_normal_ normal_", {"mean": 0, "std": 1}),
    ("nan_to_num nan_to_num_", {"nan": 0, "posinf": 1, "neginf": 2}),
    ("new_full", {"fill_value": 1}),
    ("uniform_", {"a": 0, "b": 1, "from": 0, "to": 1}),
)
# The same of functions that are no methods of a tensor: `self.elu(x)` is a module of the user.
_FUNCTIONS: tuple[tuple[str, dict[str, int]], ...] = (
    ("rsub _foreach_add _foreach_add_ _foreach_sub _foreach_sub_", {"alpha": -1}),
    ("_foreach_addcdiv _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_", {"value": -1}),
    ("clip_grad_value_", {"clip_value": 0}),
    ("constant_", {"val": 0}),
    ("cosine_embedding_loss margin_ranking_loss triplet_margin_loss", {"margin": 2}),
    ("cosine_similarity", {"eps": 2}),
    ("cross_entropy", {"label_smoothing": -1}),
    ("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout", {"p": 0}),
    ("elu elu_ celu celu_", {"alpha": 0}),
    ("fill", {"value": 0}),
    ("full_like", {"fill_value": 0}),
    ("hardtanh hardtanh_", {"min_val": 0, "max_val": 1}),
    ("hinge_embedding_loss", {"margin": 1}),
    ("huber_loss", {"delta": -1}),
    ("leaky_relu leaky_relu_", {"negative_slope": 0}),
    ("pad", {"value": 2}),
    ("rrelu rrelu_", {"lower": 0, "upper": 1}),
    ("scaled_dot_product_attention", {"scale": -1}),
    ("smooth_l1_loss", {"beta": -1}),
    ("softplus", {"beta": 0, "threshold": 1}),
    ("softshrink", {"lambd": 0}),
    ("threshold threshold_", {"threshold": 0, "value": 1}),
    ("trunc_normal_", {"mean": 0, "std": 1, "a": 2, "b": 3}),
)
NUMBERS_OF_METHODS = {name: numbers for names, numbers in _METHODS for name in words(names)}
NUMBER_ARGUMENTS = NUMBERS_OF_METHODS | {
    name: numbers for names, numbers in _FUNCTIONS for name in words(names)
}
