"""A user's `shims.py`, `converters` or `migrate` beside the toolkit's packages."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shims import activate
from tests.waiting import LIMIT


def run(script: Path, plugins: tuple[str, ...] = ()) -> str:
    """Run a script with the backend for CUDA code on the CPU; return what it prints."""
    env = {**os.environ, **activate.environment("cpu", 1, plugins)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.parametrize("name", ["shims", "converters", "migrate"])
@pytest.mark.long_cases("converters", "migrate")
def test_the_user_gets_the_users_module_and_the_toolkit_its_own(tmp_path: Path, name: str) -> None:
    write(tmp_path / f"{name}.py", "def resize(x):\n    return x + 1\n")
    script = write(
        tmp_path / "train.py",
        f"""
        import torch
        import {name}
        from {name} import resize

        x = torch.ones(2).cuda()
        torch.cuda.synchronize()
        print(resize(1), {name}.resize(2), x.device.type)
        """,
    )
    assert run(script).split()[:2] == ["2", "3"]


def test_a_package_with_modules_that_import_each_other(tmp_path: Path) -> None:
    write(tmp_path / "shims" / "__init__.py", "from .sizes import SIZE\n")
    write(tmp_path / "shims" / "sizes.py", "SIZE = 3\n")
    write(tmp_path / "shims" / "more.py", "from shims.sizes import SIZE\nMORE = SIZE + 1\n")
    script = write(
        tmp_path / "train.py",
        """
        import torch
        import shims.more
        from shims import SIZE
        from shims.more import MORE

        print(SIZE, MORE, shims.more.MORE, torch.ones(2).cuda().sum().item())
        """,
    )
    assert run(script).split() == ["3", "4", "4", "2.0"]


def test_processes_that_the_script_starts_get_it_too(tmp_path: Path) -> None:
    write(tmp_path / "shims.py", "def resize(x):\n    return x + 1\n")
    script = write(
        tmp_path / "train.py",
        """
        import torch.multiprocessing as mp
        from shims import resize

        def worker(rank, function):
            from shims import resize as again
            print(function(1), again(1), flush=True)

        if __name__ == "__main__":
            mp.spawn(worker, args=(resize,), nprocs=1)
        """,
    )
    assert run(script).split() == ["2", "2"]


def test_a_module_on_pythonpath_does_not_keep_the_toolkit_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shims.py", "def resize(x):\n    return x + 1\n")
    script = write(tmp_path / "train.py", "from shims import resize\nprint(resize(1))\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run(script).split() == ["2"]


def test_python_m_migrate_starts_in_a_project_with_a_shims_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "shims.py", "def resize(x):\n    return x + 1\n")
    command = [sys.executable, "-m", "migrate", "rewrite", "train.py", "--diff"]
    write(tmp_path / "train.py", "import torch\n\nx = torch.ones(2).cuda()\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode in (0, 1), done.stderr
    assert 'torch.ones(2).to("xla")' in done.stdout
