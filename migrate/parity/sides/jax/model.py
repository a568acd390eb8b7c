"""Model of a JAX side: a linen module, an nnx module or a function, as a pure function of weights."""

from __future__ import annotations

import contextlib
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Layer
from migrate.parity.ground.errors import ParityError
from migrate.parity.sides.frames import defined
from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.capture.recorder import CalledLayer, Watcher
from migrate.parity.sides.jax.weights import Weights, require_fit


class JaxModel(ABC):
    """Model and its weights.

    Attributes:
        shown: the user's name for the model.
        weights: weights by `/`-joined path, in numpy; None until they are known.
        notes: notes for the report.
        mode: mode of runs outside training, if the model has modes.
        lies_as_torch: whether it takes images channels first, as torch does.
        seed: random seed of its draws.
    """

    notes: tuple[str, ...] = ()
    lies_as_torch = False
    mode = ""
    seed = 0

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.weights: Weights | None = None
        # Whether to drop weights that the model has no place for.
        self.spare: Callable[[str], bool] = lambda path: False
        # Spec of each weight on a mesh, for a port that has partition rules.
        self.partition: Callable[[Any, Any], Any] | None = None
        # Axes of a mesh that such a port divides the batch over.
        self.batch_axes: tuple[str, ...] = ()

    @abstractmethod
    def parameters(self) -> list[inspect.Parameter]:
        """Parameters of its call, inputs and modes."""

    @abstractmethod
    def is_parameter(self, name: str) -> bool:
        """Whether a weight is trained (running statistics are not)."""

    @abstractmethod
    def apply(
        self, weights: Mapping[str, Any], bound: BoundInputs, *, train: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """Run the model; return the outputs, and the weights that the call changed (statistics in training).

        Dropout is off in either case.
        """

    def computed(self, bound: BoundInputs) -> Weights:
        """Arrays that are not trained, with the values that the model itself gives them."""
        del bound
        own = self.weights or {}
        return {name: array for name, array in own.items() if not self.is_parameter(name)}

    def is_statistic(self, name: str) -> bool:
        """Whether a weight is a running statistic."""
        return name.startswith("batch_stats/")

    def trained(
        self, weights: Mapping[str, Any], bound: BoundInputs, key: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Run as in `apply`, in training mode.

        Args:
            weights: as in `apply`.
            bound: as in `apply`.
            key: random key of the dropouts; None: their rates are 0.
        """
        raise ParityError(f"{self.shown}: has no training mode", "name a Flax module")

    @abstractmethod
    def recording(self, recorder: Watcher) -> contextlib.AbstractContextManager[None]:
        """Context in which the calls of its layers are recorded, as far as `apply` does not do so."""

    def initialize(self, bound: BoundInputs, seed: int, options: Mapping[str, Any]) -> None:
        """Initialize the weights, if there are none yet; `options` are for the compiler."""
        if self.weights is None:
            raise ParityError(f"{self.shown}: has no weights", "give it some")

    def make_room(self, bound: BoundInputs) -> bool:
        """Set missing weights to zeros that take no memory; return whether this was done."""
        return False

    def shapes(self, bound: BoundInputs) -> dict[str, Any]:
        """Shapes of the weights, as `jax.ShapeDtypeStruct`; missing weights are not drawn."""
        import jax

        return {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype)
            for name, array in (self.weights or {}).items()
        }

    def without_spare(self, weights: Weights, wanted: Collection[str]) -> Weights:
        """Drop the weights that the model has no place for, where that is known."""
        return {
            name: array for name, array in weights.items() if name in wanted or not self.spare(name)
        }

    def take(self, weights: Weights) -> None:
        """Load weights.

        Raises:
            ParityError: the weights do not fit.
        """
        if self.weights is not None:
            shapes = {name: array.shape for name, array in self.weights.items()}
            weights = self.without_spare(weights, shapes)
            require_fit(weights, shapes, self.shown)
            weights = {name: weights[name] for name in self.weights}
        self.weights = weights


class FunctionModel(JaxModel):
    """Function of the inputs, or of (params, *inputs).

    If all weights are in linen's collection "params", they are passed without it, unless the function's first
    argument is called `variables`.

    Args:
        function: the function.
        shown: the user's name for it.
        start: the pytree of its weights, or a function that returns it (of nothing; of a key; of a key and
            the inputs). Leaves that are no arrays (equinox: functions, settings) stay unchanged.
    """

    notes = ("a function has no layers: only its outputs are compared",)
    _WEIGHTS = ("params", "parameters", "variables", "weights", "state")

    def __init__(self, function: Any, shown: str, start: Any = None) -> None:
        super().__init__(shown)
        self._start = start
        self._place: Callable[[Mapping[str, Any]], Any] | None = None
        self._function = function
        self._recorder: Watcher | None = None
        self._all = list(inspect.signature(function).parameters.values())
        self._named = bool(self._all) and self._all[0].name in self._WEIGHTS

    @property
    def takes_weights(self) -> bool:
        """Whether its first argument is the pytree of weights."""
        return self._named or self._start is not None or bool(self.weights)

    def parameters(self) -> list[inspect.Parameter]:
        """See `JaxModel`."""
        return self._all[1:] if self.takes_weights else self._all

    def is_parameter(self, name: str) -> bool:
        """See `JaxModel`: statistics of a linen model's variables are not trained."""
        collection = name.partition("/")[0]
        return collection not in ("batch_stats", "buffers")

    def initialize(self, bound: BoundInputs, seed: int, options: Mapping[str, Any]) -> None:
        """See `JaxModel`: a function of inputs alone has no weights."""
        if self._start is not None:
            self._begin(bound)
        elif self.weights is None and self._named:
            raise ParityError(
                f"{self.shown}: needs {self._all[0].name}, which is missing", "give it weights"
            )
        self.weights = self.weights or {}

    def take(self, weights: Weights) -> None:
        """See `JaxModel`: without a pytree of its own, only the function knows which weights fit."""
        if self._place is not None:
            super().take(weights)
        self.weights = weights

    def make_room(self, bound: BoundInputs) -> bool:
        """See `JaxModel`: a pytree that cannot be traced (it reads a file) has to be created."""
        import jax

        if self._start is None or any(map(_is_array, jax.tree.leaves(self._start))):
            return False
        others: list[Any] = []

        def arrays(*arguments: Any) -> list[Any]:
            others[:] = [jax.tree_util.tree_flatten_with_path(self._start(*arguments))]
            return [leaf if _is_array(leaf) else None for _, leaf in others[0][0]]

        try:
            shapes = jax.eval_shape(arrays, *self._start_arguments(bound))
        except Exception:
            return False
        ((leaves, structure),) = others
        filled = [
            (path, own if shape is None else room(shape))
            for (path, own), shape in zip(leaves, shapes, strict=True)
        ]
        self._keep(filled, structure)
        return True

    def _begin(self, bound: BoundInputs) -> None:
        """Create the initial pytree."""
        import jax

        tree = self._start
        if not any(map(_is_array, jax.tree.leaves(tree))):
            tree = tree(*self._start_arguments(bound))
        self._keep(*jax.tree_util.tree_flatten_with_path(tree))

    def _start_arguments(self, bound: BoundInputs) -> tuple[Any, ...]:
        """Arguments of the function that returns the pytree: nothing, a key, or a key and the inputs."""
        import jax

        parameters = inspect.signature(self._start).parameters.values()
        arguments = (jax.random.PRNGKey(0), *bound.args, *bound.kwargs.values())
        return arguments[: len([parameter for parameter in parameters if _needed(parameter)])]

    def _keep(self, leaves: Sequence[tuple[Any, Any]], structure: Any) -> None:
        import jax

        names = [_path(path) if _is_array(leaf) else None for path, leaf in leaves]
        others = [leaf for _, leaf in leaves]

        def placed(weights: Mapping[str, Any]) -> Any:
            its = [
                leaf if name is None else weights[name]
                for name, leaf in zip(names, others, strict=True)
            ]
            return jax.tree.unflatten(structure, its)

        self._place = placed
        self.weights = {
            name: np.asarray(leaf)
            for name, leaf in zip(names, others, strict=True)
            if name is not None
        }

    def apply(
        self, weights: Mapping[str, Any], bound: BoundInputs, *, train: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """See `JaxModel`."""
        modes = dict(bound.modes) | (trained(bound.modes) if train else {})
        first = (self._tree(weights),) if self.takes_weights else ()
        run = functools.partial(self._function, *first)
        args, kwargs = bound.args, dict(bound.kwargs) | modes
        if self._recorder is None:
            return run(*args, **kwargs), {}
        return self._recorder.call(self._seen(), run, args, kwargs), {}

    def _tree(self, weights: Mapping[str, Any]) -> Any:
        from migrate.parity.sides.jax.weights import nested

        if self._place is not None:
            return self._place(weights)
        tree = nested(weights)
        inner = tree.keys() == {"params"} and self._all[0].name != "variables"
        return tree["params"] if inner else tree

    def _seen(self) -> CalledLayer:
        def describe(parent: str | None) -> Layer:
            name = getattr(self._function, "__name__", type(self._function).__name__)
            return Layer(
                "", name, tuple(self.weights or ()), {}, defined(self._function), "", parent
            )

        return CalledLayer("", (), describe, dict, lambda _: None)

    @contextlib.contextmanager
    def recording(self, recorder: Watcher) -> Iterator[None]:
        """See `JaxModel`: the function itself is the only layer."""
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None


def room(shape: Any) -> np.ndarray[Any, Any]:
    """Zeros for a `jax.ShapeDtypeStruct` that take the memory of a single zero."""
    return np.broadcast_to(np.zeros((), shape.dtype), shape.shape)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _needed(parameter: inspect.Parameter) -> bool:
    several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not several


def _path(keys: tuple[Any, ...]) -> str:
    """Name of a leaf: keys of dicts, positions, fields."""
    names = [
        next(
            str(getattr(key, attribute))
            for attribute in ("key", "name", "idx")
            if hasattr(key, attribute)
        )
        for key in keys
    ]
    return "/".join(names) or "params"


def is_float32(dtype: Any) -> bool:
    """Whether a module sets float32 for any input; the truth overrides that."""
    try:
        return dtype is not None and np.dtype(dtype) == np.float32
    except TypeError:
        return False


def trained(modes: Mapping[str, Any]) -> dict[str, Any]:
    """Set the modes of a call to training, with dropout off where the modes distinguish it.

    `deterministic` concerns dropout alone and stays; the others concern statistics too.
    """
    return {name: name != "use_running_average" for name in modes if name != "deterministic"}
