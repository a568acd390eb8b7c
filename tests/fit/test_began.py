"""An evaluation between training steps is no part of the step."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.fit.lowered.of_script import lower_script
from tests.waiting import LIMIT

pytestmark = pytest.mark.xla

SCRIPT = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
net = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.AdamW(net.parameters())


def step():
    x = torch.randn(8, 4).to(device)
    with torch_xla.step():
        loss = FORWARD.square().mean()
        optimizer.zero_grad()
        loss.backward()
        CUT
        xm.optimizer_step(optimizer)


class Synced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        torch_xla.sync()
        return 2 * grad


GRAD
def evaluate():
    net.eval()
    correct, total = torch.zeros(1, device=device), 0.0
    for _ in range(2):
        EVALUATION
            output = net(torch.randn(6, 4).to(device))
            total += output.square().mean().item()
        correct += (output > 0).sum()
    correct = xm.all_reduce(xm.REDUCE_SUM, correct)
    net.train()
    return 100 * correct.item() / total


for epoch in range(5):
    for _ in range(STEPS):
        step()
    evaluate()
"""


def taken(folder: Path, steps: int, cut: str = "", grad: str = "@torch.no_grad()",
          evaluation: str = "if True:", forward: str = "net(x)"):  # fmt: skip
    text = textwrap.dedent(SCRIPT)
    for word, code in (
        ("CUT", cut or "pass"),
        ("GRAD", grad),
        ("EVALUATION", evaluation),
        ("FORWARD", forward),
    ):
        text = text.replace(word, code)
    script = folder / "train.py"
    script.write_text(text.replace("STEPS", str(steps)))
    return lower_script(script, [], devices=4, shown="train.py", timeout=LIMIT)


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (1, {}),
        (2, {}),
        (3, {}),
        (2, {"grad": ""}),
        (3, {"evaluation": "with torch_xla.step():"}),
    ],
)
@pytest.mark.long_cases("3-options4", "2-options1", "3-options2", "2-options3")
def test_reads_of_an_evaluation_do_not_cut_the_step(
    steps: int, options: dict[str, str], tmp_path: Path
) -> None:
    step = taken(tmp_path, steps, **options)
    assert step.cuts == ()
    assert len(step.parts) == 1
    assert step.parts[0].times == 1
    assert step.host_seconds > 0


def test_a_read_in_the_step_cuts_it(tmp_path: Path) -> None:
    step = taken(tmp_path, 2, "loss.item()")
    assert [cut.rpartition("/")[2] for cut in step.cuts] == ["train.py:18"]


def test_a_sync_in_the_backward_pass_leaves_the_forward_pass_in_the_step(tmp_path: Path) -> None:
    """The backward pass runs in a thread of its own, whose nodes autograd counts from 0."""
    step = taken(tmp_path, 3, forward="Synced.apply(net(x))")
    assert step.cuts == ()
    assert [part.times for part in step.parts] == [1, 1]


@pytest.mark.long
def test_the_line_that_began_the_backward_pass_is_known(tmp_path: Path) -> None:
    """What hooks of the backward pass do has no line of the user's in its own frames."""
    assert taken(tmp_path, 3).backward.rpartition("/")[2] == "train.py:17"
