"""Running statistics of normalization layers, which torch_tpu does not update."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import TPU_ONLY
from migrate.check.common import is_a_type
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts

_NAMES = frozenset(
    {
        *("torch.nn.BatchNorm1d", "torch.nn.BatchNorm2d", "torch.nn.BatchNorm3d"),
        *("torch.nn.LazyBatchNorm1d", "torch.nn.LazyBatchNorm2d", "torch.nn.LazyBatchNorm3d"),
        *("torch.nn.SyncBatchNorm", "torch.nn.SyncBatchNorm.convert_sync_batchnorm"),
        *("torchvision.models.resnet18", "torchvision.models.resnet34"),
        *("torchvision.models.resnet50", "torchvision.models.resnet101"),
        *("torchvision.models.resnet152", "torchvision.models.resnext50_32x4d"),
        *("torchvision.models.resnext101_32x8d", "torchvision.models.wide_resnet50_2"),
        "torchvision.models.wide_resnet101_2",
    }
)
# The class of all batch normalizations: who hooks these layers updates them.
_EVERY = "torch.nn.modules.batchnorm._BatchNorm"
_HOOK = "register_forward_hook"
# Makes layers that update their statistics themselves.
_CONVERSION = "shims.sync_batch_norm"


class RunningStatistics(Hazard):
    """Running statistics of a normalization stay as they are on torch_tpu.

    **Why.** Training normalizes by the batch, and is right. `running_mean` and `running_var` keep their first
    values, 0 and 1, with no error; `num_batches_tracked` counts. Evaluation uses them: a network that has
    learned gives wrong outputs in `eval()`, and so does the checkpoint everywhere else.

    **What to do.** Update them in a forward hook, as below. It equals torch's own statistics (measured: 6e-8
    after three batches). A model that another library makes (torchvision, timm) has such layers without
    naming them: this page finds the names of torchvision's residual networks, and no others.

    Source: torch_tpu 0.2.0 with torch 2.13 (measured on XLA:CPU: BatchNorm, InstanceNorm with
    `track_running_stats`, `torch.nn.functional.batch_norm`).
    """

    code = "XLA897"
    name = "running-statistics"
    severity = Severity.WARNING
    targets = TPU_ONLY
    nodes = (cst.Name, cst.Attribute)
    of_names = True
    words = "BatchNorm|batch_norm|_sync_batchnorm|resne|wide_resnet"
    examples = (
        example(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn
            from torchvision.models import resnet18

            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))  # XLA897
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # XLA897
            other = resnet18()  # XLA897
            """
        ),
        example(
            """
            from torch import nn

            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8))


            def freeze(module):
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch import nn

        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))


        @torch.no_grad()
        def follow(layer, inputs, output):
            if layer.training:
                values = inputs[0].transpose(0, 1).flatten(1)
                layer.running_mean.lerp_(values.mean(1), layer.momentum)
                layer.running_var.lerp_(values.var(1), layer.momentum)


        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.register_forward_hook(follow)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one name, unless the file hooks these layers."""
        name = facts.names.of(node)
        if name in _NAMES and not is_a_type(node, facts) and not _follows(facts):
            yield self.hit(
                node,
                f"{name} leaves its running statistics at 0 and 1 on torch_tpu, with no error, and eval() is "
                "wrong: update running_mean and running_var in a forward hook",
                subject=name,
            )


def _follows(facts: Facts) -> bool:
    """Whether the file gives all batch normalizations a forward hook, or converts them to those of shims."""
    if any(facts.names.of(call.func) == _CONVERSION for call in facts.calls):
        return True
    hooks = any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == _HOOK
        for call in facts.calls
    )
    return hooks and any(
        facts.names.of(argument.value) == _EVERY for call in facts.calls for argument in call.args
    )
