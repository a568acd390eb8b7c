"""Setup of this process as one replica: torch_xla's C functions report its rank.

Only the C layer is replaced. torch_xla's Python code above it runs as on a TPU, including its
refusals (`ReduceOp.AVG`) and its gaps (`dist.barrier` does not wait).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
from torch_xla.core import xla_model

from shims import activate
from shims._simulated import autocast, calls, half_sums, reducer, refusals, resize
from shims._simulated import reads as _reads
from shims._simulated.collectives import Collectives
from shims._simulated.reads import Reads
from shims._simulated.watch import Watch
from shims.errors import RefusedOnTpuError


def join(rank: int, size: int, port: int, *, serve: bool = False, attempt: int = 0) -> Watch:
    """Become replica `rank` of `size`. Block until all replicas have joined.

    Args:
        rank: this replica's global ordinal.
        size: the number of replicas.
        port: of the store that the replicas meet in; the launching process serves it.
        serve: this replica serves it.
        attempt: how often the replicas were started before, in the same store.

    Returns:
        What is to be told how this replica ends.
    """
    os.environ["PJRT_LOCAL_PROCESS_RANK"] = str(rank)
    os.environ["PJRT_LOCAL_PROCESS_COUNT"] = str(size)
    store = dist.TCPStore("127.0.0.1", port, is_master=serve, wait_for_workers=False)

    def connect() -> dist.Store:
        client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        return dist.PrefixStore(f"shims/watch/{attempt}", client)

    watch = Watch(connect, rank, size)
    place = dist.PrefixStore(f"shims/{attempt}", store)
    collectives = Collectives(place, rank, size, watch)
    _patch_topology(rank, size)
    _patch_collectives(_CLayer(collectives, watch.reads))
    half_sums.install("XLA")
    resize.install()
    autocast.install()
    _count_steps(watch)
    _reads.watch_reads(watch.reads)
    reducer.install(collectives, _fetch, watch.reads.record_results)
    refusals.refuse_object_collectives()
    activate.after_import(
        "torch_xla.distributed.xla_backend", lambda: refusals.refuse_in_subgroups(size)
    )
    return watch


def _count_steps(watch: Watch) -> None:
    # Not `_xla_step_marker`: torch_xla reports a Python function around that one as the cause of
    # the sync.
    run_closures = xla_model._run_step_closures

    def synchronized() -> Any:
        watch.reads.synchronized()
        if calls.ends_a_step():
            watch.step += 1
        return run_closures()

    xla_model._run_step_closures = synchronized

    def sync_live_tensors(*args: Any, **kwargs: Any) -> Any:
        # Called by the program or by the shims: the collectives run on every replica that arrives
        # here.
        watch.reads.synchronized()
        return _sync_live_tensors(*args, **kwargs)

    torch_xla._XLAC._xla_sync_live_tensors = sync_live_tensors


def _patch_topology(rank: int, size: int) -> None:
    c_layer = torch_xla._XLAC
    real_devices = c_layer._xla_get_all_devices

    def all_devices() -> list[str]:
        kind = real_devices()[0].partition(":")[0]
        return [f"{kind}:{ordinal}" for ordinal in range(size)]

    c_layer._xla_get_all_devices = all_devices
    c_layer._xla_get_all_runtime_devices = all_devices
    c_layer._xla_num_global_devices = lambda: size
    c_layer._xla_get_default_device_ordinal = lambda: rank
    c_layer._xla_get_device_ordinal = lambda device: rank
    c_layer._xla_get_process_index = lambda: rank
    c_layer._xla_get_num_processes = lambda: size
    # The runtime itself has one device: with more it would compile for them and wait.
    replication: list[str] = []
    c_layer._xla_set_replication_devices = lambda devices: replication.__setitem__(
        slice(None), devices
    )
    c_layer._xla_get_replication_devices = lambda: list(replication)
    c_layer._xla_get_replication_devices_count = lambda: len(replication)


# Before the program's reads and syncs are watched.
_cpu = torch.Tensor.cpu
_sync_live_tensors = torch_xla._XLAC._xla_sync_live_tensors


class _CLayer:
    """Replacements for the collectives of `torch_xla._XLAC` and `torch.ops._c10d_functional`.

    The arguments are the same. Tokens order collectives within a graph; here each collective runs
    when it is called, so tokens are returned unchanged.
    """

    def __init__(self, collectives: Collectives, reads: Reads) -> None:
        self._on_host = collectives
        self._bring = reads.record_results

    def all_reduce(
        self, kind: str, value: torch.Tensor, scale: float, groups: Any, pin: bool
    ) -> torch.Tensor:
        return self._back(
            self._on_host.all_reduce(kind, _fetch([value]), scale, _lists(groups)), value.device
        )[0]

    def all_reduce_inplace(
        self, kind: str, values: Sequence[torch.Tensor], scale: float, groups: Any, pin: bool
    ) -> None:
        self._write(values, self._on_host.all_reduce(kind, _fetch(values), scale, _lists(groups)))

    def all_gather(
        self,
        value: torch.Tensor,
        dim: int,
        shards: int,
        groups: Any,
        pin: bool,
        channel: int | None = None,
        use_global_ids: bool | None = None,
    ) -> torch.Tensor:
        gathered = self._on_host.all_gather(_fetch([value]), dim, _lists(groups))
        return self._back(gathered, value.device)[0]

    def all_gather_out(
        self,
        output: torch.Tensor,
        value: torch.Tensor,
        token: Any,
        dim: int,
        shards: int,
        groups: Any,
        pin: bool,
    ) -> Any:
        self._write([output], self._on_host.all_gather(_fetch([value]), dim, _lists(groups)))
        return token

    def all_gather_coalesced(
        self,
        values: Sequence[torch.Tensor],
        token: Any,
        dim: int,
        shards: int,
        groups: Any,
        pin: bool,
    ) -> list[Any]:
        gathered = self._on_host.all_gather(_fetch(values), dim, _lists(groups))
        return [*self._back(gathered, values[0].device), token]

    def all_gather_coalesced_out(
        self,
        outputs: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        token: Any,
        dim: int,
        shards: int,
        groups: Any,
        pin: bool,
    ) -> Any:
        self._write(outputs, self._on_host.all_gather(_fetch(values), dim, _lists(groups)))
        return token

    def reduce_scatter(
        self,
        kind: str,
        value: torch.Tensor,
        token: Any,
        scale: float,
        dim: int,
        shards: int,
        groups: Any,
        pin: bool,
        channel: int | None = None,
        use_global_ids: bool | None = None,
    ) -> tuple[torch.Tensor, Any]:
        scattered = self._on_host.reduce_scatter(
            kind, _fetch([value]), scale, dim, shards, _lists(groups)
        )
        return self._back(scattered, value.device)[0], token

    def reduce_scatter_out(
        self,
        kind: str,
        output: torch.Tensor,
        value: torch.Tensor,
        token: Any,
        scale: float,
        dim: int,
        shards: int,
        groups: Any,
        pin: bool,
    ) -> Any:
        values = _fetch([value])
        self._write(
            [output],
            self._on_host.reduce_scatter(kind, values, scale, dim, shards, _lists(groups)),
        )
        return token

    def reduce_scatter_coalesced(
        self,
        kind: str,
        values: Sequence[torch.Tensor],
        token: Any,
        scale: float,
        dim: int,
        shards: int,
        groups: Any,
        pin: bool,
    ) -> list[Any]:
        scattered = self._on_host.reduce_scatter(
            kind, _fetch(values), scale, dim, shards, _lists(groups)
        )
        return [*self._back(scattered, values[0].device), token]

    def reduce_scatter_coalesced_out(
        self,
        kind: str,
        outputs: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        token: Any,
        scale: float,
        dim: int,
        shards: int,
        groups: Any,
        pin: bool,
    ) -> Any:
        scattered = self._on_host.reduce_scatter(
            kind, _fetch(values), scale, dim, shards, _lists(groups)
        )
        self._write(outputs, scattered)
        return token

    def all_to_all(
        self,
        value: torch.Tensor,
        token: Any,
        split_dim: int,
        concat_dim: int,
        count: int,
        groups: Any,
        pin: bool,
    ) -> tuple[torch.Tensor, Any]:
        exchanged = self._on_host.all_to_all(
            _fetch([value])[0], split_dim, concat_dim, count, _lists(groups)
        )
        return self._back([exchanged], value.device)[0], token

    def collective_permute(
        self, value: torch.Tensor, token: Any, pairs: Sequence[Sequence[int]]
    ) -> tuple[torch.Tensor, Any]:
        return self._on_host.permute(_fetch([value])[0], pairs).to(value.device), token

    def functional_all_reduce(
        self, value: torch.Tensor, kind: str, group_name: str
    ) -> torch.Tensor:
        refusals.expect_world(group_name, self._on_host.size)
        return self.all_reduce(kind, value, 1.0, [], True)

    def functional_all_gather(
        self, value: torch.Tensor, group_size: int, group_name: str
    ) -> torch.Tensor:
        refusals.expect_world(group_name, self._on_host.size)
        return self.all_gather(value, 0, group_size, [], True)

    def functional_reduce_scatter(
        self, value: torch.Tensor, kind: str, group_size: int, group_name: str
    ) -> torch.Tensor:
        refusals.expect_world(group_name, self._on_host.size)
        return self.reduce_scatter(kind, value, None, 1.0, 0, group_size, [], True)[0]

    def functional_all_to_all(
        self,
        value: torch.Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        group_name: str,
    ) -> torch.Tensor:
        refusals.expect_world(group_name, self._on_host.size)
        if len({*(output_splits or ()), *(input_splits or ())}) > 1:
            raise RefusedOnTpuError(
                f"all_to_all_single with unequal splits{calls.at(calls.caller())}",
                "XLA splits evenly: pad the parts to one size",
            )
        return self.all_to_all(value, None, 0, 0, self._on_host.size, [], True)[0]

    def _back(self, values: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        results = [value.to(device) for value in values]
        self._bring(results)
        return results

    def _write(self, outputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for output, value in zip(outputs, values, strict=True):
                result = value.to(output.device)
                self._bring([result])
                output.copy_(result)


def _patch_collectives(layer: _CLayer) -> None:
    c_layer = torch_xla._XLAC
    for name in (
        "all_reduce",
        "all_reduce_inplace",
        "all_gather",
        "all_gather_out",
        "all_gather_coalesced",
        "all_gather_coalesced_out",
        "reduce_scatter",
        "reduce_scatter_out",
        "reduce_scatter_coalesced",
        "reduce_scatter_coalesced_out",
        "all_to_all",
        "collective_permute",
    ):
        setattr(c_layer, f"_xla_{name}", getattr(layer, name))
    for name in ("send", "recv"):
        setattr(c_layer, f"_xla_{name}", refusals.refuse_send_and_recv(name))
    for name in ("spmd_all_reduce", "spmd_reduce_scatter"):
        setattr(c_layer, f"_xla_{name}", refusals.refuse_spmd(name))

    functional = torch.ops._c10d_functional
    functional.all_reduce = layer.functional_all_reduce
    functional.all_gather_into_tensor = layer.functional_all_gather
    functional.reduce_scatter_tensor = layer.functional_reduce_scatter
    functional.all_to_all_single = layer.functional_all_to_all


def _fetch(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    # On a TPU a collective is in the graph of the step. `torch_xla.compile(full_graph=True)`, which
    # forbids to run a part of the step by itself, allows it.
    c_layer = torch_xla._XLAC
    is_allowed = c_layer._get_allow_execution()
    c_layer._set_allow_execution(True)
    try:
        # Run all pending graphs at once: copying one tensor would run its part of the forward pass
        # again later.
        _sync_live_tensors("", [], True)
        return [_cpu(value.detach()) for value in values]
    finally:
        c_layer._set_allow_execution(is_allowed)


def _lists(groups: Any) -> list[list[int]]:
    return [list(group) for group in groups or []]
