"""Support of XLA for names of torch outside of torch.cuda and torch.distributed (torch_xla 2.9, measured)."""

from __future__ import annotations

from migrate.catalogue.entry import Family, OnXla, launchers

RAISES, WRONG, WORKS, CALLED = OnXla.RAISES, OnXla.WRONG, OnXla.WORKS, OnXla.CALLED

_works = Family("torch", WORKS)
# Applies to the device that they name: the CUDA ones silently compute in float32 on XLA.
TYPED_AUTOCAST = _works("autocast amp.autocast")
CPU_SEEDS = _works("manual_seed random.manual_seed")
DATA_LOADERS = _works("utils.data.DataLoader")
SAMPLERS = _works("utils.data.DistributedSampler")
CLIPS = _works("nn.utils.clip_grad_norm_ nn.utils.clip_grad_value_ nn.utils.clip_grad_norm")
# These take `foreach`, which torch does not implement for XLA tensors.
NORMS = _works("nn.utils.get_total_norm nn.utils.clip_grads_with_norm_")
TYPED_SCALERS = Family("torch", CALLED, "XLA804", "grad-scaler")(
    "GradScaler amp.GradScaler",
    "remove it",
    "shims.grad_scaler()",
    does="bfloat16 needs no scaler",
)
DATA_PARALLEL = Family("torch.nn", WRONG, "XLA815")(
    "DataParallel parallel.DataParallel parallel.data_parallel",
    "DistributedDataParallel",
    "shims.ddp",
    does="uses one device on XLA",
)
DDP = Family("torch.nn.parallel", CALLED, rule="ddp", stands=True)(
    "DistributedDataParallel",
    "see that it gets no device_ids",
    "shims.ddp",
    does="is told CUDA devices where it is called",
)
SYNC_BATCH_NORM = Family("torch.nn", RAISES, "XLA809", "sync-batch-norm")(
    "SyncBatchNorm",
    "shims.batch_norm.SyncBatchNorm, or torch_xla.core.functions.SyncBatchNorm",
    "shims.sync_batch_norm(model), or shims.batch_norm.SyncBatchNorm",
)

SPAWN = launchers("torch.multiprocessing", "spawn start_processes")
# Measured: a ValueError, also without torch.compile; a mask of blocks does not lower.
_flex = Family("torch.nn.attention.flex_attention", RAISES, "XLA413")
FLEX_ATTENTION = (
    *_flex(
        "flex_attention",
        "torch.nn.functional.scaled_dot_product_attention, with is_causal=True or attn_mask= in place of "
        "score_mod= and block_mask=",
        does="takes tensors of CUDA, the CPU and HPUs only, compiled or not: a ValueError on XLA",
    ),
    *_flex(
        "create_block_mask create_nested_block_mask create_mask",
        "a mask of bools for torch.nn.functional.scaled_dot_product_attention, as "
        "torch.ones(n, n, dtype=torch.bool).tril()",
        does="makes the mask on CUDA, and raises for device='xla'",
    ),
)
# Measured: without torch.compile none of them counts anything.
COMPILATION_COUNTS = Family("torch._dynamo", WRONG)(
    "utils.get_compilation_metrics",
    "torch_xla.debug.metrics counts its compilations; take out what asks for those of torch.compile",
    does="stays empty, as XLA compiles without torch.compile",
)
# Measured: no tensor is sparse on XLA, and this optimizer refuses dense gradients.
SPARSE_OPTIMIZERS = Family("torch.optim", RAISES, "XLA606")(
    "SparseAdam",
    "torch.optim.Adam, with sparse=True left out of the embedding",
    does="takes sparse gradients only, which XLA has not",
)
# Measured: none of them takes tensors of XLA; `logdet` and `slogdet` raise in the backward pass.
_unsupported = Family("torch", RAISES, "XLA882")
UNSUPPORTED_TENSORS = (
    *_unsupported(
        "nested.nested_tensor nested.as_nested_tensor nested.nested_tensor_from_jagged",
        "pad the sequences, and pass a mask",
        does="takes no tensors of XLA",
    ),
    *_unsupported(
        "utils.dlpack.to_dlpack utils.dlpack.from_dlpack to_dlpack from_dlpack",
        "x.cpu() first, which copies",
        does="DLPack knows no XLA, and raises",
    ),
    *_unsupported(
        "Tensor.refine_names Tensor.align_to",
        "leave the names out",
        does="named dimensions raise on XLA",
    ),
    *_unsupported(
        "logdet slogdet linalg.slogdet",
        "torch.logdet(x.cpu()).to(x.device), or the diagonal of a Cholesky factor",
        does="its gradient raises on XLA",
    ),
    *_unsupported(
        "_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_",
        "write the update with torch._foreach_mul_, torch._foreach_addcmul_ and the like",
        does="raises on XLA",
    ),
    *_unsupported(
        "_grouped_mm _scaled_grouped_mm nn.functional.grouped_mm",
        "a loop of torch.matmul over groups of one size, or torch.bmm",
        does="ends the process on XLA (a segmentation fault)",
    ),
)

_checkpoint = Family("torch.utils", RAISES, "XLA808", "activation-checkpointing")
_script = Family("torch.jit", WORKS, "XLA709")
TORCH_OTHER = (
    *(*TYPED_AUTOCAST, *TYPED_SCALERS, *CPU_SEEDS, *DATA_LOADERS, *SAMPLERS, *CLIPS, *NORMS),
    *(*DATA_PARALLEL, *DDP, *SYNC_BATCH_NORM, *SPAWN),
    *Family("torch.multiprocessing", WRONG)(
        "Process",
        "replicas are started by torch_xla.launch",
        "replicas are started by shims.launch",
        does="starts a process that is no replica",
    ),
    *Family("torch", RAISES, does="moves to CUDA")(
        "Tensor.cuda nn.Module.cuda", ".to('xla')", ".to(shims.device())"
    ),
    *Family("torch", RAISES, rule="compile")(
        "compile",
        "drop it, or backend='openxla'",
        "shims.compile",
        does="its default backend raises on XLA",
    ),
    *COMPILATION_COUNTS,
    *FLEX_ATTENTION,
    *SPARSE_OPTIMIZERS,
    *UNSUPPORTED_TENSORS,
    *Family("torch.profiler", WRONG)(
        "ProfilerActivity.CUDA", "torch_xla.debug.profiler", does="records nothing on a TPU"
    ),
    *Family("torch", CALLED, rule="save")(
        "save",
        "torch_xla.core.xla_model.save(obj, path) on all ranks, outside of a rank guard",
        "shims.save(obj, path) on all ranks, outside of a rank guard",
        does="waits for the device on one rank, or writes what needs torch_xla to be read",
    ),
    *Family("torch.utils", RAISES)(
        "checkpoint", "torch_xla.utils.checkpoint", "shims.checkpoint_activations"
    ),
    *_checkpoint(
        "checkpoint.checkpoint checkpoint.checkpoint_sequential",
        "torch_xla.utils.checkpoint.checkpoint",
        "shims.checkpoint_activations",
    ),
    *_script("script script_method", "leave it out", does="brings nothing on XLA, and hides syncs"),
    *_script("trace fuser", "leave it out", does="brings nothing on XLA"),
    *Family("torch", WORKS, "XLA503")(
        "complex128 cdouble", "complex64, or two real tensors", does="float64 twice over"
    ),
    *Family("jax.lax", WORKS, "XLA826")(
        "approx_max_k approx_min_k",
        "jax.lax.top_k, or measure the recall",
        does="exact on a CPU, on a TPU it may miss some of the k",
    ),
)
