"""Several CUDA devices of one process, and what the call log says of mixed precision."""

from pathlib import Path

import pytest

from tests.shims.patches.test_behaviors import PLACES, PROGRAMS, run

AMP = """
import torch

scaler = torch.cuda.amp.GradScaler()
other = torch.amp.GradScaler("cuda")
with torch.cuda.amp.autocast():
    x = torch.ones(2, 2, device="cuda")
with torch.autocast("cuda", torch.float16):
    assert torch.is_autocast_enabled()
generator = torch.Generator("cuda")
"""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.long_cases("cpu")
def test_one_process_with_two_devices(place: str) -> None:
    assert "one process is right" in run(place, PROGRAMS / "one_process.py").stdout


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.long_cases("cpu")
def test_the_log_has_mixed_precision(place: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(AMP)
    log = run(place, script, MIGRATE_SHIMS_LOG="1").stderr
    scales = "torch's own arithmetic" if place == "cpu" else "passes through: bfloat16"
    casts = "autocast of the CPU" if place == "cpu" else "autocast('xla', bfloat16)"
    for line, name, answer in (
        (4, "torch.cuda.amp.GradScaler", scales),
        (5, "torch.amp.GradScaler", scales),
        (6, "torch.cuda.amp.autocast", casts),
        (8, "torch.autocast", casts),
        (10, "torch.Generator", "a generator of the host"),
    ):
        assert f"{script}:{line}: {name} (1 time): {answer}" in log, log
    assert f"{script}:4: FutureWarning: `torch.cuda.amp.GradScaler(args...)`" in log
