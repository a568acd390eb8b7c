"""Support of torch_tpu 0.2 for names of torch: the column of the catalogue for the target torch_tpu.

Measured with torch 2.13 and torch_tpu 0.2.0, whose device ran on XLA:CPU, or read in its source. A name of
the column for torch_xla that is not here works on torch_tpu as on CUDA.
"""

from __future__ import annotations

from dataclasses import replace

from migrate.catalogue.entry import CatalogueEntry, OnXla
from migrate.catalogue.libraries import APEX, HUB_KERNELS, LAUNCHERS, LIBRARIES
from migrate.catalogue.target import GENERATOR, UNMEASURED
from migrate.catalogue.torch_cuda import IGNORED, TYPES
from migrate.catalogue.torch_distributed import HOOKS, REDUCTIONS

RAISES, WRONG, WORKS, NOTHING, CALLED = (
    OnXla.RAISES,
    OnXla.WRONG,
    OnXla.WORKS,
    OnXla.NOTHING,
    OnXla.CALLED,
)

NAMES_RULE = "accelerator-names"
CODE = "XLA890"
ONE_DEVICE = "a rank sees one device, remove it"
NEW_NAME = "is of CUDA, which torch_tpu does not answer for"


def _entries(
    names: str, on: OnXla, native: str = "", does: str = "", *, rule: str = "", code: str = ""
) -> tuple[CatalogueEntry, ...]:
    return tuple(
        CatalogueEntry(name, on, native, does=does, rule=rule, code=code) for name in names.split()
    )


def _renamed(names: str, becomes: str, on: OnXla, does: str) -> tuple[CatalogueEntry, ...]:
    """Return entries of names that the rule `accelerator-names` replaces."""
    return tuple(
        CatalogueEntry(name, on, becomes, does=does, rule=NAMES_RULE, code=CODE, becomes=becomes)
        for name in names.split()
    )


def _removed(names: str, on: OnXla, does: str) -> tuple[CatalogueEntry, ...]:
    """Return entries of calls that the rule `accelerator-names` removes where they are statements."""
    return _entries(names, on, "remove it", does, rule=NAMES_RULE, code=CODE)


def _unmeasured(names: str) -> tuple[CatalogueEntry, ...]:
    """Return entries of names that only need a review."""
    return tuple(
        CatalogueEntry(name, WRONG, does=UNMEASURED, stands=True) for name in names.split()
    )


