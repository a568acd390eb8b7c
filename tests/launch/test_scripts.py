"""Scripts of launchers, run with stand-ins for the clouds' own programs."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from migrate.cli.launch import _LAUNCHERS as OFFERED
from migrate.launch.host.hosts import _READERS
from migrate.launch.host.training import PREEMPTED
from migrate.launch.launchers import LAUNCHERS
from tests.launch.jobs import written
from tests.waiting import LIMIT, until

# Writes down how it was called; the files of the test's folder are the bucket and the request.
GCLOUD = """\
#!/usr/bin/env bash
echo "$*" >> "$CALLS"
cd "$PLACE"
case "$*" in
  *"storage ls"*) [ -f "${@: -1:1}" ] || [ -f "$(basename "${@: -1:1}")" ] ;;
  *"storage cat"*) cat "$(basename "${@: -1:1}")" ;;
  *"storage cp"*) cat > "$(basename "${@: -1:1}")" ;;
  *describe*)
    if [ -f away ]; then echo "no network" >&2; exit 1; fi
    cat state 2>/dev/null || { echo "ERROR: NOT_FOUND: no such request" >&2; exit 1; } ;;
  *"queued-resources delete"*)
    if [ -f held ]; then rm held; exit 1; fi
    rm -f state ;;
  *"queued-resources create"*) echo ACTIVE > state ;;
esac
"""
# A line of `events` happens in each minute.
SLEEP = """\
#!/usr/bin/env bash
echo sleep >> "$CALLS"
cd "$PLACE"
eval "$(sed -n "$(grep -c sleep "$CALLS")p" events 2>/dev/null)"
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


def requeued(
    tmp_path: Path, clouds: dict[str, str], *events: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Create a job of gcloud, let an event happen in each minute, and return the end and all calls."""
    folder = written(tmp_path, "gcloud", spot=True).folder
    subprocess.run(["bash", folder / "create.sh"], env=clouds, check=True)
    (tmp_path / "events").write_text("\n".join(events) + "\n")
    command = ["bash", folder / "requeue.sh"]
    done = subprocess.run(
        command, env=clouds, check=False, capture_output=True, text=True, timeout=LIMIT
    )
    return done, Path(clouds["CALLS"]).read_text().splitlines()


def calls_of(calls: list[str], verb: str) -> list[str]:
    return [call for call in calls if f"queued-resources {verb}" in call]


def test_gcloud_asks_again_after_a_preemption_and_deletes_at_the_end(
    tmp_path: Path, clouds: dict[str, str]
) -> None:
    done, calls = requeued(tmp_path, clouds, "echo SUSPENDED > state", "true", "echo 0 > done")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "xla-script: SUSPENDED; the slice is requested again",
        "xla-script: done; the slice is deleted",
        "0",
    ]
    creates = calls_of(calls, "create")
    assert len(creates) == 2
    assert "--spot" in creates[0]
    assert len(calls_of(calls, "delete")) == 2
    assert calls[0].startswith("storage rsync --recursive")
    assert calls[0].endswith(". gs://lab-runs/exp-1/job")


def test_a_slice_stays_when_gcloud_does_not_answer(tmp_path: Path, clouds: dict[str, str]) -> None:
    done, calls = requeued(tmp_path, clouds, "touch away", "true", "rm away", "echo 0 > done")
    assert (done.returncode, done.stdout.count("no network")) == (0, 2)
    assert (len(calls_of(calls, "create")), len(calls_of(calls, "delete"))) == (1, 1)


def test_after_a_failure_the_slice_is_deleted_even_at_the_second_try(
    tmp_path: Path, clouds: dict[str, str]
) -> None:
    done, calls = requeued(tmp_path, clouds, "touch held; echo a bad chip > failed")
    assert done.returncode == 1
    assert done.stdout == "xla-script: failed; the slice is deleted\na bad chip\n"
    assert len(calls_of(calls, "delete")) == 2
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("code", "status", "fails"),
    [
        ("exited", "1", True),
        ("exited", "0", False),
        ("exited", "75", False),
        ("killed", "TERM", False),
    ],
)
def test_a_host_whose_set_up_fails_says_so_in_the_bucket(
    code: str, status: str, fails: bool, tmp_path: Path, clouds: dict[str, str]
) -> None:
    folder = written(tmp_path, "gcloud").folder
    end = {"EXIT_CODE": code, "EXIT_STATUS": status}
    subprocess.run(["bash", folder / "ended.sh"], env=clouds | end, check=True)
    failed = tmp_path / "failed"
    assert failed.exists() == fails
    assert not fails or failed.read_text().startswith("start.sh ended with exit code 1 on ")


def test_systemd_accepts_the_service_of_a_host(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    service = written(tmp_path, "gcloud").folder / "job.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", service],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "job.service" in line] == []
    assert done.returncode == 0


def test_dstack_takes_the_job_from_the_bucket_and_starts_it_again(
    tmp_path: Path, clouds: dict[str, str]
) -> None:
    folder = written(tmp_path, "dstack", tpu="v5e-8").folder
    (folder / "start.sh").write_text(
        'cd "$(dirname "$0")"; echo >> starts; [ $(wc -l < starts) -gt 2 ] || exit 75\n'
    )
    programs = tmp_path / "programs"
    stand_ins = {"pip": 'echo "pip $*" >> "$CALLS"', "python3.11": f'exec {sys.executable} "$@"'}
    for name, text in stand_ins.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    commands = yaml.safe_load((folder / "train.dstack.yml").read_text())["commands"]
    text = "\n".join(commands)
    text = text.replace("gs://lab-runs/exp-1/job", str(folder))
    text = text.replace("/job/", f"{tmp_path}/host/")
    subprocess.run(["sh", "-ec", text], env=clouds, check=True, timeout=LIMIT)
    assert (tmp_path / "host" / "starts").read_text() == "\n" * 3
    assert (tmp_path / "host" / "program" / "xla_script.py").is_file()
    (pip, *sleeps) = Path(clouds["CALLS"]).read_text().splitlines()
    assert pip.startswith("pip install --quiet gcsfs==")
    assert sleeps == ["sleep"] * 2


def test_xpk_is_called_with_the_job(tmp_path: Path, clouds: dict[str, str]) -> None:
    folder = written(tmp_path, "xpk").folder
    subprocess.run(["bash", folder / "create.sh"], env=clouds, check=True)
    (call,) = Path(clouds["CALLS"]).read_text().splitlines()
    assert call.startswith("workload create --workload=xla-script --cluster=lab")
    assert "--command=bash start.sh" in call


def test_jobmans_command_starts_the_job_once(tmp_path: Path, clouds: dict[str, str]) -> None:
    folder = written(tmp_path, "jobman").folder
    (folder / "start.sh").write_text("echo begun; exec tail -f /dev/null\n")
    (folder / "attach.sh").write_text((folder / "attach.sh").read_text().replace("240", "1"))
    for _ in range(2):  # as jobman does after five minutes
        subprocess.run(["bash", folder / "attach.sh"], check=True, timeout=LIMIT, env=clouds)
    until(lambda: "begun" in (folder / "host.log").read_text(), "the job to begin")
    assert (folder / "host.log").read_text() == "begun\n"
    held = subprocess.run(
        ["fuser", folder / "job.lock"], capture_output=True, text=True, check=False
    )
    for number in held.stdout.split():
        os.kill(int(number), signal.SIGTERM)


@pytest.mark.parametrize("end", ["done", "failed"])
def test_jobman_does_not_start_a_job_that_has_ended(
    end: str, tmp_path: Path, clouds: dict[str, str]
) -> None:
    folder = written(tmp_path, "jobman").folder
    (tmp_path / end).write_text("0\n")
    done = subprocess.run(
        ["bash", folder / "attach.sh"],
        check=True,
        timeout=LIMIT,
        env=clouds,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"xla-script: {end}; delete the slice: jobman clean ID\n"
    assert (folder / "host.log").read_text() == ""


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


# The image of a TPU VM: apt is busy at the first try, and installs Python 3.11 at the second.
APT = """\
#!/bin/bash
echo "$*" >> "$CALLS"
case "$*" in
  *install*)
    [ "$(grep -c install "$CALLS")" -gt 1 ] || exit 100
    mv "$PLACE/python" "$PLACE/bin/python3.11" ;;
