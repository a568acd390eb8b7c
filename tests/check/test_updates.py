"""The `step` of an optimizer of the script's own is a part of the training step."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.folder import rewrite_folder

LARS = """
    import torch
    {imports}


    class {name}({base}):
        @torch.no_grad()
        def step(self, closure=None):
            loss = None
            if closure is not None:
                loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None or p.grad.is_sparse:
                        continue
                    update = p.grad
                    p_norm = torch.norm(p.data)
                    if p.ndim != 1 and group["momentum"] != 0:
                        if p_norm != 0:  # XLA110
                            update = update * min(p_norm / group["lr"], 1)  # XLA110
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"] = 0
                        state["average"] = torch.zeros_like(p)
                    state["step"] += 1
                    if update.norm().item() > 1:  # XLA110
                        update = update / 2
                    p.add_(update, alpha=-group["lr"] / (1 - 0.9 ** state["step"]))
            return loss
"""
BASES = {
    "a name": ("from torch.optim import Optimizer", "Optimizer"),
    "the module": ("import torch.optim as optim", "optim.Optimizer"),
    "one of torch's": ("from torch.optim import AdamW", "AdamW"),
    "one of the script's": (
        "from torch.optim.optimizer import Optimizer\n\n\n    class Base(Optimizer): ...",
        "Base",
    ),
}


def reported(path: Path) -> list[tuple[int, str]]:
    return sorted((hit.line, hit.code) for hit in check_file(path, Config()))


@pytest.mark.parametrize("base", BASES)
def test_reads_in_an_update(base: str, tmp_path: Path) -> None:
    imports, parent = BASES[base]
    script = textwrap.dedent(LARS.format(imports=imports, base=parent, name="Scaled"))
    path = tmp_path / "lars.py"
    path.write_text(script)
    marked = [
        (number, code)
        for number, line in enumerate(script.splitlines(), 1)
        for code in line.partition("# XLA")[1:] and line.partition("# ")[2].split()
    ]
    assert reported(path) == marked != []


def test_a_step_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text(
        textwrap.dedent(
            LARS.format(imports="from environments import Env", base="Env", name="Walk")
        )
    )
    assert reported(path) == []


def test_a_function_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "sparse.py").write_text(
        textwrap.dedent(
            """
            import torch


            def signs(grad, ids):
                used, place = ids.unique(return_inverse=True)
                total = torch.zeros((used.shape[0], 4), device=grad.device)
                return total.scatter_add_(0, place.unsqueeze(-1), grad)
            """
        )
    )
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import torch
            from sparse import signs


            class Sparse(torch.optim.Optimizer):
                @torch.no_grad()
                def step(self, closure=None):
                    for group in self.param_groups:
                        for p in group["params"]:
                            signs(p.grad, p)


            model = torch.nn.Linear(3, 2).cuda()
            """
        )
    )
    done = rewrite_folder(tmp_path)
    messages = {str(f.name): [(n.rule, n.line) for n in f.findings] for f in done.files}
    assert ("XLA105", 6) in messages["sparse.py"]
