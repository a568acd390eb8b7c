"""Functions that hooks of modules run: they are part of the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.syntax.source import parse

SCRIPT = """
import torch


class Trainer:
    def __init__(self, model):
        self.model = model.cuda()
        self.optimizer = torch.optim.Adam(model.parameters())
        self.norms = []

    def seen(self, module, inputs, outputs):
        self.norms.append(outputs.norm().item())

    def fit(self, loader):
        def kept(module, inputs, outputs):
            return outputs[outputs > 0]

        for x in loader:
            handles = [{registered}]
            loss = self.model(x.cuda()).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            for handle in handles:
                handle.remove()
"""


def found(registered: str) -> set[tuple[str, Severity]]:
    """Return the findings for the two functions, of which the loop registers one."""
    text = SCRIPT.replace("{registered}", registered)
    findings = check_source(
        parse(text.encode(), Path("script.py")), Config(select=("XLA103", "XLA201"))
    )
    return {(finding.code, finding.severity) for finding in findings}


@pytest.mark.parametrize("method", ["register_forward_hook", "register_full_backward_hook"])
def test_a_hook_is_part_of_the_step(method: str) -> None:
    assert ("XLA103", Severity.WARNING) in found(f"self.model.{method}(kept)")
    assert ("XLA201", Severity.WARNING) in found(f"self.model.{method}(self.seen)")


def test_a_function_that_no_hook_runs_is_not() -> None:
    assert ("XLA201", Severity.WARNING) not in found("self.model.get(self.seen)")
    assert ("XLA103", Severity.WARNING) not in found("self.model.get(kept)")
