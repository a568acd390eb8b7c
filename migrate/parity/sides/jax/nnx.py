"""Nnx module as a side."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from migrate.parity.ground.draws import Draws
from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.capture.nnx import wrapped
from migrate.parity.sides.jax.capture.recorder import Watcher
from migrate.parity.sides.jax.draws import drawn
from migrate.parity.sides.jax.model import JaxModel, is_float32
from migrate.parity.sides.jax.weights import Weights


class NnxModel(JaxModel):
    """Nnx module, split into its graph and its arrays; the module itself is never called."""

    mode = "evaluation mode"

    def __init__(self, module: Any, shown: str) -> None:
        from flax import nnx

        super().__init__(shown)
        self._recorder: Watcher | None = None
        self._parameters = list(inspect.signature(module.__call__).parameters.values())
        weights, rest = nnx.state(module, _is_weight, ...)
        self._variables = {tuple(path): variable for path, variable in nnx.to_flat_state(weights)}
        # Random keys, caches, and arrays outside variables: constants of the model.
        self._rest = [(tuple(path), variable) for path, variable in nnx.to_flat_state(rest)]
        self.weights = {
            "/".join(map(str, path)): np.asarray(variable.get_value())
            for path, variable in self._variables.items()
        }
        self._paths = dict(zip(self.weights, self._variables, strict=True))
        self._graphs = {train: _graph(module, train=train) for train in (False, True)}
        # Training mode, and the same with dropouts that drop nothing.
        self._trained = {drops: _training_graph(module, drops=drops) for drops in (False, True)}

    def parameters(self) -> list[inspect.Parameter]:
        """See `JaxModel`."""
        return self._parameters

    def is_parameter(self, name: str) -> bool:
        """See `JaxModel`."""
        from flax import nnx

        return isinstance(self._variables[self._paths[name]], nnx.Param)

    def apply(
        self, weights: Mapping[str, Any], bound: BoundInputs, *, train: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """See `JaxModel`."""
        module = self._merged(weights, self._graphs[train])
        modes = dict(bound.modes)
        # A model that draws gets the numbers of the comparison.
        with self._layers(module), drawn(Draws(self.seed)):
            outputs = module(*bound.args, **bound.kwargs, **modes)
        return outputs, self._changed(weights, module) if train else {}

    def _changed(self, weights: Mapping[str, Any], module: Any) -> dict[str, Any]:
        """Weights that a run may have changed: those that are not trained."""
        from flax import nnx

        after = {
            "/".join(map(str, path)): variable.get_value()
            for path, variable in nnx.to_flat_state(nnx.state(module, _is_weight))
        }
        return {
            name: after[name] for name in weights if name in after and not self.is_parameter(name)
        }

    def is_statistic(self, name: str) -> bool:
        """See `JaxModel`."""
        from flax import nnx

        return isinstance(self._variables[self._paths[name]], nnx.BatchStat)

    def trained(
        self, weights: Mapping[str, Any], bound: BoundInputs, key: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """See `JaxModel`."""
        module = self._merged(weights, self._trained[key is not None], key)
        with contextlib.nullcontext() if key is not None else drawn(Draws(self.seed)):
            outputs = module(*bound.args, **bound.kwargs, **dict(bound.modes))
        return outputs, self._changed(weights, module)

    @contextlib.contextmanager
    def recording(self, recorder: Watcher) -> Iterator[None]:
        """See `JaxModel`: each `apply` creates its own module, which is wrapped then."""
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None

    def _layers(self, module: Any) -> contextlib.AbstractContextManager[None]:
        if self._recorder is None:
            return contextlib.nullcontext()
        return wrapped(self._recorder, module, self._paths)

    def _merged(self, weights: Mapping[str, Any], graph: Any, key: Any = None) -> Any:
        """The module; `key` takes the place of its keys."""
        import jax
        from flax import nnx

        flat = [
            (path, self._variables[path].replace(weights[name]))
            for name, path in self._paths.items()
        ]
        rest = [
            (
                path,
                variable.replace(variable.get_value())
                if isinstance(variable, nnx.Variable)
                else variable,
            )
            for path, variable in self._rest
        ]
        if key is not None:
            rest = [
                (path, variable.replace(jax.random.fold_in(key, at)))
                if isinstance(variable, nnx.RngKey)
                else (path, variable)
                for at, (path, variable) in enumerate(rest)
            ]
        module = nnx.merge(graph, nnx.from_flat_state([*flat, *rest]))
        dtype = next((weights[name].dtype for name in weights if self.is_parameter(name)), None)
        for _, submodule in nnx.iter_modules(module) if dtype is not None else ():
            # The dtype of the parameters; cells create their first state in it.
            if hasattr(submodule, "param_dtype"):
                submodule.param_dtype = dtype
            if dtype == np.float64 and is_float32(getattr(submodule, "dtype", None)):
                submodule.dtype = dtype
        return module

    def take(self, weights: Weights) -> None:
        """See `JaxModel`."""
        assert self.weights is not None
        dtypes = {name: array.dtype for name, array in self.weights.items()}
        super().take(weights)
        self.weights = {
            name: np.asarray(array).astype(dtypes[name]) for name, array in self.weights.items()
        }


def _is_weight(path: Any, value: Any) -> bool:
    from flax import nnx

    del path
    passing = (nnx.RngState, nnx.Intermediate, nnx.Cache)
    kind = getattr(value, "type", type(value))
    return issubclass(kind, nnx.Variable) and not issubclass(kind, passing)


def _graph(module: Any, *, train: bool) -> Any:
    """Graph of a module, set to training or evaluation; dropout is off in both."""
    from flax import nnx

    copy = nnx.clone(module)
    if train:
        copy.train()
    else:
        copy.eval()
    copy.set_attributes(deterministic=True, raise_if_not_found=False)
    return nnx.graphdef(copy)


def _training_graph(module: Any, *, drops: bool) -> Any:
    """Graph of a module in training mode; without `drops`, Flax's dropouts drop nothing."""
    from flax import nnx

    copy = nnx.clone(module)
    copy.train()
    for _, submodule in nnx.iter_modules(copy):
        if not drops and isinstance(submodule, nnx.Dropout | nnx.MultiHeadAttention):
            submodule.deterministic = True
    return nnx.graphdef(copy)
