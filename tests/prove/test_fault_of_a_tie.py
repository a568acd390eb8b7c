"""A weight that two layers share, and that the move to a TPU leaves as two, on both targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.catalogue.target import TPU, XLA, Target
from migrate.check.config import Config
from migrate.prove.compare.verdict import ProofVerdict, judge
from migrate.prove.proof import record_run
from migrate.prove.recording.records import RankRecord
from migrate.prove.runtimes import RUNTIMES, Side
from migrate.prove.settings import Settings
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.options import RewriteOptions
from tests.prove.test_faults import DOCS, Fault, check, edited
from tests.waiting import LIMIT

BEFORE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.table(tokens))))


def main():
    torch.manual_seed(3)
    model = Tied().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        tokens = torch.randint(12, (4, 5)).cuda()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == '__main__':
    main()
"""

LOST = Fault(
    (("    torch.__future__.set_swap_module_params_on_conversion(True)\n", ""),),
    step=1,
    kind="names",
    says=("the rewrite has 1 more parameters, head.weight: was a shared weight not tied again",),
)


def recorded(folder: Path, name: str, text: str, side: Side) -> dict[int, RankRecord]:
    home = folder / name
    home.mkdir()
    (home / "train.py").write_text(text)
    settings = Settings(timeout=LIMIT)
    return record_run(
        home / "train.py",
        side=side,
        replicas=1,
        folder=home,
        settings=settings,
    )[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "target",
    [pytest.param(XLA, marks=pytest.mark.xla), pytest.param(TPU, marks=pytest.mark.torch_tpu)],
)
def test_a_lost_tie_is_named_and_a_kept_one_is_equal(target: Target, tmp_path: Path) -> None:
    side = RUNTIMES[target].side
    original = recorded(tmp_path, "original", BEFORE, "original")
    options = RewriteOptions(config=Config(target=target))
    after = rewrite_file(tmp_path / "original" / "train.py", options).data.decode()
    judgement = judge(original, recorded(tmp_path, "clean", after, side))
    assert judgement.verdict is ProofVerdict.MATCH, judgement.message
    ours = recorded(tmp_path, "lost", edited(after, *LOST.edits), side)
    check(LOST, tmp_path / "lost" / "train.py", original, ours)


def test_it_is_in_the_documentation() -> None:
    assert "| tie lost |" in DOCS.read_text()
