"""Patches of `torch.distributed` code written for NCCL: gloo on the CPU, a TPU's own backend there."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from shims._shared import gloo_output, gloo_threads, root_broadcast, wide
from shims.patches import calls, parameters
from shims.patches.cuda import refusal
from shims.patches.devices import Devices
from shims.patches.ranks import averages, executed, rendezvous
from shims.patches.registry import Patch, patch

_OBJECT_COLLECTIVES = (
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)


# Type of the device -> the backend that takes the place of NCCL.
_NATIVE = {"cpu": "gloo", "xla": "xla", "tpu": "tpu_dist"}


class _Groups:
    """Process groups that the program created, with the backend names that it used."""

    def __init__(self) -> None:
        self._asked: dict[str, str] = {}
        # XLA carries no objects: they use this group.
        self.of_objects: Any = None

    def remember(self, group: Any, asked: str) -> None:
        if isinstance(group, dist.ProcessGroup):
            self._asked[group.group_name] = asked

    def asked(self, group: Any) -> str | None:
        group = group or distributed_c10d._get_default_group()
        return self._asked.get(group.group_name)


def patches(devices: Devices) -> Iterator[Patch]:
    """Yield the patches of groups, barriers, averages, object collectives and DDP."""
    target = devices.placement.target.type
    on_xla = target == "xla"
    groups = _Groups()
    creators = _making(groups, devices)
    answers: list[tuple[str, Callable[..., Any], str]] = [
        ("init_process_group", creators["init_process_group"], _NATIVE[target]),
        ("new_group", creators["new_group"], _NATIVE[target]),
        ("get_backend", _named(groups), "the name that the program gave"),
        ("is_nccl_available", lambda: True, "nccl is answered"),
        ("barrier", _barrier(on_xla), "a barrier that waits" + (", over gloo" * (target == "cpu"))),
    ]
    for name in _OBJECT_COLLECTIVES:
        if hasattr(dist, name):
            answers.append((name, _of_objects(name, groups, on_xla), "over gloo"))
    moving = executed.answers() if on_xla else ()
    for name, function, text in (*answers, *averages.answers(target), *moving):
        yield patch(dist, name, function, text)
        yield patch(distributed_c10d, name, function, text)
    yield from _data_parallel(devices)
    yield from _meshes(devices)


def _real(backend: Any, target: str) -> Any:
    """Return the real backend for a name; composite names such as "cuda:nccl,cpu:gloo" are one group here."""
    text = "" if backend is None else str(backend).lower()
    if target == "tpu" and text in ("", "gloo", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"):
        # As on CUDA: such a group has tensors of the host, too.
        return "cpu:gloo,tpu:tpu_dist"
    if text and "nccl" not in text:
        return backend
    return _NATIVE[target]


def _making(groups: _Groups, devices: Devices) -> dict[str, Callable[..., Any]]:
    init_process_group, new_group = dist.init_process_group, dist.new_group
    target = devices.placement.target.type
    on_xla = target == "xla"
    signature = inspect.signature(init_process_group)

    @functools.wraps(init_process_group)
    def init(*args: Any, **kwargs: Any) -> None:
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        arguments.pop("device_id", None)
        arguments.pop("pg_options", None)
        backend = arguments.pop("backend", None)
        gloo_threads.let_go_at_exit()
        gloo_output.keep_off_stdout()
        real = _real(backend, target)
        if on_xla and (real == "xla" or real == "gloo"):
            # The replicas are already connected; gloo could not carry their tensors.
            import torch_xla.distributed.xla_backend  # noqa: F401 - registers the backend
            import torch_xla.runtime as xr

            root_broadcast.install()
            timeout = {"timeout": arguments["timeout"]} if arguments.get("timeout") else {}
            # torch_xla's rendezvous is at MASTER_ADDR.
            with rendezvous.here({"world_size": xr.world_size()}, devices.count):
                init_process_group("xla", init_method="xla://", **timeout)
            rendezvous.require_same(arguments.get("world_size"), dist.get_world_size())
            groups.of_objects = new_group(backend="gloo")
        else:
            with rendezvous.here(arguments, devices.count) as reachable:
                init_process_group(real, **reachable)
        asked = "nccl" if backend is None or "nccl" in str(backend).lower() else str(backend)
        groups.remember(distributed_c10d._get_default_group(), asked)

    @functools.wraps(new_group)
    def group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        inherited = groups.asked(None)
        asked = backend or inherited
        real = None if backend is None else _real(backend, target)
        # Position 3 is pg_options, which is for NCCL.
        created = new_group(ranks, timeout, real, None, *args[1:], **kwargs)
        if asked is not None:
            groups.remember(created, "nccl" if "nccl" in str(asked) else str(asked))
        return created

    return {"init_process_group": init, "new_group": group}


def _named(groups: _Groups) -> Callable[..., str]:
    get_backend = dist.get_backend

    @functools.wraps(get_backend)
    def named(group: Any = None) -> str:
        real: str = get_backend(group)
        frame: Any = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__", "").startswith("shims."):
            frame = frame.f_back
        # torch's own code asks for the group's abilities; the program, for the backend it
        # requested.
        return real if calls.internal(frame) else groups.asked(group) or real

    return named


def _barrier(on_xla: bool) -> Callable[..., Any]:
    barrier = dist.barrier

    @functools.wraps(barrier)
    def wait(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        if not on_xla or dist.get_backend(group) == "gloo":
            return barrier(group, async_op)
        from torch_xla.core import xla_model

        if group is not None and dist.get_world_size(group) != dist.get_world_size():
            raise refusal(
                "dist.barrier of some of the replicas", "make its group with gloo", "barrier"
            )
        # torch_xla's own barrier does not wait.
        xla_model.rendezvous("shims.barrier")
        return wide.CompletedWork() if async_op else None

    return wait


def _of_objects(name: str, groups: _Groups, on_xla: bool) -> Callable[..., Any]:
    function = getattr(dist, name)
    # Position of the group argument; the other functions have it later, or by name only.
    position = {"all_gather_object": 2, "broadcast_object_list": 2}.get(name, 3)

    @functools.wraps(function)
    def carried(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = None
        if on_xla:
            group = args[position] if len(args) > position else kwargs.get("group")
            if group is None or group is distributed_c10d._get_default_group():
                if len(args) > position:
                    args = (*args[:position], groups.of_objects, *args[position + 1 :])
                else:
                    kwargs["group"] = groups.of_objects
        return function(*args, **kwargs)

    return carried


def _data_parallel(devices: Devices) -> Iterator[Patch]:
    ddp_init, ddp_forward = DistributedDataParallel.__init__, DistributedDataParallel.forward
    placement = devices.placement
    on_xla = placement.target.type == "xla"

    @functools.wraps(ddp_init)
    def init(
        ddp: Any,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if on_xla:
            kwargs["gradient_as_bucket_view"] = True
        ddp_init(ddp, module, None, None, *args, **kwargs)
        parameters.WRAPPED.add(ddp)
        # Not as a module attribute, which would show up in its repr and its checkpoints.
        object.__setattr__(ddp, "_shims_inputs_to", device_ids[0] if device_ids else None)

    @functools.wraps(ddp_forward)
    def forward(ddp: Any, *inputs: Any, **kwargs: Any) -> Any:
        device = getattr(ddp, "_shims_inputs_to", None)
        if device is not None:
            # With device_ids DDP moves inputs that are still on the host.
            index = devices.index(device)
            inputs, kwargs = tree_map_only(
                torch.Tensor,
                lambda value: value if placement.ordinal(value) == index else value.cuda(index),
                (inputs, kwargs),
            )
        return ddp_forward(ddp, *inputs, **kwargs)

    yield patch(DistributedDataParallel, "__init__", init, "without device_ids")
    yield patch(DistributedDataParallel, "forward", forward, "moves its inputs, as with device_ids")


def _meshes(devices: Devices) -> Iterator[Patch]:
    init_device_mesh = getattr(dist, "init_device_mesh", None)
    if init_device_mesh is None:
        return

    @functools.wraps(init_device_mesh)
    def mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        real = devices.placement.target.type if device_type == "cuda" else device_type
        return init_device_mesh(real, *args, **kwargs)

    yield patch(dist, "init_device_mesh", mesh, f"of {devices.placement.target}")
    yield patch(dist.device_mesh, "init_device_mesh", mesh, f"of {devices.placement.target}")
