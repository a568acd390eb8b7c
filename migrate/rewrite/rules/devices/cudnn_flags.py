"""Flags of cuDNN and of CUDA's matrix products."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH, TPU
from migrate.check.hazard import Severity
from migrate.rewrite.rule import Rule, RuleFinding, Safety, checked, left_alone, reported
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, string_value

TF32 = frozenset({"torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32"})
ASKED = frozenset(
    {
        "torch.backends.cudnn.is_acceptable",
        "torch.backends.cudnn.is_available",
        "torch.backends.cudnn.version",
    }
)
PRECISION = "torch.set_float32_matmul_precision"
EXACT = (
    "has no effect on a TPU, which multiplies float32 in bfloat16 passes: "
    "torch_xla.backends.set_mat_mul_precision('highest') for full float32"
)


class CudnnFlags(Rule):
    """Leave flags of cuDNN alone, and say where one asks for more than a TPU gives.

    **Why.** `torch.backends.cudnn.benchmark`, `deterministic`, `enabled` and the like may be set anywhere
    and mean nothing to XLA. But a script that forbids TF32 wants exact products of float32, and a TPU
    multiplies in bfloat16 passes unless it is told otherwise.

    **Reported.** Once a file, at the first of them and by `migrate check` only: flags that mean nothing.
    `allow_tf32 = False` and `torch.set_float32_matmul_precision('highest')`; the version of
    cuDNN, and whether it is there, in which a build of PyTorch for the CPU differs.

    Source: torch_xla 2.9 (measured: all flags may be set); `torch_xla/backends/__init__.py`.
    """

    name = "cudnn-flags"
    code = "XLA506"
    safety = Safety.REPORT_ONLY
    targets = BOTH
    on_torch_tpu = (
        "`set_float32_matmul_precision('highest')` is torch_tpu's own, and is not reported."
    )
    nodes = (cst.Assign, cst.Call)
    words = "tf32|cudnn|matmul_precision"
    examples = (
        left_alone(
            """
            import torch
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.set_float32_matmul_precision('high')
            """
        ),
        checked(
            """
            import torch
            from torch.backends import cudnn

            cudnn.benchmark = True  # XLA506 info
            if torch.get_num_threads() > 1:
                cudnn.deterministic = torch.backends.cudnn.enabled = True
            """
        ),
        checked(
            """
            import torch

            torch.backends.cudnn.benchmark = True  # XLA506 info
            torch.set_float32_matmul_precision("highest")
            print(torch.backends.cudnn.version())  # XLA506
            """,
            target=TPU,
        ),
        reported(
            """
            import torch

            torch.backends.cuda.matmul.allow_tf32 = False
            """,
            "set_mat_mul_precision",
        ),
        reported(
            """
            import torch
            from torch.backends import cudnn

            torch.set_float32_matmul_precision("highest")
            assert cudnn.is_available()
            """,
            "a build of PyTorch for the CPU",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the finding on one flag or question."""
        if isinstance(node, cst.Assign):
            named = any(context.qualified_name(t.target) in TF32 for t in node.targets)
            if named and code(node.value) == "False" and not context.for_torch_tpu:
                yield from self.report(node, f"`{code(node)}` {EXACT}")
            elif _sets_a_flag(node, context):
                yield from self._once(node, context)
            return
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        if name == PRECISION and node.args and string_value(node.args[0].value) == "highest":
            if not context.for_torch_tpu:  # which takes it
                yield from self.report(node, f"`{code(node)}` {EXACT}")
        elif name in ASKED:
            message = f"{code(node)}: None or False with a build of PyTorch for the CPU"
            yield from self.report(node, message)

    def _once(self, node: cst.Assign, context: Workspace) -> Iterable[RuleFinding]:
        """Yield one finding for all flags of the file that mean nothing, at the first of them."""
        flags = [other for other in context.all_of(cst.Assign) if _sets_a_flag(other, context)]
        if node is not flags[0]:
            return
        lines = [str(context.position(flag).line) for flag in flags[1:]]
        more = (
            f" (also in {'line' if len(lines) == 1 else 'lines'} {', '.join(lines)})"
            if lines
            else ""
        )
        message = f"`{code(node)}`: flags of cuDNN have no effect on a TPU, and may stay{more}"
        yield from self.report(node, message, Severity.INFO, is_hint=True)


def _sets_a_flag(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether a statement sets a flag of cuDNN that is not about precision."""
    if not isinstance(node, cst.Assign):
        return False
    names = [context.qualified_name(target.target) or "" for target in node.targets]
    return any(name.startswith("torch.backends.cudnn.") and name not in TF32 for name in names)
