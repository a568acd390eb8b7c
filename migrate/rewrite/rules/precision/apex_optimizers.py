"""apex's optimizers, layers and data parallel wrapper: those that torch has too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import names, public
from migrate.catalogue.libraries import APEX_ALONE
from migrate.catalogue.target import BOTH
from migrate.catalogue.words import words
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

# apex's parameters in their order.
SIGNATURES = {
    "apex.optimizers.FusedAdam": (
        "params lr bias_correction betas eps adam_w_mode weight_decay amsgrad set_grad_none "
        "capturable master_weights"
    ),
    "apex.optimizers.FusedSGD": (
        "params lr momentum dampening weight_decay nesterov wd_after_momentum "
        "materialize_master_grads set_grad_none"
    ),
    "apex.optimizers.FusedAdagrad": "params lr eps weight_decay set_grad_none adagrad_w_mode",
    "apex.normalization.FusedLayerNorm": (
        "normalized_shape eps elementwise_affine memory_efficient"
    ),
    "apex.normalization.FusedRMSNorm": "normalized_shape eps elementwise_affine memory_efficient",
    "apex.parallel.DistributedDataParallel": (
        "module message_size delay_allreduce shared_param allreduce_trigger_params "
        "retain_allreduce_buffers allreduce_always_fp32 num_allreduce_streams "
        "allreduce_communicators gradient_average gradient_predivide_factor "
        "gradient_average_split_factor prof"
    ),
    "apex.normalization.MixedFusedLayerNorm": "normalized_shape eps memory_efficient",
}
TORCH = {
    "apex.optimizers.FusedAdam": "optim.AdamW",
    "apex.optimizers.FusedSGD": "optim.SGD",
    "apex.optimizers.FusedAdagrad": "optim.Adagrad",
    "apex.normalization.FusedLayerNorm": "nn.LayerNorm",
    "apex.normalization.MixedFusedLayerNorm": "nn.LayerNorm",
    "apex.normalization.FusedRMSNorm": "nn.RMSNorm",
    "apex.parallel.DistributedDataParallel": "nn.parallel.DistributedDataParallel",
}
# How the work is done, not what is computed.
DROPPED = words(
    "allreduce_always_fp32 capturable delay_allreduce gradient_average_split_factor "
    "materialize_master_grads memory_efficient message_size num_allreduce_streams prof "
    "retain_allreduce_buffers set_grad_none shared_param"
)
# Accepted with the value that is torch's behavior, then dropped.
FIXED = {
    "bias_correction": "True",
    "master_weights": "False",
    "wd_after_momentum": "False",
    "adagrad_w_mode": "False",
    "gradient_average": "True",
    "gradient_predivide_factor": "1.0",
    "allreduce_trigger_params": "None",
    "allreduce_communicators": "None",
}
NO_COUNTERPART = names(*APEX_ALONE)


class ApexOptimizers(Rule):
    """apex's fused optimizers and layers and its data parallel wrapper become torch's.

    **What it does.** `FusedAdam` becomes `torch.optim.AdamW` (`Adam` with `adam_w_mode=False`) with
    apex's default of no weight decay, `FusedSGD` and `FusedAdagrad` become `SGD` and `Adagrad`,
    `FusedLayerNorm` becomes `torch.nn.LayerNorm`, and `apex.parallel.DistributedDataParallel` torch's.
    Options that say how the work is done (`delay_allreduce`, `set_grad_none`) go.

    **Reported.** An option that changes what is computed and that torch lacks, such as
    `bias_correction=False` or `gradient_average=False`; `FusedLAMB`, `FusedNovoGrad` and `LARC`, with
    what takes their place; calls with `*` or `**` arguments.

    Source: apex's documentation and signatures.
    """

    name = "apex-optimizers"
    code = "XLA420"
    targets = BOTH
    nodes = (cst.Call,)
    words = "apex"
    examples = (
        rewritten(
            """
            from apex.optimizers import FusedAdam, FusedSGD
            from apex.parallel import DistributedDataParallel as DDP


            def build(model, args):
                adam = FusedAdam(model.parameters(), lr=args.lr, set_grad_none=True)
                sgd = FusedSGD(model.parameters(), args.lr, 0.9, weight_decay=1e-4)
                model = DDP(model, delay_allreduce=True)
                return model, adam, sgd
            """,
            """
            import torch


            def build(model, args):
                adam = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
                sgd = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
                model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
                return model, adam, sgd
            """,
        ),
        left_alone(
            """
            from optimizers import FusedAdam

            optimizer = FusedAdam(parameters, adam_w_mode=False)
            """
        ),
        reported(
            """
            from apex.optimizers import FusedLAMB

            optimizer = FusedLAMB(parameters, lr=0.1)
            """,
            "timm.optim.Lamb",
        ),
        reported(
            """
            from apex.parallel import DistributedDataParallel

            model = DistributedDataParallel(model, gradient_average=False)
            """,
            "gradient_average=False",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one construction of a class of apex."""
        assert isinstance(node, cst.Call)
        name = public(context.qualified_name(node.func) or "")
        if name in NO_COUNTERPART and (entry := catalogue.of(name)):
            yield from self.report(node, f"{name}: {entry.says()}", subject=name)
        if name in TORCH:
            yield from self._class(node, name, context)

    def _class(self, call: cst.Call, name: str, context: Workspace) -> Iterator[Edit | RuleFinding]:
        bound = bind(call, SIGNATURES[name].split())
        refused = "arguments that cannot be read" if bound is None else _refused(bound)
        if bound is None or refused:
            yield from self.report(
                call,
                f"{name} with {refused}: torch.{TORCH[name]} has no such option",
                subject=name,
            )
            return
        torch_name = TORCH[name]
        mode = bound.get("adam_w_mode")
        if mode is not None and code(mode.value) in ("False", "0"):
            torch_name = "optim.Adam"
        function = cst.parse_expression(f"{context.imports.require('torch')}.{torch_name}")
        wraps = torch_name.endswith("DistributedDataParallel")
        if wraps and context.portable:
            function = cst.parse_expression(f"{context.imports.require('shims')}.ddp")
        gone_names = DROPPED | FIXED.keys() | {"adam_w_mode"}
        kept = [(n, call.args.index(arg)) for n, arg in bound.items() if n not in gone_names]
        added = []
        if torch_name == "optim.AdamW" and "weight_decay" not in bound:
            added.append(keyword_arg("weight_decay", cst.Float("0.0")))
        if wraps and not context.portable and not context.for_torch_tpu:
            added.append(keyword_arg("gradient_as_bucket_view", cst.Name("True")))

        def replace(updated: cst.Call) -> cst.Call:
            args = []
            for name, index in kept:
                arg = updated.args[index]
                positional = arg.keyword is None and index < 2 and name not in ("eps",)
                args.append(arg if arg.keyword or positional else keyword_arg(name, arg.value))
            return with_args(updated, [*args, *added]).with_changes(func=function)

        gone = [arg for n, arg in bound.items() if n in gone_names]
        message = f"{code(call.func)} → torch.{torch_name}"
        yield self.edit(call, replace, message, consumes=[call.func, *gone])


def _refused(bound: Mapping[str, cst.Arg]) -> str | None:
    """Return the first option that torch lacks and that is not at torch's behavior."""
    for name, arg in bound.items():
        value = code(arg.value)
        if name in FIXED and value != FIXED[name]:
            return f"{name}={value}"
        if name == "adam_w_mode" and value not in ("True", "False", "1", "0"):
            return f"{name}={value}"
    return None
