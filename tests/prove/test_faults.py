"""The toy example rewritten wrongly, in one way each: every fault is found, and named with its line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from migrate.prove.compare.difference import Kind
from migrate.prove.compare.verdict import ProofVerdict, judge, judge_with_floor
from migrate.prove.proof import record_run
from migrate.prove.recording.records import RankRecord
from migrate.prove.settings import Amp, Settings
from tests.waiting import LIMIT

TOY = Path(__file__).parents[2] / "examples" / "ddp_toy"
DOCS = Path(__file__).parents[2] / "docs" / "prove.md"

# Two epochs of four steps on two ranks, the last of each with a short batch.
SHORT = (("range(3)", "range(2)"), ("size=512", "size=104"))
# Forked replicas have torch_xla from their parent; spawned ones import it again, which takes seconds.
FORK = ("torch_xla.launch(_mp_fn)", "torch_xla.launch(_mp_fn, start_method='fork')")


@dataclass(frozen=True)
class Fault:
    """What is planted in the rewrite, and what the proof says of it.

    Attributes:
        edits: of the clean rewrite: old text, new text.
        step: at which it is found.
        kind: of the difference.
        says: parts of the message.
        at: text of the line of the rewrite that the message names; "" for none.
        ends: whether it shows only when the script has run to its end.
    """

    edits: tuple[tuple[str, str], ...]
    step: int
    kind: Kind
    says: tuple[str, ...]
    at: str = ""
    ends: bool = False

    def settings(self, amp: Amp = "keep") -> Settings:
        """Of the run of the faulty rewrite: no step after that of the difference is looked at."""
        return Settings(amp=amp, steps=None if self.ends else self.step, timeout=LIMIT)


WRAP = "ddp_model = DDP(model, gradient_as_bucket_view=True)"
BACKWARD = "                loss.backward()  # DDP averages the gradients here\n"
AFTER_BACKWARD = BACKWARD + "                "
GRADIENTS = "[p.grad for p in model.parameters()]"

FAULTS = {
    "DDP dropped": Fault(
        ((WRAP, "ddp_model = model"),),
        step=1,
        kind="ranks apart",
        says=(
            "step 1: parameters differ between ranks 0 and 1: gradients are not averaged (is DDP missing?)",
        ),
        at="loss.backward()",
    ),
    "optimizer made before the move": Fault(
        (
            ("    model = model.to('xla')\n", ""),
            (
                f"    {WRAP}\n",
                "    parameters = list(model.parameters())\n"
                "    ddp_model = DDP(model.to('xla'), gradient_as_bucket_view=True)\n",
            ),
            ("optim.SGD(ddp_model.parameters()", "optim.SGD(parameters"),
        ),
        step=1,
        kind="gradient count",
        says=(
            "step 1, rank 0: 0 of 4 parameters have gradients: the optimizer was made before the model was "
            "moved to the XLA device",
        ),
        at="optim.SGD(",
    ),
    "set_epoch missing": Fault(
        (("        sampler.set_epoch(epoch)  # another order in every epoch\n", ""),),
        step=5,
        kind="gradient norm",
        says=("the batches are those of step 1 again", "set_epoch: train.py:"),
    ),
    "gradients summed, not averaged": Fault(
        (
            (WRAP, "ddp_model = model"),
            (BACKWARD, f"{AFTER_BACKWARD}xm.all_reduce('sum', {GRADIENTS})\n"),
            (
                "import torch_xla.runtime as xr",
                "import torch_xla.core.xla_model as xm\nimport torch_xla.runtime as xr",
            ),
        ),
        step=1,
        kind="gradient norm",
        says=("gradients are summed over the 2 ranks, not averaged",),
        at="loss.backward()",
    ),
    "gradients divided twice": Fault(
        (
            (
                BACKWARD,
                f"{AFTER_BACKWARD}for gradient in {GRADIENTS}:\n"
                "                    gradient /= world_size\n",
            ),
        ),
        step=1,
        kind="gradient norm",
        says=("gradients are divided by the 2 ranks once more than in the original",),
        at="optimizer.step()",
    ),
    "learning rate doubled": Fault(
        (("lr=0.05", "lr=0.1"),),
        step=1,
        kind="learning rate",
        says=("step 1, rank 0: the learning rate is 0.1, in the original 0.05",),
        at="optim.SGD(",
    ),
    "no zero_grad": Fault(
        (("                optimizer.zero_grad()\n", ""),),
        step=2,
        kind="gradient norm",
        says=(
            "with equal losses: gradients of earlier steps are still there (is zero_grad missing?)",
            "zero_grad: train.py:",
        ),
    ),
    "data not sharded": Fault(
        (("rank=rank)\n    loader", "rank=0)\n    loader"),),
        step=1,
        kind="gradient norm",
        says=(
            "all 2 ranks have the same loss, so they train on the same data (does the sampler get",
        ),
    ),
    "another order of the data": Fault(
        (("num_replicas=world_size, rank=rank", "num_replicas=world_size, rank=rank, seed=1"),),
        step=1,
        kind="gradient norm",
        says=("the model gets other data (another shuffle",),
    ),
    "last short batch dropped": Fault(
        (("batch_size=16,", "batch_size=16, drop_last=True,"),),
        step=4,
        kind="gradient norm",
        says=("the model gets 16x10, in the original 4x10", "the last short batch"),
    ),
    "labels shifted": Fault(
        (("labels.to('xla')", "labels.roll(1, 0).to('xla')"),),
        step=1,
        kind="gradient norm",
        says=("the inputs of the model are equal, the labels are not",),
        at="loss.backward()",
    ),
    "other momentum": Fault(
        (("momentum=0.9", "momentum=0.8"),),
        step=1,
        kind="optimizer",
        says=("momentum of parameter group 0 is 0.8, in the original 0.9",),
        at="optim.SGD(",
    ),
    "seed by rank, no broadcast": Fault(
        (
            (WRAP, "ddp_model = model"),
            ("    model = ToyModel()\n", "    torch.manual_seed(rank)\n    model = ToyModel()\n"),
        ),
        step=1,
        kind="ranks apart",
        says=("they started from different ones", "does the seed depend on the rank?"),
    ),
    "another seed": Fault(
        (("    model = ToyModel()\n", "    torch.manual_seed(1)\n    model = ToyModel()\n"),),
        step=1,
        kind="gradient norm",
        says=("the weights differ before the first step (another seed",),
        at="optim.SGD(",
    ),
    "meter not averaged": Fault(
        (("loss {loss.item():.4f}", "loss {loss.item() / world_size:.4f}"),),
        step=8,
        ends=True,
        kind="printed",
        says=("rank 0 prints 'epoch 0: loss ", ", in the original 'epoch 0: loss "),
    ),
}
FAST = ("DDP dropped", "optimizer made before the move")


def edited(source: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in source, f"the example has no {old!r} any more"
        source = source.replace(old, new)
    return source


def check(
    fault: Fault,
    script: Path,
    original: dict[int, RankRecord],
    ours: dict[int, RankRecord],
    again: dict[int, RankRecord] | None = None,
) -> None:
    """Hold a fault to what the proof has to say of it; `again` is a second run of the original."""
    judgement = judge_with_floor(original, ours, lambda: again or original)
    assert judgement.verdict is ProofVerdict.DIFFERS, judgement.message
    assert judgement.difference is not None
    found = judgement.difference.step, judgement.difference.kind
    assert found == (fault.step, fault.kind), judgement.message
    for part in fault.says:
        assert part in judgement.message
    if fault.at:
        lines = script.read_text().splitlines()
        (number,) = [number for number, line in enumerate(lines, 1) if fault.at in line]
        assert f"{script.name}:{number}" in judgement.message


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RankRecord]:
    """The short original, run once for all faults."""
    folder = tmp_path_factory.mktemp("original")
    script = folder / "train.py"
    script.write_text(edited((TOY / "before.py").read_text(), *SHORT))
    settings = Settings(timeout=LIMIT)
    return record_run(script, side="original", replicas=2, folder=folder, settings=settings)[0]


def recorded(
    folder: Path, settings: Settings, *edits: tuple[str, str]
) -> tuple[Path, dict[int, RankRecord]]:
    script = folder / "train_xla.py"
    script.write_text(edited((TOY / "after.py").read_text(), *SHORT, FORK, *edits))
    return script, record_run(script, side="xla", replicas=2, folder=folder, settings=settings)[0]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.long) for name in FAULTS],
)
def test_a_fault_is_found_at_its_step_and_named(
    name: str, original: dict[int, RankRecord], tmp_path: Path
) -> None:
    fault = FAULTS[name]
    script, ours = recorded(tmp_path, fault.settings(), *fault.edits)
    check(fault, script, original, ours)


@pytest.mark.long
def test_no_fault_is_found_in_the_clean_twin(
    original: dict[int, RankRecord], tmp_path: Path
) -> None:
    judgement = judge(original, recorded(tmp_path, Settings(timeout=LIMIT))[1])
    assert judgement.verdict is ProofVerdict.MATCH, judgement.message
    assert judgement.difference is None


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_in_the_documentation(name: str) -> None:
    assert f"| {name} |" in DOCS.read_text()
