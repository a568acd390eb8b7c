"""Modules that a function or `import_module` returns: their names are those of the module."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.folder import rewrite_folder

LAZY = """
_TORCH = None


def lazy_torch():
    global _TORCH
    if _TORCH is None:
        import torch

        _TORCH = torch
    return _TORCH
"""
DEVICE = """
from lazy import lazy_torch


def device():
    torch = {module}
    return torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")


def save(path, state):
    {module}.save(state, path)
"""
TRAIN = """
import torch
from place import device, save

model = torch.nn.Linear(2, 2).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(torch.ones(8, 2)):
    loss = model(x.to(device())).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
save("x.pt", model.state_dict())
"""
MODULES = ["lazy_torch()", 'importlib.import_module("torch")', '__import__("torch")']


def project(folder: Path, module: str) -> Path:
    """Write the project, whose device and save go by `module`."""
    imports = "import importlib\n" if "importlib" in module else ""
    for name, text in {"lazy": LAZY, "place": imports + DEVICE, "train": TRAIN}.items():
        (folder / f"{name}.py").write_text(text.replace("{module}", module))
    return folder


@pytest.mark.parametrize("module", MODULES)
def test_a_choice_of_the_device_is_reported(tmp_path: Path, module: str) -> None:
    _, found = findings_of([project(tmp_path, module)], Config())
    assert {"XLA704", "XLA724", "XLA301"} <= {f.code for f in found if f.path.name == "place.py"}


@pytest.mark.parametrize("module", MODULES)
def test_the_rewrite_trains_on_the_device(tmp_path: Path, module: str) -> None:
    done = rewrite_folder(project(tmp_path, module))
    after = next(f for f in done.changed if f.name == Path("place.py")).after.decode()
    assert 'return torch.device("xla")\n' in after
    assert "cuda" not in after
    assert "xm.save(state, path, global_master=True)" in after


def test_a_function_that_returns_something_else_names_no_module(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """
import torch


def pick(flag):
    return torch if flag else None


def chosen(flag):
    module = torch
    module = wrapped(module)
    return module


def wrapped(module):
    return object()


chosen(True).cuda.set_device(0)
"""
    )
    assert not check_paths([tmp_path], Config(select=("XLA827",))).findings
