"""A script that shards its model by FSDP2, rewritten for torch_tpu: each rank's part is compared."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.prove.compare.verdict import ProofVerdict, judge
from migrate.prove.proof import record_run
from migrate.prove.recording.records import RankRecord
from migrate.prove.settings import Settings
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.options import RewriteOptions
from tests.waiting import LIMIT

pytestmark = [pytest.mark.torch_tpu, pytest.mark.long]

SCRIPT = inspect.cleandoc(
    """
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard


    def main():
        mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        model.to_empty(device=device)
        for layer in (model[0], model[2]):
            layer.reset_parameters()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(4):
            rows = torch.randn(6, 8, generator=batches).to(device)
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        dist.destroy_process_group()


    if __name__ == "__main__":
        main()
    """
)


def recorded(folder: Path, side: str, *edit: str) -> dict[int, RankRecord]:
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(SCRIPT)
    if side == "tpu":
        options = RewriteOptions(config=Config(target=TPU))
        text = rewrite_file(script, options).data.decode()
        assert 'init_device_mesh("tpu"' in text
        script.write_text(text.replace(*edit) if edit else text)
    settings = Settings(timeout=LIMIT)
    return record_run(script, side=side, replicas=2, folder=folder, settings=settings)[0]  # type: ignore[arg-type]


def test_parts_of_a_model_are_compared_and_a_fault_in_them_is_named(tmp_path: Path) -> None:
    original = recorded(tmp_path / "original", "original")
    assert {step.gradient_norm for step in original[0].steps} != {
        step.gradient_norm for step in original[1].steps
    }
    same = judge(original, recorded(tmp_path / "same", "tpu"))
    assert same.verdict is ProofVerdict.MATCH, same.message
    assert len(same.weights) == 4
    other = judge(
        original,
        recorded(
            tmp_path / "other",
            "tpu",
            "norm_(model.parameters(), 0.5)",
            "norm_(model.parameters(), 0.4)",
        ),
    )
    assert other.difference is not None
    assert other.difference.kind == "gradient norm"
    assert "clipped to another max_norm" in other.message
