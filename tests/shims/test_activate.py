import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from shims import activate
from shims._started.quick_imports import deferred
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
    program = """
import torch_xla, torch

print(torch.cuda.device_count())
import sys
from torch_xla._dynamo import dynamo_bridge

print("torch._inductor.lowering" in sys.modules)
print(callable(dynamo_bridge.extract_compiled_graph))
print("torch._inductor.lowering" in sys.modules, hasattr(dynamo_bridge, "no_such_name"))
"""
    done = run(program, **variables)
    # What torch.compile alone uses is imported when that asks for it.
    assert done.stdout.split() == ["3", "False", "True", "True", "False"], done.stderr


def deferred_module(folder: Path, text: str) -> ModuleType:
    path = folder / "late.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("late", path)
    assert spec is not None
    module = importlib.util.module_from_spec(deferred(spec))
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def test_a_deferred_module_is_executed_once_when_a_name_of_it_is_read(tmp_path: Path) -> None:
    said = tmp_path / "said"
    writes = f"with open({str(said)!r}, 'a') as file:\n    file.write('once ')\n"
    late = deferred_module(tmp_path, f"{writes}number = 3\n")
    # As `inspect` asks each module.
    assert hasattr(late, "__file__")
    assert not hasattr(late, "__wrapped__")
    assert not said.exists()
    numbers: list[int] = []
    threads = [threading.Thread(target=lambda: numbers.append(late.number)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == [3] * 4
    assert said.read_text() == "once "
    assert type(late) is ModuleType
    assert not hasattr(late, "no_such_name")


def test_a_deferred_module_that_fails_says_so_each_time(tmp_path: Path) -> None:
    late = deferred_module(tmp_path, "raise ImportError('not here')\n")
    for _ in range(2):
        with pytest.raises(ImportError, match="not here"):
            _ = late.number


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