esac
"""
VENV = """\
#!/bin/bash
mkdir -p "$4/bin"
ln -s "$PLACE/bin/true" "$4/bin/python"
"""


def test_a_host_installs_its_python_when_apt_is_no_longer_busy(tmp_path: Path) -> None:
    folder = written(tmp_path, "gcloud").folder
    programs = tmp_path / "bin"
    programs.mkdir()
    names = ("bash", "id", "env", "find", "sha256sum", "sort", "cut", "touch", "mkdir", "ln")
    for name in (*names, "grep", "mv", "true"):
        (programs / name).symlink_to(str(shutil.which(name)))
    for name, text in {"apt-get": APT, "sleep": SLEEP, "sudo": '#!/bin/bash\n"$@"\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "python").write_text(VENV)
    (tmp_path / "python").chmod(0o755)
    environment = {
        "HOME": str(tmp_path),
        "PATH": str(programs),
        "PLACE": str(tmp_path),
        "CALLS": str(tmp_path / "calls"),
    }
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", ". ./setup.sh"], cwd=folder, env=environment, check=True
    )
    assert len(list((tmp_path / ".job-environments").glob("*/complete"))) == 1
    calls = Path(environment["CALLS"]).read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["update", "-o", "sleep", "update", "-o"]


def test_the_lists_of_launchers_are_the_same() -> None:
    """The command knows them without importing their writers, a host runs without them."""
    assert set(OFFERED) == set(LAUNCHERS) == set(_READERS)


def test_a_preempted_program_and_its_host_end_with_the_same_code() -> None:
    assert importlib.import_module("shims.resume").PREEMPTED == PREEMPTED
