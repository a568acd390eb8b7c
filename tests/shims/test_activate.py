import os
import subprocess
import sys
from pathlib import Path

import pytest

from shims import activate
from shims.errors import BackendError
from tests.waiting import LIMIT


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_a_child_without_torch_imports_none() -> None:
    program = "import sys; print(sorted({'torch', 'numpy', 'torch_xla'} & sys.modules.keys()))"
    done = run(program, **activate.environment("cpu", 2))
    assert done.stdout.strip() == "[]", done.stderr


def test_grandchildren_are_switched_on_too() -> None:
    inner = "import torch; print(torch.cuda.device_count())"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    done = run(program, **activate.environment("cpu", 3))
    assert done.stdout.strip() == "3", done.stderr


def test_another_sitecustomize_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.other_site_ran = True\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    variables = activate.environment("cpu", 1)
    done = run("import sys, shims.activate; print(sys.other_site_ran)", **variables)
    assert done.stdout.strip() == "True", done.stderr


def test_plugins_run_once_torch_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_plugin.py").write_text(
        "import sys\ndef install():\n    import torch\n    print('plugin', torch.tensor(1).item())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    variables = activate.environment(activate.NO_BACKEND, plugins=["my_plugin:install"])
    done = run("print('before'); import torch; print('after')", **variables)
    assert done.stdout.split() == ["before", "plugin", "1", "after"], done.stderr


@pytest.mark.xla
@pytest.mark.long
def test_a_plugin_may_wait_for_a_torch_xla_that_is_imported_before_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_plugin.py").write_text(
        "from shims import activate\n"
        "def install():\n    activate.after_import('torch_xla', lambda: print('plugin'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    variables = activate.environment(activate.NO_BACKEND, plugins=["my_plugin:install"])
    done = run("import torch_xla; print('after')", **variables)
    assert done.stdout.split() == ["plugin", "after"], done.stderr


@pytest.mark.xla
def test_a_backend_is_there_when_torch_xla_was_imported_before_torch() -> None:
    variables = activate.environment("cpu", 3, plugins=["os:getpid"])
    done = run("import torch_xla, torch; print(torch.cuda.device_count())", **variables)
    assert done.stdout.strip() == "3", done.stderr


@pytest.mark.parametrize(
    ("before", "during", "after"), [("", "False", "True"), ("gc.disable()", "False", "False")]
)
def test_the_collector_rests_during_an_import(
    tmp_path: Path, before: str, during: str, after: str
) -> None:
    """And is as it was behind it, whether the import succeeds or not."""
    (tmp_path / "framework.py").write_text("import gc\nprint(gc.isenabled())\n")
    (tmp_path / "broken.py").write_text("import gc\nprint(gc.isenabled())\nraise ImportError\n")
    program = f"""
import gc, sys
from shims.activate import import_quickly

sys.path.append({str(tmp_path)!r})
{before}
import_quickly("framework", "broken")
import framework
print(gc.isenabled(), gc.get_freeze_count() > 0)
try:
    import broken
except ImportError:
    print(gc.isenabled())
"""
    done = run(program)
    kept = str(after == "True")
    assert done.stdout.split() == [during, after, kept, during, after], done.stderr


@pytest.mark.long
def test_a_plugin_that_is_missing_fails_the_import() -> None:
    variables = activate.environment("cpu", plugins=["no_such_module:install"])
    done = run("import torch", **variables)
    assert done.returncode == 1
    assert "cannot load 'no_such_module:install'" in done.stderr.splitlines()[-1]


def test_a_wrong_environment_is_not_ignored() -> None:
    variables = activate.environment("cpu") | {activate.BACKEND: "gpu"}
    done = run("print('ran')", **variables)
    assert done.returncode != 0
    assert "SHIMS_BACKEND='gpu' is unknown" in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.parametrize(("backend", "replicas"), [("gpu", 1), ("cpu", 0)])
def test_environment_refuses_nonsense(backend: str, replicas: int) -> None:
    with pytest.raises(BackendError):
        activate.environment(backend, replicas)
