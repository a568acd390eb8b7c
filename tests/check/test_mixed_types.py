"""XLA888: tensors of different types in a function that only CUDA's autocast makes alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn
IMPORT


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x.float(), dim=-1).type_as(x) * self.weight


class Attention(nn.Module):
    def __init__(self, dim, norms=True):
        super().__init__()
        self.norms = norms
        self.qkv = nn.Linear(dim, 3 * dim)
        self.norm = NORM

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        BEFORE
        return ATTEND
"""
TRAIN = """
import torch
from model import Attention


def main(loader, optimizer):
    model = Attention(8).cuda()
    for x in loader:
        with torch.autocast(REGION):
            loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
"""
BOTH = "q, k = self.norm(q), self.norm(k)"
ATTEND = "F.scaled_dot_product_attention(q, k, v)"


def messages(
    folder: Path,
    before: str = BOTH,
    norm: str = "nn.LayerNorm(dim)",
    attend: str = ATTEND,
    region: str = '"cuda", dtype=torch.bfloat16',
    top: str = "",
) -> list[str]:
    model = MODEL.replace("NORM", norm).replace("BEFORE", before).replace("ATTEND", attend)
    (folder / "model.py").write_text(model.replace("IMPORT", top))
    (folder / "train.py").write_text(TRAIN.replace("REGION", region))
    return [one.message for one in check_paths([folder], Config(select=("XLA888",))).findings]


@pytest.mark.parametrize(
    "norm", ["nn.LayerNorm(dim)", "Norm(dim)", "nn.LayerNorm(dim) if norms else nn.Identity()"]
)
@pytest.mark.parametrize("region", ['"cuda"', '"cuda", dtype=torch.bfloat16', '"xla"'])
def test_normed_queries_and_plain_values_are_found(tmp_path: Path, norm: str, region: str) -> None:
    (found,) = messages(tmp_path, norm=norm, region=region)
    assert "`q, k = q.to(v.dtype), k.to(v.dtype)`" in found
    assert "train.py:9" in found


@pytest.mark.parametrize(
    ("before", "severity"),
    [("if self.norms:\n            q = self.norm(q)", "warning"), ("q = self.norm(q)", "error")],
)
def test_where_an_option_norms_it_may_be(tmp_path: Path, before: str, severity: str) -> None:
    (found,) = messages(tmp_path, before)
    assert ("`q` may be float32" in found) is (severity == "warning")
    (one,) = check_paths([tmp_path], Config(select=("XLA888",))).findings
    assert one.severity.value == severity


def test_a_product_with_a_parameter_and_another_name_is_found(tmp_path: Path) -> None:
    before = "q = F.normalize(q, dim=-1).mul(self.norm.exp())"
    found = messages(
        tmp_path,
        before,
        norm="nn.Parameter(torch.ones(1))",
        attend="attend(query=q, key=k, value=v)",
        top="from torch.nn.functional import scaled_dot_product_attention as attend",
    )
    assert len(found) == 1
    assert "`q` is float32" in found[0]


@pytest.mark.parametrize(
    "attend",
    ["F.grid_sample(q, self.norm(k))", "torch.cross(self.norm(q), v)", "q.inner(self.norm(k))"],
)
def test_other_functions_that_cuda_casts_are_found(tmp_path: Path, attend: str) -> None:
    (found,) = messages(tmp_path, "pass", attend=attend)
    assert ".float()`: CUDA's autocast takes the wider type" in found


@pytest.mark.parametrize(
    ("before", "region"),
    [
        ("pass", '"cuda"'),  # all of them are bfloat16
        ("q, k = self.norm(q).to(v.dtype), self.norm(k).type_as(v)", '"cuda"'),
        ("q, k, v = self.norm(q), self.norm(k), v.float()", '"cuda"'),
        ("q, k, v = self.norm(q), self.norm(k), self.norm(v)", '"cuda"'),
        (BOTH, '"cuda", enabled=False'),
        (BOTH, '"cuda", dtype=torch.float32'),
        (BOTH, '"cpu", dtype=torch.bfloat16'),
    ],
)
def test_equal_types_are_left_alone(tmp_path: Path, before: str, region: str) -> None:
    assert messages(tmp_path, before, region=region) == []


@pytest.mark.parametrize(
    "attend", ["torch.matmul(self.norm(q), v)", "torch.cat([self.norm(q), v])", "torch.dot(q, v)"]
)
def test_functions_that_take_both_types_are_left_alone(tmp_path: Path, attend: str) -> None:
    assert messages(tmp_path, "pass", attend=attend) == []
