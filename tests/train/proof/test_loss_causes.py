"""Mistakes in a loss: made in the script's step, and recognized by their loss and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from migrate.train.proof.causes.gradients import loss_cause
from migrate.train.watch.mistakes import mistaken


class Step(nn.Module):
    """A loss with what mistakes are made with."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        logits = self.net(hidden)
        nll = F.cross_entropy(
            logits[:, :-1].reshape(-1, 7), labels[:, 1:].reshape(-1), label_smoothing=0.1
        )
        each = (logits.logsumexp(-1) * mask).sum() / mask.sum()
        with torch.no_grad():
            aim = self.net(hidden).mean(1)
        pull = (logits[:, 0] - aim).clamp(-0.2, 0.2).pow(2).mean()
        return nll + each * x.std() + pull


def parts() -> tuple[Step, dict[str, torch.Tensor]]:
    """The step and a batch with padding."""
    torch.manual_seed(0)
    labels = torch.randint(7, (4, 6))
    labels[0, 3:] = -100
    mask = (torch.rand(4, 6) > 0.4).float()
    return Step(), {"x": torch.randn(4, 6, 5), "labels": labels, "mask": mask}


def arrays(gradients: Any) -> dict[str, Any]:
    """Gradients as NumPy arrays; zeros for none."""
    return {n: np.zeros(1) if g is None else g.numpy() for n, g in gradients.items()}


def test_each_mistake_changes_the_step_in_its_own_way() -> None:
    step, batch = parts()
    before = {name: value.clone() for name, value in step.state_dict().items()}
    found = mistaken(step, batch)
    words = [mistake.what.partition(":")[0] for mistake in found]
    assert words == [
        "lost stop_gradient",
        "padding counted",
        "padding counted",
        "mean of means",
        "labels not shifted",
        "biased variance",
        "lost clamp",
        "lost label smoothing",
        "evaluation mode",
    ]
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict().items())
    assert step.training
    losses = {(m.what, round(m.loss, 6)) for m in found}
    assert len(losses) == len(found)


def test_a_step_without_them_has_no_mistakes() -> None:
    net = nn.Linear(3, 1)
    net.register_forward_hook(lambda module, inputs, output: output.pow(2).mean())
    assert mistaken(net, {"input": torch.ones(2, 3)}) == []


def test_a_cause_is_the_mistake_with_the_programs_values() -> None:
    step, batch = parts()
    found = {m.what: (m.loss, arrays(m.gradients)) for m in mistaken(step, batch)}
    script = arrays({n: p.detach() for n, p in step.named_parameters()})
    for what, (loss, gradients) in found.items():
        assert loss_cause(loss, gradients, 1.0, script, found) == what


@pytest.mark.parametrize(
    ("change", "factor", "words"),
    [
        (lambda g: {n: 4 * x for n, x in g.items()}, 4.0, "the loss is 4 times"),
        (lambda g: {n: x / 8 for n, x in g.items()}, 1 / 8, "the loss is 1/8 of"),
        (lambda g: {n: 2 * x for n, x in g.items()}, 1.0, "gradients are 2 times"),
        (lambda g: dict(g), 3.0, "the loss has a term without gradient"),
        (lambda g: {**g, "a": 0 * g["a"]}, 1.0, "no gradient reaches a"),
        (lambda g: {**g, "c": np.ones(3)}, 1.0, "c has a gradient"),
    ],
)
def test_causes_without_a_mistake_of_the_step(change: Any, factor: float, words: str) -> None:
    rng = np.random.default_rng(0)
    gradients = {"a": rng.normal(size=4), "b": rng.normal(size=(2, 3)), "c": np.zeros(3)}
    cause = loss_cause(factor * 1.5, change(gradients), 1.5, gradients, {})
    assert cause.startswith(words)
