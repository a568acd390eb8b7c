"""Support of XLA for the names of torch.cuda and torch.accelerator, in groups that rules use too.

For torch 2.9 the accelerator is a GPU. Measured with torch 2.9.1 and torch_xla 2.9.0 on a machine without
one, which a TPU's host is: `tests/reading/test_catalogue.py` does it again.
"""

from __future__ import annotations

from migrate.catalogue.entry import CatalogueEntry, Family, OnXla

RAISES, WRONG, NOTHING = OnXla.RAISES, OnXla.WRONG, OnXla.NOTHING

CALLS = "XLA801"
XM = "torch_xla.core.xla_model"
MEMORY = f"{XM}.get_memory_info()"
# Without a TPU torch_xla raises "UNIMPLEMENTED: GetAllocatorStats".
ON_A_TPU = "if torch_xla.runtime.device_type() == 'TPU' else"
ELSEWHERE = " (on the CPU the call raises)"
MEMORY_ON_A_TPU = f"{MEMORY} {ON_A_TPU} {{}}{ELSEWHERE}"
ONE_DEVICE = "a replica sees one device, remove it"
IN_ORDER = "XLA orders its own work, remove it"
TRACE = "torch_xla.debug.profiler.Trace"
TPU_INFO = "tpu-info, on the command line"

# These only configure CUDA: the rewrite removes such a call if it is a statement.
_quiet = Family("torch.cuda", NOTHING, "XLA802", "cuda-memory")
_told = Family("torch.cuda", RAISES, "XLA802", "cuda-memory")
IGNORED = (
    *_quiet("empty_cache caching_allocator_enable", "remove it"),
    *_quiet("reset_accumulated_host_memory_stats reset_peak_host_memory_stats", "remove it"),
    *_told(
        "change_current_allocator init ipc_collect reset_accumulated_memory_stats set_sync_debug_mode",
        "remove it",
    ),
    *_told("reset_max_memory_allocated reset_max_memory_cached", "remove it"),
    *_told("reset_peak_memory_stats set_per_process_memory_fraction", "remove it"),
    *Family("torch.cuda.memory", RAISES, "XLA802", "cuda-memory")(
        "_record_memory_history", "remove it"
    ),
    *Family("torch.accelerator", NOTHING, "XLA802", "cuda-memory")("empty_cache", "remove it"),
    *Family("torch.accelerator", RAISES, "XLA802", "cuda-memory")(
        "reset_accumulated_memory_stats reset_peak_memory_stats", "remove it"
    ),
)
# Queries of a GPU that the host of a TPU does not answer.
_zero = Family("torch", WRONG, "XLA802", "cuda-memory", does="silently 0 on XLA")
_empty = Family("torch", WRONG, "XLA802", "cuda-memory", does="empty on XLA")
IN_USE, AT_THE_PEAK = (
    f"{MEMORY}['{key}'] {ON_A_TPU} 0{ELSEWHERE}" for key in ("bytes_used", "peak_bytes_used")
)
# With an expression that answers on a TPU and on the CPU.
ANSWERED = (
    *_zero("cuda.memory_allocated accelerator.memory_allocated", IN_USE, "shims.memory().used"),
    *_zero("cuda.memory_reserved cuda.memory_cached accelerator.memory_reserved", IN_USE),
    *_zero("cuda.max_memory_allocated", AT_THE_PEAK, "shims.memory().peak"),
    *_zero("accelerator.max_memory_allocated", AT_THE_PEAK, "shims.memory().peak"),
    *_zero("cuda.max_memory_reserved cuda.max_memory_cached", AT_THE_PEAK),
    *_zero("accelerator.max_memory_reserved", AT_THE_PEAK),
    *_told("get_device_name", f"{XM}.xla_device_hw(torch_xla.device())"),
)
ASKED = (
    *ANSWERED,
    *_empty("cuda.memory_stats accelerator.memory_stats", MEMORY_ON_A_TPU),
    *_empty("cuda.memory_stats_as_nested_dict cuda.host_memory_stats", MEMORY_ON_A_TPU),
    *_empty("cuda.host_memory_stats_as_nested_dict", MEMORY_ON_A_TPU),
    *_empty("cuda.memory_snapshot", MEMORY_ON_A_TPU),
    *_empty("cuda.list_gpu_processes", TPU_INFO, does="lists no TPU process"),
    *_told("memory_summary memory_usage device_memory_used", MEMORY_ON_A_TPU),
    *_told(
        "mem_get_info",
        f"{MEMORY} has bytes_used and bytes_limit, on a TPU only: it raises on the CPU",
    ),
    *_told("get_per_process_memory_fraction", "remove it"),
    *_told(
        "get_device_properties", f"for the memory, {MEMORY}['bytes_limit'] {ON_A_TPU} 0{ELSEWHERE}"
    ),
    *_told("get_device_capability", "a TPU has none, take the branch for bfloat16"),
    *_told("utilization", TPU_INFO),
    *_told("temperature power_draw clock_rate", "remove it"),
)
INITIALIZED = _quiet("is_initialized", "what it guards is skipped", does="is False on XLA")

