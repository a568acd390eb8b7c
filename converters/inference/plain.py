"""Guesses for tensors that Flax stores unchanged: scales, biases, statistics, parameters of a user's
module."""

from __future__ import annotations

from converters.inference.groups import PARAMETRIZATIONS, Group
from converters.inference.guess import (
    BATCH_NORM,
    NORM,
    PARAMETER,
    Guess,
    ambiguous,
    certain,
    likely,
)
from converters.inference.words import own_name, words

_BATCH_NORM = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
_ACTIVATIONS = {"act", "activation", "prelu", "relu", "nonlinearity"}
# Remains of a tensor that torch computes from several, in a form not known above.
_PIECES = ("weight_g", "weight_v", "weight_orig")
_QUANTIZED = {"qweight", "qzeros", "scales", "SCB", "absmax", "quant_map", "quant_state", "g_idx"}


def guess_batch_norm(group: Group) -> Guess | None:
    """Return a BatchNorm if running statistics are present."""
    if not {"running_mean", "running_var"} <= set(group.tensors):
        return None
    shapes = {info.shape for name, info in group.tensors.items() if name != "num_batches_tracked"}
    if set(group.tensors) <= _BATCH_NORM and len(shapes) == 1 and len(next(iter(shapes))) == 1:
        return certain(BATCH_NORM, "running_mean and running_var, all of one length")
    return ambiguous("running statistics, but no BatchNorm's shapes or names", PARAMETER)


def guess_norm(group: Group) -> Guess:
    """Return the guess for a `weight` of at most one axis: unchanged in any layer."""
    weight, bias = group.shape("weight"), group.shape("bias")
    names = set(group.plain)
    if weight and names <= {"weight", "bias"} and bias in (None, weight):
        if bias is None and (weight == (1,) or _ACTIVATIONS & set(words(own_name(group.path)))):
            return likely("PReLU", "a weight of one axis; its length or name is an activation's")
        return certain(NORM, f"one axis ({weight[0]}), as the scale of Layer, RMS and GroupNorm")
    return certain(PARAMETER, "no axis, or names that no layer of torch.nn has")


def guess_parameters(group: Group) -> Guess:
    """Return the guess for a group without `weight`: parameters and buffers of a user's module, under
    their own names."""
    names = set(group.tensors)
    left = [name for name in names if name.startswith(PARAMETRIZATIONS) or name in _PIECES]
    if left:
        what = "a parametrization, whose function is not in the checkpoint"
        return ambiguous(f"{what}: {', '.join(sorted(left))}", PARAMETER)
    if _QUANTIZED & names:
        what = f"quantized weights ({', '.join(sorted(_QUANTIZED & names))})"
        return ambiguous(f"{what}: dequantize them before", PARAMETER)
    experts = {"expert", "experts"} & set(words(group.path))
    if experts and any(len(info.shape) > 2 for info in group.tensors.values()):
        what = "the stacked weights of experts: no shape shows which axis is the output's"
        return ambiguous(what, PARAMETER)
    return certain(PARAMETER, "a name that no layer of torch.nn has: kept as it is")