RENAMED = (
    *_renamed(
        "torch.cuda.is_available torch.tpu.is_available",
        "torch.accelerator.is_available()",
        WRONG,
        "is no question about a TPU",
    ),
    *_renamed(
        "torch.cuda.synchronize torch.tpu.synchronize",
        "torch.accelerator.synchronize()",
        RAISES,
        NEW_NAME,
    ),
    *_renamed("torch.cuda.empty_cache", "torch.accelerator.empty_cache()", NOTHING, NEW_NAME),
    *_renamed(
        "torch.cuda.memory_allocated",
        "torch.accelerator.memory_allocated()",
        WRONG,
        "is silently 0 on a TPU",
    ),
    *_renamed(
        "torch.cuda.max_memory_allocated",
        "torch.accelerator.max_memory_allocated()",
        WRONG,
        "is silently 0 on a TPU",
    ),
    *_renamed(
        "torch.cuda.memory_reserved torch.cuda.memory_cached",
        "torch.accelerator.memory_reserved()",
        WRONG,
        "is silently 0 on a TPU",
    ),
    *_renamed(
        "torch.cuda.max_memory_reserved torch.cuda.max_memory_cached",
        "torch.accelerator.max_memory_reserved()",
        WRONG,
        "is silently 0 on a TPU",
    ),
    *_renamed(
        "torch.cuda.memory_stats", "torch.accelerator.memory_stats()", WRONG, "is empty on a TPU"
    ),
    *_renamed(
        "torch.cuda.reset_peak_memory_stats torch.cuda.reset_max_memory_allocated "
        "torch.cuda.reset_max_memory_cached",
        "torch.accelerator.reset_peak_memory_stats()",
        RAISES,
        NEW_NAME,
    ),
    *_renamed("torch.cuda.mem_get_info", "torch.accelerator.get_memory_info()", RAISES, NEW_NAME),
    *_renamed(
        "torch.cuda.get_device_properties", "torch.tpu.get_device_properties()", RAISES, NEW_NAME
    ),
    *_renamed("torch.cuda.get_device_name", "torch.tpu.get_device_name()", RAISES, NEW_NAME),
    *_renamed(
        "torch.cuda.current_device torch.tpu.current_device",
        "torch.accelerator.current_device_index()",
        RAISES,
        NEW_NAME,
    ),
    *_renamed("torch.cuda.Event", "torch.tpu.Event", RAISES, NEW_NAME),
    *_renamed(
        "torch.cuda.is_bf16_supported",
        "torch.bfloat16 in torch.tpu.get_amp_supported_dtype()",
        WRONG,
        "is False on a TPU",
    ),
    # torch.manual_seed seeds the TPU too.
    *_renamed("torch.cuda.manual_seed", "torch.tpu.manual_seed", NOTHING, "seeds no TPU"),
    *_renamed("torch.cuda.manual_seed_all", "torch.tpu.manual_seed_all", NOTHING, "seeds no TPU"),
    *_renamed(
        "torch.cuda.get_rng_state torch.tpu.get_rng_state",
        f"{GENERATOR}.get_state()",
        RAISES,
        "knows no generator of a TPU",
    ),
    *_renamed(
        "torch.cuda.set_rng_state",
        "torch.tpu.set_rng_state(…)",
        WRONG,
        "sets no generator of a TPU",
    ),
    *_renamed(
        "torch.cuda.get_rng_state_all",
        f"[{GENERATOR}.get_state()]",
        WRONG,
        "is empty on a TPU",
    ),
    *_renamed(
        "torch.cuda.initial_seed torch.tpu.initial_seed",
        f"{GENERATOR}.initial_seed()",
        RAISES,
        "knows no generator of a TPU",
    ),
)
_NO_STATISTICS = _removed(
    "torch.cuda.reset_accumulated_memory_stats torch.cuda.reset_peak_host_memory_stats "
    "torch.cuda.reset_accumulated_host_memory_stats "
    "torch.accelerator.reset_accumulated_memory_stats",
    RAISES,
    "is not implemented on a TPU",
)
_NAMED = {entry.name for entry in (*RENAMED, *_NO_STATISTICS)}
# What is ignored on torch_xla and has no counterpart here.
_OF_A_GPU = (
    entry.name
    for entry in IGNORED
    if entry.name.startswith("torch.cuda.") and entry.name not in _NAMED
)
REMOVED = (*_removed(" ".join(_OF_A_GPU), RAISES, "manages the memory of a GPU"), *_NO_STATISTICS)
_CUDA = (
    *_entries(
        "torch.cuda", WRONG, "remove it, or use torch.accelerator", "has no meaning on a TPU"
    ),
    *_entries(
        "torch.cuda.amp",
        WRONG,
        'torch.autocast("tpu", dtype=torch.bfloat16)',
        "silently does nothing on a TPU",
    ),
    *_entries(
        "torch.cuda.amp.autocast",
        WRONG,
        'torch.autocast("tpu", dtype=torch.bfloat16)',
        "silently does nothing on a TPU",
        rule="autocast",
    ),
    *_entries(
        "torch.cuda.amp.GradScaler torch.amp.GradScaler torch.GradScaler",
        CALLED,
        "remove it, bfloat16 needs no scaler",
        "raises on a TPU in unscale_ and step",
        rule="grad-scaler",
        code="XLA804",
    ),
    *_entries(
        "torch.cuda.set_device torch.tpu.set_device torch.accelerator.set_device_index "
        "torch.accelerator.set_device_idx",
        RAISES,
        ONE_DEVICE,
        "raises for another index than 0",
        rule="set-device",
        code="XLA827",
    ),
    *_entries(
        "torch.cuda.device torch.accelerator.device_index torch.cuda.device_of",
        RAISES,
        ONE_DEVICE,
        rule="set-device",
        code="XLA827",
    ),
    *_entries(
        "torch.cuda.current_stream torch.cuda.default_stream torch.cuda.Stream "
        "torch.cuda.ExternalStream torch.cuda.stream torch.cuda.StreamContext torch.cuda.set_stream "
        "torch.cuda.nvtx torch.cuda.profiler",
        RAISES,
        "remove it, work on a TPU runs in order",
        "torch_tpu's streams do nothing yet",
        rule="cuda-streams",
        code="XLA828",
    ),
    *_entries(
        "torch.cuda.device_count torch.accelerator.device_count torch.tpu.device_count",
        CALLED,
        "torch.accelerator.device_count(), which is 1 in a rank and the host's number in the parent",
        "does not count TPUs",
        rule="tpu-count",
        code="XLA891",
    ),
    *_entries(
        "torch.cuda.seed torch.cuda.seed_all",
        NOTHING,
        "torch.tpu.manual_seed_all(seed)",
        "seeds no TPU",
    ),
    *_entries(
        "torch.cuda.set_rng_state_all",
        WRONG,
        "torch.tpu.set_rng_state(states[0]), a rank has one device",
        "sets no generator of a TPU",
    ),
    *_entries(
        "torch.cuda.default_generators", WRONG, "torch.tpu.default_generators", "is empty on a TPU"
    ),
    *(
        CatalogueEntry(
            name, RAISES, f"make it with dtype=torch.{dtype}", code="XLA833", rule="typed-tensors"
        )
        for name, dtype in TYPES.items()
    ),
    *_entries(
        "torch.cuda.CUDAGraph torch.cuda.graph torch.cuda.make_graphed_callables "
        "torch.cuda.graph_pool_handle torch.cuda.is_current_stream_capturing",
        RAISES,
        "torch.compile(model)",
    ),
)
_DISTRIBUTED = (
    *_entries(
        "torch.distributed.Backend.NCCL torch.distributed.Backend.GLOO",
        WRONG,
        'torch_tpu\'s is "tpu_dist"',
        "is not the backend of a TPU",
    ),
    *_entries(
        "torch.distributed.is_nccl_available",
        WRONG,
        'torch.distributed.is_backend_available("tpu_dist")',
        "says nothing of a TPU",
    ),
    *_entries(
        "torch.distributed.ReduceOp.AVG",
        RAISES,
        "SUM, then divide by the world size",
        "is not known to work on the group of torch_tpu",
        rule="average",
        code="XLA810",
    ),
    *_entries("torch.distributed.ReduceOp.PREMUL_SUM", RAISES, "multiply, then SUM", code="XLA810"),
    *(
        entry
        for name in REDUCTIONS
        for entry in _entries(f"torch.distributed.ReduceOp.{name}", WORKS)
    ),
    *_entries("torch.distributed.monitored_barrier", RAISES, "torch.distributed.barrier()"),
    *_entries("torch.distributed.rpc", RAISES, does="RPC has no equivalent on a TPU"),
    *_unmeasured(
        "torch.distributed.all_gather_object torch.distributed.broadcast_object_list "
        "torch.distributed.gather_object torch.distributed.scatter_object_list "
        "torch.distributed.send_object_list torch.distributed.recv_object_list "
        "torch.distributed.send torch.distributed.recv torch.distributed.isend torch.distributed.irecv "
        "torch.distributed.batch_isend_irecv torch.distributed.all_to_all "
        "torch.distributed.all_to_all_single torch.distributed.gather torch.distributed.scatter "
        "torch.distributed.reduce torch.distributed.optim.ZeroRedundancyOptimizer "
        "torch.distributed.pipelining"
    ),
    *_unmeasured(HOOKS),
)
_OTHER = (
    *_entries(
        "torch.nn.DataParallel torch.nn.parallel.DataParallel torch.nn.parallel.data_parallel",
        RAISES,
        "DistributedDataParallel",
        "raises on a TPU (no attribute _scatter)",
        code="XLA815",
    ),
    *_entries(
        "torch.nn.SyncBatchNorm",
        RAISES,
        "shims.batch_norm.SyncBatchNorm",
        "raises with more than one rank (aten::batch_norm_stats)",
        rule="sync-batch-norm",
        code="XLA809",
    ),
    *_entries("torch.Tensor.cuda torch.nn.Module.cuda", RAISES, '.to("tpu")', "moves to CUDA"),
    *_entries(
        "torch.profiler.ProfilerActivity.CUDA",
        WRONG,
        "torch.profiler with torch.tpu.profiler.TpuProfilerConfig",
        "records nothing on a TPU",
    ),
    *_entries(
        "torch.linalg.cholesky torch.cholesky torch.linalg.cholesky_ex torch.Tensor.cholesky",
        RAISES,
        "compute it on the CPU: x.cpu()",
        "is not implemented on a TPU",
        code="XLA892",
    ),
    *_entries(
        "torch.Tensor.record_stream torch._amp_foreach_non_finite_check_and_unscale_",
        RAISES,
        "remove it",
        "is not implemented on a TPU",
        code="XLA892",
    ),
    *_entries(
        "torch.optim.SparseAdam",
        RAISES,
        "torch.optim.Adam, with sparse=True left out of the embedding",
        "ends the process on torch_tpu, which cannot sum up a sparse gradient",
        code="XLA606",
    ),
    *_entries(
        "torch.nn.utils.weight_norm torch.nn.utils.parametrizations.weight_norm torch._weight_norm",
        RAISES,
        "compute g * v / v.norm(dim=1, keepdim=True) in forward",
        "raises in backward on a TPU (aten::_weight_norm_interface_backward)",
        code="XLA892",
    ),
    *_entries(
        "torch.nn.AvgPool1d torch.nn.functional.avg_pool1d torch.avg_pool1d",
        WRONG,
        "torch.nn.functional.avg_pool2d of x.unsqueeze(-2)",
        "has no gradient on torch_tpu, with no error: what is before it does not train",
        code="XLA893",
    ),
    *_entries(
        "torch_xla",
        RAISES,
        "rewrite it, or use --target torch_xla",
        "needs torch 2.9 and cannot share an environment with torch_tpu",
        code="XLA894",
    ),
    *_entries(
        "torch_xla.amp.GradScaler",
        RAISES,
        "remove it",
        "is a name of torch_xla, and bfloat16 needs no scaler",
        rule="grad-scaler",
        code="XLA804",
    ),
)
_XM, _XR = "torch_xla.core.xla_model", "torch_xla.runtime"
# Names of torch_xla that no rule replaces, or not in every use, each with what does its work.
_OF_TORCH_XLA = {
    f"{_XM}.master_print": "print, below `if torch.distributed.get_rank() == 0:`",
    f"{_XM}.all_reduce": "torch.distributed.all_reduce, which changes its tensor and has no scale=",
    f"{_XM}.REDUCE_SUM": "torch.distributed.ReduceOp.SUM",
    f"{_XM}.REDUCE_MAX": "torch.distributed.ReduceOp.MAX",
    f"{_XM}.REDUCE_MIN": "torch.distributed.ReduceOp.MIN",
    f"{_XM}.REDUCE_MUL": "torch.distributed.ReduceOp.PRODUCT",
    f"{_XM}.all_gather": "torch.distributed.all_gather_into_tensor",
    f"{_XM}.reduce_scatter": "torch.distributed.reduce_scatter_tensor",
    f"{_XM}.mesh_reduce": "torch.distributed.all_reduce of a tensor with the value",
    f"{_XM}.reduce_gradients": "DistributedDataParallel, which averages the gradients",
    f"{_XM}.broadcast_master_param": "DistributedDataParallel, which sends the first rank's weights",
    f"{_XM}.add_step_closure": "call the function: a read waits, as on CUDA",
    f"{_XM}.wait_device_ops": "torch.accelerator.synchronize()",
    f"{_XM}.get_memory_info": "torch.accelerator.memory_allocated(), torch.accelerator.get_memory_info()",
    f"{_XM}.get_xla_supported_devices": '["tpu"], a rank has one device',
    f"{_XM}.xla_real_devices": '["tpu"], a rank has one device',
    f"{_XM}.xla_device_hw": '"TPU"',
    f"{_XM}.send_cpu_data_to_device": '.to("tpu")',
    f"{_XR}.device_type": '"TPU"',
    f"{_XR}.use_spmd": "a process for each chip, and DTensor",
    f"{_XR}.global_runtime_device_count": "torch.distributed.get_world_size()",
    f"{_XR}.global_device_count": "torch.distributed.get_world_size()",
    "torch_xla.compile": "torch.compile, or the function itself",
    "torch_xla.distributed.fsdp": "torch.distributed.fsdp.fully_shard",
    "torch_xla.debug.metrics": "remove it, torch_tpu has none",
    "torch_xla.test.test_utils.mp_test": "multiprocessing.Process",
    "torch_xla.debug.profiler": "torch.profiler with torch.tpu.profiler.TpuProfilerConfig",
}
_LEFT = tuple(
    CatalogueEntry(name, RAISES, advice, does="is of torch_xla", code="XLA894")
    for name, advice in _OF_TORCH_XLA.items()
)
TORCH_TPU = (*RENAMED, *REMOVED, *_CUDA, *_DISTRIBUTED, *_OTHER, *_LEFT, *APEX, *HUB_KERNELS)

