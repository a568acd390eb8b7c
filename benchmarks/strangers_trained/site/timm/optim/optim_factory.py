"""Parameter groups with timm's interface."""

from __future__ import annotations

from typing import Any

from torch import nn


def add_weight_decay(
    model: nn.Module, weight_decay: float = 1e-5, skip_list: Any = ()
) -> list[dict[str, Any]]:
    """Return two groups: vectors and biases do not decay."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    kept = [w for name, w in named if w.ndim == 1 or name.endswith(".bias") or name in skip_list]
    known = {id(weight) for weight in kept}
    decayed = [weight for _, weight in named if id(weight) not in known]
    return [
        {"params": kept, "weight_decay": 0.0},
        {"params": decayed, "weight_decay": weight_decay},
    ]
