"""Environment variables of NCCL and of CUDA's allocator go."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Severity
from migrate.reading.values.environment import access, environment_name, is_read
from migrate.rewrite.edits.imports import bindings
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

INERT = re.compile(
    r"(TORCH_)?NCCL_\w+|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_ORDER|CUDA_DEVICE_MAX_CONNECTIONS"
    r"|CUBLAS_WORKSPACE_CONFIG|PYTORCH_CUDA_ALLOC_CONF"
)


class NcclEnvironment(Rule):
    """Remove settings for NCCL and CUDA from the environment.

    **What it does.** Statements that set variables of NCCL (`NCCL_DEBUG`, `TORCH_NCCL_BLOCKING_WAIT`) or of
    CUDA (`CUDA_LAUNCH_BLOCKING`, `CUDA_DEVICE_ORDER`, `CUBLAS_WORKSPACE_CONFIG`,
    `PYTORCH_CUDA_ALLOC_CONF`) go: nothing on a TPU reads them.

    **Left alone.** Variables that the script reads, too. For CUDA_VISIBLE_DEVICES there is the rule
    [visible-devices](visible-devices.md).

    **Reported.** What reads such a variable.

    Source: torch_xla 2.9, libtpu.
    """

    name = "nccl-environment"
    code = "XLA722"
    targets = BOTH
    edited = Severity.INFO
    nodes = (cst.SimpleString,)
    words = "NCCL|CUDA_|CUBLAS"
    examples = (
        rewritten(
            """
            import os

            import torch

            os.environ["NCCL_DEBUG"] = "INFO"
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
            os.putenv("NCCL_IB_DISABLE", "1")
            os.environ["OMP_NUM_THREADS"] = "4"
            weight = torch.ones(3)
            """,
            """
            import os

            import torch

            os.environ["OMP_NUM_THREADS"] = "4"
            weight = torch.ones(3)
            """,
        ),
        left_alone(
            """
            import os

            import torch

            os.environ["OMP_NUM_THREADS"] = "4"
            print({"NCCL_DEBUG": torch.ones(3)})
            """
        ),
        reported(
            """
            import os

            import torch

            if "NCCL_DEBUG" not in os.environ:
                os.environ["NCCL_DEBUG"] = "WARN"
            """,
            "no effect on a TPU",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the removal of one setting, or the finding at a variable that is read."""
        name = environment_name(node, context)
        if name is None or context.portable or INERT.fullmatch(name) is None:
            return
        if not any(binding.target.split(".")[0] == "torch" for binding in bindings(context.module)):
            return
        if is_read(node, context):
            yield from self.report(node, f"{name} has no effect on a TPU")
            return
        statement = context.parent(access(node, context))
        if isinstance(statement, cst.AssignTarget):
            statement = context.parent(statement)
        alone = isinstance(statement, cst.Assign) and len(statement.targets) == 1
        if statement is None or not (alone or isinstance(statement, cst.Expr)):
            return
        if not any(_reads(other, name, context) for other in context.all_of(cst.SimpleString)):
            message = f"remove `{code(statement)}`: it has no effect on a TPU"
            yield self.edit(
                statement, lambda _: cst.RemoveFromParent(), message, consumes=[statement]
            )


def _reads(node: cst.SimpleString, name: str, context: Workspace) -> bool:
    return environment_name(node, context) == name and is_read(node, context)
