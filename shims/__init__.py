"""Run PyTorch CUDA code on CUDA, CPU and TPU from one source.

There are two ways to use it. `import shims.auto` (or `python -m shims script.py`) runs code that is
not edited. The names of this module are for code written for all three backends. They are imported
on first use: `import shims` alone does not import torch.

    import shims

    def main(rank):
        shims.init_distributed()
        model = shims.ddp(shims.to_device(Net()))
        ...

    if __name__ == "__main__":
        shims.launch(main)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers treat an alias of the same name as public.
    from shims.batch_norm import update_running_statistics as update_running_statistics
    from shims.checkpoint import load as load
    from shims.checkpoint import save as save
    from shims.data import BucketSampler as BucketSampler
    from shims.data import pad_collate as pad_collate
    from shims.data import shapes_of as shapes_of
    from shims.distributed import all_gather as all_gather
    from shims.distributed import all_gather_into_tensor as all_gather_into_tensor
    from shims.distributed import all_gather_object as all_gather_object
    from shims.distributed import all_reduce as all_reduce
    from shims.distributed import all_to_all as all_to_all
    from shims.distributed import all_to_all_single as all_to_all_single
    from shims.distributed import barrier as barrier
    from shims.distributed import broadcast as broadcast
    from shims.distributed import broadcast_object as broadcast_object
    from shims.distributed import broadcast_object_list as broadcast_object_list
    from shims.distributed import gather as gather
    from shims.distributed import gather_object as gather_object
    from shims.distributed import new_group as new_group
    from shims.distributed import recv as recv
    from shims.distributed import reduce as reduce
    from shims.distributed import reduce_scatter as reduce_scatter
    from shims.distributed import reduce_scatter_tensor as reduce_scatter_tensor
    from shims.distributed import scatter as scatter
    from shims.distributed import scatter_object_list as scatter_object_list
    from shims.distributed import send as send
    from shims.guard import guard as guard
    from shims.log import log as log
    from shims.placement import ddp as ddp
    from shims.placement import device as device
    from shims.placement import device_type as device_type
    from shims.placement import sync_batch_norm as sync_batch_norm
    from shims.placement import to_device as to_device
    from shims.ranks import backend as backend
    from shims.ranks import init_distributed as init_distributed
    from shims.ranks import is_main as is_main
    from shims.ranks import launch as launch
    from shims.ranks import launch_script as launch_script
    from shims.ranks import local_rank as local_rank
    from shims.ranks import local_world_size as local_world_size
    from shims.ranks import rank as rank
    from shims.ranks import world_size as world_size
    from shims.resume import resume as resume
    from shims.rng import generator as generator
    from shims.rng import manual_seed as manual_seed
    from shims.rng import rng_state as rng_state
    from shims.rng import set_rng_state as set_rng_state
    from shims.training import autocast as autocast
    from shims.training import autocast_dtype as autocast_dtype
    from shims.training import checkpoint_activations as checkpoint_activations
    from shims.training import clip_grad_norm as clip_grad_norm
    from shims.training import compile as compile  # noqa: A004 - torch's name
    from shims.training import grad_scaler as grad_scaler
    from shims.training import loader as loader
    from shims.training import memory as memory
    from shims.training import on_host as on_host
    from shims.training import pin_memory as pin_memory
    from shims.training import step as step
    from shims.training import synchronize as synchronize
    from shims.training import together as together

# Public name -> module that defines it.
_HOMES = {
    name: module
    for module, names in {
        "ranks": "backend init_distributed is_main launch launch_script local_rank "
        "local_world_size rank world_size",
        "placement": "ddp device device_type sync_batch_norm to_device",
        "training": "autocast autocast_dtype checkpoint_activations clip_grad_norm compile grad_scaler "
        "loader memory on_host pin_memory step synchronize together",
        "rng": "generator manual_seed rng_state set_rng_state",
        "distributed": "all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all "
        "all_to_all_single barrier broadcast broadcast_object broadcast_object_list gather "
        "gather_object new_group recv reduce reduce_scatter reduce_scatter_tensor scatter "
        "scatter_object_list send",
        "batch_norm": "update_running_statistics",
        "data": "BucketSampler pad_collate shapes_of",
        "guard": "guard",
        "checkpoint": "load save",
        "resume": "resume",
        "log": "log",
    }.items()
    for name in names.split()
}

# The same names, spelled out for type checkers.
__all__ = [
    "BucketSampler",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "autocast",
    "autocast_dtype",
    "backend",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_object_list",
    "checkpoint_activations",
    "clip_grad_norm",
    "compile",
    "ddp",
    "device",
    "device_type",
    "gather",
    "gather_object",
    "generator",
    "grad_scaler",
    "guard",
    "init_distributed",
    "is_main",
    "launch",
    "launch_script",
    "load",
    "loader",
    "local_rank",
    "local_world_size",
    "log",
    "manual_seed",
    "memory",
    "new_group",
    "on_host",
    "pad_collate",
    "pin_memory",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "resume",
    "rng_state",
    "save",
    "scatter",
    "scatter_object_list",
    "send",
    "set_rng_state",
    "shapes_of",
    "step",
    "sync_batch_norm",
    "synchronize",
    "to_device",
    "together",
    "update_running_statistics",
    "world_size",
]


def __getattr__(name: str) -> Any:
    if name == "patches":
        # A callable package: `shims.patches()`.
        return importlib.import_module("shims.patches")
    if name not in _HOMES:
        raise AttributeError(f"module 'shims' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"shims.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, which are imported when they are used."""
    dunders = (name for name in globals() if name.startswith("__"))
    return sorted([*__all__, "patches", *dunders])


class _Package(ModuleType):
    """Module type that keeps `shims.log` the function when the submodule of the same name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
