"""The tables of prices and hours: ours are whole, wrong ones are refused with key and line."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from migrate.assess.errors import AssessError
from migrate.assess.hours import read_hours
from migrate.assess.prices import read_prices
from migrate.check.manual_work import ManualWork
from migrate.check.rules import all_hazards
from migrate.rewrite.left.manual_work import work_of
from migrate.rewrite.results import Note
from migrate.rewrite.rules import all_rules

GOOD = "tpu:\n  v5e: {on_demand: 1}\ngpu:\n  mine: {on_demand: 0.5}\n"
KINDS = "".join(f"  {one.value}: [2, 1]\n" for one in ManualWork)


def test_each_of_our_prices_has_its_source_and_date() -> None:
    prices = read_prices()
    for one in (*prices.tpu.values(), *prices.gpu.values()):
        assert "https://" in one.source
        assert datetime.date.fromisoformat(one.read)
        assert one.on_demand > 0
        assert one.spot is None or 0 < one.spot < one.on_demand
    assert {"v5e", "v5p", "v6e"} <= set(prices.tpu)
    assert {"h100", "a100-80gb"} <= set(prices.gpu)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(GOOD)
    prices = read_prices(file)
    assert prices.of_gpu("MINE").on_demand == 0.5
    assert (prices.tpu["v5e"].spot, prices.tpu["v5e"].source, prices.free) == (None, "", None)


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(AssessError, match=r"^--gpu h101: .*near: h100"):
        read_prices().of_gpu("h101")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("a100", ["a100-80gb", "a100-40gb"]),
        ("A100", ["a100-80gb", "a100-40gb"]),
        ("A100-40GB", ["a100-40gb"]),
        ("NVIDIA A100-SXM4-40GB", ["a100-40gb"]),
        ("a100_80gb", ["a100-80gb"]),
        ("A100 80 GB PCIe", ["a100-80gb"]),
        ("NVIDIA H100 80GB HBM3", ["h100"]),
        ("h100-sxm", ["h100"]),
        ("GeForce RTX 4090", ["rtx4090"]),
        ("4090", ["rtx4090"]),
        ("Tesla V100", ["v100"]),
        ("V100-16GB", ["v100"]),
        ("A100-20GB", []),
        ("l4", []),
        ("a1", []),
        ("nvidia", []),
    ],
)
def test_short_names_of_gpus(name: str, known: list[str]) -> None:
    assert [price.name for price in read_prices().gpus_named(name)] == known


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": is empty"),
        ("tpu: [", ":1: not YAML"),
        ("- 1\n", ":1: the file is not a table"),
        ("tpu: {}\n", ":1: the file has no gpu"),
        (f"{GOOD}tpus: {{}}\n", ":5: tpus is not known"),
        (GOOD.replace("v5e", "v5f"), ":2: tpu.v5f is not a generation of TPUs; near: v5"),
        (GOOD.replace("1}", "-1}"), ":2: tpu.v5e.on_demand is -1"),
        (GOOD.replace("1}", "cheap}"), r":2: tpu.v5e.on_demand is not a number \(cheap\)"),
        (GOOD.replace("1}", ".nan}"), ":2: tpu.v5e.on_demand is not a number"),
        (GOOD.replace("on_demand: 1", "spot: 1"), ":2: tpu.v5e has no on_demand"),
        (f"{GOOD}  mine: {{on_demand: 2}}\n", ":5: gpu.mine stands there twice"),
    ],
)
def test_a_wrong_file_is_refused_with_key_and_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(AssessError, match=f"^{file}{says}"):
        read_prices(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AssessError, match=r"cannot be read \(No such file"):
        read_prices(tmp_path / "none.yaml")


def test_hours_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "hours.yaml"
    file.write_text(f"setup: 4\nlook: 0\nkinds:\n{KINDS}")
    hours = read_hours(file)
    assert [hours.of(ManualWork.STEP, count) for count in (0, 1, 3)] == [0, 2, 4]
    file.write_text(f"setup: 4\nlook: 0\nkinds:\n{KINDS.replace('step: [2, 1]', 'step: 2')}")
    with pytest.raises(AssessError, match=r":10: kinds.step is not a list of 2 numbers"):
        read_hours(file)
    file.write_text(f"setup: 4\nlook: 0\nkinds:\n{KINDS.replace('  step: [2, 1]', '')}")
    with pytest.raises(AssessError, match=r"kinds has no step"):
        read_hours(file)


def test_every_rule_and_hazard_has_its_kind_of_work() -> None:
    found = {one.code: work_of(Note(1, 1, one.code, "")) for one in all_hazards()}
    assert found["XLA401"] is found["XLA402"] is ManualWork.KERNELS
    assert found["XLA403"] is ManualWork.LIBRARY
    assert work_of(Note(1, 1, "frameworks", "", subject="deepspeed")) is ManualWork.FRAMEWORK
    assert found["XLA101"] is ManualWork.SHAPES
    of_rules = {one.name: work_of(Note(1, 1, one.name, "")) for one in all_rules()}
    assert of_rules["autocast"] is ManualWork.PRECISION
    assert of_rules["grad-scaler"] is ManualWork.CALLS  # a scaler that is off: no dtype is chosen
    assert of_rules["mp-spawn"] is ManualWork.REPLICAS
    assert {*found.values(), *of_rules.values(), ManualWork.FRAMEWORK} == set(ManualWork)
