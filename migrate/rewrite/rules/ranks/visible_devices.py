"""Remove the choice of GPUs by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Severity
from migrate.reading.values.environment import access, environment_name, is_read
from migrate.reading.values.shown import is_shown
from migrate.rewrite.edits.imports import bindings
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, string_value

NAME = "CUDA_VISIBLE_DEVICES"
# What hides all GPUs: the script is to run on the CPU.
NO_DEVICE = frozenset({"", "-1"})


class VisibleDevices(Rule):
    """Remove the setting of CUDA_VISIBLE_DEVICES.

    **What it does.** `os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"` goes: it has no effect on a TPU, whose
    replicas have one device each. To run on some of the chips of a host only, set TPU_VISIBLE_CHIPS
    before the start.

    **Left alone.** Other variables; a value that is only printed or logged, and may be missing:
    `print(os.environ.get("CUDA_VISIBLE_DEVICES"))`.

    **Reported.** A setting that hides all GPUs, so that the script runs on the CPU; everything that reads
    the variable.

    Source: torch_xla 2.9; libtpu's environment variables.
    """

    name = "visible-devices"
    code = "XLA723"
    targets = BOTH
    edited = Severity.INFO
    nodes = (cst.SimpleString,)
    words = NAME
    examples = (
        rewritten(
            """
            import os

            import torch

            os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
            os.environ["OMP_NUM_THREADS"] = "1"


            def choose(args):
                if args.gpu is not None:
                    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu
                return torch.device("cuda")
            """,
            """
            import os

            import torch

            os.environ["OMP_NUM_THREADS"] = "1"


            def choose(args):
                return torch.device("xla")
            """,
        ),
        left_alone(
            """
            import os

            import torch

            os.environ["MKL_NUM_THREADS"] = "1"
            print(torch.ones(3).to("xla"))
            """
        ),
        left_alone(
            """
            import logging
            import os

            import torch

            print("devices:", os.environ.get("CUDA_VISIBLE_DEVICES", "all"), torch.ones(3).to("xla"))
            logging.info(f"devices: {os.getenv('CUDA_VISIBLE_DEVICES')}")
            """
        ),
        reported(
            """
            import os

            import torch

            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
            model = torch.nn.Linear(2, 2).cuda()
            """,
            "hides all GPUs",
        ),
        reported(
            """
            import os

            import torch

            print(os.environ["CUDA_VISIBLE_DEVICES"], torch.ones(3).cuda())
            """,
            "has no effect on a TPU",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the removal of one setting, or the finding on another use."""
        if environment_name(node, context) != NAME or context.portable:
            return  # in the portable style CUDA goes on seeing what it says
        used = access(node, context)
        assert used is not None
        if isinstance(used, cst.Call) and is_read(node, context) and is_shown(used, context):
            return
        statement = context.parent(used)
        if isinstance(statement, cst.AssignTarget):
            statement = context.parent(statement)
        alone = (isinstance(statement, cst.Assign) and len(statement.targets) == 1) or isinstance(
            statement, cst.Expr
        )
        if is_read(node, context) or not alone or not _is_about_torch(context):
            yield from self.report(node, f"{NAME} has no effect on a TPU")
            return
        assert statement is not None
        if isinstance(statement, cst.Assign) and string_value(statement.value) in NO_DEVICE:
            message = (
                f"`{code(statement)}` hides all GPUs: to run on the CPU, use torch.device('cpu')"
            )
            yield from self.report(node, message)
            return
        message = f"remove `{code(statement)}`: it has no effect on a TPU"
        yield self.edit(statement, lambda _: cst.RemoveFromParent(), message, consumes=[statement])


def _is_about_torch(context: Workspace) -> bool:
    """Whether a script uses torch, or starts the replicas of a project that does."""
    imported = {binding.target.split(".")[0] for binding in bindings(context.module)}
    return not imported.isdisjoint({"torch", "torch_xla"}) or context.launch.spawns
