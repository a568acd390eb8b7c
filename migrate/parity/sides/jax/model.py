"""What a JAX side runs: a linen module, an nnx module or a function, as one pure function of weights."""

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
from migrate.parity.sides.jax.arguments import Bound
from migrate.parity.sides.jax.capture.recorder import Seen, Watcher
from migrate.parity.sides.jax.weights import Weights, require_fit


class JaxModel(ABC):
    """A model and its weights.

    Attributes:
        shown: what the user named.
        weights: by `/`-joined path, in numpy; None until they are known.
        notes: what the report must say of it.
        mode: in which it runs where it is not trained, as far as it has one.
        lies_as_torch: whether it takes images channels first, as torch does.
        seed: of what it draws.
    """

    notes: tuple[str, ...] = ()
    lies_as_torch = False
    mode = ""
    seed = 0

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.weights: Weights | None = None
        # Whether a weight that it has no place for may be left out.
        self.spare: Callable[[str], bool] = lambda path: False

    @abstractmethod
    def parameters(self) -> list[inspect.Parameter]:
        """Of its call, inputs and modes."""

    @abstractmethod
    def is_parameter(self, name: str) -> bool:
        """Whether a weight is trained (running statistics are not)."""

    @abstractmethod
    def apply(
        self, weights: Mapping[str, Any], bound: Bound, *, train: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """The outputs, and the weights that the call itself changed (statistics, where it is trained).

        Dropout is off in either case.
        """

    @abstractmethod
    def recording(self, recorder: Watcher) -> contextlib.AbstractContextManager[None]:
        """A context in which the calls of its layers are recorded; what `apply` does not do itself."""

    def initialise(self, bound: Bound, seed: int, options: Mapping[str, Any]) -> None:
        """Draw weights, if it has none yet; `options` are of the compiler."""
        if self.weights is None:
            raise ParityError(f"{self.shown}: has no weights", "give it some")

    def make_room(self, bound: Bound) -> bool:
        """Where it has no weights yet have zeros in their places, without memory; whether that was done."""
        return False

    def shapes(self, bound: Bound) -> dict[str, Any]:
        """Of its weights, as `jax.ShapeDtypeStruct`: nothing is drawn where it has none yet."""
        import jax

        return {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype)
            for name, array in (self.weights or {}).items()
        }

    def without_spare(self, weights: Weights, wanted: Collection[str]) -> Weights:
        """The weights without those that it has no place for, where that is known."""
        return {
            name: array for name, array in weights.items() if name in wanted or not self.spare(name)
        }

    def take(self, weights: Weights) -> None:
        """Take weights.

        Raises:
            ParityError: they do not fit.
        """
        if self.weights is not None:
            shapes = {name: array.shape for name, array in self.weights.items()}
            weights = self.without_spare(weights, shapes)
            require_fit(weights, shapes, self.shown)
            weights = {name: weights[name] for name in self.weights}
        self.weights = weights


