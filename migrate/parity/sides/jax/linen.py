"""Linen module as a side."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from migrate.parity.ground.draws import Draws
from migrate.parity.ground.errors import ParityError
from migrate.parity.sides.jax.arguments import BoundInputs
from migrate.parity.sides.jax.capture.linen import intercepted
from migrate.parity.sides.jax.capture.recorder import Watcher
from migrate.parity.sides.jax.capture.values import is_floating, rebuilt
from migrate.parity.sides.jax.draws import drawn
from migrate.parity.sides.jax.model import JaxModel, is_float32, room, trained
from migrate.parity.sides.jax.weights import Weights, require_fit

# Collections that a call writes and that no call needs as input.
_PASSING = ("intermediates", "cache", "perturbations")
_LEFT = (
    "a layer was left in training mode: it writes its statistics also where the model is not trained; "
    "it was run with them mutable"
)
# Drawing more numbers than this with lightly optimized code takes longer than compiling it well.
_MANY = 1_000_000


class LinenModel(JaxModel):
    """Linen module; without loaded weights, its variables are initialized from the first input."""

    mode = "evaluation mode"

    def __init__(self, module: Any, shown: str) -> None:
        super().__init__(shown)
        # Name → path of keys; some keys contain `/` (WeightNorm's).
        self._paths: dict[str, tuple[str, ...]] = {}
        if module.scope is not None:
            module, variables = module.unbind()
            self._keep(variables)
        self._module = module
        self._writes = False
        # Between the weights as files have them and the model's variables: a port may stack its layers.
        self.stack: Callable[[Any], Any] = lambda variables: variables
        self.unstack: Callable[[Any], Any] = lambda variables: variables
        # Streams of random numbers that the model has requested.
        self._streams: set[str] = set()

    def parameters(self) -> list[inspect.Parameter]:
        """See `JaxModel`."""
        return list(inspect.signature(self._module.__call__).parameters.values())

    def is_parameter(self, name: str) -> bool:
        """See `JaxModel`."""
        return name.startswith("params/")

    def keep_stacked(self) -> None:
        """Name the weights as the variables of the model, even if a port stacks its layers."""
        self.stack = self.unstack = lambda variables: variables

    def shapes(self, bound: BoundInputs) -> dict[str, Any]:
        """See `JaxModel`."""
        import jax

        if self.weights is None:
            leaves = _leaves(
                jax.eval_shape(
                    lambda key, args, kwargs: self.unstack(
                        self._module.init(key, *args, **kwargs, **bound.modes)
                    ),
                    jax.random.key(0),
                    bound.args,
                    dict(bound.kwargs),
                )
            )
            self._paths = {"/".join(path): path for path in leaves}
            return {"/".join(path): shape for path, shape in leaves.items()}
        return super().shapes(bound)

    def initialize(self, bound: BoundInputs, seed: int, options: Mapping[str, Any]) -> None:
        """See `JaxModel`. Loaded weights are checked against the shapes that the model expects."""
        import jax

        def init(key: Any) -> Any:
            return self.unstack(self._module.init(key, *bound.args, **bound.kwargs, **bound.modes))

        key = jax.random.key(seed)
        if self.weights is None:
            shapes = jax.tree.leaves(jax.eval_shape(init, key))
            many = sum(math.prod(shape.shape) for shape in shapes) > _MANY
            variables = jax.jit(init, compiler_options={} if many else dict(options))(key)
            self._keep(variables)
        elif not self._paths:
            leaves = _leaves(jax.eval_shape(init, key))
            wanted = {"/".join(path): tuple(shape.shape) for path, shape in leaves.items()}
            self.weights = self.without_spare(self.weights, wanted)
            require_fit(self.weights, wanted, self.shown)
            self._paths = {"/".join(path): path for path in leaves}
        self._look_at_mode(bound)

    def computed(self, bound: BoundInputs) -> Weights:
        """See `JaxModel`."""
        import jax

        if all(self.is_parameter(name) for name in self.weights or {}):
            return {}

        def init(key: Any) -> dict[str, Any]:
            module = self._module
            variables = module.init(key, *bound.args, **bound.kwargs, **bound.modes)
            leaves = {
                "/".join(path): leaf for path, leaf in _leaves(self.unstack(variables)).items()
            }
            own = self.weights or {}
            return {n: leaf for n, leaf in leaves.items() if n in own and not self.is_parameter(n)}

        arrays = jax.jit(init)(jax.random.key(0))
        return {name: np.asarray(array) for name, array in arrays.items()}

    def make_room(self, bound: BoundInputs) -> bool:
        """See `JaxModel`."""
        if self.weights is not None:
            return False
        self.weights = {name: room(shape) for name, shape in self.shapes(bound).items()}
        self._look_at_mode(bound)
        return True

    def _look_at_mode(self, bound: BoundInputs) -> None:
        """Find out whether the model writes statistics outside training: a layer left in training mode.

        Statistics can be written only where they are mutable, but models test exactly that
        (`self.is_mutable_collection`) to detect training. So they stay immutable until a write fails.
        """
        import jax
        from flax import errors

        if all(self.is_parameter(name) for name in self._paths):
            return  # the model has nothing to write
        own = (self.weights or {}).items()
        shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in own}
        # Other errors are reported by the run.
        with contextlib.suppress(Exception):
            try:
                jax.eval_shape(lambda weights: self.apply(weights, bound)[0], shapes)
            except errors.ModifyScopeVariableError:
                self._writes = True
                self.mode = "training mode: it writes its statistics"
                self.notes = (_LEFT,)

    def take(self, weights: Weights) -> None:
        """See `JaxModel`."""
        super().take(
            {
                name: weight
                for name, weight in weights.items()
                if name.partition("/")[0] not in _PASSING
            }
        )

    def _keep(self, variables: Mapping[str, Any]) -> None:
        leaves = _leaves(variables)
        self._paths = {"/".join(path): path for path in leaves}
        self.weights = {"/".join(path): np.asarray(leaf) for path, leaf in leaves.items()}

    def apply(
        self, weights: Mapping[str, Any], bound: BoundInputs, *, train: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """See `JaxModel`."""
        from flax import linen

        modes = dict(bound.modes)
        if train:
            modes |= trained(modes)
        statistics = sorted({name.partition("/")[0] for name in weights} - {"params"})
        changing: list[str] | Literal[False] = statistics if train or self._writes else False
        with linen.intercept_methods(_adapted), _first_states_in_float64():
            results = self._run(weights, bound, modes, changing)
        changed: Mapping[str, Any] = {}
        if changing is not False:
            results, changed = results
        kept = _leaves(self.unstack(changed)) if train else {}
        after = {"/".join(path): value for path, value in kept.items()}
        return results, {name: value for name, value in after.items() if name in weights}

    def trained(
        self, weights: Mapping[str, Any], bound: BoundInputs, key: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Run as in `apply`, in training mode (`deterministic=False` and similar switches).

        Args:
            weights: as in `apply`.
            bound: as in `apply`.
            key: random key of all draws; None: dropout rates are 0, other draws are those of the comparison.
        """
        from flax import linen

        modes = dict(bound.modes) | trained(bound.modes)
        modes |= {"deterministic": False} if "deterministic" in modes else {}
        statistics = sorted({name.partition("/")[0] for name in weights} - {"params"})
        off = contextlib.nullcontext() if key is not None else linen.intercept_methods(_undropped)
        with off:
            results, changed = self._applied(weights, bound, modes, statistics, key)
        leaves = _leaves(self.unstack(changed))
        after = {"/".join(path): value for path, value in leaves.items()}
        return results, {name: value for name, value in after.items() if name in weights}

    def _run(
        self,
        weights: Mapping[str, Any],
        bound: BoundInputs,
        modes: Mapping[str, Any],
        changing: list[str] | Literal[False],
    ) -> Any:
        return self._applied(weights, bound, modes, changing)

    def _applied(
        self,
        weights: Mapping[str, Any],
        bound: BoundInputs,
        modes: Mapping[str, Any],
        changing: list[str] | Literal[False],
        key: Any = None,
    ) -> Any:
        """Run the module; return its result, with the changed collections where some may change.

        A model that draws gets a key for each stream that it requests: `key`, or that of the seed. Without
        `key` it draws the numbers of the comparison.
        """
        import jax
        from flax import errors

        while True:
            own = jax.random.key(self.seed) if key is None else key
            rngs = dict.fromkeys(sorted(self._streams), own)
            is_same = rngs and key is None
            context = drawn(Draws(self.seed)) if is_same else contextlib.nullcontext()
            try:
                with context:
                    return self._module.apply(
                        self._tree(weights),
                        *bound.args,
                        **bound.kwargs,
                        **modes,
                        mutable=changing,
                        **({"rngs": rngs} if rngs else {}),
                    )
            except errors.InvalidRngError as error:
                asked = re.search(r'needs PRNG for "(\w+)"', str(error))
                if asked is None or asked[1] in self._streams:
                    raise
                self._streams.add(asked[1])

    def _tree(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for name, value in weights.items():
            *above, last = self._paths[name]
            node = tree
            for step in above:
                node = node.setdefault(step, {})
            node[last] = value
        stacked: dict[str, Any] = self.stack(tree)
        return stacked

    def recording(self, recorder: Watcher) -> contextlib.AbstractContextManager[None]:
        """See `JaxModel`."""
        if self.weights is None:
            raise ParityError(f"{self.shown}: has no weights yet", "initialize it from an input")
        return self._recorded(recorder)

    @contextlib.contextmanager
    def _recorded(self, recorder: Watcher) -> Iterator[None]:
        names = list(self._paths)
        numbers = self._tree({name: np.asarray(number) for number, name in enumerate(names)})
        paths, stacks = {}, {}
        for path, parts in _leaves(numbers).items():
            paths["/".join(path)] = path
            if np.ndim(parts):
                stacks["/".join(path)] = tuple(names[part] for part in np.ravel(parts))
        with intercepted(recorder, paths, stacks), _parameters_as_they_are():
            yield


def _adapted(next_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
    """Intercept every method of every module: turn dropout off, and set float64 where requested."""
    import jax
    from flax import linen

    if jax.config.jax_enable_x64 and is_float32(getattr(context.module, "dtype", None)):
        # The modules that run are copies, created for this pass.
        object.__setattr__(context.module, "dtype", np.dtype(np.float64))
    if isinstance(context.module, linen.Dropout) and context.method_name == "__call__":
        arguments = dict(zip(("inputs", "deterministic"), args, strict=False)) | kwargs
        return arguments["inputs"]
    if kwargs.get("deterministic") is False:
        kwargs = kwargs | {"deterministic": True}
    return next_(*args, **kwargs)


def _undropped(next_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
    """Intercept every method of every module: Flax's dropouts do not drop."""
    module = context.module
    if type(module).__module__.startswith("flax."):
        return _adapted(next_, args, kwargs, context)
    return next_(*args, **kwargs)


@contextlib.contextmanager
def _parameters_as_they_are() -> Iterator[None]:
    """Skip Flax's comparison of each parameter's shape with its initializer on every use.

    The shapes were checked when the weights were loaded and the model compiled. Checking them for each layer
    and pass costs a fifth of the time.
    """
    from flax.core import meta
    from flax.core.scope import Scope

    original = Scope.param

    def param(scope: Any, name: str, *args: Any, unbox: bool = True, **kwargs: Any) -> Any:
        if not scope.has_variable("params", name):
            return original(scope, name, *args, unbox=unbox, **kwargs)
        scope.reserve(name, "params")
        value = scope.get_variable("params", name)
        return meta.unbox(value) if unbox else value

    setattr(Scope, "param", param)  # noqa: B010
    try:
        yield
    finally:
        setattr(Scope, "param", original)  # noqa: B010


@contextlib.contextmanager
def _first_states_in_float64() -> Iterator[None]:
    """Cast the first state of recurrent cells, which is made in the dtype of initialization, float32.

    With float64 inputs JAX rejects that state, because a loop's state must keep its dtype.
    """
    import jax
    from flax import linen

    cells = list(_below(linen.RNNCellBase)) if jax.config.jax_enable_x64 else []
    before = [(cell, cell.__dict__["initialize_carry"]) for cell in cells]
    for cell, original in before:
        setattr(cell, "initialize_carry", _in_float64(original))  # noqa: B010
    try:
        yield
    finally:
        for cell, original in before:
            setattr(cell, "initialize_carry", original)  # noqa: B010


def _below(cls: type) -> Iterator[type]:
    subclass: type
    for subclass in cls.__subclasses__():
        if "initialize_carry" in subclass.__dict__:
            yield subclass
        yield from _below(subclass)


def _in_float64(original: Callable[..., Any]) -> Callable[..., Any]:
    import jax.numpy as jnp

    @functools.wraps(original)
    def initialize_carry(*args: Any, **kwargs: Any) -> Any:
        def cast(_: str, array: Any) -> Any:
            return array.astype(jnp.float64) if is_floating(array.dtype) else array

        return rebuilt(original(*args, **kwargs), cast)

    return initialize_carry


def _leaves(variables: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Leaves of the collections that the model takes as input, by path."""
    from flax import traverse_util
    from flax.core import meta

    kept = {name: value for name, value in variables.items() if name not in _PASSING}
    leaves: dict[tuple[str, ...], Any] = traverse_util.flatten_dict(meta.unbox(kept))
    return leaves
