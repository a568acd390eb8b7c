"""Give both sides of a proof the same random numbers where a script draws them on its device.

The original's device is the CPU, with a generator for each CUDA device (`shims.patches.rng`); XLA and
torch_tpu draw other numbers from the same seed. So there every draw is made on the host, from one generator
that is seeded, saved and put back as the device's, and moved to the device: no graph is cut by that. Only
where the numbers depend on values on the device (`multinomial`, `bernoulli` and `poisson` of a tensor,
`normal` of tensors) are these read.

An original that runs on GPUs (`prove.reference`) draws on the host in the same way.

A DTensor of a mesh on the host draws each rank's part by itself, and so does one on the device here.

XLA's tensors have no strides: a draw for a transposed tensor is made in the order of its indices, on the
original's side too.

Not covered: `rrelu`, and what torch draws in C++ from no function named here.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from migrate.draws import FILLS, LIKES
from migrate.prove.record import cuda_seeds, seeds, tpu_seeds
from migrate.prove.record import drawn as seen
from migrate.prove.recording.shards import local
from migrate.prove.settings import ON
from shims import activate
from shims.patches import rng

# Devices whose draws are made on the host; a process has one of them.
_DEVICES = ("xla", "tpu", "cuda")
_MAKES = ("rand", "randint", "randn", "randperm")
# The numbers depend on the values of the arguments; `normal` may also make a tensor of a size.
_SAMPLES = ("bernoulli", "multinomial", "normal", "poisson")
_METHODS = ("bernoulli", "multinomial")

# Number of states from `xla_model.get_rng_state` to keep, so that an old state can be restored.
_KEPT_STATES = 4096


def install() -> None:
    """Replace the functions that draw; for XLA and torch_tpu also those that seed."""
    if os.environ.get(activate.BACKEND) == "cpu":
        for name in FILLS:
            _replace(torch.Tensor, name, _fill)
        for name in LIKES:
            _replace(torch, name, _like)
        seen.follow_cuda(rng.HostGenerators)
        seeds.spread()
        seeds.after_joining(seeds.spread_chosen)
        return
    # At once, not when torch_xla is imported: a script may import the functions by name before.
    generator = DeviceGenerator()
    for name in FILLS:
        _replace(torch.Tensor, name, generator.fill)
    for name in LIKES:
        _replace(torch, name, generator.like)
    for name in _MAKES:
        _replace(torch, name, generator.make)
    for name in _SAMPLES:
        _replace(torch, name, generator.sample)
    for name in _METHODS:
        _replace(torch.Tensor, name, generator.sample)
    generator.follow_seeds()
    if ON in os.environ:
        cuda_seeds.follow(generator)
    if os.environ.get(activate.BACKEND) == "simulate-tpu":
        tpu_seeds.follow(generator)
        generator.seed_in_rank()
        seeds.after_joining(generator.seed_in_rank)


def _replace(place: Any, name: str, draw: Callable[..., Any]) -> None:
    function = getattr(place, name)

    @functools.wraps(function)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        return draw(function, *args, **kwargs)

    setattr(place, name, drawn)


def _fill(fill: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if tensor.is_contiguous() or tensor.layout != torch.strided:
        return fill(tensor, *args, **kwargs)
    drawn = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    return tensor.copy_(fill(drawn, *args, **kwargs))


def _like(make: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if tensor.layout == torch.strided and not tensor.is_contiguous():
        kwargs = {"memory_format": torch.contiguous_format, **kwargs}
    return make(tensor, *args, **kwargs)


class DeviceGenerator:
    """Generator of this process's device, on the host."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._generator = torch.Generator().manual_seed(torch.initial_seed())
        self._states: OrderedDict[int, torch.Tensor] = OrderedDict()

    def seed_in_rank(self) -> None:
        """Give the TPU of this rank its own seed, if the script gives it none; once, before it draws."""
        seed = seeds.of_rank()
        if seed is not None and seed != self._generator.initial_seed():
            self._generator.manual_seed(seed)

    def fill(
        self, fill: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Fill a tensor, on the device or elsewhere."""
        if not _on_device(tensor):
            return fill(tensor, *args, **kwargs)
        part = local(tensor)
        with self._drawing(kwargs):
            host = torch.empty(part.shape, dtype=tensor.dtype, device="cpu")
            drawn = fill(host, *map(_host, args), **_hosts(kwargs))
        if part is tensor:
            return tensor.copy_(drawn)
        part.copy_(drawn)
        return tensor

    def like(
        self, make: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Make a tensor like another tensor."""
        device = kwargs.get("device")
        if not _on_device(tensor) or (
            device is not None and torch.device(device).type not in _DEVICES
        ):
            return make(tensor, *args, **kwargs)
        grad = kwargs.pop("requires_grad", False)
        kwargs |= {"device": "cpu", "memory_format": torch.contiguous_format}
        part = local(tensor)
        with self._drawing(kwargs):
            host = torch.empty(part.shape, dtype=tensor.dtype, device="cpu")
            drawn = make(host, *args, **kwargs)
        if part is tensor:
            return drawn.to(tensor.device).requires_grad_(grad)
        whole = torch.empty_like(tensor, dtype=drawn.dtype)
        local(whole).copy_(drawn)
        return whole.requires_grad_(grad)

    def make(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a tensor of a size."""
        out, device = kwargs.get("out"), kwargs.get("device")
        if out is None:
            device = torch.device(torch.get_default_device() if device is None else device)
        else:
            device = out.device
        if device.type not in _DEVICES:
            return make(*args, **kwargs)
        grad = kwargs.pop("requires_grad", False)
        kwargs |= {"device": "cpu", "out": None, "pin_memory": False}
        with self._drawing(kwargs):
            drawn = make(*args, **kwargs)
        return drawn.to(device).requires_grad_(grad) if out is None else out.copy_(drawn)

    def sample(self, draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Draw from distributions whose parameters are tensors."""
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        devices = [tensor.device for tensor in tensors if _on_device(tensor)]
        if not devices:
            # A tensor of a size: `torch.normal(0.0, 1.0, (2, 3), device=...)`.
            return draw(*args, **kwargs) if tensors else self.make(draw, *args, **kwargs)
        out = kwargs.pop("out", None)
        with self._drawing(kwargs):
            drawn = draw(*map(_host, args), **_hosts(kwargs))
        return drawn.to(devices[0]) if out is None else out.copy_(drawn)

    @contextmanager
    def _drawing(self, kwargs: dict[str, Any]) -> Iterator[None]:
        """Use the device's generator as torch's default, unless the script passes a generator."""
        if kwargs.get("generator") is not None:
            kwargs["generator"] = tpu_seeds.on_the_host(kwargs["generator"])
            yield
            return
        seen.SEED.draw()
        host = torch.default_generator
        with self._lock:
            before = host.get_state()
            host.set_state(self._generator.get_state())
            try:
                yield
            finally:
                self._generator.set_state(host.get_state())
                host.set_state(before)

    def follow_seeds(self) -> None:
        """Make functions that seed the device, and keep its state, use this generator."""
        seed = torch.manual_seed

        @functools.wraps(seed)
        def manual_seed(number: Any) -> torch.Generator:
            # `torch.manual_seed` seeds the CUDA devices of the original too.
            generator = seed(number)
            self._generator.manual_seed(generator.initial_seed())
            return generator

        fork = torch.random.fork_rng

        @contextmanager
        def fork_rng(
            devices: Any = None, enabled: bool = True, *args: Any, **kwargs: Any
        ) -> Iterator[None]:
            # Without a list of devices it keeps all states; with an empty list it keeps none.
            kept = enabled and (devices is None or len(devices) > 0)
            state = self._generator.get_state()
            try:
                with fork(devices, enabled, *args, **kwargs):
                    yield
            finally:
                if kept:
                    self._generator.set_state(state)

        torch.manual_seed = torch.random.manual_seed = manual_seed
        torch.random.fork_rng = fork_rng
        activate.after_import("torch_xla", self._follow_torch_xla)

    def _follow_torch_xla(self) -> None:
        from torch_xla.core import xla_model

        get_state, set_state = xla_model.get_rng_state, xla_model.set_rng_state

        @functools.wraps(get_state)
        def get_rng_state(device: Any = None) -> int:
            return self.number()

        @functools.wraps(set_state)
        def set_rng_state(number: Any, device: Any = None) -> None:
            # XLA's own seed, for draws outside these functions.
            set_state(int(number), device)
            seen.SEED.give(int(number))
            self.restore(int(number))

        xla_model.get_rng_state, xla_model.set_rng_state = get_rng_state, set_rng_state

    def number(self) -> int:
        """Return the state as a number, as torch_xla does; `restore` knows it in this process."""
        state = self._generator.get_state()
        digest = hashlib.blake2b(state.numpy().tobytes(), digest_size=7).digest()
        number = int.from_bytes(digest, sys.byteorder)
        self._states[number] = state
        self._states.move_to_end(number)
        if len(self._states) > _KEPT_STATES:
            self._states.popitem(last=False)
        return number

    def restore(self, number: int) -> None:
        """Restore a state; a number of no known state is a seed."""
        state = self._states.get(number)
        if state is None:
            self._generator.manual_seed(number)
        else:
            self._generator.set_state(state)


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type in _DEVICES


def _host(value: Any) -> Any:
    return value.detach().cpu() if _on_device(value) else value


def _hosts(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: _host(value) for name, value in kwargs.items()}
