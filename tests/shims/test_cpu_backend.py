import os
import socket
import subprocess
import sys
from pathlib import Path

from shims import activate
from tests.waiting import LIMIT

PROGRAMS = Path(__file__).parent / "programs"


def run(program: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAMS / program)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **activate.environment("cpu", 2), **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_devices_are_answered(tmp_path: Path) -> None:
    done = run("cuda_devices.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all devices answered" in done.stdout


def test_training_written_for_nccl(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = run("nccl_training.py", tmp_path, MASTER_PORT=str(port))
    assert done.returncode == 0, done.stderr
    assert "rank 0 is done" in done.stdout
    assert "rank 1 is done" in done.stdout
