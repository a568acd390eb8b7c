"""Saves of what exists on some replicas only: the run of a tracker, a writer, an average of the weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import os

import torch
import torch.distributed as dist
import {tracker}
from torch.nn.parallel import DistributedDataParallel as DDP


{defined}

def main(Writer, Average):
    rank = int(os.environ["RANK"])
    dist.init_process_group("nccl")
    {made}
    model = DDP(torch.nn.Linear(4, 1).cuda())
    if rank == 0:
        {saved}


main(None, None)
"""

OF_SOME = "only the replicas have that pass"


def written(made: str, saved: str, tracker: str = "wandb") -> tuple[str, str]:
    """Return the rewritten script, and what is said of it."""
    defined = f"def begin():\n    {tracker}.init()\n" if "begin" in made else ""
    source = SCRIPT.format(defined=defined, made=made, saved=saved, tracker=tracker)
    done = rewrite_source(parse(source.encode(), Path("train.py")))
    return done.data.decode(), "\n".join(note.message for note in done.findings)


@pytest.mark.parametrize("tracker", ["wandb", "swanlab"])
@pytest.mark.parametrize(
    "made", ["if rank == 0: {}.init()", "if rank == 0: begin()", "if not rank: {}.init()"]
)
@pytest.mark.parametrize("asked", ["{}.run.dir", "dict({}.config)"])
def test_the_run_of_a_tracker_is_asked_by_the_replica_that_has_one(
    tracker: str, made: str, asked: str
) -> None:
    asked = asked.format(tracker)
    saved = f'torch.save({{"m": model.state_dict(), "run": {asked}}}, "x.pt")'
    text, _ = written(made.format(tracker), saved, tracker)
    values = f'{{"m": model.state_dict(), "run": {asked} if rank == 0 else None}}'
    assert f'    xm.save({values}, "x.pt", global_master=True)' in text


def test_so_it_is_in_a_dictionary_that_is_made_before_the_save() -> None:
    saved = (
        'state = {"m": model.state_dict()}\n'
        '        state["run"] = wandb.run.id\n'
        '        torch.save(state, "x.pt")'
    )
    text, _ = written("if rank == 0: wandb.init()", saved)
    assert '    state["run"] = wandb.run.id if rank == 0 else None\n    xm.save(state' in text


@pytest.mark.parametrize("made", ["wandb.init()", "wandb.init(mode='disabled' if rank else None)"])
def test_a_run_that_all_replicas_begin_is_asked_by_all(made: str) -> None:
    text, _ = written(made, 'torch.save({"m": model.state_dict(), "r": wandb.run.id}, "x.pt")')
    assert 'xm.save({"m": model.state_dict(), "r": wandb.run.id}, "x.pt"' in text


@pytest.mark.parametrize(
    ("made", "saved"),
    [
        ("log = Writer() if rank == 0 else None", '"log": log.log_dir'),
        ("log = None if rank else Writer()", '"log": log.log_dir'),
        ("mean = Average() if rank == 0 else None", '"mean": mean.state_dict()'),
    ],
)
def test_a_save_of_what_is_none_elsewhere_stays_with_the_first_replica(
    made: str, saved: str
) -> None:
    text, said = written(made, f'torch.save({{"m": model.state_dict(), {saved}}}, "x.pt")')
    assert (
        f'        xm.save({{"m": model.state_dict(), {saved}}}, "x.pt", master_only=False)' in text
    )
    assert "    torch_xla.sync()\n    if rank == 0:\n" in text
    assert said == ""


def test_a_value_that_may_be_none_is_no_obstacle() -> None:
    made = "note = 'first' if rank == 0 else None"
    text, _ = written(made, 'torch.save({"m": model.state_dict(), "note": note}, "x.pt")')
    assert 'xm.save({"m": model.state_dict(), "note": note}, "x.pt"' in text


def test_a_function_that_saves_and_asks_for_the_run_saves_on_the_first_replica() -> None:
    source = SCRIPT.format(
        tracker="wandb",
        defined='def save(model):\n    torch.save({"m": model.state_dict(), "r": wandb.run.id}, "x.pt")\n',
        made="if rank == 0: wandb.init()",
        saved="save(model)",
    )
    done = rewrite_source(parse(source.encode(), Path("train.py")))
    assert b"    torch_xla.sync()\n    if rank == 0:\n        save(model)\n" in done.data
    assert b"master_only=False)" in done.data
    assert [n for n in done.findings if n.rule in ("save", "XLA301")] == []


def test_the_function_that_begins_the_run_is_named() -> None:
    saved = 'torch.save({"m": model.state_dict(), "r": f"{wandb.run.id}-{rank}"}, "x.pt")'
    text, _ = written("if rank == 0: begin()", saved)
    assert '"r": f"{wandb.run.id if rank == 0 else None}-{rank}"' in text


BEST_KEPT = """\
import torch
import torch.distributed as dist


class Trainer:
    def keep(self, epoch, score):
        torch.save(self.model.module.state_dict(), f"{epoch}.pt")
        if score > 3:
            self.best = self.model.module.state_dict()

    def train(self):
        for epoch in range(3):
            if self.rank == 0:
                self.keep(epoch, 4)
        if self.rank == 0:
            torch.save(self.best, "best.pt")


def main(model):
    dist.init_process_group("nccl")
    trainer = Trainer()
    trainer.rank = dist.get_rank()
    trainer.model = torch.nn.parallel.DistributedDataParallel(model.cuda())
    trainer.train()
"""


def test_what_a_method_of_the_first_replica_binds_is_missing_elsewhere() -> None:
    result = rewrite_source(parse(BEST_KEPT.encode(), Path("train.py")))
    assert 'xm.save(self.model.module.state_dict(), f"{epoch}.pt"' in result.data.decode()
    text = result.data.decode()
    assert (
        "        torch_xla.sync()\n        if self.rank == 0:\n            xm.save(self.best, "
        in text
    )
    assert 'xm.save(self.best, "best.pt", master_only=False)' in text
