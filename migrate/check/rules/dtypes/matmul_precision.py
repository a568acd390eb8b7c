"""Precision of float32 matrix products."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.target import TPU_ONLY
from migrate.catalogue.torch_cuda import AUTOCAST
from migrate.catalogue.torch_other import TYPED_AUTOCAST
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code

DECIDES = frozenset({"torch.set_float32_matmul_precision", "torch.tpu.precision"})
TF32 = frozenset({"torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32"})
REGIONS = names(*AUTOCAST) | names(*TYPED_AUTOCAST)
HIGHEST = "torch.set_float32_matmul_precision('highest')"


class Float32Products(Hazard):
    """float32 matrix products are computed in bfloat16.

    **Why.** torch_tpu multiplies float32 matrices in passes of bfloat16 by default
    (`torch.get_float32_matmul_precision()` is "medium"); CUDA does it in float32 ("highest"). Losses differ
    from the third digit on. A simulated TPU does not show it.

    **What to do.** Decide: `torch.set_float32_matmul_precision("highest")` where the script begins for
    CUDA's numbers, "medium" for speed. Either call ends the finding.

    **Reported.** The first loop of a file that trains, if the file does not decide; information, as most
    models train as well. `allow_tf32 = False`, which asks for float32 and has no effect on a TPU.

    **Left alone.** Files with an autocast region, which computes products in bfloat16 by intent.

    Source: torch_tpu 0.2.0 (the default is measured; the passes are read in its StableHLO).
    """

    code = "XLA896"
    name = "matmul-precision"
    severity = Severity.INFO
    is_mentioned = True
    targets = TPU_ONLY
    nodes = (cst.For, cst.While, cst.Assign)
    words = "backward|allow_tf32"
    examples = (
        example(
            """
            import torch


            def train(model, optimizer, loader):
                for x, y in loader:  # XLA896
                    optimizer.zero_grad()
                    loss = torch.nn.functional.mse_loss(model(x.to("tpu")), y.to("tpu"))
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch

            torch.backends.cuda.matmul.allow_tf32 = False  # XLA896 warning
            torch.backends.cudnn.allow_tf32 = True
            """
        ),
        example(
            """
            import torch

            torch.set_float32_matmul_precision("highest")


            def train(model, optimizer, loader):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss = torch.nn.functional.mse_loss(model(x.to("tpu")), y.to("tpu"))
                    loss.backward()
                    optimizer.step()
            """
        ),
    )
    mended = example(
        """
        import torch

        torch.set_float32_matmul_precision("medium")


        def train(model, optimizer, loader):
            for x, y in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x.to("tpu")), y.to("tpu"))
                loss.backward()
                optimizer.step()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the first loop that trains, or a flag that asks for float32."""
        if not facts.called.isdisjoint(DECIDES):
            return
        script = facts.context
        if isinstance(node, cst.Assign):
            names = (script.qualified_name(target.target) for target in node.targets)
            if not TF32.isdisjoint(names) and code(node.value) == "False":
                message = f"`{code(node)}` has no effect on a TPU, which multiplies in bfloat16: {HIGHEST}"
                yield self.hit(node, message, Severity.WARNING)
        elif facts.called.isdisjoint(REGIONS) and node is _first_step_loop(facts):
            message = (
                "float32 matrix products are bfloat16 passes on a TPU, where CUDA computes in float32: "
                f"{HIGHEST} for CUDA's numbers, 'medium' for speed"
            )
            yield self.hit(node, message)


def _first_step_loop(facts: Facts) -> cst.CSTNode | None:
    script = facts.context
    loops = script.all_of(cst.For, cst.While)
    return next((loop for loop in loops if script.effects.is_step_loop(loop)), None)
