"""Autograd's search for NaN in the backward pass."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import option, truth
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code

# The names of each, wherever torch exports it; the first parameter of `detect_anomaly` is `check_nan`.
SWITCHES = frozenset(
    {"torch.autograd.set_detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly"}
)
BLOCKS = frozenset({"torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly"})
LIGHTNING = ("lightning.", "pytorch_lightning.", "lightning_fabric.")
TRAINER = "Trainer"


class DetectAnomaly(Hazard):
    """Autograd looks for NaN after every node of the backward pass.

    **Why.** With `torch.autograd.set_detect_anomaly(True)` autograd asks `isnan(grad).any()` of each gradient
    that a node of the backward pass gives. On XLA each question is a read of the device: the graph of one
    step becomes dozens of small ones, and the host waits for each of them. On a GPU it is slow as well, but
    by a kernel and a wait each.

    **What to do.** Leave it off, and turn it on for the few steps in which NaN is looked for:
    `with torch.autograd.detect_anomaly():`. To see in every step whether a gradient is NaN, log the norm that
    `clip_grad_norm_` returns. `check_nan=False` keeps the traceback of the forward pass and reads nothing.

    Source: torch 2.9, torch_xla 2.9 (measured, five steps of three linear layers: 80 executions of a graph
    instead of 5).
    """

    code = "XLA213"
    name = "detect-anomaly"
    severity = Severity.WARNING
    is_mentioned = True
    nodes = (cst.Call,)
    words = "detect_anomaly"
    examples = (
        example(
            """
            import torch
            import torch_xla

            torch.autograd.set_detect_anomaly(True)  # XLA213


            def train(model, loader, optimizer):
                for x in loader:
                    with torch.autograd.detect_anomaly():  # XLA213
                        with torch_xla.step():
                            loss = model(x).mean()
                            loss.backward()
                            optimizer.step()
            """
        ),
        example(
            """
            import argparse

            import torch_xla
            from torch import autograd
            from torch.autograd import set_detect_anomaly

            parser = argparse.ArgumentParser()
            parser.add_argument("--debug", action="store_true")
            parser.add_argument("--anomaly", default=True, type=bool)
            args = parser.parse_args()
            autograd.set_detect_anomaly(args.debug)  # XLA213 info
            autograd.set_detect_anomaly(mode=args.anomaly)  # XLA213
            if args.debug:
                set_detect_anomaly(True)  # XLA213 info
            """
        ),
        example(
            """
            import pytorch_lightning as pl
            import torch

            trainer = pl.Trainer(max_epochs=1, detect_anomaly=True)  # XLA213
            quiet = pl.Trainer(max_epochs=1, detect_anomaly=False)
            """
        ),
        example(
            """
            import torch
            import torch_xla

            DEBUG = False
            torch.autograd.set_detect_anomaly(False)
            torch.autograd.set_detect_anomaly(DEBUG)
            torch.autograd.set_detect_anomaly(True, check_nan=False)
            if DEBUG:
                torch.autograd.set_detect_anomaly(True)
            with torch.autograd.detect_anomaly(check_nan=False):
                torch.ones(2, device="xla", requires_grad=True).sum().backward()
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla

        torch.autograd.set_detect_anomaly(False)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that turns the search on."""
        assert isinstance(node, cst.Call)
        asked = _asked(node, facts)
        if asked is None:
            return
        parts = [*asked, *_conditions(node, facts)]
        truths = [_truth(part, facts) for part in parts]
        if False in truths:
            return
        where = ""
        if None in truths:
            where = f"where `{code(parts[truths.index(None)])}` is true, "
        message = (
            f"{where}autograd reads the device after every node of the backward pass, and each read cuts the "
            "graph of the step: leave it off, or on only for the steps in which NaN is looked for"
        )
        yield self.hit(node, message, Severity.INFO if where else None)


def _asked(call: cst.Call, facts: Facts) -> list[cst.BaseExpression] | None:
    """Return the expressions that must be true for `call` to search for NaN, or None for another call."""
    name = facts.names.of(call.func) or ""
    if name in SWITCHES:
        parameters: tuple[str, ...] = ("mode", "check_nan")
    elif name in BLOCKS:
        parameters = ("check_nan",)
    elif name.startswith(LIGHTNING) and name.rpartition(".")[2] == TRAINER:
        value = option(call, "detect_anomaly", facts)
        return None if value is None else [value]
    else:
        return None
    positional = [arg.value for arg in call.args if not arg.star and arg.keyword is None]
    values = dict(zip(parameters, positional, strict=False))
    for parameter in parameters:
        named = option(call, parameter, facts)
        if named is not None:
            values[parameter] = named
    return list(values.values())


def _truth(node: cst.BaseExpression, facts: Facts) -> bool | None:
    """Return whether `node` is true, also for a command-line option that is on by default."""
    is_true = truth(node, facts)
    if is_true is None and isinstance(node, cst.Attribute):
        defaults = [truth(value, facts) for value in facts.values.given_to(node)]
        return True if defaults and all(defaults) else None
    return is_true


def _conditions(node: cst.CSTNode, facts: Facts) -> Iterable[cst.BaseExpression]:
    """Yield the tests that must be true for `node` to run, except the `__main__` test."""
    below = node
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return
        if isinstance(above, cst.If) and below is above.body and not _is_main(above.test):
            yield above.test
        below = above


def _is_main(test: cst.BaseExpression) -> bool:
    return isinstance(test, cst.Comparison) and code(test.left) == "__name__"
