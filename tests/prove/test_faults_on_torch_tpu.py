"""The toy example rewritten for torch_tpu, rightly and wrongly: the faults have torch_tpu's words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.prove.compare.verdict import ProofVerdict, judge
from migrate.prove.proof import record_run
from migrate.prove.recording.records import RankRecord
from migrate.prove.runtimes import RUNTIMES
from migrate.prove.settings import Settings
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.options import RewriteOptions
from shims._shared.ports import free_port
from tests.prove.record.test_ranks_draw import SCRIPT as NOISE
from tests.prove.test_faults import BACKWARD, FAULTS, GRADIENTS, SHORT, TOY, WRAP, Fault, edited
from tests.waiting import LIMIT

pytestmark = pytest.mark.torch_tpu


def for_torch_tpu(text: str) -> str:
    """Edit of the rewrite for torch_xla, whose steps are in `with torch_xla.step():`, for torch_tpu."""
    text = text.replace(", gradient_as_bucket_view=True", "").replace("'xla'", "'tpu'")
    lines = text.splitlines(keepends=True)
    return "".join(line[4:] if line.startswith(" " * 16) else line for line in lines)


ON_TPU = {
    name: replace(
        fault,
        edits=tuple((for_torch_tpu(old), for_torch_tpu(new)) for old, new in fault.edits),
        says=tuple(map(RUNTIMES[TPU].in_words, fault.says)),
    )
    for name, fault in FAULTS.items()
} | {
    "gradients summed, not averaged": replace(
        FAULTS["gradients summed, not averaged"],
        edits=(
            (for_torch_tpu(WRAP), "ddp_model = model"),
            (
                for_torch_tpu(BACKWARD),
                for_torch_tpu(
                    f"{BACKWARD}                for gradient in {GRADIENTS}:\n"
                    "                    dist.all_reduce(gradient)\n"
                ),
            ),
        ),
    ),
    "another seed of the data in each rank": Fault(
        (("num_replicas=world_size, rank=rank", "num_replicas=world_size, rank=rank, seed=rank"),),
        step=1,
        kind="gradient norm",
        says=("on rank 1 the model gets other data (another shuffle, another sampler or its seed",),
    ),
}
FAST = (
    "DDP dropped",
    "optimizer made before the move",
    "another seed of the data in each rank",
)


def script_with(folder: Path, text: str, *edits: tuple[str, str]) -> Path:
    path = folder / "train.py"
    path.write_text(edited(text, *SHORT, ("12355", str(free_port())), *edits))
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RankRecord]:
    """The short original, run once for all faults."""
    folder = tmp_path_factory.mktemp("original")
    script = script_with(folder, (TOY / "before.py").read_text())
    settings = Settings(timeout=LIMIT)
    return record_run(script, side="original", replicas=2, folder=folder, settings=settings)[0]


def recorded(
    folder: Path, settings: Settings, *edits: tuple[str, str]
) -> tuple[Path, dict[int, RankRecord]]:
    options = RewriteOptions(config=Config(target=TPU))
    script = script_with(folder, rewrite_file(TOY / "before.py", options).data.decode(), *edits)
    return script, record_run(script, side="tpu", replicas=2, folder=folder, settings=settings)[0]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.long) for name in ON_TPU],
)
def test_a_fault_is_found_at_its_step_and_named(
    name: str, original: dict[int, RankRecord], tmp_path: Path
) -> None:
    fault = ON_TPU[name]
    script, ours = recorded(tmp_path, fault.settings(), *fault.edits)
    judgement = judge(original, ours)
    assert judgement.verdict is ProofVerdict.DIFFERS, judgement.message
    assert judgement.difference is not None
    message = RUNTIMES[TPU].in_words(judgement.message)
    place = judgement.difference.step, judgement.difference.kind
    assert place == (fault.step, fault.kind), message
    for part in fault.says:
        assert part in message
    if fault.at:
        lines = script.read_text().splitlines()
        (number,) = [number for number, line in enumerate(lines, 1) if fault.at in line]
        assert f"{script.name}:{number}" in message


def test_the_rewrite_is_equal(original: dict[int, RankRecord], tmp_path: Path) -> None:
    judgement = judge(original, recorded(tmp_path, Settings(timeout=LIMIT))[1])
    assert judgement.verdict is ProofVerdict.MATCH, judgement.message
    assert judgement.difference is None


def proven(folder: Path, script: Path, replicas: int) -> list[dict[int, RankRecord]]:
    """Records of a script, and of its rewrite in its place."""
    ranks = []
    for side in ("original", "tpu"):
        if side == "tpu":
            options = RewriteOptions(config=Config(target=TPU))
            script.write_text(rewrite_file(script, options).data.decode())
        records = folder / side
        records.mkdir()
        how: dict[str, Any] = {"side": side, "replicas": replicas, "folder": records}
        ranks.append(record_run(script, settings=Settings(timeout=LIMIT), **how)[0])
    return ranks


@pytest.mark.parametrize("gpu", ["of its number", "of CUDA_VISIBLE_DEVICES"])
def test_ranks_that_seed_nothing_draw_the_same_on_both_sides(gpu: str, tmp_path: Path) -> None:
    text = NOISE.replace("AT_IMPORT", "").replace("SEED", "")
    if gpu == "of CUDA_VISIBLE_DEVICES":
        chosen = 'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]'
        text = text.replace("def main():\n", f"def main():\n    {chosen}\n")
        text = text.replace('local_rank = int(os.environ["LOCAL_RANK"])', "local_rank = 0")
    script = tmp_path / "train.py"
    script.write_text(text)
    ranks = proven(tmp_path, script, replicas=2)
    judgement = judge(*ranks)
    assert judgement.verdict is ProofVerdict.MATCH, judgement.message
    assert ranks[0][0].steps[0].loss != ranks[0][1].steps[0].loss


COMPILED = """
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, rows):
        return self.layer(rows + 0.1 * torch.randn_like(rows))


torch.manual_seed(3)
model = torch.compile(Noisy().cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(8, 4, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_compiled_model_that_draws_trains_and_is_equal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    ranks = proven(tmp_path, script, replicas=1)
    judgement = judge(*ranks)
    assert judgement.verdict is ProofVerdict.MATCH, judgement.message