_device = Family("torch", RAISES, "XLA827", "set-device")
SETTERS = _device(
    "cuda.set_device accelerator.set_device_idx accelerator.set_device_index",
    ONE_DEVICE,
    "shims.init_distributed() makes the replica's GPU the current one",
)
# As contexts, around a block.
DEVICE_CONTEXTS = (
    *_device("cuda.device accelerator.device_index", ONE_DEVICE),
    *Family("torch.cuda", NOTHING, "XLA827", "set-device")("device_of", ONE_DEVICE),
)
CURRENT = Family("torch", RAISES, CALLS)(
    "cuda.current_device accelerator.current_device_idx accelerator.current_device_index",
    "torch_xla.device()",
    "shims.device()",
)
_timing = Family("torch", RAISES, "XLA832", "cuda-timing")
WAITS = _timing(
    "cuda.synchronize accelerator.synchronize", "torch_xla.sync(wait=True)", "shims.synchronize()"
)
EVENTS = _timing(
    "cuda.Event Event",
    "time.perf_counter() after torch_xla.sync(wait=True)",
    "time.perf_counter() after shims.synchronize()",
    does="raises on XLA when it is recorded",
)
_stream = Family("torch.cuda", RAISES, "XLA828", "cuda-streams")
# For None, or a stream that was never made.
_idle = Family("torch.cuda", NOTHING, "XLA828", "cuda-streams")
_nvtx = Family(
    "torch.cuda.nvtx",
    RAISES,
    "XLA828",
    "cuda-streams",
    does="raises with a build of PyTorch for the CPU",
)
CURRENT_STREAMS = (
    *_stream("current_stream default_stream", IN_ORDER),
    *Family("torch.accelerator", RAISES, "XLA828", "cuda-streams")("current_stream", IN_ORDER),
)
STREAMS = (*CURRENT_STREAMS, *_stream("Stream ExternalStream", IN_ORDER))
STREAM_CONTEXTS = (
    *_idle("stream StreamContext", IN_ORDER),
    *_nvtx("range", TRACE),
    *_stream("profiler.profile", TRACE),
    *Family("torch.autograd.profiler", RAISES, "XLA828", "cuda-streams")("emit_nvtx", TRACE),
)
# Calls that only order streams, or mark a range for a profiler.
TOLD = (
    *_idle("set_stream", IN_ORDER),
    *Family("torch.accelerator", RAISES, "XLA828", "cuda-streams")("set_stream", IN_ORDER),
    *_nvtx("mark range_pop range_push", TRACE),
    *_stream("profiler.start profiler.stop", TRACE),
)

_false = Family("torch", WRONG, "XLA704", "cuda-available", does="is False on a TPU")
AVAILABLE = _false(
    "cuda.is_available accelerator.is_available",
    "the script would train on the CPU",
    'shims.device_type() != "cpu"',
)
BFLOAT16 = Family("torch.cuda", WRONG, rule="cuda-available")(
    "is_bf16_supported", "every TPU has bfloat16", does="is False on a TPU"
)
COUNTS = Family("torch", WRONG, "XLA704", "device-count", does="is 0 on a TPU")(
    "cuda.device_count accelerator.device_count",
    "torch_xla.runtime.local_device_count(), the devices of this host, and only inside the worker",
    "shims.local_world_size(), in the worker",
)

