"""Random generators of the CUDA devices, separate from the host's, as on a GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional, init
from torch.utils import checkpoint

from shims.patches import calls
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch

_DROPOUTS = (
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
)
# Functions that draw from a device's generator if their tensors are on a device.
DRAW = frozenset(
    {
        *_DROPOUTS,
        functional.gumbel_softmax,
        functional.multi_head_attention_forward,
        functional.rrelu,
        functional.scaled_dot_product_attention,
        init.kaiming_normal_,
        init.kaiming_uniform_,
        init.normal_,
        init.uniform_,
        init.trunc_normal_,
        init.xavier_normal_,
        init.xavier_uniform_,
        torch.Tensor.bernoulli,
        torch.Tensor.bernoulli_,
        torch.Tensor.cauchy_,
        torch.Tensor.exponential_,
        torch.Tensor.geometric_,
        torch.Tensor.log_normal_,
        torch.Tensor.multinomial,
        torch.Tensor.normal_,
        torch.Tensor.random_,
        torch.Tensor.uniform_,
        torch.bernoulli,
        torch.dropout,
        torch.multinomial,
        torch.normal,
        torch.poisson,
        torch.rand,
        torch.rand_like,
        torch.randint,
        torch.randint_like,
        torch.randn,
        torch.randn_like,
        torch.randperm,
    }
)

BYTES_OF_A_DEVICE = 16  # a state of CUDA or of a TPU: a seed and a position


def put_back(generator: torch.Generator, state: torch.Tensor) -> None:
    """Restore a state of a generator on the host. Of a state of CUDA or a TPU, it takes the seed.

    Those states are 16 bytes, a seed and a position. The position has no meaning on the host.
    """
    if state.dtype is torch.uint8 and state.numel() == BYTES_OF_A_DEVICE:
        generator.manual_seed(int.from_bytes(state[:8].tolist(), "little"))
    else:
        generator.set_state(state)


class HostGenerators:
    """Random generator for each CUDA device in host memory, and draws from it.

    Args:
        devices: the CUDA devices reported to the program.
    """

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._lock = threading.RLock()
        self._inside = threading.local()
        # Like a GPU's generators, they start from torch's default seed.
        self._generators = [
            torch.Generator().manual_seed(torch.initial_seed()) for _ in range(devices.count)
        ]

    def __getitem__(self, device: Any) -> torch.Generator:
        index = self._devices.index(device)
        return self._generators[self._devices.current if index is None else index]

    def drawing(self, func: Any, ordinal: int | None, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call `func`, with the device's random numbers if it draws on a device."""
        if ordinal is None or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        # torch names a method by the class attribute; a wrapper in the class draws the same way.
        if getattr(func, "__wrapped__", func) not in DRAW:
            return func(*args, **kwargs)
        if getattr(self._inside, "drawing", False):
            # The mode is on the stack twice, as when a checkpoint is recomputed.
            return func(*args, **kwargs)
        if func in _DROPOUTS and not kwargs.get("training", args[2] if len(args) > 2 else True):
            return func(*args, **kwargs)
        # Not every drawing function takes a generator, but all use the host's default. Other
        # threads that draw on the host meanwhile would draw from the device's generator; torch
        # itself defines no order between those draws.
        with self._lock:
            device = self._generators[ordinal]
            host = torch.default_generator
            before = host.get_state()
            host.set_state(device.get_state())
            self._inside.drawing = True
            try:
                return func(*args, **kwargs)
            finally:
                self._inside.drawing = False
                device.set_state(host.get_state())
                host.set_state(before)

    @property
    def all(self) -> tuple[torch.Generator, ...]:
        """Return the generators of all devices, as in `torch.cuda.default_generators`."""
        return tuple(self._generators)

    def manual_seed(self, seed: int) -> None:
        """Seed the current device."""
        self[None].manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Seed every device; `torch.manual_seed` does so too."""
        for generator in self._generators:
            generator.manual_seed(int(seed))

    def seed(self) -> None:
        """Seed the current device randomly."""
        self[None].seed()

    def seed_all(self) -> None:
        """Seed every device randomly, with one number."""
        self.manual_seed_all(torch.Generator().seed())

    def initial_seed(self) -> int:
        """Return the seed of the current device."""
        return self[None].initial_seed()

    def get_rng_state(self, device: Any = "cuda") -> torch.Tensor:
        """Return the state of one device's generator."""
        return self[device].get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the states of all generators."""
        return [generator.get_state() for generator in self._generators]

    def set_rng_state(self, new_state: torch.Tensor, device: Any = "cuda") -> None:
        """Restore the state of one device."""
        put_back(self[device], new_state.cpu())

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Restore the states of all devices."""
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)


_FUNCTIONS = (
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state",
    "get_rng_state_all",
    "set_rng_state",
    "set_rng_state_all",
)


_HOSTS_GENERATOR = torch._C.Generator
_ON_HOST = "a generator of the host, which draws for the device"


class _Kind(type(_HOSTS_GENERATOR)):  # type: ignore[misc]
    """Metaclass for which every generator is an instance, including generators that torch creates."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HOSTS_GENERATOR)


def _generator_class(devices: Devices) -> type:
    class Generator(_HOSTS_GENERATOR, metaclass=_Kind):  # type: ignore[misc, valid-type]
        """`torch.Generator`: for a CUDA device, a host generator that reports the requested device."""

        def __new__(cls, device: Any = "cpu") -> Any:
            if not devices.names_cuda(device):
                return _HOSTS_GENERATOR(device)
            if calls.enabled():
                calls.saw("torch.Generator", _ON_HOST)
            generator = super().__new__(cls, "cpu")
            generator.shown = devices.shown[devices.index(device) or 0]
            return generator

        @property
        def device(self) -> torch.device:
            """Requested device; torch's own code reads the real device."""
            device: torch.device = torch.device("cpu") if _asks_torch() else self.shown
            return device

    Generator.__module__ = "torch"
    return Generator


def _asks_torch() -> bool:
    return calls.internal(sys._getframe(2))


def patches(devices: Devices, generators: Any) -> Iterator[Patch]:
    """Yield the patches of seeds and states in `torch.cuda`, of its generators, and of checkpointing."""
    yield patch(torch, "Generator", _generator_class(devices), _ON_HOST)
    for name in _FUNCTIONS:

        def answer(*args: Any, _name: str = name, **kwargs: Any) -> Any:
            return getattr(generators, _name)(*args, **kwargs)

        for module in (torch.cuda, torch.cuda.random):
            yield patch(module, name, answer, "the generator of the device")

    if isinstance(generators, HostGenerators):
        answers = "the generators of the devices"
        yield patch(torch.cuda, "default_generators", generators.all, answers)

    if devices.placement.target.type == "tpu":
        return  # torch_tpu answers for its own states

    def get_device_states(*args: Any) -> tuple[list[int], list[torch.Tensor]]:
        return [devices.current], [generators.get_rng_state()]

    # This looks for the states of tensors that are not on the CPU: otherwise a recomputed dropout
    # would draw another mask.
    yield patch(
        checkpoint, "get_device_states", get_device_states, "the generator of the current device"
    )
