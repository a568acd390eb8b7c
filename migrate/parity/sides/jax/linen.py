"""A linen module as a side runs it."""

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
from migrate.parity.sides.jax.arguments import Bound
from migrate.parity.sides.jax.capture.linen import intercepted
from migrate.parity.sides.jax.capture.recorder import Watcher
from migrate.parity.sides.jax.capture.values import is_floating, rebuilt
from migrate.parity.sides.jax.draws import drawn
from migrate.parity.sides.jax.model import JaxModel, is_float32, room, trained
from migrate.parity.sides.jax.weights import Weights, require_fit

# Collections that a call writes and that no call needs to be given.
_PASSING = ("intermediates", "cache", "perturbations")
_LEFT = (
    "a layer was left in training mode: it writes its statistics also where the model is not trained; "
    "it was run with them mutable"
)
# Drawing so many numbers by code that was compiled in haste takes longer than compiling it well.
_MANY = 1_000_000


class LinenModel(JaxModel):
    """A linen module; its variables are initialised from the first input if none are loaded."""

    mode = "evaluation mode"

    def __init__(self, module: Any, shown: str) -> None:
        super().__init__(shown)
        # Name → the keys on the way to it; some keys have `/` in them (WeightNorm's).
        self._paths: dict[str, tuple[str, ...]] = {}
        if module.scope is not None:
            module, variables = module.unbind()
            self._keep(variables)
        self._module = module
        self._writes = False
        # Streams of random numbers that it asked for.
        self._streams: set[str] = set()

    def parameters(self) -> list[inspect.Parameter]:
        """See `JaxModel`."""
        return list(inspect.signature(self._module.__call__).parameters.values())

    def is_parameter(self, name: str) -> bool:
        """See `JaxModel`."""
        return name.startswith("params/")

    def shapes(self, bound: Bound) -> dict[str, Any]:
        """See `JaxModel`."""
        import jax

        if self.weights is None:
            leaves = _leaves(
                jax.eval_shape(
                    lambda key, args, kwargs: self._module.init(
                        key, *args, **kwargs, **bound.modes
                    ),
                    jax.random.key(0),
                    bound.args,
                    dict(bound.kwargs),
                )
            )
            self._paths = {"/".join(path): path for path in leaves}
            return {"/".join(path): one for path, one in leaves.items()}
        return super().shapes(bound)

    def initialise(self, bound: Bound, seed: int, options: Mapping[str, Any]) -> None:
        """See `JaxModel`. Weights that were loaded are held against what the model wants."""
        import jax

        def init(key: Any) -> Any:
            return self._module.init(key, *bound.args, **bound.kwargs, **bound.modes)

        key = jax.random.key(seed)
        if self.weights is None:
            shapes = jax.tree.leaves(jax.eval_shape(init, key))
            many = sum(math.prod(one.shape) for one in shapes) > _MANY
            made = jax.jit(init, compiler_options={} if many else dict(options))(key)
            self._keep(made)
        elif not self._paths:
            leaves = _leaves(jax.eval_shape(init, key))
            wanted = {"/".join(path): tuple(one.shape) for path, one in leaves.items()}
            self.weights = self.without_spare(self.weights, wanted)
            require_fit(self.weights, wanted, self.shown)
            self._paths = {"/".join(path): path for path in leaves}
        self._look_at_mode(bound)

    def make_room(self, bound: Bound) -> bool:
        """See `JaxModel`."""
        if self.weights is not None:
            return False
        self.weights = {name: room(one) for name, one in self.shapes(bound).items()}
        self._look_at_mode(bound)
        return True

    def _look_at_mode(self, bound: Bound) -> None:
        """Find out whether it writes statistics where it is not trained: a layer left in training mode.

        Statistics can be written only where they are mutable, and models ask for just that
        (`self.is_mutable_collection`) to know whether they are trained: so they are not, until it fails.
        """
        import jax
        from flax import errors

        if all(self.is_parameter(name) for name in self._paths):
            return  # nothing that it could write
        own = (self.weights or {}).items()
        shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in own}
        # What else it raises is told where it runs.
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
            {name: one for name, one in weights.items() if name.partition("/")[0] not in _PASSING}
        )

    def _keep(self, variables: Mapping[str, Any]) -> None:
        leaves = _leaves(variables)
        self._paths = {"/".join(path): path for path in leaves}
        self.weights = {"/".join(path): np.asarray(one) for path, one in leaves.items()}

    def apply(
        self, weights: Mapping[str, Any], bound: Bound, *, train: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """See `JaxModel`."""
        from flax import linen

        modes = dict(bound.modes)
        if train:
            modes |= trained(modes)
        statistics = sorted({name.partition("/")[0] for name in weights} - {"params"})
        changing: list[str] | Literal[False] = statistics if train or self._writes else False
        with linen.intercept_methods(_adapted), _first_states_in_float64():
            made = self._run(weights, bound, modes, changing)
        changed: Mapping[str, Any] = {}
        if changing is not False:
            made, changed = made
        kept = _leaves(changed) if train else {}
        after = {"/".join(path): value for path, value in kept.items()}
        return made, {name: value for name, value in after.items() if name in weights}

    def trained(
        self, weights: Mapping[str, Any], bound: Bound, key: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """As `apply`, told to be trained (`deterministic=False`, and the like).

        Args:
            weights: as of `apply`.
            bound: as of `apply`.
            key: of the dropouts; None: their rates are 0.
        """
        from flax import linen

        modes = dict(bound.modes) | trained(bound.modes)
        modes |= {"deterministic": False} if "deterministic" in modes else {}
        statistics = sorted({name.partition("/")[0] for name in weights} - {"params"})
        rngs = {} if key is None else {"rngs": {"dropout": key}}
        off = contextlib.nullcontext() if key is not None else linen.intercept_methods(_undropped)
        with off:
            tree = self._tree(weights)
            made, changed = self._module.apply(
                tree, *bound.args, **bound.kwargs, **modes, **rngs, mutable=statistics
            )
        after = {"/".join(path): value for path, value in _leaves(changed).items()}
        return made, {name: value for name, value in after.items() if name in weights}

    def _run(
        self,
        weights: Mapping[str, Any],
        bound: Bound,
        modes: Mapping[str, Any],
        changing: list[str] | Literal[False],
    ) -> Any:
        """What it gives; beside it the collections that change, where some may.

        A model that draws is given a key for each stream that it asks for, and draws the numbers of the
        comparison.
        """
        import jax
        from flax import errors

        while True:
            rngs = {name: jax.random.key(self.seed) for name in sorted(self._streams)}
            context = drawn(Draws(self.seed)) if rngs else contextlib.nullcontext()
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
        return tree

    def recording(self, recorder: Watcher) -> contextlib.AbstractContextManager[None]:
        """See `JaxModel`."""
        if self.weights is None:
            raise ParityError(f"{self.shown}: has no weights yet", "initialise it from an input")
        return self._recorded(recorder)

    @contextlib.contextmanager
    def _recorded(self, recorder: Watcher) -> Iterator[None]:
        with intercepted(recorder, self._paths), _parameters_as_they_are():
            yield


def _adapted(next_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
    """Every method of every module: dropout is off, and what is to be float64 is."""
    import jax
    from flax import linen

    if jax.config.jax_enable_x64 and is_float32(getattr(context.module, "dtype", None)):
        # The modules that run are copies, made for this pass.
        object.__setattr__(context.module, "dtype", np.dtype(np.float64))
    if isinstance(context.module, linen.Dropout) and context.method_name == "__call__":
        given = dict(zip(("inputs", "deterministic"), args, strict=False)) | kwargs
        return given["inputs"]
    if kwargs.get("deterministic") is False:
        kwargs = kwargs | {"deterministic": True}
    return next_(*args, **kwargs)


def _undropped(next_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
    """Every method of every module: Flax's own do not drop."""
    module = context.module
    if type(module).__module__.startswith("flax."):
        return _adapted(next_, args, kwargs, context)
    return next_(*args, **kwargs)


@contextlib.contextmanager
def _parameters_as_they_are() -> Iterator[None]:
    """Flax holds each parameter's shape against its initialiser whenever it is used.

    That was done when the weights were taken and the model compiled; once for each layer and pass it costs
    a fifth of the time.
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
    """Recurrent cells make their first state in the dtype that parameters are initialised with, float32.

    In float64 that is refused (a loop's state must keep its dtype), so it is cast for that time.
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
    one: type
    for one in cls.__subclasses__():
        if "initialize_carry" in one.__dict__:
            yield one
        yield from _below(one)


def _in_float64(original: Callable[..., Any]) -> Callable[..., Any]:
    import jax.numpy as jnp

    @functools.wraps(original)
    def initialize_carry(*args: Any, **kwargs: Any) -> Any:
        def cast(_: str, array: Any) -> Any:
            return array.astype(jnp.float64) if is_floating(array.dtype) else array

        return rebuilt(original(*args, **kwargs), cast)

    return initialize_carry


def _leaves(variables: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """What is in the collections that the model is to be given, by path."""
    from flax import traverse_util
    from flax.core import meta

    kept = {name: value for name, value in variables.items() if name not in _PASSING}
    leaves: dict[tuple[str, ...], Any] = traverse_util.flatten_dict(meta.unbox(kept))
    return leaves
