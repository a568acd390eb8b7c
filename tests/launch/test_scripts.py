"""Scripts of launchers, run with stand-ins for the clouds' own programs."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.cli.launch import _LAUNCHERS as OFFERED
from migrate.launch.host.hosts import _READERS
from migrate.launch.host.training import PREEMPTED
from migrate.launch.launchers import LAUNCHERS
from tests.launch.jobs import written
from tests.waiting import LIMIT, until

# Writes down how it was called; `ls` and `describe` answer what the test has prepared.
GCLOUD = """\
#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$*" in
  *"storage ls"*done) [ -f "$PLACE/done" ] ;;
  *"storage ls"*) false ;;
  *describe*) cat "$PLACE/state" 2>/dev/null || false ;;
  *"queued-resources create"*) echo ACTIVE > "$PLACE/state" ;;
esac
"""
# The first minute: preempted. The third: done.
SLEEP = """\
#!/usr/bin/env bash
echo sleep >> "$CALLS"
case $(grep -c sleep "$CALLS") in
  1) echo SUSPENDED > "$PLACE/state" ;;
  3) touch "$PLACE/done" ;;
esac
"""


@pytest.fixture
def clouds(tmp_path: Path) -> dict[str, str]:
    """Variables with which the stand-ins come first."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"gcloud": GCLOUD, "sleep": SLEEP, "xpk": GCLOUD}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PLACE": str(tmp_path), "CALLS": str(tmp_path / "calls")}


def test_gcloud_asks_again_after_a_preemption_and_deletes_at_the_end(
    tmp_path: Path, clouds: dict[str, str]
) -> None:
    folder = written(tmp_path, "gcloud", spot=True).folder
    subprocess.run(["bash", folder / "create.sh"], env=clouds, check=True)
    done = subprocess.run(
        ["bash", folder / "requeue.sh"], env=clouds, check=True, capture_output=True, text=True
    )
    assert done.stdout == "xla-script: done; the slice is deleted\n"
    calls = Path(clouds["CALLS"]).read_text().splitlines()
    creates = [call for call in calls if "queued-resources create" in call]
    deletes = [call for call in calls if "queued-resources delete" in call]
    assert len(creates) == 2
    assert "--spot" in creates[0]
    assert len(deletes) == 2
    assert calls[0].startswith("storage rsync --recursive")
    assert calls[0].endswith(". gs://lab-runs/exp-1/job")


def test_xpk_is_called_with_the_job(tmp_path: Path, clouds: dict[str, str]) -> None:
    folder = written(tmp_path, "xpk").folder
    subprocess.run(["bash", folder / "create.sh"], env=clouds, check=True)
    (call,) = Path(clouds["CALLS"]).read_text().splitlines()
    assert call.startswith("workload create --workload=xla-script --cluster=lab")
    assert "--command=bash start.sh" in call


def test_jobmans_command_starts_the_job_once(tmp_path: Path) -> None:
    folder = written(tmp_path, "jobman").folder
    (folder / "start.sh").write_text("echo begun; exec sleep 60\n")
    (folder / "attach.sh").write_text((folder / "attach.sh").read_text().replace("240", "1"))
    for _ in range(2):  # as jobman does after five minutes
        subprocess.run(["bash", folder / "attach.sh"], check=True, timeout=LIMIT)
    until(lambda: "begun" in (folder / "host.log").read_text(), "the job to begin")
    assert (folder / "host.log").read_text() == "begun\n"
    held = subprocess.run(
        ["fuser", folder / "job.lock"], capture_output=True, text=True, check=False
    )
    for number in held.stdout.split():
        os.kill(int(number), signal.SIGTERM)


def test_the_environment_of_a_host_is_made_once(tmp_path: Path) -> None:
    folder = written(tmp_path, "gcloud").folder
    (folder / "requirements.txt").write_text("")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3.11").symlink_to(sys.executable)
    script = ". ./setup.sh; echo $PYTHON; $PYTHON -c 'import sys; print(sys.prefix)'"
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    texts = {
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(2)
    }
    (text,) = texts
    assert ".job-environments" in text
    assert len(list((tmp_path / ".job-environments").glob("*/complete"))) == 1


def test_the_lists_of_launchers_are_the_same() -> None:
    """The command knows them without importing their writers, a host runs without them."""
    assert set(OFFERED) == set(LAUNCHERS) == set(_READERS)


def test_a_preempted_program_and_its_host_end_with_the_same_code() -> None:
    assert importlib.import_module("shims.resume").PREEMPTED == PREEMPTED
