"""Operators that read a tensor given as a number: the catalogue's list, measured, and its calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.catalogue.wrong_operators import NUMBER_ARGUMENTS, NUMBERS_OF_METHODS
from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

# Arguments behind the first tensor, by the first operator of each kind: m matrix, v vector, i rows, b batch.
OTHERS = {
    "m": "add add_ sub sub_ subtract subtract_ rsub addcdiv addcdiv_ addcmul addcmul_ "
    "huber_loss smooth_l1_loss hinge_embedding_loss cosine_similarity",
    "0im": "index_add index_add_",
    "mm": "addmm addmm_ addcdiv addcdiv_ addcmul addcmul_ margin_ranking_loss triplet_margin_loss "
    "scaled_dot_product_attention",
    "mv": "addmv addmv_ cosine_embedding_loss",
    "bb": "addbmm addbmm_ baddbmm baddbmm_",
    "vv": "addr addr_",
    "l": "_foreach_add _foreach_add_ _foreach_sub _foreach_sub_",
    "ll": "_foreach_addcdiv _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_",
    "s": "new_full full_like",
    "i": "cross_entropy",
    "p": "pad",
}
OF_NAME = {name: kind for kind, names in OTHERS.items() for name in names.split()}
FIRST = {"addmv": "v", "addmv_": "v", "baddbmm": "b", "baddbmm_": "b"}
FIRST |= {"dropout2d": "4", "dropout3d": "4", "feature_alpha_dropout": "4"}
NEEDED = {
    "threshold": {"threshold": 0.5, "value": 0.5},
    "threshold_": {"threshold": 0.5, "value": 0.5},
    "cauchy_": {"sigma": 1.0},
}


def _function(name: str) -> Callable[..., Any]:
    import torch

    homes = (torch.nn.functional, torch.nn.init, torch.nn.utils, torch)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def unread() -> list[str]:
    """Return the operators, each with its number, that read nothing: in a process of its own."""
    import torch
    import torch_xla
    import torch_xla.debug.metrics as metrics

    device = torch_xla.device()

    def tensor(kind: str) -> Any:
        if kind in "0sp":
            return {"0": 0, "s": (2,), "p": (1, 1)}[kind]
        if kind == "i":
            return torch.tensor([0, 1]).to(device)
        value = torch.rand({"v": (2,), "b": (2, 2, 2), "4": (2, 2, 2, 2)}.get(kind, (2, 2))).to(
            device
        )
        return [value] if kind == "l" else value

    silent = []
    for name, numbers in NUMBER_ARGUMENTS.items():
        others = OF_NAME.get(name, "")
        for number in numbers:
            first = tensor(FIRST.get(name, "l" if name.startswith("_foreach") else "m"))
            if name in ("clip_grad_norm_", "clip_grad_value_"):
                first = torch.nn.Parameter(first)
                first.grad = torch.ones_like(first)
            tensors = [tensor(kind) for kind in others if not (kind == "s" and name == "full_like")]
            is_method = hasattr(torch.Tensor, name) and number not in ("a", "b")
            function = getattr(first, name) if is_method else _function(name)
            given = torch.tensor(0.25).to(device)
            torch_xla.sync()
            metrics.clear_all()
            call = [*(() if is_method else (first,)), *tensors]
            function(*call, **{**NEEDED.get(name, {}), number: given})
            if not metrics.counter_value("aten::_local_scalar_dense"):
                silent.append(f"{name} {number}")
    return silent


@pytest.mark.xla
@pytest.mark.long
def test_each_reads_its_number() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_methods_are_those_of_tensors() -> None:
    import torch

    methods = {name for name in NUMBER_ARGUMENTS if hasattr(torch.Tensor, name)}
    assert methods | {"clip_grad_norm_"} == set(NUMBERS_OF_METHODS)


STEP = """
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Net(nn.Module):
        def __init__(self, elu, dropout):
            super().__init__()
            self.elu, self.dropout, self.pad = elu, dropout, nn.ZeroPad2d(1)

        def forward(self, x):
            return {value}


    def train(loader, elu, dropout):
        model = Net(elu, dropout).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            loss = model(x.to("xla")).mean()
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("self.pad(self.dropout(self.elu(x)))", False),
        ("F.elu(x, x.mean())", True),
        ("F.dropout(x, p=x.mean())", True),
        ("x.index_add_(0, x.long(), x, alpha=x.mean())", True),
        ("torch._foreach_sub([x], [x], alpha=x.mean())[0]", True),
        ("x.exponential_(x.mean())", True),
    ],
)
def test_modules_under_the_name_of_an_operator_read_nothing(value: str, expected: bool) -> None:
    text = textwrap.dedent(STEP).format(value=value)
    findings = check_source(parse(text.encode(), Path("s.py")), Config())
    assert ("XLA202" in {finding.code for finding in findings}) is expected


if __name__ == "__main__":
    sys.stdout.write(f"{unread()}\n")
