"""Flax model of transformers 4, run through its public call, which creates masks and positions itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.linen import LinenModel
from migrate.parity.sides.jax.model import room

# Parameters of its call that are no inputs.
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
    """FlaxPreTrainedModel; its layers are those of the linen module that it holds.

    Args:
        model: the model.
        shown: the user's name for it.
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
        """Store names and shapes, which the model knows without an input."""
        import jax
        from flax import traverse_util

        tree = held if self._collected else {"params": held}
        leaves: dict[tuple[str, ...], Any] = traverse_util.flatten_dict(dict(tree))
        self._paths = {"/".join(path): path for path in leaves}
        shapes = {"/".join(path): leaf for path, leaf in leaves.items()}
        self._known = {
            name: jax.ShapeDtypeStruct(shape.shape, shape.dtype) for name, shape in shapes.items()
        }

    def parameters(self) -> list[inspect.Parameter]:
        """See `JaxModel`."""
        every = inspect.signature(self._model.__call__).parameters.values()
        return [parameter for parameter in every if parameter.name not in _OTHERS]

    def shapes(self, bound: BoundInputs) -> dict[str, Any]:
        """See `JaxModel`."""
        return dict(self._known)

    def initialize(self, bound: BoundInputs, seed: int, options: Mapping[str, Any]) -> None:
        """See `JaxModel`: the model's own function draws its weights."""
        import jax

        if self.weights is None:
            drawn = self._model.init_weights(jax.random.key(seed), self._model.input_shape)
            self._keep(drawn if self._collected else {"params": drawn})
        self._look_at_mode(bound)

    def make_room(self, bound: BoundInputs) -> bool:
        """See `JaxModel`."""
        if self.weights is None:
            self.weights = {name: room(shape) for name, shape in self._known.items()}
        return True

    def _run(
        self,
        weights: Mapping[str, Any],
        bound: BoundInputs,
        modes: Mapping[str, Any],
        changing: Any,
    ) -> Any:
        tree = self._tree(weights)
        params = tree if self._collected else tree["params"]
        return self._model(*bound.args, **bound.kwargs, **modes, params=params)
