"""Changes of the original that a port cannot see, so that its outputs stay the same."""

from __future__ import annotations

from dataclasses import replace

import torch

from migrate.port.sizes.distance import difference, distance
from migrate.port.sizes.flax import computes_weights
from migrate.port.sizes.instance import SizeChange, run
from migrate.port.sizes.question import SizeQuestion


class Unseen:
    """Test of a port for changes that reach neither its settings nor its weights nor its inputs.

    The original tells it alone: the port gives the outputs that the original has without the change.
    """

    def __init__(self, question: SizeQuestion) -> None:
        """Record the constructor's buffers, before weights are drawn again."""
        self._question = question
        self._buffers = _buffers(question.base.module)
        self._by_mapping = not computes_weights(question.folder)

    def why(self, change: SizeChange) -> str:
        """Return what is wrong under this change alone, or "" if the port may see it or it has no effect."""
        if change.leaf is None or change.axes or not self._by_mapping:
            return ""
        base = self._question.base
        alone = self._question.built((change,))
        if alone is None or self._question.settings(alone) != self._question.port.settings:
            return ""
        state = base.module.state_dict()
        if _shapes(alone.module) != _shapes(base.module) or not _equal(
            self._buffers, _buffers(alone.module)
        ):
            return ""
        alone.module.load_state_dict(state)
        alone = replace(alone, outputs=run(alone.module, alone.inputs))
        unchanged = run(base.module, base.inputs)
        apart, limit = distance(unchanged, alone)
        return "" if apart <= limit else f"the outputs {difference(unchanged, alone, apart)}"


def _shapes(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the buffers that a checkpoint has."""
    kept = module.state_dict()
    return {
        name: tensor.detach().clone() for name, tensor in module.named_buffers() if name in kept
    }


def _equal(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        torch.equal(tensor, others[name]) for name, tensor in some.items()
    )
