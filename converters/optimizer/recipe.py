"""Recipe for the optax transformation that continues a torch optimizer's training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converters.mapping.leaves import PlannedLeaf
from converters.optimizer.calls import OptaxCall, call
from converters.optimizer.kinds import Kind
from converters.optimizer.moments import FROZEN, Labeled
from converters.optimizer.names import named_leaves, normal


@dataclass(frozen=True)
class Recipe:
    """Recipe for the optimizer in JAX.

    Attributes:
        calls: the call for each label.
        labels: the label of each array's path ("params/dense/kernel").
        leaves: the torch tensors of each array, for calls that need them.
        notes: notes for the user, one line each.
    """

    calls: Mapping[str, OptaxCall]
    labels: Mapping[str, str]
    leaves: tuple[PlannedLeaf, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Code of the call; `labels` is `recipe.labels_of(params)`."""
        text = self._call.text
        return text if self._single else f"{text.removesuffix(')')}, labels)"

    @property
    def _single(self) -> bool:
        return len(self.calls) == 1

    @property
    def _call(self) -> OptaxCall:
        if self._single:
            return next(iter(self.calls.values()))
        return call("optax.multi_transform", dict(self.calls))

    def build(self, params: Any) -> Any:
        """Return the optax transformation for these parameters (linen's dict or an `nnx.State`)."""
        if self._single:
            return self._call.make(self.leaves)
        import optax

        transforms = {label: call.make(self.leaves) for label, call in self.calls.items()}
        return optax.multi_transform(transforms, self.labels_of(params))

    def labels_of(self, params: Any) -> Any:
        """Return a tree like the parameters, with the label of each array."""
        import jax

        known = {normal(path): label for path, label in self.labels.items()}
        named, structure = named_leaves(params)
        return jax.tree.unflatten(structure, [known[normal(name)] for name, _ in named])


def recipe(kind: Kind, groups: Sequence[Mapping[str, Any]], labeled: Sequence[Labeled]) -> Recipe:
    """Return the recipe for these arrays."""
    calls: dict[str, OptaxCall] = {}
    for item in labeled:
        if item.label == FROZEN:
            calls[item.label] = call("optax.set_to_zero")
        else:
            calls[item.label] = kind.call(groups[item.group], item.terms)
    notes = [kind.note] if kind.note else []
    if FROZEN in calls:
        paths = [item.leaf.path for item in labeled if item.label == FROZEN]
        more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
        notes.append(f"not trained so far, left as they are: {', '.join(paths[:5])}{more}")
    if any(item.terms > 1 for item in labeled):
        notes.append(
            "an array that is the sum of several torch tensors moves by the sum of their steps: its "
            "learning rate is that of torch times their number"
        )
    return Recipe(
        calls,
        {item.leaf.path: item.label for item in labeled},
        tuple(item.leaf for item in labeled),
        tuple(notes),
    )
