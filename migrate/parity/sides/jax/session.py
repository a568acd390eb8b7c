"""Settings of a JAX side's runs: device, dtype, precision and compilation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.settings import Precision, SideSettings
from migrate.parity.sides.jax.capture.values import is_floating
from migrate.parity.sides.jax.model import JaxModel

_DTYPES = ("float32", "bfloat16", "float16", "float64")
# Inputs with at least this many axes have channels, first in torch and last in Flax: (N, C, L).
_WITH_CHANNELS = 3


class Session:
    """Settings of a run, in JAX's terms.

    Args:
        settings: settings of the run; float64 runs on the CPU.

    Raises:
        ParityError: there is no such dtype or device.
    """

    def __init__(self, settings: SideSettings) -> None:
        import jax

        if settings.dtype not in _DTYPES:
            raise ParityError(
                f"{settings.dtype}: no dtype of a run", f"one of {', '.join(_DTYPES)}"
            )
        self.settings = settings
        self._emulations: list[Any] = []
        name = "cpu" if settings.dtype == "float64" else settings.device
        try:
            self.device = jax.devices(name or None)[0]
        except RuntimeError as error:
            raise ParityError(
                f"JAX has no device {name or 'at all'} ({error})".splitlines()[0],
                "set JAX_PLATFORMS=tpu,cpu: float64 runs on the CPU"
                if name == "cpu"
                else "install JAX for it, or name another device",
            ) from None

    @property
    def not_emulated(self) -> set[str]:
        """Operations of the compiled functions that may contain products, and ran unchanged."""
        return {name for emulation in self._emulations for name in emulation.unhandled}

    @property
    def emulated(self) -> Precision | None:
        """Emulated precision, if there is one: a CPU has only one precision for float32."""
        wanted = self.settings.precision
        is_plain = self.settings.dtype != "float32" or self.device.platform != "cpu"
        return None if is_plain or wanted == "highest" else wanted

    @property
    def once(self) -> dict[str, Any]:
        """Compiler options for code that runs once: compiling it costs more than running it."""
        return {"xla_backend_optimization_level": 0} if self.device.platform == "cpu" else {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context of the whole run."""
        import jax

        with contextlib.ExitStack() as stack:
            stack.enter_context(_enable_x64(self.settings.dtype == "float64"))
            stack.enter_context(jax.default_device(self.device))
            if self.device.platform != "cpu":
                stack.enter_context(jax.default_matmul_precision(self.settings.precision))
            yield

    def compiled(self, function: Callable[..., Any]) -> Any:
        """Function, jitted (`jax.jit`), with its precision emulated where requested."""
        import jax

        if self.emulated is not None:
            from migrate.parity.emulate.jax_interpreter import emulated

            function = emulated(function, self.emulated)
            self._emulations.append(function.seen)
        if self.settings.wide:
            from migrate.parity.sides.jax.wide import wide

            function = wide(function)
        options = {}
        if not self.settings.excess_precision:
            options = {"xla_allow_excess_precision": False}
        return jax.jit(function, compiler_options=options)

    def weights(self, model: JaxModel) -> dict[str, Any]:
        """Weights of the model on the device; parameters and buffers in the dtype of the run.

        Running statistics stay float32 in bfloat16 runs, as Flax keeps them. Buffers follow the run as those
        of a torch side do: one float32 array would make all that follows float32.
        """
        assert model.weights is not None
        placed = {}
        for name, array in model.weights.items():
            # A torch side keeps these frequencies too: rounded, they turn far positions by radians.
            stays = model.is_statistic(name) or "inv_freq" in name
            cast = self.settings.dtype == "float64" or not stays
            placed[name] = self._placed(array, cast=cast)
        return placed

    def inputs(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """Inputs on the device: floating inputs in the dtype of the run, transposed inputs channels last."""
        placed = {}
        for name, array in arrays.items():
            if name in self.settings.transposed:
                array = _channels_last(name, array)
            placed[name] = self._placed(array)
        return placed

    def plain(self, array: np.ndarray[Any, Any]) -> Any:
        """Array on the device in its own layout; floating arrays in the dtype of the run."""
        return self._placed(array)

    def _placed(self, array: np.ndarray[Any, Any], *, cast: bool = True) -> Any:
        import jax
        import jax.numpy as jnp

        array = np.asarray(array)
        if is_floating(array.dtype):
            wanted = self.settings.dtype if cast else "float32"
            array = array.astype(jnp.dtype(wanted))
        elif array.dtype.name in ("int64", "uint64") and self.settings.dtype != "float64":
            array = array.astype(f"{array.dtype.kind}4")
        # Not committed to the device, which is the default device here. The model's own arrays are not
        # committed either, and mixing both would compile operations twice.
        return jax.device_put(array)


def _channels_last(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.ndim < _WITH_CHANNELS:
        raise InputsError(
            f"{name}: {list(array.shape)} has no channels to be put last",
            "name only inputs of (N, C, …) as channels last",
        )
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def device_name(device: Any) -> str:
    """Name of a device: "cpu", "TPU v5 lite", "cuda:0 (NVIDIA H200)"."""
    if device.platform == "cpu":
        return "cpu"
    if device.platform == "gpu":
        return f"cuda:{device.id} ({device.device_kind})"
    return str(device.device_kind)


def _enable_x64(on: bool) -> contextlib.AbstractContextManager[None]:
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(on)
    # Before JAX 0.8: the environments of --python-a and --python-b may be old.
    from jax.experimental import enable_x64

    return enable_x64(on)
