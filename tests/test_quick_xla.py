"""XLA leaves out LLVM's optimizations where a program is only compared, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from migrate import quick_xla
from migrate.prove.run import run_script
from migrate.quick_xla import AS_WRITTEN, compiling_quickly, rounding_as_written
from tests.frameworks import need_torch_xla
from tests.waiting import LIMIT

QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    " --xla_cpu_use_fusion_emitters=false"
)


@pytest.fixture(autouse=True)
def _versions_are_asked_anew() -> Iterator[None]:
    quick_xla._emitters_can_be_off.cache_clear()
    yield
    quick_xla._emitters_can_be_off.cache_clear()


@pytest.fixture
def _of_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, jaxlib="0.10.2", torch_xla="2.9.0")


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(quick_xla, "version", version)


@pytest.mark.usefixtures("_of_pins")
def test_the_users_flags_stay_before_ours() -> None:
    assert compiling_quickly({}) == {"XLA_FLAGS": QUICK}
    assert compiling_quickly({"XLA_FLAGS": "--xla_a=1"}) == {"XLA_FLAGS": f"--xla_a=1 {QUICK}"}


@pytest.mark.usefixtures("_of_pins")
def test_a_flag_of_the_users_is_not_repeated() -> None:
    theirs = "--xla_cpu_use_fusion_emitters=true"
    assert compiling_quickly({"XLA_FLAGS": theirs}) == {
        "XLA_FLAGS": f"{theirs} {QUICK.rpartition(' ')[0]}"
    }


@pytest.mark.parametrize(
    ("versions", "off"),
    [
        ({}, True),
        ({"jaxlib": "0.11.0"}, True),
        ({"jaxlib": "0.12.0.1"}, False),
        ({"jaxlib": "0.9.2"}, False),
        ({"jaxlib": "0.10.2", "torch_xla": "2.8.0"}, False),
        ({"jaxlib": "0.10.2", "tensorflow": "2.20.0"}, False),
        ({"jaxlib": "0.10.2", "torch_tpu": "0.2.0"}, False),
    ],
)
def test_no_xla_is_given_a_flag_that_it_does_not_know(
    versions: dict[str, str], off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, **versions)
    assert ("fusion_emitters" in compiling_quickly({})["XLA_FLAGS"]) is off


def test_a_level_that_the_user_names_stands() -> None:
    assert compiling_quickly({"XLA_FLAGS": "--xla_backend_optimization_level=3"}) == {}


def test_rounding_as_written_adds_a_flag_unless_the_user_has_it() -> None:
    assert rounding_as_written({}) == {"XLA_FLAGS": AS_WRITTEN}
    assert rounding_as_written({"XLA_FLAGS": "--xla_a=1"}) == {
        "XLA_FLAGS": f"--xla_a=1 {AS_WRITTEN}"
    }
    assert rounding_as_written({"XLA_FLAGS": "--xla_allow_excess_precision=true"}) == {}


def test_a_simulated_run_compiles_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_torch_xla()
    flags = compiling_quickly({})["XLA_FLAGS"]
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('with', os.environ.get('XLA_FLAGS'))\n")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    done = run_script(script, side="xla", replicas=2, output="capture", timeout=LIMIT)
    assert done.output.strip() == f"with --xla_cpu_enable_fast_math=false {flags}"
    theirs = run_script(script, side="original", replicas=1, output="capture", timeout=LIMIT)
    assert theirs.output.strip() == "with --xla_cpu_enable_fast_math=false"
