"""Batch norm over all replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.prescan import spelled
from migrate.catalogue.target import BOTH, TPU
from migrate.catalogue.torch_other import SYNC_BATCH_NORM
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Safety,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

CLASSES = names(*SYNC_BATCH_NORM)
CONVERSIONS = frozenset(f"{name}.convert_sync_batchnorm" for name in CLASSES) | {
    "apex.parallel.convert_syncbn_model"
}
PARAMETERS = ("num_features", "eps", "momentum", "affine", "track_running_stats", "process_group")


class SyncBatchNorm(Rule):
    """Use a SyncBatchNorm that runs on XLA.

    **What it does.** `nn.SyncBatchNorm.convert_sync_batchnorm(model)` becomes
    `shims.sync_batch_norm(model)`, and the class becomes `shims.batch_norm.SyncBatchNorm`; so does
    apex's `convert_syncbn_model`. torch's class raises in the first forward off the GPU.
    `shims` comes with this toolkit: install it beside the script.

    `torch_xla.core.functions.SyncBatchNorm` is not used: it has no conversion and no
    `num_batches_tracked`, its running variance is the biased one, its running statistics keep the
    autograd graph of every step alive, and it normalizes channel by channel in a Python loop.

    **Left alone.** `isinstance(m, nn.SyncBatchNorm)`, and a class that is only given attributes, as by
    `for c in (nn.Linear, nn.SyncBatchNorm): setattr(c, …)`, in a project that makes no such layer.

    **Reported.** A conversion or a layer with a process group of its own.

    Source: measured on two simulated replicas of torch_xla 2.9 against one batch norm over the joint
    batch: `shims` agrees to 5e-7 in outputs and gradients and exactly in the running variance,
    torch_xla's running variance is off by 4e-3.
    """

    name = "sync-batch-norm"
    code = "XLA809"
    targets = BOTH
    on_torch_tpu = (
        "torch's class raises in training with more than one rank: `aten::batch_norm_stats` is not "
        "implemented. The class of `shims` also updates the running statistics, which torch_tpu does not."
    )
    beside_frameworks = True
    safety = Safety.UNSAFE
    condition = (
        "the original shares its statistics among all ranks, with no `process_group` of fewer"
    )
    nodes = (cst.Call, cst.Attribute, cst.Name)
    words = spelled(CLASSES | CONVERSIONS)
    of_names = True
    examples = (
        rewritten(
            """
            from torch import nn


            def build(model):
                model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
                return model, [m for m in model.modules() if isinstance(m, nn.SyncBatchNorm)]
            """,
            """
            import shims
            import shims.batch_norm


            def build(model):
                model = shims.sync_batch_norm(model)
                return model, [m for m in model.modules() if isinstance(m, shims.batch_norm.SyncBatchNorm)]
            """,
        ),
        rewritten(
            """
            import torch


            def build(model):
                return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
            """,
            """
            import shims


            def build(model):
                return shims.sync_batch_norm(model)
            """,
            target=TPU,
        ),
        left_alone(
            """
            import torch
            from norms import SyncBatchNorm

            layers = [torch.nn.BatchNorm2d(3), SyncBatchNorm(3)]
            """
        ),
        left_alone(
            """
            from torch import nn


            def reset(model):
                for m in model.modules():
                    if isinstance(m, (nn.LayerNorm, nn.SyncBatchNorm)):
                        m.weight.data.fill_(1.0)
            """
        ),
        reported(
            """
            import torch


            def build(model, group):
                return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
            """,
            "a group of its own",
        ),
        checked(
            """
            import torch


            def convert(model):
                return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # XLA809
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one conversion, or of one mention of the class."""
        if isinstance(node, cst.Call):
            yield from self._call(node, context)
            return
        assert isinstance(node, cst.Name | cst.Attribute)
        above = context.parent(node)
        if context.qualified_name(node) not in CLASSES:
            return
        if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom):
            return
        if isinstance(above, cst.Call) and above.func is node and _grouped(above):
            return
        makes_nothing = context.asks_for_type(node) or context.sets_on_class(node)
        if not context.calls.norms_over_replicas and makes_nothing:
            return  # there is no such layer
        module = context.imports.require("shims.batch_norm")
        ours = cst.parse_expression(f"{module}.SyncBatchNorm")
        message = f"{code(node)} → a batch norm over all replicas that runs on XLA"
        yield self.edit(node, lambda _: ours, message, consumes=[node])

    def _call(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        name = context.qualified_name(call.func)
        if name in CLASSES and _grouped(call):
            yield from self.report(
                call,
                f"{code(call)}: a group of its own has no equivalent, the statistics are global",
            )
        if name not in CONVERSIONS:
            return
        plain = len(call.args) == 1 and not call.args[0].star
        if not plain:
            yield from self.report(
                call,
                f"{code(call)}: a group of its own has no equivalent, the statistics are global",
            )
            return
        function = cst.parse_expression(f"{context.imports.require('shims')}.sync_batch_norm")

        def replace(updated: cst.Call) -> cst.Call:
            arg = updated.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
            return updated.with_changes(func=function, args=[arg])

        message = f"{code(call.func)} → a batch norm over all replicas that runs on XLA"
        yield self.edit(call, replace, message, consumes=[call.func])


def _grouped(call: cst.Call) -> bool:
    """Whether the layer gets a process group, or arguments that do not show whether it does."""
    bound = bind(call, PARAMETERS)
    if bound is None:
        return True
    group = bound.get("process_group")
    return group is not None and code(group.value) != "None"
