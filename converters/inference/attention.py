"""MultiheadAttention: recognized by its names; no shape determines the number of heads."""

from __future__ import annotations

from converters.inference.context import Context
from converters.inference.groups import Group
from converters.inference.guess import PARAMETER, Guess, ambiguous, certain

KIND = "MultiheadAttention"
_NAMES = {
    "in_proj_weight",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "in_proj_bias",
    "out_proj.weight",
    "out_proj.bias",
    "bias_k",
    "bias_v",
}


def guess_attention(group: Group, context: Context) -> Guess | None:
    """Return the attention that a group is; None if it has none of its tensors."""
    names = set(group.tensors)
    if not names & {"in_proj_weight", "q_proj_weight"} or "out_proj.weight" not in names:
        return None
    if not names <= _NAMES:
        extra = ", ".join(sorted(names - _NAMES))
        return ambiguous(f"a {KIND} with {extra}", f"{KIND}(heads=N)", PARAMETER)
    return with_heads(group, context)


def with_heads(group: Group, context: Context) -> Guess:
    """Return an attention, after the user has given the number of heads."""
    shape = group.tensors["out_proj.weight"].shape
    options, _ = context.assumptions.options_for(group.path)
    heads = options.get("heads")
    if heads is None:
        what = f"a {KIND} of {shape[0]} channels; no shape shows the number of heads"
        return ambiguous(what, f"{KIND}(heads=N)")
    if shape[0] % heads:
        return ambiguous(f"{heads} heads do not divide {shape[0]} channels", f"{KIND}(heads=N)")
    return certain(KIND, f"in_proj and out_proj; {heads} heads, as assumed", heads=heads)
