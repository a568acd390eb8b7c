"""A linen module as a side runs it."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from migrate.parity.capture.jax_recorder import Recorder
from migrate.parity.capture.jax_values import is_floating, rebuilt
from migrate.parity.capture.linen import intercepted
from migrate.parity.errors import ParityError
from migrate.parity.sides.jax_arguments import Bound
from migrate.parity.sides.jax_model import JaxModel, is_float32, trained
from migrate.parity.sides.jax_weights import flat, nested

# Collections that a call writes and that no call needs to be given.
_PASSING = ("intermediates", "cache", "perturbations")


class LinenModel(JaxModel):
    """A linen module; its variables are initialised from the first input if none are loaded."""

    def __init__(self, module: Any, shown: str) -> None:
        super().__init__(shown)
        if module.scope is not None:
            module, variables = module.unbind()
            self.weights = _arrays(variables)
        self._module = module

    def parameters(self) -> list[inspect.Parameter]:
        """See `JaxModel`."""
        return list(inspect.signature(self._module.__call__).parameters.values())

    def is_parameter(self, name: str) -> bool:
        """See `JaxModel`."""
        return name.startswith("params/")

    def initialise(self, bound: Bound, seed: int, options: Mapping[str, Any]) -> None:
        """See `JaxModel`."""
        if self.weights is not None:
            return
        import jax

        def init(key: Any) -> Any:
            return self._module.init(key, *bound.args, **bound.kwargs, **bound.modes)

        self.weights = _arrays(jax.jit(init, compiler_options=dict(options))(jax.random.key(seed)))

    def apply(
        self, weights: Mapping[str, Any], bound: Bound, *, train: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """See `JaxModel`."""
        from flax import linen

        modes = dict(bound.modes)
        if train:
            modes |= trained(modes)
        # Also where it is not trained: a layer that was left in training mode writes its statistics.
        changing = sorted({name.partition("/")[0] for name in weights} - {"params"})
        with linen.intercept_methods(_adapted), _first_states_in_float64():
            made, changed = self._module.apply(
                nested(weights), *bound.args, **bound.kwargs, **modes, mutable=changing
            )
        kept = flat(changed) if train else {}
        return made, {name: value for name, value in kept.items() if name in weights}

    def recording(self, recorder: Recorder) -> contextlib.AbstractContextManager[None]:
        """See `JaxModel`."""
        if self.weights is None:
            raise ParityError(f"{self.shown}: has no weights yet", "initialise it from an input")
        return intercepted(recorder, self.weights)


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


def _arrays(variables: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    from flax.core import meta

    kept = {name: value for name, value in variables.items() if name not in _PASSING}
    return {name: np.asarray(value) for name, value in flat(meta.unbox(kept)).items()}
