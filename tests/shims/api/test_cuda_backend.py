"""The CUDA backend: on one GPU with one rank, and with two that share it over gloo.

The same program runs on the CPU first, everywhere: CUDA is held to what that computes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frameworks import need_torch_xla
from tests.waiting import LIMIT

PROGRAM = Path(__file__).parent / "programs" / "mixed_precision.py"
# float16 keeps 11 bits: on another device a sum of products is rounded otherwise, over six steps.
HALF = 2e-2

needs_a_gpu = pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")


def run(folder: Path, ranks: int, **environment: str) -> list[dict[str, Any]]:
    given = {"MIGRATE_RANKS": str(ranks), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.long_cases("2")
def test_on_the_cpu_float16_is_float16_with_its_scale(ranks: int, tmp_path: Path) -> None:
    seen = run(tmp_path, ranks, MIGRATE_BACKEND="cpu")
    for rank in seen:
        assert rank["dtypes"] == ["torch.float16"]
        assert rank["scale"] == pytest.approx([1024.0] * 6)
        assert rank["total"] == [ranks] * 3
        assert rank["mean"] == [(ranks - 1) / 2]
        assert rank["weights"] == seen[0]["weights"]


@pytest.mark.long
def test_on_xla_it_is_bfloat16_without_a_scale(tmp_path: Path) -> None:
    need_torch_xla()
    for rank in run(tmp_path, 2, MIGRATE_BACKEND="xla"):
        assert rank["dtypes"] == ["torch.bfloat16"]
        assert rank["scale"] == pytest.approx([1.0] * 6)


@needs_a_gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_cuda_computes_what_the_cpu_does(ranks: int, tmp_path: Path) -> None:
    for name in ("cpu", "cuda"):
        (tmp_path / name).mkdir()
    share = {"MIGRATE_SHARE_GPUS": "1"} if ranks > torch.cuda.device_count() else {}
    theirs = run(tmp_path / "cpu", ranks, MIGRATE_BACKEND="cpu")
    ours = run(tmp_path / "cuda", ranks, MIGRATE_BACKEND="cuda", **share)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["device"] == "cuda"
        assert mine["group"] == ("gloo" if share else "nccl")
        # The script's own type, and its scaler.
        assert mine["dtypes"] == other["dtypes"] == ["torch.float16"]
        assert mine["scale"] == pytest.approx(other["scale"])
        assert mine["losses"] == pytest.approx(other["losses"], rel=HALF)
        assert (mine["total"], mine["mean"]) == (other["total"], other["mean"])
        assert mine["weights"] == ours[0]["weights"]


@needs_a_gpu
def test_more_ranks_than_gpus_are_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, torch\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n")
    ranks = torch.cuda.device_count() + 1
    done = subprocess.run(
        [sys.executable, "-m", "shims", "--backend", "cuda", "--ranks", str(ranks), str(script)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"--ranks {ranks}, and " in done.stderr


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
def test_cuda_without_a_gpu_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    done = subprocess.run(
        [sys.executable, "-m", "shims", "--backend", "cuda", "--ranks", "2", str(script)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no CUDA device" in done.stderr
