"""XLA backend through torch_xla, one rank per device: a TPU, or replicas simulated on the CPU."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
import torch_xla.utils.checkpoint
from torch.nn.parallel import DistributedDataParallel
from torch_xla._internal import pjrt

from shims import activate, placement
from shims._shared import gloo_output, gloo_threads, root_broadcast
from shims._shared import world as _world
from shims.api_errors import LaunchError, MemoryUnknownError, NotOnDeviceError, UnsupportedError
from shims.backends import processes
from shims.backends.base import Backend, MemoryUse
from shims.backends.unneeded_scaler import UnneededScaler
from shims.choice import FORCE


class XlaBackend(Backend):
    """Devices of torch_xla's runtime."""

    name = "xla"
    group_backend = "xla"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        root_broadcast.install()
        # Seed set before the runtime runs: setting it now would start the runtime too early.
        self._seed: int | None = None
        self._is_seeded = False
        self._host_seed = torch.initial_seed()  # until the script seeds torch
        self._host_groups: dict[Any, Any] = {}
        self._steps = 0  # nested `step` contexts that are open

    def launch(self, fn: Callable[..., object], args: tuple[Any, ...], ranks: int | None) -> None:
        """Start one rank per device with torch_xla.launch."""
        if torch_xla._XLAC._xla_runtime_is_initialized():
            raise LaunchError(
                "the XLA runtime was in use before shims.launch",
                "move shims.device(), .to(...), shims.rank() and the like into the function that "
                "shims.launch starts",
            )
        simulated = os.environ.get(activate.BACKEND) == "simulate"
        count = ranks if simulated else processes.requested_ranks(ranks)
        context: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if simulated:
            context = _environment({})
        elif (
            count is not None
            and os.environ.get("PJRT_DEVICE", "CPU") == "CPU"
            and not dist.is_torchelastic_launched()
        ):
            context = _simulated(count)
        with context:
            torch_xla.launch(_worker, args=(fn, args, count))

    def init_distributed(self, timeout: timedelta | None) -> None:
        """Join the group of all devices."""
        self.device()
        options = {} if timeout is None else {"timeout": timeout}
        gloo_threads.let_go_at_exit()
        gloo_output.keep_off_stdout()
        dist.init_process_group("xla", init_method="xla://", **options)

    def rank(self) -> int:
        """Return the global ordinal."""
        return xr.global_ordinal()

    def local_rank(self) -> int:
        """Return the ordinal within this machine."""
        return xr.local_ordinal()

    def world_size(self) -> int:
        """Return the number of replicas."""
        return xr.world_size()

    def local_world_size(self) -> int:
        """Return the number of replicas on this machine."""
        return int(xr.local_device_count())

    def device(self) -> torch.device:
        """Return the only device of this rank."""
        device = torch_xla.device()
        if self._seed is not None:
            torch_xla.manual_seed(self._seed)
            self._seed = None
        elif not self._is_seeded:
            # XLA starts all replicas at the same seed; unseeded GPUs each draw different numbers.
            seed = torch.initial_seed()
            offset = xr.global_ordinal() if seed == self._host_seed else 0
            torch_xla.manual_seed((seed + offset) % 2**64)
        self._is_seeded = True
        return device

    def to_device(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move and restore shared weights: on XLA a move creates a new parameter for each name."""
        return placement.move_and_tie(model, self.device())

    def ddp(self, model: torch.nn.Module, options: dict[str, Any]) -> DistributedDataParallel:
        """Wrap in DDP without device_ids. Gradients are views, which saves a copy in each graph."""
        self.require_on_device(model)
        return DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **options})

    def checkpoint_activations(
        self, function: Callable[..., Any], args: tuple[Any, ...], preserve_rng_state: bool
    ) -> Any:
        """Use torch_xla's form, which keeps XLA from merging the recomputation with the first computation."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if torch.is_grad_enabled() and not any(tensor.requires_grad for tensor in tensors):
            raise UnsupportedError(
                "shims.checkpoint_activations on XLA needs an input that requires a gradient",
                "call .requires_grad_() on an input; without it the weights inside get none",
            )
        return torch_xla.utils.checkpoint.checkpoint(
            function, *args, preserve_rng_state=preserve_rng_state
        )

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Return the context that compiles one graph per step."""
        return self._step()

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        self._steps += 1
        try:
            with torch_xla.step():
                yield
        finally:
            self._steps -= 1

    def compile(self, model: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Return the model unchanged: XLA compiles the whole step, and torch.compile's backend raises."""
        return model

    def autocast_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return bfloat16 for float16: a TPU has no float16 arithmetic."""
        return torch.bfloat16 if dtype == torch.float16 else dtype

    def autocast(self, dtype: torch.dtype, enabled: bool, cache_enabled: bool | None) -> Any:
        """Return a bfloat16 context: torch_xla would silently compute any other dtype in float32."""
        dtype = self.autocast_dtype(dtype)
        if enabled and dtype not in (torch.bfloat16, torch.float32):
            raise UnsupportedError(
                f"shims.autocast(dtype={dtype}) on XLA", "a TPU has torch.bfloat16 only"
            )
        return super().autocast(dtype, enabled, cache_enabled)

    def grad_scaler(self, options: dict[str, Any]) -> Any:
        """Return a scaler that does nothing: bfloat16 has the exponent range of float32."""
        return UnneededScaler(options)

    def synchronize(self) -> None:
        """Run the pending graph and wait for it."""
        torch_xla.sync(wait=True)

    def memory(self) -> MemoryUse:
        """Return the device memory as reported by the runtime."""
        try:
            info = xm.get_memory_info()
            return MemoryUse(
                used=int(info["bytes_used"]),
                peak=int(info["peak_bytes_used"]),
                limit=int(info["bytes_limit"]),
            )
        except (RuntimeError, KeyError) as error:
            raise MemoryUnknownError(
                "shims.memory() has no answer: XLA on this device does not count its memory",
                "ask on a CUDA device or a TPU, or catch MemoryUnknownError",
            ) from error

    def manual_seed(self, seed: int) -> None:
        """Seed XLA's generator too, which torch.manual_seed does not reach."""
        torch.manual_seed(seed)
        self._is_seeded = True
        if torch_xla._XLAC._xla_runtime_is_initialized():
            torch_xla.manual_seed(seed)
        else:
            self._seed = seed

    def device_rng_state(self) -> int:
        """Return the state of XLA's generator, a single number."""
        self.device()
        return int(xm.get_rng_state())

    def set_device_rng_state(self, state: Any) -> None:
        """Restore the state of XLA's generator, a single number."""
        self._seed = None
        self._is_seeded = True
        xm.set_rng_state(state)

    def check(
        self, call: str, tensors: Sequence[torch.Tensor], group: Any, whole_world: bool = False
    ) -> None:
        """Refuse host tensors, which torch_xla leaves unchanged, and groups that it ignores."""
        if dist.get_backend(group) != "xla":
            return
        for tensor in tensors:
            if tensor.device.type != "xla":
                raise NotOnDeviceError(
                    f"shims.{call} of a tensor on {tensor.device}",
                    "move it to shims.device(), or use a group made by "
                    "shims.new_group(backend='gloo')",
                )
        if whole_world and group is not None and group.size() != xr.world_size():
            raise UnsupportedError(
                f"shims.{call} in a group of {group.size()} of {xr.world_size()} ranks on XLA",
                "torch_xla computes it over all ranks: use shims.all_reduce or shims.all_gather",
            )

    def object_group(self, call: str, group: Any) -> Any:
        """Return a gloo group: objects have lengths that differ by rank, which XLA cannot compile."""
        if dist.get_backend(group) != "xla":
            return group
        if group is not None and group.size() != xr.world_size():
            raise UnsupportedError(
                f"shims.{call} in an XLA group of {group.size()} of {xr.world_size()} ranks",
                "make the group with shims.new_group(ranks, backend='gloo')",
            )
        world = dist.group.WORLD
        if world not in self._host_groups:
            # Only for the current process group: the gloo group of an earlier one no longer exists.
            self._host_groups = {world: dist.new_group(backend="gloo")}
        return self._host_groups[world]

    def after_collective(self, group: Any) -> None:
        """Run the pending graph, unless it belongs to a step."""
        if not self._steps and dist.get_backend(group) == "xla":
            _world.run_pending()

    def barrier(self, group: Any) -> None:
        """Wait for all ranks: dist.barrier on XLA does not wait."""
        if dist.get_backend(group) != "xla":
            dist.barrier(group)
            return
        self.check("barrier", (), group, whole_world=True)
        xm.rendezvous("shims.barrier")

    def new_group(
        self, ranks: list[int] | None, timeout: timedelta | None, group_backend: str | None
    ) -> Any:
        """Return a group. XLA's groups contain every rank once, so the other groups are computed from it."""
        options: Any = None
        if group_backend is None and ranks is not None and 1 < len(ranks) < xr.world_size():
            try:
                # On every rank, including ranks outside the group: either all refuse, or none.
                mesh = torch_xla.distributed.xla_backend._infer_mesh(ranks, xr.world_size())
            except (ValueError, AssertionError) as error:
                raise UnsupportedError(
                    f"shims.new_group({ranks}) on XLA: not a row or a column of a grid of all ranks",
                    "use shims.new_group(ranks, backend='gloo') with tensors on the host",
                ) from error
            options = {"xla_pg_options": {"mesh": mesh}}
        return dist.new_group(ranks, timeout=timeout, backend=group_backend, pg_options=options)


def _worker(
    index: int, fn: Callable[..., object], args: tuple[Any, ...], expected: int | None
) -> None:
    # Under torchrun the index is the local rank.
    rank = xr.global_ordinal()
    processes.require_same(expected, xr.world_size())
    variables = {
        "RANK": rank,
        "LOCAL_RANK": xr.local_ordinal(),
        "WORLD_SIZE": xr.world_size(),
        "LOCAL_WORLD_SIZE": xr.local_device_count(),
    }
    processes.run(fn, rank, args, variables)


@contextlib.contextmanager
def _simulated(count: int) -> Iterator[None]:
    """Make torch_xla.launch start `count` replicas on the CPU."""
    from shims._simulated import launch as _launch

    before = pjrt.run_multiprocess
    pjrt.run_multiprocess = functools.partial(_launch.run_multiprocess, count)
    try:
        with _environment({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}):
            yield
    finally:
        pjrt.run_multiprocess = before


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set the environment of simulated replicas.

    Each replica receives its rank when it starts. It uses XLA without the switch that would let it
    launch replicas itself. Plugins stay active.
    """
    variables = {**variables, FORCE: "xla"}
    if activate.BACKEND in os.environ:
        variables[activate.BACKEND] = activate.NO_BACKEND
    with processes.environment(variables):
        yield
