"""XLA873: a process group under an option, in a program that a launch starts on every chip."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

SCRIPT = """
import argparse
import os

import torch
import torch_xla
import torch.distributed as dist


def join():
    dist.init_process_group("xla", init_method="xla://")


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ddp", OPTION)
    parser.add_argument("--rank", default=0)
    return parser.parse_args()


def main(index):
    args = parsed()
    BEFORE
    if TEST:
        join()


if __name__ == "__main__":
    torch_xla.launch(main)
"""


def found(
    tmp_path: Path,
    option: str = "action='store_true'",
    before: str = "pass",
    test: str = "args.ddp",
    launch: str = "torch_xla.launch(main)",
) -> list[tuple[str, str]]:
    script = tmp_path / "script.py"
    text = SCRIPT.replace("OPTION", option).replace("BEFORE", before).replace("TEST", test)
    script.write_text(text.replace("torch_xla.launch(main)", launch))
    findings = check_paths([script], Config(select=("XLA873",))).findings
    return [(one.severity.value, one.message) for one in findings]


@pytest.mark.parametrize(
    "option",
    ["action='store_true'", "default=False, type=bool", "action='store_true', default=False"],
)
def test_an_option_that_is_off_by_default_is_an_error(tmp_path: Path, option: str) -> None:
    ((severity, message),) = found(tmp_path, option)
    assert severity == "error"
    assert "only if `args.ddp`" in message


def test_a_name_for_the_option_is_followed(tmp_path: Path) -> None:
    assert found(tmp_path, before="use = args.ddp", test="use and torch.distributed.is_available()")


@pytest.mark.parametrize(
    ("option", "before", "test"),
    [
        ("action='store_false'", "pass", "args.ddp"),
        ("default=True", "pass", "args.ddp"),
        ("action='store_true'", "args.ddp = int(os.environ['WORLD_SIZE']) > 1", "args.ddp"),
        ("action='store_true'", "use = int(os.environ['WORLD_SIZE']) > 1", "use"),
        ("action='store_true'", "pass", "args.rank >= 0"),
        ("action='store_true'", "pass", "not dist.is_initialized()"),
        ("action='store_true'", "pass", "'RANK' in os.environ"),
    ],
)
def test_what_the_launch_decides_is_left_alone(
    tmp_path: Path, option: str, before: str, test: str
) -> None:
    assert found(tmp_path, option, before, test) == []


@pytest.mark.parametrize(
    ("other", "codes"), [("else", 0), ("elif args.rank", 0), ("elif args.ddp", 1)]
)
def test_the_other_branch_joins_too(tmp_path: Path, other: str, codes: int) -> None:
    test = f"args.ddp:\n        join()\n    {other}"
    assert len(found(tmp_path, test=test)) == codes


def test_a_script_that_launches_nothing_is_left_alone(tmp_path: Path) -> None:
    assert found(tmp_path, launch="main(0)") == []


STRATEGIES = """
class Alone:
    @property
    def joins(self):
        return False


class Shared:
    @property
    def joins(self):
        return True
"""
CONFIGURED = """
import hydra
import torch_xla
import torch.distributed as dist

import strategies


def main(index):
    strategy = hydra.utils.instantiate({"_target_": "strategies.Alone"})
    if strategy.joins:
        dist.init_process_group("xla", init_method="xla://")


if __name__ == "__main__":
    torch_xla.launch(main)
"""


def test_a_property_of_a_class_that_a_configuration_names_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "strategies.py").write_text(STRATEGIES)
    script = tmp_path / "train.py"
    script.write_text(CONFIGURED)
    (one,) = check_paths([tmp_path], Config(select=("XLA873",))).findings
    assert one.severity.value == "warning"
    script.write_text(CONFIGURED.replace("instantiate({", "instantiate(strategies.Shared, {"))
    (tmp_path / "strategies.py").write_text(STRATEGIES.replace("return False", "return True"))
    assert check_paths([tmp_path], Config(select=("XLA873",))).findings == ()
