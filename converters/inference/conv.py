"""Guesses for a `weight` of three to five axes: Conv (out, in / groups, *k) or ConvTranspose (in, out
/ groups, *k)."""

from __future__ import annotations

from converters.inference.context import Context
from converters.inference.groups import Group
from converters.inference.guess import PARAMETER, Guess, ambiguous, certain, likely
from converters.inference.words import (
    DECODER_WORDS,
    INWARD_WORDS,
    UPWARD_WORDS,
    is_linear_name,
    own_name,
    words,
)

TRANSPOSED = "ConvTranspose"
# Longer kernels are doubtful in a layer that is not called a convolution.
LONGEST_KERNEL = 16


def guess_conv(group: Group, context: Context) -> Guess:
    """Return the guess for a group with a `weight` of three to five axes."""
    weight, bias = group.shape("weight"), group.shape("bias")
    assert weight is not None
    rank = len(weight) - 2
    extra = sorted(set(group.plain) - {"weight", "bias"})
    conv, transposed = f"Conv{rank}d", f"ConvTranspose{rank}d"
    if extra or (bias is not None and len(bias) != 1):
        return ambiguous(
            f"with {', '.join(extra) or 'a bias of several axes'}: no layer of torch.nn",
            conv,
            transposed,
            PARAMETER,
        )
    if rank == 1 and _perhaps_no_kernel(group.path, weight[2]):
        what = (
            "three axes: a Bilinear, stacked matrices, or a Conv1d with an uncommon name or kernel"
        )
        return ambiguous(what, conv, "Bilinear", PARAMETER)
    if rank == 1 and {"expert", "experts"} & set(words(group.path)):
        return ambiguous("perhaps the stacked weights of experts", PARAMETER, conv)
    first, second = weight[:2]
    if bias is not None and bias[0] != first:
        if bias[0] % second == 0:
            what = f"the bias has {bias[0]} channels, the weight's first axis {first}"
            return certain(transposed, what, groups=bias[0] // second)
        what = f"a bias of {bias[0]} fits neither axis of {weight}"
        return ambiguous(what, conv, transposed, PARAMETER)
    if bias is not None and first % second:
        what = f"the bias has {first} channels, which {second} channels in groups cannot give"
        return certain(conv, what)
    return _open(group, context, weight, biased=bias is not None)


def _perhaps_no_kernel(path: str, side: int) -> bool:
    """Whether the last of three axes may be something other than a kernel size."""
    if side == 1 or any(word.startswith("conv") for word in words(path)):
        return False
    return "bilinear" in words(path) or is_linear_name(own_name(path)) or side > LONGEST_KERNEL


def _open(group: Group, context: Context, weight: tuple[int, ...], *, biased: bool) -> Guess:
    """Guess between both kinds if the shapes allow both: related layers decide, names only speak
    against."""
    rank = len(weight) - 2
    first, second, *kernel = weight
    conv, transposed = f"Conv{rank}d", f"ConvTranspose{rank}d"
    alike = context.twins(group.path)
    if alike[transposed]:
        name = own_name(group.path)
        return ambiguous(f"other {name} are transposed by their shapes", conv, transposed)
    if biased and first != second and second != 1:
        # Transposed, it would have groups and as many output as input channels.
        grouped = (
            f"the bias has {first} channels; transposed it would have {first // second} groups"
        )
        if not _upward(group.path):
            return likely(conv, grouped)
    following = context.norm_of(group.path)
    if following is not None and first != second:
        if following == first:
            return likely(conv, f"its norm has {first} channels")
        if following == second:
            what = f"its norm has {second} channels, as if it were transposed"
            return ambiguous(what, conv, transposed)
    if _upward(group.path):
        what = "shapes allow both, the name speaks of going up"
        return ambiguous(what, conv, transposed)
    if alike[conv]:
        return likely(conv, f"other {own_name(group.path)} are {conv} by their shapes")
    if _numbered_only(group.path) and DECODER_WORDS & set(words(group.path)):
        what = "shapes allow both, and it is a layer of a decoder known by its number only"
        return ambiguous(what, conv, transposed)
    inward = bool(INWARD_WORDS & set(words(group.path)))
    if all(side % 2 == 0 for side in kernel) and not inward and second != 1:
        if context.is_probably(group.path, conv):
            return likely(conv, f"an even kernel, but other {own_name(group.path)} are plain ones")
        what = f"shapes allow both, and an even kernel {tuple(kernel)} is often a transposed one's"
        return ambiguous(what, conv, transposed)
    return likely(conv, "nothing speaks of a transposed one")


def _upward(path: str) -> bool:
    """Whether one of the last two parts of a path suggests an output larger than the input."""
    parts = [part for part in path.split(".") if not part.isdigit()][-2:]
    return any(UPWARD_WORDS & set(words(part)) for part in parts)


def _numbered_only(path: str) -> bool:
    """Whether only a number distinguishes the layer from others: `decoder.3`, unlike `convs.3`."""
    named = any(word.startswith("conv") for word in words(own_name(path)))
    return path.rpartition(".")[2].isdecimal() and not named