class FunctionModel(JaxModel):
    """A function of the inputs, or of (params, *inputs).

    Weights that are all of linen's collection "params" are given without it, unless the function's first
    argument is called `variables`.

    Args:
        function: the function.
        shown: what the user named.
        start: the pytree of its weights, or a function that gives one (of nothing; of a key; of a key and the
            inputs). What in it is no array (equinox: functions, settings) stays as it is.
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
        """Whether its first argument is the pytree."""
        return self._named or self._start is not None or bool(self.weights)

    def parameters(self) -> list[inspect.Parameter]:
        """See `JaxModel`."""
        return self._all[1:] if self.takes_weights else self._all

    def is_parameter(self, name: str) -> bool:
        """See `JaxModel`: the statistics of a linen model's variables are not."""
        collection = name.partition("/")[0]
        return collection not in ("batch_stats", "buffers")

    def initialise(self, bound: Bound, seed: int, options: Mapping[str, Any]) -> None:
        """See `JaxModel`: a function of inputs alone has none."""
        if self._start is not None:
            self._begin(bound)
        elif self.weights is None and self._named:
            raise ParityError(
                f"{self.shown}: needs {self._all[0].name}, which is missing", "give it weights"
            )
        self.weights = self.weights or {}

    def take(self, weights: Weights) -> None:
        """See `JaxModel`: without a pytree of its own what fits is known to the function alone."""
        if self._place is not None:
            super().take(weights)
        self.weights = weights

    def make_room(self, bound: Bound) -> bool:
        """See `JaxModel`: what cannot be traced (it reads a file) is to be made."""
        import jax

        if self._start is None or any(map(_is_array, jax.tree.leaves(self._start))):
            return False
        others: list[Any] = []

        def arrays(*given: Any) -> list[Any]:
            others[:] = [jax.tree_util.tree_flatten_with_path(self._start(*given))]
            return [one if _is_array(one) else None for _, one in others[0][0]]

        try:
            shapes = jax.eval_shape(arrays, *self._given(bound))
        except Exception:
            return False
        ((leaves, structure),) = others
        made = [
            (path, own if one is None else room(one))
            for (path, own), one in zip(leaves, shapes, strict=True)
        ]
        self._keep(made, structure)
        return True

    def _begin(self, bound: Bound) -> None:
        """Make the pytree that it starts with."""
        import jax

        tree = self._start
        if not any(map(_is_array, jax.tree.leaves(tree))):
            tree = tree(*self._given(bound))
        self._keep(*jax.tree_util.tree_flatten_with_path(tree))

    def _given(self, bound: Bound) -> tuple[Any, ...]:
        """What the function that gives the pytree takes: nothing, a key, a key and the inputs."""
        import jax

        parameters = inspect.signature(self._start).parameters.values()
        given = (jax.random.PRNGKey(0), *bound.args, *bound.kwargs.values())
        return given[: len([one for one in parameters if _needed(one)])]

    def _keep(self, leaves: Sequence[tuple[Any, Any]], structure: Any) -> None:
        import jax

        names = [_path(path) if _is_array(one) else None for path, one in leaves]
        others = [one for _, one in leaves]

        def placed(weights: Mapping[str, Any]) -> Any:
            its = [
                one if name is None else weights[name]
                for name, one in zip(names, others, strict=True)
            ]
            return jax.tree.unflatten(structure, its)

        self._place = placed
        self.weights = {
            name: np.asarray(one)
            for name, one in zip(names, others, strict=True)
            if name is not None
        }

    def apply(
        self, weights: Mapping[str, Any], bound: Bound, *, train: bool = False
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

    def _seen(self) -> Seen:
        def describe(parent: str | None) -> Layer:
            name = getattr(self._function, "__name__", type(self._function).__name__)
            return Layer(
                "", name, tuple(self.weights or ()), {}, defined(self._function), "", parent
            )

        return Seen("", (), describe, dict, lambda _: None)

    @contextlib.contextmanager
    def recording(self, recorder: Watcher) -> Iterator[None]:
        """See `JaxModel`: the function itself is all that there is."""
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None


def room(shape: Any) -> np.ndarray[Any, Any]:
    """Zeros of a `jax.ShapeDtypeStruct` that are one zero in memory."""
    return np.broadcast_to(np.zeros((), shape.dtype), shape.shape)


def _is_array(one: Any) -> bool:
    return hasattr(one, "shape") and hasattr(one, "dtype")


def _needed(parameter: inspect.Parameter) -> bool:
    several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not several


def _path(keys: tuple[Any, ...]) -> str:
    """The name of a leaf: keys of dicts, positions, fields."""
    names = [
        next(str(getattr(key, one)) for one in ("key", "name", "idx") if hasattr(key, one))
        for key in keys
    ]
    return "/".join(names) or "params"


def is_float32(dtype: Any) -> bool:
    """Whether a module says to compute in float32 whatever it is given: the truth then overrides it."""
    try:
        return dtype is not None and np.dtype(dtype) == np.float32
    except TypeError:
        return False


def trained(modes: Mapping[str, Any]) -> dict[str, Any]:
    """The modes of a call that is trained, dropout off as far as these tell it apart.

    `deterministic` speaks of dropout alone and stays; the others also of statistics.
    """
    return {name: name != "use_running_average" for name in modes if name != "deterministic"}
