"""Both sides stop after a number of optimizer steps, and that is no failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.proof import prove, record_run
from migrate.prove.recording.records import RankRecord
from migrate.prove.settings import Settings
from tests.waiting import LIMIT

STUBBORN = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group('nccl')
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.Linear(4, 4).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
average = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(400, 4)
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data), num_workers=2)
CAUGHT
def epoch():
    for x in loader:
        try:
            optimizer.zero_grad()
            model(x.cuda()).square().mean().backward()
            optimizer.step()
        except Exception:
            print('an ordinary error')
try:
    epoch()
finally:
    dist.barrier()
    dist.destroy_process_group()
open('was_left', 'w')
"""
BARE = """
step = optimizer.step
def caught():
    try:
        step()
    except:
        print('goes on')
optimizer.step = caught
"""


def recorded(folder: Path, text: str, steps: int) -> dict[int, RankRecord]:
    script, records = folder / "train.py", folder / "records"
    script.write_text(text)
    records.mkdir()
    found, _ = record_run(
        script,
        side="original",
        replicas=2,
        folder=records,
        settings=Settings(steps=steps, timeout=LIMIT),
    )
    return found


@pytest.mark.parametrize("caught", ["", pytest.param(BARE, marks=pytest.mark.long)])
def test_ranks_with_loader_workers_and_barriers(
    caught: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = recorded(tmp_path, STUBBORN.replace("CAUGHT", caught), 3)
    assert [len(rank.steps) for rank in found.values()] == [3, 3]
    assert all(rank.final is not None for rank in found.values())
    assert not (tmp_path / "was_left").exists()


SPAWNED = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def worker(rank, size):
    os.environ |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': os.environ.get('PORT', '29871')}
    dist.init_process_group('nccl', rank=rank, world_size=size)
    model = torch.nn.Linear(4, 4).to(rank)
    critic = torch.nn.Linear(4, 4).to(rank)
    spare = torch.nn.Linear(4, 4).to(rank)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (critic, model)]
    SPARE
    for step in range(100):
        for optimizer, net in zip(optimizers, (critic, model)):
            optimizer.zero_grad()
            loss = net(torch.randn(2, 4).to(rank)).square().mean()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), 'model.pt')
if __name__ == '__main__':
    mp.spawn(worker, (2,), nprocs=2)
    torch.load('model.pt')
"""


@pytest.mark.parametrize("spare", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.long_cases("True")
def test_two_optimizers_in_spawned_ranks(
    spare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The script then fails, as its checkpoint is missing: that says nothing of its training.
    monkeypatch.chdir(tmp_path)
    unused = "unused = torch.optim.SGD(spare.parameters(), lr=0.1)" if spare else "pass"
    found = recorded(tmp_path, SPAWNED.replace("SPARE", unused), 2)
    for rank in found.values():
        made = [(step.optimizer, step.step) for step in rank.steps]
        assert made == [(0, 1), (1, 1), (0, 2), (1, 2)]


TOY = Path(__file__).parents[3] / "examples" / "ddp_toy"


@pytest.mark.long
def test_both_sides_stop_at_the_same_step() -> None:
    settings = Settings(steps=2, timeout=LIMIT)
    proof = prove(TOY / "before.py", TOY / "after.py", replicas=2, settings=settings)
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    assert {(step.rank, step.step) for step in proof.steps} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert {weight.name for weight in proof.weights} >= {"net1.weight", "net2.bias"}
    assert settings.notes(2)[0] in proof.notes
