"""What of CUDA and of torch.distributed is left when the rules have had their say.

Nothing passes unaccounted: a construct that no rule handles, and that is not known to work on XLA as it
stands, is a finding with what to do by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.reading.replicas.launch import INIT
from migrate.reading.replicas.ranks import SPAWN
from migrate.reading.tree.tree import code, keyword, string_value
from migrate.reading.values.collectives import makes_gloo_group
from migrate.reading.values.devices import names_cuda
from migrate.reading.values.environment import CALLS
from migrate.reading.values.words import DDP
from migrate.rewrite.rule import Finding
from migrate.rewrite.rules.models.comm_hooks import HOOKS, is_registered
from migrate.rewrite.rules.precision.grad_scaler import SCALERS
from migrate.rewrite.styles.advice import BACKEND, DEVICE, PORTABLE_ADVICE
from migrate.rewrite.styles.cuda_only import HARMLESS
from migrate.rewrite.workspace import Workspace

NAME = "unhandled"

# Work on the XLA backend as they stand (torch_xla 2.9, measured on simulated replicas).
WORKS = frozenset(
    f"torch.distributed.{name}"
    for name in (
        "Backend",
        "GroupMember.WORLD",
        "ProcessGroup",
        "Work",
        "_all_gather_base",
        "_reduce_scatter_base",
        "all_gather",
        "all_gather_into_tensor",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "destroy_process_group",
        "elastic.multiprocessing.errors.record",
        "gather",
        "get_backend",
        "get_debug_level",
        "get_global_rank",
        "get_group_rank",
        "get_process_group_ranks",
        "get_rank",
        "get_world_size",
        "group.WORLD",
        "is_available",
        "is_gloo_available",
        "is_initialized",
        "is_mpi_available",
        "is_torchelastic_launched",
        "nn.all_gather",
        "nn.all_reduce",
        "nn.functional.all_gather",
        "nn.functional.all_reduce",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "set_debug_level",
        "ReduceOp.BAND",
        "ReduceOp.BOR",
        "ReduceOp.MAX",
        "ReduceOp.MIN",
        "ReduceOp.PRODUCT",
        "ReduceOp.SUM",
        # The rule reduce-op speaks of the old name.
        "reduce_op.MAX",
        "reduce_op.MIN",
        "reduce_op.PRODUCT",
        "reduce_op.SUM",
    )
)

# Their rules speak of every call; what is left are other uses, as in `wrap = DDP`.
SPOKEN_FOR = DDP | INIT | SCALERS | SPAWN | {"torch.distributed.new_group", "torch.save"}

DATA_PARALLEL = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel")

# The longest prefix that fits a name says what to do by hand.
ADVICE = {
    "apex": "apex needs CUDA: use torch.autocast('xla', dtype=torch.bfloat16) and plain DDP",
    "torch.accelerator": "does not know XLA devices: remove it, or use its counterpart in torch_xla",
    "torch.accelerator.device_count": (
        "0 on a TPU: torch_xla.runtime.local_device_count(), the devices of this host, and only "
        "inside the worker"
    ),
    "torch.cuda": "has no meaning on XLA: remove it, or use its counterpart in torch_xla",
    "torch.cuda.amp": "silently runs fp32 on XLA: torch.autocast('xla', dtype=torch.bfloat16)",
    "torch.cuda.amp.GradScaler": "bf16 on a TPU needs no scaler: remove it",
    "torch.amp.GradScaler": "bf16 on a TPU needs no scaler: remove it",
    "torch.cuda.device_count": (
        "0 on a TPU: torch_xla.runtime.local_device_count(), the devices of this host, and only "
        "inside the worker"
    ),
    "torch.cuda.CUDAGraph": "XLA compiles the step as a whole: call the function itself",
    "torch.cuda.graph": "XLA compiles the step as a whole: run the block itself",
    "torch.cuda.make_graphed_callables": "XLA compiles the step as a whole: call the function itself",
    "torch.cuda.is_available": "is False on a TPU: the script would silently train on the CPU",
    "torch.cuda.manual_seed": "torch_xla.manual_seed(seed)",
    "torch.cuda.manual_seed_all": "torch_xla.manual_seed(seed)",
    "torch.cuda.set_device": "remove it: a replica sees one device",
    "torch.cuda.synchronize": "torch_xla.sync(wait=True)",
    "torch.Tensor.cuda": "moves to CUDA: .to('xla')",
    "torch.compile": "its default backend raises on XLA: drop it, or backend='openxla'",
    "torch.distributed": "not known to work on the XLA backend: see torch_xla's documentation",
    HOOKS: "part of a communication hook: drop it, the gradients of DDP are reduced in the graph",
    "torch.distributed.Backend.GLOO": "the backend on XLA is 'xla'",
    "torch.distributed.Backend.NCCL": "the backend on XLA is 'xla'",
    "torch.distributed.ReduceOp.AVG": "raises on XLA: SUM, then divide by the world size",
    "torch.distributed.all_gather_object": "raises on XLA: use a gloo group",
    "torch.distributed.barrier": "does nothing on XLA: torch_xla.core.xla_model.rendezvous(tag)",
    "torch.distributed.init_process_group": "the backend on XLA is 'xla', the address 'xla://'",
    "torch.distributed.broadcast_object_list": "raises on XLA: use a gloo group",
    "torch.distributed.fsdp": "of torch's FSDP, which XLA has not: see torch_xla.distributed.fsdp",
    "torch.distributed.get_node_local_rank": (
        "needs LOCAL_RANK, which torch_xla.launch does not set: torch_xla.runtime.local_ordinal()"
    ),
    "torch.distributed.is_nccl_available": "says nothing of XLA, whose backend is 'xla'",
    "torch.distributed.rpc": "RPC has no equivalent on XLA",
    "torch.multiprocessing.Process": "replicas are started by torch_xla.launch",
    "torch.multiprocessing.spawn": "replicas are started by torch_xla.launch",
    "torch.nn.Module.cuda": "moves to CUDA: .to('xla')",
    "torch.nn.DataParallel": "does not parallelise on XLA: use DistributedDataParallel",
    "torch.nn.SyncBatchNorm": "shims.batch_norm.SyncBatchNorm",
    "torch.nn.parallel.DataParallel": "does not parallelise on XLA: use DistributedDataParallel",
    "torch.nn.parallel.DistributedDataParallel": "see that it gets no device_ids",
    "torch.profiler.ProfilerActivity.CUDA": "records nothing on a TPU: torch_xla.debug.profiler",
    "torch.save": "torch_xla.core.xla_model.save(obj, path) on all ranks, outside of a rank guard",
    "torch.utils.checkpoint": "torch_xla.utils.checkpoint",
}

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "it has no effect on a TPU",
}

SPOKEN_OF = (
    cst.Attribute,
    cst.BinaryOperation,
    cst.Call,
    cst.ConcatenatedString,
    cst.FormattedString,
    cst.Name,
    cst.SimpleString,
)


def remaining(context: Workspace, handled: frozenset[int]) -> Iterator[Finding]:
    """Yield a finding for each construct of CUDA or torch.distributed that is left.

    Args:
        context: the script.
        handled: ids of the nodes that an edit or a rule's finding speaks of.
    """
    for node in context.all_of(*SPOKEN_OF):
        if id(node) in handled or id(node) in context.for_cuda:
            continue
        message = _advice(node, context)
        if message is not None:
            yield Finding(NAME, node, message)


def _advice(node: cst.CSTNode, context: Workspace) -> str | None:
    if isinstance(node, cst.Name | cst.Attribute):
        return _advice_on_name(node, context)
    if isinstance(node, cst.SimpleString):
        value = string_value(node)
        if value == "nccl":
            return BACKEND if context.portable else "'nccl': the backend on XLA is 'xla'"
        if value in ENVIRONMENT and not context.portable and _is_environment_key(node, context):
            return f"{value}: {ENVIRONMENT[value]}"
    if names_cuda(node):
        said = DEVICE if context.portable else "the device on XLA is 'xla'"
        return f"{code(node)}: {said}"
    return None


def _advice_on_name(node: cst.Name | cst.Attribute, context: Workspace) -> str | None:
    name = context.qualified_name(node)
    if name is None:
        return None
    above = context.parent(node)
    if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.AsName):
        return None  # a part of a longer name, or the import itself
    name = name.replace(".distributed_c10d.", ".", 1)
    if context.portable and name in HARMLESS:
        return None
    if name in WORKS or (name in SPOKEN_FOR and _is_called_or_asked(node, context)):
        return None
    if name in DATA_PARALLEL and _is_asked_for(node, context):
        return None
    if name.startswith(HOOKS) and is_registered(node, context):
        return None  # the rule comm-hooks speaks of the registration
    if isinstance(above, cst.Call) and _is_over_gloo(above, context):
        return None
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        advice = PORTABLE_ADVICE.get(prefix) if context.portable else None
        advice = advice or ADVICE.get(prefix)
        if advice is not None:
            return f"{name}: {advice}"
    return None


def _is_called_or_asked(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is what a call calls, an argument of isinstance, or in an annotation."""
    above = context.parent(node)
    if any(isinstance(a, cst.Annotation) for a in context.ancestors(node)):
        return True
    if isinstance(above, cst.IfExp) and node is not above.test:
        node, above = above, context.parent(above)  # `(DDP if distributed else Plain)(model)`
    if isinstance(above, cst.Call):
        return above.func is node
    return _is_asked_for(node, context)


def _is_asked_for(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is what isinstance asks for, alone or among others."""
    above = context.parent(node)
    if isinstance(above, cst.Element):
        above = context.parent(context.parent(above))
    call = context.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and code(call.func) == "isinstance"


def _is_over_gloo(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` is given a group over gloo, on which all collectives work."""
    group = keyword(call, "group")
    return group is not None and makes_gloo_group(group.value, context)


def _is_environment_key(node: cst.SimpleString, context: Workspace) -> bool:
    for above in context.ancestors(node):
        if isinstance(above, cst.Subscript):
            return context.qualified_name(above.value) == "os.environ"
        if isinstance(above, cst.Call):
            name = context.qualified_name(above.func) or ""
            return name in CALLS or name.startswith("os.environ.")
        if isinstance(above, cst.BaseStatement):
            return False
    return False
