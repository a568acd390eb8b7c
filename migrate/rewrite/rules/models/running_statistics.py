"""Running statistics of normalization layers, which torch_tpu does not update."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.check.hazard import Severity
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword

LAYERS = frozenset(
    f"torch.nn.{lazy}BatchNorm{axes}d" for lazy in ("", "Lazy") for axes in (1, 2, 3)
)
INSTANCES = frozenset(
    f"torch.nn.{lazy}InstanceNorm{axes}d" for lazy in ("", "Lazy") for axes in (1, 2, 3)
)
FUNCTIONS = frozenset({"torch.nn.functional.batch_norm"})
# Libraries whose models may have such layers: where they do not, nothing changes.
MODELS = ("torchvision.models", "timm")
WRONG = "leaves its running statistics at 0 and 1 on torch_tpu, with no error, and eval() is wrong"
OURS = "shims.update_running_statistics"
STATEMENT = (
    "# torch_tpu 0.2 leaves running statistics as they are.\n{shims}.update_running_statistics()"
)
# The class of all batch normalizations: who hooks these layers updates them.
EVERY = "torch.nn.modules.batchnorm._BatchNorm"
HOOK = "register_forward_hook"


class RunningStatistics(Rule):
    """Let batch normalizations update their running statistics on torch_tpu.

    **Why.** Training normalizes by the batch, and is right. `running_mean` and `running_var` keep their first
    values, 0 and 1, with no error; `num_batches_tracked` counts. Evaluation uses them: a network that has
    learned gives wrong outputs in `eval()`, and so does the checkpoint everywhere else.

    **What it does.** A file that makes batch normalizations, or a model of torchvision or timm, gets
    `shims.update_running_statistics()` after its imports: `torch.nn.functional.batch_norm` then updates them
    on a TPU as torch does (6e-8 after three batches). A later torch_tpu that does so itself is left alone.
    `shims` comes with this toolkit: install it beside the script.

    **Left alone.** A file that updates them itself, in a forward hook of all batch normalizations.

    **Reported.** An instance normalization with `track_running_stats`.

    Source: torch_tpu 0.2.0 with torch 2.13 (measured on XLA:CPU: BatchNorm, InstanceNorm with
    `track_running_stats`, `torch.nn.functional.batch_norm`).
    """

    name = "running-statistics"
    code = "XLA897"
    targets = TPU_ONLY
    beside_frameworks = True
    edited = Severity.WARNING
    severity = Severity.WARNING
    nodes = (cst.Module,)
    words = "BatchNorm|InstanceNorm|batch_norm|torchvision|timm"
    examples = (
        rewritten(
            """
            from torch import nn

            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
            """,
            """
            import shims
            from torch import nn

            # torch_tpu 0.2 leaves running statistics as they are.
            shims.update_running_statistics()

            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
            """,
            target=TPU,
        ),
        rewritten(
            """
            from torchvision.models import resnet18


            def build():
                return resnet18(num_classes=10)
            """,
            """
            from torchvision.models import resnet18
            import shims

            # torch_tpu 0.2 leaves running statistics as they are.
            shims.update_running_statistics()


            def build():
                return resnet18(num_classes=10)
            """,
            target=TPU,
        ),
        rewritten(
            """
            import torchvision.models as models


            def build(name):
                return models.__dict__[name]()
            """,
            """
            import torchvision.models as models
            import shims

            # torch_tpu 0.2 leaves running statistics as they are.
            shims.update_running_statistics()


            def build(name):
                return models.__dict__[name]()
            """,
            target=TPU,
        ),
        left_alone(
            """
            from torch import nn

            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8))


            def freeze(module):
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
            """,
            target=TPU,
        ),
        left_alone(
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
            """,
            target=TPU,
        ),
        reported(
            """
            from torch import nn

            norm = nn.InstanceNorm2d(8, track_running_stats=True)
            """,
            "leaves its running statistics at 0 and 1",
            target=TPU,
        ),
        checked(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn

            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))  # XLA897
            other = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8))
            """,
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one file at the first use that it is for, and findings."""
        for call in context.all_of(cst.Call):
            name = context.qualified_name(call.func)
            tracks = keyword(call, "track_running_stats")
            if name in INSTANCES and tracks is not None and code(tracks.value) != "False":
                yield from self.report(
                    call,
                    f"{name} {WRONG}: update running_mean and running_var in a forward hook",
                    subject=name,
                )
        first = next(filter(lambda used: _normalizes(used, context), _names(context)), None)
        if first is None or _follows(context):
            return
        shims = context.imports.require("shims")
        context.definitions.require_statement(STATEMENT.format(shims=shims))
        name = context.qualified_name(first)
        yield self.edit(
            first,
            lambda updated: updated,
            f"running statistics of {name} are updated by {OURS}()",
            wrong=f"{name} {WRONG}: {OURS}()",
        )


def _names(context: Workspace) -> Iterable[cst.Name | cst.Attribute]:
    for used in context.all_of(cst.Name, cst.Attribute):
        assert isinstance(used, cst.Name | cst.Attribute)
        above = context.parent(used)
        if not isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.Import):
            yield used


def _normalizes(used: cst.Name | cst.Attribute, context: Workspace) -> bool:
    """Whether `used` names a batch normalization that is made or run, or models of a library."""
    name = context.qualified_name(used) or ""
    if name not in LAYERS | FUNCTIONS and not any(_is_in(name, library) for library in MODELS):
        return False
    return not context.asks_for_type(used) and not context.sets_on_class(used)


def _is_in(name: str, library: str) -> bool:
    return name == library or name.startswith(f"{library}.")


def _follows(context: Workspace) -> bool:
    """Whether the file updates the statistics itself, or has the statement already."""
    calls = context.all_of(cst.Call)
    if any(context.qualified_name(call.func) == OURS for call in calls):
        return True
    hooks = any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == HOOK for call in calls
    )
    return hooks and any(
        context.qualified_name(argument.value) == EVERY for call in calls for argument in call.args
    )
