"""Support of XLA for the names of torch.distributed, measured on two simulated replicas (torch_xla 2.9)."""

from __future__ import annotations

from migrate.catalogue.entry import CatalogueEntry, Family, OnXla, names

RAISES, WRONG, WORKS, CALLED = OnXla.RAISES, OnXla.WRONG, OnXla.WORKS, OnXla.CALLED

MODULE = "torch.distributed"
OF_GLOO = 'a gloo group beside, dist.new_group(backend="gloo")'
RENDEZVOUS = "torch_xla.core.xla_model.rendezvous(tag)"
SHARDED = "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel"
HOOKS = f"{MODULE}.algorithms.ddp_comm_hooks"
REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR")

# Joins the process group.
INIT = Family(MODULE, CALLED, rule="init-process-group")(
    "init_process_group",
    "the backend on XLA is 'xla', the address 'xla://'",
    "shims.init_distributed()",
    does="needs another backend",
)
# Makes the process group as well, if the script has not.
MESHES = frozenset(
    f"{MODULE}.{place}init_device_mesh"
    for place in ("", "device_mesh.", "tensor.", "_tensor.", "_tensor.device_mesh.")
)
# Calls by which a process joins the process group.
JOINS = names(*INIT) | MESHES
AVERAGE = Family(MODULE, RAISES, "XLA810", "average")(
    "ReduceOp.AVG", "SUM, then divide by the world size", 'op="mean" of the collective in shims'
)
_reduction = Family(MODULE, RAISES, "XLA810", "reduce-op")
NO_REDUCTION = (
    *_reduction("ReduceOp.BXOR", "gather the values and reduce them"),
    *_reduction("ReduceOp.PREMUL_SUM", "multiply, then SUM"),
)
FSDP = Family(MODULE, RAISES, "XLA816", "fsdp")("fsdp.FullyShardedDataParallel", SHARDED)
SHARDED_SCALER = Family(f"{MODULE}.fsdp", CALLED, "XLA804", "grad-scaler")(
    "sharded_grad_scaler.ShardedGradScaler",
    "bfloat16 needs no scaler, remove it",
    "shims.grad_scaler()",
    does="needs CUDA",
)

_works = Family(MODULE, WORKS)
_wrong = Family(MODULE, WRONG)
_raises = Family(MODULE, RAISES)
_object = Family(MODULE, RAISES, "XLA811", "object-collectives")
_framework = Family(MODULE, RAISES, rule="frameworks")
TORCH_DISTRIBUTED = (
    CatalogueEntry(
        MODULE, WRONG, "see torch_xla's documentation", does="not known to work on the XLA backend"
    ),
    *_works("Backend GroupMember.WORLD ProcessGroup Work group.WORLD"),
    *_works("_all_gather_base _reduce_scatter_base all_gather all_gather_into_tensor all_reduce"),
    *_works("all_to_all all_to_all_single broadcast gather reduce reduce_scatter"),
    *_works("reduce_scatter_tensor scatter nn.all_gather nn.all_reduce"),
    *_works("nn.functional.all_gather nn.functional.all_reduce"),
    *_works("destroy_process_group elastic.multiprocessing.errors.record supports_complex"),
    *_works("get_backend get_backend_config get_debug_level set_debug_level get_rank"),
    *_works("get_world_size get_global_rank get_group_rank get_process_group_ranks"),
    *_works("is_available is_initialized is_torchelastic_launched is_gloo_available"),
    *_works("is_mpi_available is_ucc_available is_xccl_available"),
    # The rule reduce-op handles the old name, which torch 2.9 still has.
    *(entry for name in REDUCTIONS for entry in _works(f"ReduceOp.{name} reduce_op.{name}")),
    *Family(MODULE, CALLED, stands=True)(
        "new_group", does="see that its backend is 'xla' or 'gloo'"
    ),
    *(*INIT, *AVERAGE, *NO_REDUCTION, *FSDP, *SHARDED_SCALER),
    *Family(MODULE, WRONG, "XLA306", "barrier", does="does nothing on XLA")(
        "barrier", RENDEZVOUS, "shims.barrier()"
    ),
    *Family(MODULE, RAISES, "XLA306", "barrier")(
        "monitored_barrier", RENDEZVOUS, "shims.barrier()"
    ),
    *_object("all_gather_object", OF_GLOO, "shims.all_gather_object"),
    *_object("broadcast_object_list", OF_GLOO, "shims.broadcast_object_list"),
    *_object("gather_object", OF_GLOO, "shims.gather_object"),
    *_object("scatter_object_list", OF_GLOO, "shims.scatter_object_list"),
    *_object("send_object_list recv_object_list", OF_GLOO),
    *Family(MODULE, WRONG, "XLA207", "send-recv")(
        "send recv isend irecv batch_isend_irecv",
        "use a collective",
        does="ends the graph at every call",
    ),
    # Measured with llm.c: each replica steps the weights of its own shard.
    *_wrong(
        "optim.ZeroRedundancyOptimizer",
        "torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer, which averages the "
        "gradients itself, or the optimizer that it shards",
        does="each replica executes other graphs, and waits for the others",
    ),
    *_wrong(
        "Backend.GLOO Backend.NCCL",
        portable="shims.backend().group_backend",
        does="the backend on XLA is 'xla'",
    ),
    *_wrong("is_nccl_available", does="says nothing of XLA, whose backend is 'xla'"),
    *_raises(
        "get_node_local_rank",
        "torch_xla.runtime.local_ordinal()",
        "shims.local_rank()",
        does="needs LOCAL_RANK, which torch_xla.launch does not set",
    ),
    *_raises("rpc", does="RPC has no equivalent on XLA"),
    *Family(MODULE, RAISES, "XLA816")(
        "fsdp", "see torch_xla.distributed.fsdp", does="of torch's FSDP, which XLA has not"
    ),
    *Family(MODULE, RAISES, "XLA816", "frameworks")(
        "fsdp.fully_shard _composable.fsdp",
        f"{SHARDED}, or SPMD with torch_xla.distributed.spmd",
        does="FSDP2 does not run on XLA tensors",
    ),
    *_framework("pipelining", does="pipeline parallelism of torch has no equivalent on XLA"),
    *_framework(
        "tensor", "torch_xla.distributed.spmd.mark_sharding", does="DTensor on XLA is SPMD"
    ),
    CatalogueEntry(
        HOOKS,
        WRONG,
        "drop it, the gradients of DDP are reduced in the graph",
        does="part of a communication hook",
        rule="comm-hooks",
    ),
)
