"""An evaluation between training steps is no part of the step."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.fit.errors import FitError
from migrate.fit.lowered.of_script import lower_script
from tests.waiting import LIMIT

pytestmark = pytest.mark.xla

SCRIPT = """
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend

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


def gathered(value):
    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    return torch.cat(parts).sum()


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
    correct = EXCHANGE
    net.train()
    return 100 * correct.item() / total


for epoch in range(EPOCHS):
    for _ in range(STEPS):
        step()
    evaluate()
"""


def taken(folder: Path, steps: int, cut: str = "", grad: str = "@torch.no_grad()",
          evaluation: str = "if True:", forward: str = "net(x)",
          exchange: str = "xm.all_reduce(xm.REDUCE_SUM, correct)", epochs: int = 5):  # fmt: skip
    text = textwrap.dedent(SCRIPT)
    for word, code in (
        ("CUT", cut or "pass"),
        ("GRAD", grad),
        ("EVALUATION", evaluation),
        ("FORWARD", forward),
        ("EXCHANGE", exchange),
    ):
        text = text.replace(word, code)
    script = folder / "train.py"
    script.write_text(text.replace("STEPS", str(steps)).replace("EPOCHS", str(epochs)))
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
    assert [cut.rpartition("/")[2] for cut in step.cuts] == ["train.py:20"]


def test_a_sync_in_the_backward_pass_leaves_the_forward_pass_in_the_step(tmp_path: Path) -> None:
    """The backward pass runs in a thread of its own, whose nodes autograd counts from 0."""
    step = taken(tmp_path, 3, forward="Synced.apply(net(x))")
    assert step.cuts == ()
    assert [part.times for part in step.parts] == [1, 1]


# Collectives of torch.distributed are in the graph of one replica, too.
GATHER = "gathered(correct)"


def test_an_evaluation_that_gathers_before_the_step_has_the_next_step_taken(tmp_path: Path) -> None:
    step = taken(tmp_path, 3, exchange=GATHER)
    assert step.cuts == ()
    assert [part.times for part in step.parts] == [1]


@pytest.mark.long
def test_an_evaluation_that_gathers_before_the_last_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"train\.py:\d+ reads a value before the recorded step"):
        taken(tmp_path, 3, exchange=GATHER, epochs=1)


@pytest.mark.long
def test_the_line_that_began_the_backward_pass_is_known(tmp_path: Path) -> None:
    """What hooks of the backward pass do has no line of the user's in its own frames."""
    assert taken(tmp_path, 3).backward.rpartition("/")[2] == "train.py:19"
