"""An nnx port as functions of its weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

Path = tuple[Any, ...]


def is_nnx(model_class: type) -> bool:
    """Whether a port's class is an nnx module."""
    from flax import nnx

    return issubclass(model_class, nnx.Module)


def takes_dtypes(model_class: type) -> bool:
    """Whether a port's class has `dtype` and `param_dtype`."""
    if not is_nnx(model_class):
        return "dtype" in model_class.__dataclass_fields__  # type: ignore[attr-defined]
    return "numerics" in inspect.signature(model_class.__init__).parameters  # type: ignore[misc]


class NnxPort:
    """A port of one size, in evaluation mode.

    Args:
        model_class: its class.
        config: its sizes.
        seed: random seed.
        numerics: dtypes and precision.
    """

    def __init__(self, model_class: type, config: Any, seed: int = 0, **numerics: Any) -> None:
        from flax import nnx

        def create(key: Any = seed) -> Any:
            return model_class(config, rngs=nnx.Rngs(key), **numerics)

        self._create = create
        model = nnx.eval_shape(create)
        model.eval()
        self._graph, state = nnx.split(model)
        self._leaves: dict[Path, Any] = dict(nnx.to_flat_state(state))
        self._rest: dict[str, Any] | None = None

    def shapes(self) -> dict[str, Any]:
        """Path → shape and dtype of all variables that a file of weights has."""
        import jax

        return {
            _name(path): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for path, leaf in self._leaves.items()
            if _is_weight(leaf)
        }

    def parameters(self) -> set[str]:
        """Paths of the variables that are trained."""
        from flax import nnx

        return {_name(path) for path, leaf in self._leaves.items() if isinstance(leaf, nnx.Param)}

    def drawn(self, key: Any) -> dict[str, Any]:
        """Path → array of all variables of a new model, as its constructor makes them."""
        from flax import nnx

        leaves = nnx.to_flat_state(nnx.state(self._create(key)))
        return {_name(path): leaf[...] for path, leaf in leaves if _is_weight(leaf)}

    def rest(self) -> dict[str, Any]:
        """Path → array of what no file has: keys, and arrays that the constructor computes.

        They are made once, by the first call.
        """
        import jax
        from flax import nnx

        others = {path for path, leaf in self._leaves.items() if not _is_weight(leaf)}

        def made() -> dict[str, Any]:
            leaves = nnx.to_flat_state(nnx.state(self._create()))
            return {_name(path): _array(leaf) for path, leaf in leaves if path in others}

        if self._rest is None:
            self._rest = jax.jit(made)() if others else {}
        return self._rest

    def apply(
        self, arrays: Mapping[str, Any], /, *, method: str = "__call__", **inputs: Any
    ) -> Any:
        """Return the outputs for arrays by path, those of `rest` among them.

        Raises:
            ValueError: an array has another shape than the variable of this size.
        """
        from flax import nnx

        for path, own in self.shapes().items():
            if arrays[path].shape != own.shape:
                raise ValueError(
                    f"{path} has the shape {list(arrays[path].shape)}, the model's has {list(own.shape)}"
                )
        leaves = [
            (path, leaf.replace(arrays[_name(path)]))
            if isinstance(leaf, nnx.Variable)
            else (path, arrays[_name(path)])
            for path, leaf in self._leaves.items()
        ]
        model = nnx.merge(self._graph, nnx.from_flat_state(leaves))
        return getattr(model, method)(**inputs)


def _name(path: Path) -> str:
    return "/".join(map(str, path))


def _is_weight(leaf: Any) -> bool:
    from flax import nnx

    return isinstance(leaf, nnx.Variable) and not isinstance(leaf, nnx.RngState)


def _array(leaf: Any) -> Any:
    from flax import nnx

    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
