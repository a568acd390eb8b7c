"""The optax call that goes on with a torch optimizer's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converters.mapping.leaves import PlannedLeaf
from converters.optimizer.calls import OptaxCall, call
from converters.optimizer.kinds import Kind
from converters.optimizer.moments import FROZEN, Labelled
from converters.optimizer.names import named_leaves, normal


@dataclass(frozen=True)
class Recipe:
    """How to make the optimizer in JAX.

    Attributes:
        calls: label → the call for its arrays.
        labels: path of the array ("params/dense/kernel") → label.
        leaves: how the arrays are made of torch tensors, for calls that need it.
        notes: what to know, one line each.
    """

    calls: Mapping[str, OptaxCall]
    labels: Mapping[str, str]
    leaves: tuple[PlannedLeaf, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The call as a user writes it; `labels` is `recipe.labels_of(params)`."""
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
        """The optax transformation for these parameters (linen's dict or an `nnx.State`)."""
        if self._single:
            return self._call.make(self.leaves)
        import optax

        made = {label: one.make(self.leaves) for label, one in self.calls.items()}
        return optax.multi_transform(made, self.labels_of(params))

    def labels_of(self, params: Any) -> Any:
        """A tree like the parameters, with the label of each array."""
        import jax

        known = {normal(path): label for path, label in self.labels.items()}
        named, structure = named_leaves(params)
        return jax.tree.unflatten(structure, [known[normal(name)] for name, _ in named])


def recipe(kind: Kind, groups: Sequence[Mapping[str, Any]], labelled: Sequence[Labelled]) -> Recipe:
    """The recipe for these arrays."""
    calls: dict[str, OptaxCall] = {}
    for one in labelled:
        if one.label == FROZEN:
            calls[one.label] = call("optax.set_to_zero")
        else:
            calls[one.label] = kind.call(groups[one.group], one.terms)
    notes = [kind.note] if kind.note else []
    if FROZEN in calls:
        paths = [one.leaf.path for one in labelled if one.label == FROZEN]
        more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
        notes.append(f"not trained so far, left as they are: {', '.join(paths[:5])}{more}")
    if any(one.terms > 1 for one in labelled):
        notes.append(
            "an array that is the sum of several torch tensors moves by the sum of their steps: its "
            "learning rate is that of torch times their number"
        )
    return Recipe(
        calls,
        {one.leaf.path: one.label for one in labelled},
        tuple(one.leaf for one in labelled),
        tuple(notes),
    )
