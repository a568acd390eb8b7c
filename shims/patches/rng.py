"""The random generators of the CUDA devices: apart from the host's, as on a GPU."""

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
# Everything that draws from a device's generator when its tensors are there.
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


class Generators:
    """One generator for each CUDA device, and the draws from them.

    Args:
        devices: the CUDA devices that the program believes in.
    """

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._lock = threading.RLock()
        self._inside = threading.local()
        # As those of a GPU, they start from torch's default seed.
        self._generators = [
            torch.Generator().manual_seed(torch.initial_seed()) for _ in range(devices.count)
        ]

    def __getitem__(self, device: Any) -> torch.Generator:
        index = self._devices.index(device)
        return self._generators[self._devices.current if index is None else index]

    def drawing(self, func: Any, ordinal: int | None, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call `func`, with the device's random numbers if it draws any on a device."""
        if ordinal is None or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        # torch names a method by what stands in the class: what wraps it there draws as it does.
        if getattr(func, "__wrapped__", func) not in DRAW:
            return func(*args, **kwargs)
        if getattr(self._inside, "drawing", False):
            # The mode stands twice on the stack, as where a checkpoint is computed again.
            return func(*args, **kwargs)
        if func in _DROPOUTS and not kwargs.get("training", args[2] if len(args) > 2 else True):
            return func(*args, **kwargs)
        # Not every function that draws takes a generator, but all draw from the host's default.
        # Threads that draw on the host meanwhile would draw from the device's: torch itself has
        # no order between those draws either.
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
        """Those of all devices, as `torch.cuda.default_generators` has them."""
        return tuple(self._generators)

    def manual_seed(self, seed: int) -> None:
        """Seed the current device."""
        self[None].manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Seed every device; `torch.manual_seed` does so too."""
        for generator in self._generators:
            generator.manual_seed(int(seed))

    def seed(self) -> None:
        """Seed the current device by chance."""
        self[None].seed()

    def seed_all(self) -> None:
        """Seed every device by chance, with one number."""
        self.manual_seed_all(torch.Generator().seed())

    def initial_seed(self) -> int:
        """What the current device was seeded with."""
        return self[None].initial_seed()

    def get_rng_state(self, device: Any = "cuda") -> torch.Tensor:
        """The state of one device's generator."""
        return self[device].get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """The states of all."""
        return [generator.get_state() for generator in self._generators]

    def set_rng_state(self, new_state: torch.Tensor, device: Any = "cuda") -> None:
        """Put back a state of one device."""
        self[device].set_state(new_state.cpu())

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Put back the states of all."""
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
    """Every generator is one, also those that torch makes itself."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HOSTS_GENERATOR)


def _generator_class(devices: Devices) -> type:
    class Generator(_HOSTS_GENERATOR, metaclass=_Kind):  # type: ignore[misc, valid-type]
        """`torch.Generator`: that of a CUDA device is one of the host's, and says what it was asked for."""

        def __new__(cls, device: Any = "cpu") -> Any:
            if not devices.names_cuda(device):
                return _HOSTS_GENERATOR(device)
            if calls.enabled():
                calls.saw("torch.Generator", _ON_HOST)
            made = super().__new__(cls, "cpu")
            made.shown = devices.shown[devices.index(device) or 0]
            return made

        @property
        def device(self) -> torch.device:
            """As the program asked for; torch's own code is told where it is."""
            told: torch.device = torch.device("cpu") if _asks_torch() else self.shown
            return told

    Generator.__module__ = "torch"
    return Generator


def _asks_torch() -> bool:
    return calls.internal(sys._getframe(2))


def patches(devices: Devices, generators: Any) -> Iterator[Patch]:
    """The seeds and states of `torch.cuda`, its generators, and what checkpointing keeps of them."""
    yield patch(torch, "Generator", _generator_class(devices), _ON_HOST)
    for name in _FUNCTIONS:

        def answer(*args: Any, _name: str = name, **kwargs: Any) -> Any:
            return getattr(generators, _name)(*args, **kwargs)

        for module in (torch.cuda, torch.cuda.random):
            yield patch(module, name, answer, "the generator of the device")

    if isinstance(generators, Generators):
        said = "the generators of the devices"
        yield patch(torch.cuda, "default_generators", generators.all, said)

    def get_device_states(*args: Any) -> tuple[list[int], list[torch.Tensor]]:
        return [devices.current], [generators.get_rng_state()]

    # It looks for the states of tensors that are not on the CPU: a recomputed dropout would draw
    # another mask.
    yield patch(
        checkpoint, "get_device_states", get_device_states, "the generator of the current device"
    )
