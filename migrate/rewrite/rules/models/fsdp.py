"""FullyShardedDataParallel of torch (FSDP1)."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import torch_distributed
from migrate.catalogue.entry import names
from migrate.catalogue.prescan import spelled
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Safety,
    Stage,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

FSDP = names(*torch_distributed.FSDP)
XLA = "torch_xla.distributed.fsdp"
PARAMETERS = (
    "module",
    "process_group",
    "sharding_strategy",
    "cpu_offload",
    "auto_wrap_policy",
    "backward_prefetch",
    "mixed_precision",
    "ignored_modules",
    "param_init_fn",
    "device_id",
    "sync_module_states",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "ignored_states",
    "device_mesh",
)
# When and where work is done, not what is computed.
DROPPED = frozenset(
    {"backward_prefetch", "device_id", "forward_prefetch", "limit_all_gathers", "use_orig_params"}
)
STRATEGIES = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}


class Fsdp(Rule):
    """Shard a model with XlaFullyShardedDataParallel.

    **What it does.** `FSDP(model, device_id=…)` becomes `XlaFullyShardedDataParallel(model)` where its
    arguments say no more than that; `ShardingStrategy.SHARD_GRAD_OP` becomes
    `reshard_after_forward=False`. The optimizer's own `step` is right: gradients are reduced in the
    backward.

    **Checkpoints.** `torch_xla.distributed.fsdp.consolidate_sharded_model_checkpoints` joins the shards;
    `state_dict_type` has no equivalent. The same seed or checkpoint gives every replica the same weights.

    **Reported.** Other arguments, with their counterparts: a wrapping policy has to come from
    `torch_xla.distributed.fsdp.wrap`, `mixed_precision` is `compute_dtype=torch.bfloat16`. A script that
    uses more of `torch.distributed.fsdp` than the class and its strategy is reported and left whole.
    FSDP2 is reported by `frameworks`.

    Source: torch_xla 2.9 (measured on two simulated replicas: the losses of four AdamW steps are those
    of DistributedDataParallel, with both strategies).
    """

    name = "fsdp"
    code = "XLA816"
    beside_frameworks = True
    stage = Stage.FRAMEWORK
    safety = Safety.UNSAFE
    condition = (
        "every replica starts with the same weights, and nothing needs checkpoints in one file"
    )
    nodes = (cst.Call,)
    words = spelled(FSDP)
    examples = (
        rewritten(
            """
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp import ShardingStrategy


            def shard(net, rank):
                net = FSDP(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=rank)
                return net
            """,
            """
            import torch_xla.distributed.fsdp


            def shard(net, rank):
                net = torch_xla.distributed.fsdp.XlaFullyShardedDataParallel(net, reshard_after_forward=False)
                return net
            """,
        ),
        left_alone(
            """
            from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP

            model = FSDP(model)
            """
        ),
        reported(
            """
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            model = FSDP(model, auto_wrap_policy=policy)
            """,
            "torch_xla.distributed.fsdp.wrap",
        ),
        checked(
            """
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


            def wrap(model):
                return FSDP(model)  # XLA816
            """
        ),
        checked(
            """
            from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP


            def wrap(model):
                return FSDP(model)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one construction, or what to do by hand."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in FSDP:
            return
        if context.portable:
            message = (
                f"{code(node.func)}: shims does not shard; on XLA it is {XLA}."
                "XlaFullyShardedDataParallel (style native), or shims.ddp where the model fits"
            )
            yield from self.report(node, message)
            return
        bound = bind(node, PARAMETERS)
        strategy = bound.get("sharding_strategy") if bound else None
        reshard = _reshards(strategy)
        known = DROPPED | {"module", "sharding_strategy"}
        others = [name for name in bound or () if name not in known]
        others += _rest_of_fsdp(context)
        if bound is None or "module" not in bound or others or reshard is None:
            what = ", ".join(others) or "these arguments"
            message = (
                f"FullyShardedDataParallel with {what}: {XLA}.XlaFullyShardedDataParallel, policies from "
                f"{XLA}.wrap, compute_dtype=torch.bfloat16 for mixed_precision"
            )
            yield from self.report(node, message)
            return
        function = cst.parse_expression(
            f"{context.imports.require(XLA)}.XlaFullyShardedDataParallel"
        )
        at = node.args.index(bound["module"])

        def replace(updated: cst.Call) -> cst.Call:
            args = [updated.args[at]]
            if not reshard:
                args.append(keyword_arg("reshard_after_forward", cst.Name("False")))
            return with_args(updated, args).with_changes(func=function)

        gone = [arg for name, arg in bound.items() if name != "module"]
        message = f"{code(node.func)} → XlaFullyShardedDataParallel"
        yield self.edit(node, replace, message, consumes=[node.func, *gone])


def _reshards(strategy: cst.Arg | None) -> bool | None:
    """Return whether parameters are sharded again after the forward, or None if it is not shown."""
    if strategy is None:
        return True
    return STRATEGIES.get(code(strategy.value).rsplit(".", 1)[-1])


def _rest_of_fsdp(context: Workspace) -> list[str]:
    """Return what the script uses of `torch.distributed.fsdp` besides the class and its strategy."""
    names = []
    for node in context.all_of(cst.Attribute, cst.Name):
        above = context.parent(node)
        if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom):
            continue
        name = context.qualified_name(node) or ""
        option = ".ShardingStrategy." in name or ".BackwardPrefetch." in name
        if name.startswith("torch.distributed.fsdp.") and name not in FSDP and not option:
            names.append(name.rsplit(".", 1)[-1])
    return names[:1]