_random = Family("torch.cuda", NOTHING, "XLA813", "rng")
_no_random = Family("torch.cuda", RAISES, "XLA813", "rng")
SEEDS = _random(
    "manual_seed manual_seed_all", "torch_xla.manual_seed(seed)", "shims.manual_seed(seed)"
)
RANDOM_SEEDS = (
    *_random("seed seed_all", "torch_xla.manual_seed(seed)", "shims.manual_seed(seed)"),
    *_no_random("initial_seed", "keep the seed in a variable"),
)
STATE_OF_ONE = (
    *_no_random("get_rng_state", f"{XM}.get_rng_state()", "shims.rng_state()"),
    *Family("torch.cuda", WRONG, "XLA813", "rng", does="does nothing on XLA")(
        "set_rng_state", f"{XM}.set_rng_state(state)", "shims.set_rng_state(state)"
    ),
)
STATE_OF_ALL = (
    *_random(
        "default_generators",
        "torch_xla.manual_seed",
        "shims.manual_seed",
        does="is empty on XLA",
    ),
    *_random(
        "get_rng_state_all",
        f"{XM}.get_rng_state()",
        "shims.rng_state(), of this replica",
        does="is empty on XLA",
    ),
    *_random(
        "set_rng_state_all",
        f"{XM}.set_rng_state(state)",
        "shims.set_rng_state(state), of this replica",
    ),
)

# Types of CUDA tensors, by the dtypes of the tensors that they make.
TYPES = {
    "torch.cuda.BFloat16Tensor": "bfloat16",
    "torch.cuda.BoolTensor": "bool",
    "torch.cuda.ByteTensor": "uint8",
    "torch.cuda.CharTensor": "int8",
    "torch.cuda.DoubleTensor": "float64",
    "torch.cuda.FloatTensor": "float32",
    "torch.cuda.HalfTensor": "float16",
    "torch.cuda.IntTensor": "int32",
    "torch.cuda.LongTensor": "int64",
    "torch.cuda.ShortTensor": "int16",
}
AUTOCAST = Family("torch.cuda.amp", WRONG, rule="autocast", does="silently runs fp32 on XLA")(
    "autocast", "torch.autocast('xla', dtype=torch.bfloat16)", "shims.autocast()"
)
SCALERS = Family("torch.cuda.amp", OnXla.CALLED, "XLA804", "grad-scaler")(
    "GradScaler",
    "bfloat16 needs no scaler, remove it",
    "shims.grad_scaler()",
    does="stays enabled with torch_xla, and each step waits to read a value from the device",
)

_gpu = Family("torch.cuda", RAISES, CALLS)
TORCH_CUDA = (
    *Family("torch", WRONG)(
        "cuda",
        "remove it, or use its counterpart in torch_xla",
        'below `if shims.device_type() == "cuda":`',
        does="has no meaning on XLA",
    ),
    *Family("torch", WRONG)(
        "accelerator",
        "remove it, or use its counterpart in torch_xla",
        "shims.device(), shims.synchronize()",
        does="does not know XLA devices",
    ),
    *Family("torch.cuda", WRONG)(
        "amp",
        "torch.autocast('xla', dtype=torch.bfloat16)",
        "shims.autocast(), shims.grad_scaler()",
        does="silently runs fp32 on XLA",
    ),
    *(*IGNORED, *ASKED, *INITIALIZED),
    *(*SETTERS, *DEVICE_CONTEXTS, *CURRENT, *AVAILABLE, *BFLOAT16, *COUNTS),
    *(*WAITS, *EVENTS, *STREAMS, *STREAM_CONTEXTS, *TOLD),
    *(*SEEDS, *RANDOM_SEEDS, *STATE_OF_ONE, *STATE_OF_ALL),
    *(*AUTOCAST, *SCALERS),
    *(
        CatalogueEntry(
            name, RAISES, f"make it with dtype=torch.{dtype}", code="XLA833", rule="typed-tensors"
        )
        for name, dtype in TYPES.items()
    ),
    *_gpu(
        "CUDAGraph graph make_graphed_callables graph_pool_handle is_current_stream_capturing",
        "XLA compiles the step as a whole, run the function itself",
    ),
    *_gpu("nvtx", TRACE, does="raises with a build of PyTorch for the CPU"),
    *_gpu("nccl", "there is no NCCL, remove it", does="raises with a build of PyTorch for the CPU"),
    *Family("torch.accelerator", WRONG)(
        "current_accelerator", "'xla'", "shims.device()", does="is CUDA, or None, on a TPU"
    ),
    *_gpu("comm", "torch.distributed"),
    *_gpu("cudart current_blas_handle get_stream_from_external", "needs a GPU, remove it"),
    *_gpu("caching_allocator_alloc can_device_access_peer MemPool", "needs a GPU, remove it"),
    *_gpu("get_sync_debug_mode", "needs a GPU, remove it"),
)
