"""XLA leaves out LLVM's optimizations where a program is only compared, unless the user says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.prove.run import run_script
from migrate.quick_xla import compiling_quickly
from tests.frameworks import need_torch_xla
from tests.waiting import LIMIT

QUICK = "--xla_backend_optimization_level=0"


def test_the_users_flags_stay_before_ours() -> None:
    assert compiling_quickly({}) == {"XLA_FLAGS": QUICK}
    assert compiling_quickly({"XLA_FLAGS": "--xla_a=1"}) == {"XLA_FLAGS": f"--xla_a=1 {QUICK}"}


def test_a_level_that_the_user_names_stands() -> None:
    assert compiling_quickly({"XLA_FLAGS": "--xla_backend_optimization_level=3"}) == {}


def test_a_simulated_run_compiles_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_torch_xla()
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('with', os.environ.get('XLA_FLAGS'))\n")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    done = run_script(script, side="xla", replicas=2, output="capture", timeout=LIMIT)
    assert done.output.strip() == f"with --xla_cpu_enable_fast_math=false {QUICK}"
    theirs = run_script(script, side="original", replicas=1, output="capture", timeout=LIMIT)
    assert theirs.output.strip() == "with --xla_cpu_enable_fast_math=false"
