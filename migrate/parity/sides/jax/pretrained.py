"""A Flax model of transformers 4: run as its users call it, so that it makes masks and positions itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from migrate.parity.sides.jax.arguments import Bound
from migrate.parity.sides.jax.linen import LinenModel
from migrate.parity.sides.jax.model import room

# What of its call is not an input.
_OTHERS = (
    "params",
    "dropout_rng",
    "past_key_values",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "freeze_feature_encoder",
    "gumbel_rng",
    "mask_time_indices",
    "gumbel_temperature",
)


class PretrainedModel(LinenModel):
    """A FlaxPreTrainedModel; its layers are those of the linen module that it holds.

    Args:
        model: it.
        shown: what the user named.
    """

    lies_as_torch = True

    def __init__(self, model: Any, shown: str) -> None:
        super().__init__(model.module, shown)
        self._model = model
        held = model.params_shape_tree
        self._collected = "params" in held
        self._take_paths(held)
        if getattr(model, "_is_initialized", False):
            self._keep(model.params if self._collected else {"params": model.params})

    def _take_paths(self, held: Mapping[str, Any]) -> None:
        """Names and shapes, which it knows without being given an input."""
        import jax
        from flax import traverse_util

        tree = held if self._collected else {"params": held}
        leaves: dict[tuple[str, ...], Any] = traverse_util.flatten_dict(dict(tree))
        self._paths = {"/".join(path): path for path in leaves}
        shapes = {"/".join(path): one for path, one in leaves.items()}
        self._known = {
            name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in shapes.items()
        }

    def parameters(self) -> list[inspect.Parameter]:
        """See `JaxModel`."""
        every = inspect.signature(self._model.__call__).parameters.values()
        return [one for one in every if one.name not in _OTHERS]

    def shapes(self, bound: Bound) -> dict[str, Any]:
        """See `JaxModel`."""
        return dict(self._known)

    def initialise(self, bound: Bound, seed: int, options: Mapping[str, Any]) -> None:
        """See `JaxModel`: its own function draws them."""
        import jax

        if self.weights is None:
            drawn = self._model.init_weights(jax.random.key(seed), self._model.input_shape)
            self._keep(drawn if self._collected else {"params": drawn})
        self._look_at_mode(bound)

    def make_room(self, bound: Bound) -> bool:
        """See `JaxModel`."""
        if self.weights is None:
            self.weights = {name: room(one) for name, one in self._known.items()}
        return True

    def _run(
        self, weights: Mapping[str, Any], bound: Bound, modes: Mapping[str, Any], changing: Any
    ) -> Any:
        tree = self._tree(weights)
        given = tree if self._collected else tree["params"]
        return self._model(*bound.args, **bound.kwargs, **modes, params=given)
