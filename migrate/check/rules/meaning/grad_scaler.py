"""A gradient scaler."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import NamedHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.script import Script
from migrate.reading.values.scalers import is_switched_off
from migrate.syntax.tree import keyword, string_value


class GradScaler(NamedHazard):
    """A gradient scaler.

    **Why.** bfloat16 has the range of float32: gradients need no scaling. Where torch_xla
    is installed a scaler stays on, also one for CUDA: it reads a value from the device in every step, and its
    state is of no use. `torch_xla.amp.GradScaler` is gone in 2.9: an error.

    **What to do.** Remove the scaler with its `scale`, `unscale_`, `step` and `update`. One that is made with
    `enabled=False` does nothing anyway, and is left alone. So is `torch.amp.GradScaler("cpu")` of which only
    the state is used: it keeps checkpoints such that the CUDA script loads them.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA804"
    name = "grad-scaler"
    severity = Severity.WARNING
    examples = (
        example(
            """
            from torch.cuda.amp import GradScaler

            scaler = GradScaler()  # XLA804
            other = GradScaler(enabled=True)  # XLA804
            """
        ),
        example(
            """
            from functools import partial

            import torch

            scaler = torch.GradScaler()  # XLA804
            made = partial(torch.GradScaler, "cuda")  # XLA804
            off = torch.GradScaler("xla", enabled=False)


            class Scaler(torch.GradScaler):  # XLA804
                pass
            """
        ),
        example(
            """
            import torch
            from torch_xla.amp import GradScaler

            scaler = GradScaler()  # XLA804 error


            def restore(scaler: torch.amp.GradScaler, state):
                if isinstance(scaler, torch.amp.GradScaler):
                    scaler.load_state_dict(state)
            """
        ),
        example(
            """
            from sklearn.preprocessing import StandardScaler as GradScaler

            import torch

            scaler = GradScaler()
            off = torch.amp.GradScaler("xla", enabled=False)
            kept = torch.amp.GradScaler("cpu")
            checkpoint["scaler"] = kept.state_dict()
            """
        ),
        example(
            """
            import torch

            scaler = torch.amp.GradScaler("cpu")  # XLA804
            scaler.scale(loss).backward()
            """
        ),
    )
    mended = example(
        """
        import torch


        def step(model, x, optimizer):
            with torch.autocast("xla", dtype=torch.bfloat16):
                loss = model(x)
            loss.backward()
            optimizer.step()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of a scaler that is not switched off."""
        above = facts.context.parent(node)
        if isinstance(above, cst.Call) and above.func is node:
            if is_switched_off(above, facts.context):
                return
            if _only_keeps_state(above, facts.context):
                return
        gone = (facts.names.of(node) or "").startswith("torch_xla.")
        for hit in super().find(node, facts):
            yield self.hit(node, hit.message, Severity.ERROR if gone else None)


def _only_keeps_state(made: cst.Call, context: Script) -> bool:
    """Whether a scaler is made on the CPU, in a variable of which only the state is saved and loaded."""
    device = made.args[0] if made.args and made.args[0].keyword is None else keyword(made, "device")
    assign = context.parent(made)
    if device is None or string_value(device.value) != "cpu" or not isinstance(assign, cst.Assign):
        return False
    target = assign.targets[0].target
    if not isinstance(target, cst.Name):
        return False
    uses = (context.parent(use) for use in context.references(target.value) if use is not target)
    return all(
        isinstance(use, cst.Attribute) and use.attr.value in ("state_dict", "load_state_dict")
        for use in uses
    )