# Advice for torch_tpu, where that for torch_xla names torch_xla.
_LOOP = "a loop of your own with DistributedDataParallel on the 'tpu_dist' process group"
_FSDP = "torch.distributed.fsdp.fully_shard shards a model on torch_tpu"
_ADVICE = {
    **dict.fromkeys(("colossalai", "deepspeed", "fairscale"), _FSDP),
    "horovod": "wrap the model in DistributedDataParallel on the 'tpu_dist' process group; hvd.rank() is "
    "torch.distributed.get_rank(), hvd.size() get_world_size()",
    "composer": _LOOP,
    "dora.argparse_main": _LOOP,
    "dora.distrib.init": _LOOP,
    "dora.hydra_main": _LOOP,
    "flashy.distrib.init": _LOOP,
    "nvidia_smi": "tpu-info",
    **dict.fromkeys(
        ("pynvml", "py3nvml", "GPUtil", "gpustat"), "torch.accelerator.get_memory_info(), tpu-info"
    ),
    **dict.fromkeys(
        ("flash_attn", "flash_attn_interface", "flash_attn_2_cuda"),
        "scaled_dot_product_attention, which is a kernel of torch_tpu",
    ),
}
_BEHAVIOR = {
    "composer": "Composer 0.32 needs torch before 2.7.1, and torch_tpu needs torch 2.11",
    "mmengine.runner.Runner": "MMEngine's Runner places model and batches itself, and knows no torch_tpu",
    "mmcv.runner.EpochBasedRunner": "the runner of MMCV places batches itself, and knows no torch_tpu",
}
_BEHAVIOR["mmengine.runner.runner.Runner"] = _BEHAVIOR["mmengine.runner.Runner"]
_BEHAVIOR["mmengine.runner.FlexibleRunner"] = _BEHAVIOR["mmengine.runner.Runner"]
_BEHAVIOR["mmcv.runner.IterBasedRunner"] = _BEHAVIOR["mmcv.runner.EpochBasedRunner"]
_BEHAVIOR["mmcv.runner.build_runner"] = _BEHAVIOR["mmcv.runner.EpochBasedRunner"]
_DRIVERS = {entry.name for entry in LAUNCHERS if entry.leaves_script} | {
    "transformers.Trainer",
    "transformers.Seq2SeqTrainer",
}


def _library(entry: CatalogueEntry) -> CatalogueEntry:
    """Return the entry of a library for torch_tpu, from that for torch_xla."""
    if entry.name not in _DRIVERS:
        does = _BEHAVIOR.get(entry.name, entry.does)
        return replace(entry, native=_ADVICE.get(entry.name, entry.native), does=does)
    return CatalogueEntry(
        entry.name,
        WRONG,
        "rewrite the project for the other target, or write the loop with DistributedDataParallel",
        does=f"{entry.name} is not known to train on torch_tpu",
        rule=entry.rule,
        leaves_script=entry.leaves_script,
    )


TPU_LIBRARIES = tuple(map(_library, LIBRARIES))
