"""What a project's configuration files say of CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder

TRAIN = "import torch\n\n\ndef train(model, cfg):\n    model.cuda()\n    return cfg['device']\n"


def said(folder: Path, name: str, text: str, script: str = TRAIN) -> list[tuple[str, str]]:
    """Return where and of which rule the findings of a configuration are."""
    (folder / "train.py").write_text(script)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    done = rewrite_folder(folder, processes=1)
    assert not done.problems
    assert done.scripts == 1
    assert name not in [file.name.as_posix() for file in done.changed]
    return [(note.place, note.rule) for at, note in done.left_to_do if at.as_posix() == name]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("conf/train.yaml", "lr: 0.1\ndevice: cuda\n", [("2:1", "device")]),
        ("a.yml", "train:\n  eval_device: 'cuda:0'  # the first\n", [("2:3", "device")]),
        ("a.yml", "dist: {backend: nccl, port: 1}\n", [("1:8", "init-process-group")]),
        ("a.yaml", "trainer:\n  accelerator: gpu\n", [("2:3", "device")]),
        ("a.json", '{"lr": 0.1,\n "dist_backend": "nccl"}\n', [("2:3", "init-process-group")]),
        (
            "a.json",
            '{"device": "cuda:1", "backend": "nccl"}',
            [("1:3", "device"), ("1:23", "init-process-group")],
        ),
        ("run.sh", 'python train.py \\\n  --device "cuda:0" \\\n  --lr 1\n', [("2:3", "device")]),
        ("run.sh", "python train.py --eval-device=cuda\n", [("1:17", "device")]),
        ("run.sh", "python train.py trainer.accelerator=gpu && ls\n", [("1:17", "device")]),
        ("run.bash", "DEVICE='cuda'\n", [("1:1", "device")]),
        ("run.sh", "python a.py --dist-backend nccl", [("1:13", "init-process-group")]),
        ("run.sh", "# a run\nexport XLA_USE_BF16=1\n", [("2:8", "XLA505")]),
        ("run.sh", 'XLA_DOWNCAST_BF16="1" python a.py\n', [("1:1", "XLA505")]),
        ("a.yaml", 'env:\n  XLA_USE_BF16: "1"\n', [("2:3", "XLA505")]),
    ],
)
def test_each_is_told_with_its_line(
    name: str, text: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    assert set(said(tmp_path, name, text)) == set(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "device: cpu\nbackend: gloo\n# device: cuda\nlr: 1  # device: cuda\n"),
        ("run.sh", "# export XLA_USE_BF16=1\nexport XLA_USE_BF16=0\nunset XLA_USE_BF16\n"),
        ("environment.yml", "dependencies:\n  - cuda\n  - cudatoolkit: cuda\n"),
        ("a.json", '{"cuda": 17, "device": "cuda graph", "name": "cuda"}'),
        ("a.yaml", "device: cuda_if_there\nbackends: [nccl]\n"),
        ("a.txt", "device: cuda\n"),
        ("run.sh", "# python a.py --device cuda\necho 1  # --device cuda\n"),
        ("run.sh", "python a.py --device xla --name cuda --devices 4 --device cuda_if_there\n"),
        ("run.sh", "echo the device cuda is used\ntorchrun --rdzv_backend c10d a.py\n"),
        ("a.json", '{"device": "cuda"}' + " " * 300_000),
    ],
)
def test_anything_else_is_not(name: str, text: str, tmp_path: Path) -> None:
    assert said(tmp_path, name, text) == []


def test_a_project_without_a_rewrite_is_not_looked_at(tmp_path: Path) -> None:
    assert said(tmp_path, "a.yaml", "device: cuda\n", "def add(a, b):\n    return a + b\n") == []


MODULES = '[submodule "other"]\n\tpath = {path}\n\turl = https://example.org/other\n'


@pytest.mark.parametrize("line", ["from other.tools import run\n", "import other.tools as t\n"])
@pytest.mark.parametrize("path", ["other", "third_party/other"])
def test_a_submodule_that_is_imported_and_not_there(line: str, path: str, tmp_path: Path) -> None:
    text = MODULES.format(path=path)
    assert said(tmp_path, ".gitmodules", text, line + TRAIN) == [("2:1", "unhandled")]
    assert said(tmp_path, ".gitmodules", text, TRAIN) == []
    (tmp_path / path).mkdir(parents=True)
    assert said(tmp_path, ".gitmodules", text, line + TRAIN) == [("2:1", "unhandled")]
    (tmp_path / path / "README.md").write_text("There.\n")
    assert said(tmp_path, ".gitmodules", text, line + TRAIN) == []


def test_a_project_of_which_all_that_trains_is_not_there(tmp_path: Path) -> None:
    text = MODULES.format(path="other")
    script = "from other.training import train\n\ntrain()\n"
    assert said(tmp_path, ".gitmodules", text, script) == [("2:1", "unhandled")]


def test_a_project_whose_device_only_its_configuration_names(tmp_path: Path) -> None:
    """Nothing was rewritten, and the one place that says CUDA was not reported."""
    script = """
import torch


def train(model, loader, optimizer, cfg):
    for x, y in loader:
        loss = model.to(cfg.device)(x.to(cfg.device)).sum()
        loss.backward()
        optimizer.step()
"""
    assert said(tmp_path, "conf/train.yaml", "lr: 0.1\ndevice: cuda\n", script) == [
        ("2:1", "device")
    ]
