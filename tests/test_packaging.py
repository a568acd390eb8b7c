"""What a user gets from the wheel: the three packages and nothing else, working without a framework."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from converters.installing import missing_error

ROOT = Path(__file__).parents[1]


def ran(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_wheel_in_an_environment_of_its_own(tmp_path: Path) -> None:
    ran(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert packages == {"migrate", "converters", "shims"}
    assert "shims/_site/sitecustomize.py" in names
    assert "migrate/report/schema/parity.json" in names
    assert {"migrate/assess/prices.yaml", "migrate/assess/hours.yaml"} <= set(names)
    assert "migrate/report/html/templates/parity.html.j2" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)

    ran(sys.executable, "-m", "venv", tmp_path / "venv")
    python, migrate = (tmp_path / "venv" / "bin" / name for name in ("python", "migrate"))
    ran(python, "-m", "pip", "install", "--quiet", wheel)
    assert "not installed" in ran(migrate, "--version")
    before = ROOT / "examples" / "ddp_toy" / "before.py"
    after = tmp_path / "after.py"
    ran(migrate, "rewrite", before, "-o", after)
    assert after.read_text() == before.with_name("after.py").read_text()
    missing = subprocess.run(
        [migrate, "prove", before], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    line = missing.stderr.splitlines()[-1]
    assert line.startswith(f"migrate: {missing_error('torch').what}; pip install")
