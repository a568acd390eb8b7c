"""`migrate check --target torch_tpu`, and the target of `[tool.migrate]`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands

SCRIPT = """\
import torch


def train(model, optimizer, loader):
    pool = torch.nn.AvgPool1d(2)
    for x in loader:
        loss = pool(model(x.to("tpu:1"))).sum()
        loss.backward()
        optimizer.step()
        print(loss.item(), torch.cuda.memory_allocated())
"""


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


def test_each_target_has_its_own_hazards(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    of_tpu, of_xla = (
        run("check", script, "--target", "torch_tpu").output,
        run("check", script).output,
    )
    assert all(code in of_tpu for code in ("XLA893", "XLA895", "XLA896", "XLA890"))
    assert "XLA201" not in of_tpu  # `.item()` waits, as on CUDA
    assert "XLA201" in of_xla
    assert not any(code in of_xla for code in ("XLA890", "XLA893", "XLA895", "XLA896"))


SPARSE = """\
import torch

users = torch.nn.Embedding(9, 4, sparse=True).to(DEVICE)
optimizer = torch.optim.SparseAdam(users.parameters())
near = torch.eye(3, device=DEVICE).to_sparse()
"""


@pytest.mark.parametrize(
    ("target", "device", "said"),
    [("torch_xla", "xla", "XLA has not"), ("torch_tpu", "tpu", "torch_tpu has few operators")],
)
def test_sparse_gradients_are_reported_for_each_target(
    target: str, device: str, said: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPARSE.replace("DEVICE", repr(device)))
    output = run("check", script, "--target", target, "--json").output
    hits = [hit for hit in json.loads(output)["findings"] if hit["code"] == "XLA606"]
    assert [hit["line"] for hit in hits] == [3, 4, 5]
    assert said in hits[0]["message"]


SEEDED = """
import torch
import torch.multiprocessing as mp


def seed_everything(seed):
    torch.manual_seed(seed)


def worker(rank):
    torch.manual_seed(rank)


def main():
    SEED
    mp.spawn(worker, nprocs=torch.accelerator.device_count())


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("seed", "lines"),
    [("torch.manual_seed(0)", [15]), ("seed_everything(0)", [7]), ("print(worker)", [])],
)
def test_a_seed_opens_the_tpu_before_the_launch(
    seed: str, lines: list[int], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEEDED.replace("SEED", seed))
    reported = run("check", script, "--target", "torch_tpu", "--json").output
    findings = json.loads(reported)["findings"]
    errors = [each for each in findings if each["severity"] == "error"]
    assert [each["line"] for each in errors if each["code"] == "XLA706"] == lines
    assert "XLA706" not in run("check", script, "--json").output


def test_the_configuration_sets_the_target(tmp_path: Path) -> None:
    script, settings = tmp_path / "train.py", tmp_path / "pyproject.toml"
    script.write_text(SCRIPT)
    settings.write_text('[tool.migrate]\ntarget = "torch_tpu"\n')
    assert "XLA893" in run("check", script).output
    assert "XLA893" not in run("check", script, "--target", "torch_xla").output
    assert run("rewrite", script).exit_code in (0, 1)
    assert (tmp_path / "train_tpu.py").exists()
    settings.write_text('[tool.migrate]\ntarget = "jax"\n')
    refused = run("check", script)
    assert refused.exit_code == 2
    assert "use torch_xla or torch_tpu" in refused.output


def test_the_portable_style_has_one_target(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    refused = run("rewrite", script, "--target", "torch_tpu", "--style", "portable")
    assert refused.exit_code == 2
    assert not (tmp_path / "train_tpu.py").exists()


ANTIALIAS = """\
import torch.nn.functional as F


def resized(x, smooth=False):
    return F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=smooth)


def asked(x, smooth):
    return F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=smooth)


def main(x, options):
    resized(x, smooth=False)
    asked(x, options.smooth)
"""


def test_only_an_option_that_may_be_true_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "resize.py"
    script.write_text(ANTIALIAS)
    lines = [
        line
        for line in run("check", script, "--target", "torch_tpu").output.splitlines()
        if "XLA892" in line
    ]
    assert len(lines) == 1
    assert "resize.py:9" in lines[0]
    assert "warning" in lines[0]
