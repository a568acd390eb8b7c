"""`python -m migrate.launch.host job.json`: check this host, meet the others, train, and resume.

Exit codes: 0 done, 75 preempted (start the job again), 3 a host is missing or at fault or a signal ends
the program each time, else the program's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from migrate.launch.host import bucket
from migrate.launch.host.hosts import SliceHost, UnknownHostError, this_host
from migrate.launch.host.meeting import PORT, Report, meet
from migrate.launch.host.settings import (
    SKIP_DOCTOR,
    TRIAL,
    TRIAL_BUCKET,
    HostSettings,
    read_settings,
)
from migrate.launch.host.training import PREEMPTED, SIGNALS, STOPPED, HostTraining
from shims.tpu import tpu_device_files

_MOST_ABORTS = 3  # a program that a signal ends each time is at fault itself
_NOT_COPIED = 1  # the program ended well, but its last files are not in the bucket
_MEETINGS = 4  # that host 0 may miss while it copies its last checkpoint
_LINES = 3  # of a diagnosis, in one line for all hosts


def main(arguments: list[str]) -> int:
    """Run the job on this host, and return the exit code."""
    path = Path(arguments[0]).resolve()
    settings = read_settings(path)
    try:
        host = this_host(settings.launcher, settings.hosts)
    except UnknownHostError as error:
        return _stop([str(error)], settings)
    if os.environ.get(TRIAL) and "://" in settings.bucket:
        line = f"a trial would write into {settings.bucket}; name a folder: {TRIAL_BUCKET}=/tmp/job"
        sys.stderr.write(f"{settings.name}: {line}\n")
        return STOPPED
    if bucket.exists(f"{settings.bucket}/done"):
        _print(settings, host, f"{settings.bucket}/done exists: nothing is left to do")
        return 0
    work = Path(os.environ.get("JOB_WORK") or tempfile.mkdtemp(prefix=f"{settings.name}-"))
    training = HostTraining(settings, host, work)
    mirrors = _prepare(settings, host, work)
    problem = training.problem()
    if not problem and not os.environ.get(SKIP_DOCTOR):
        problem = _diagnose(settings, host)
    log = work / "logs" / f"host-{host.index}.log"
    starts = aborts = code = unanswered = 0
    ended = ""
    while True:
        port = int(os.environ.get("JOB_PORT") or PORT)
        report = Report(problem, ended)
        verdict = meet(host, report, settings.patience, port, lambda: training.terminated)
        if training.terminated:
            return PREEMPTED
        if verdict.ended or (ended and verdict.lines and bucket.exists(f"{settings.bucket}/done")):
            if code:
                if host.count > 1:
                    _print(settings, host, "; ".join(verdict.lines))
                bucket.write_text(f"{settings.bucket}/failed", f"{code}\n")
            # GKE and xpk start a job again that a signal ended: of a program that always aborts, 100 times.
            return STOPPED if code in SIGNALS else code
        unanswered = unanswered + 1 if ended and not code and not verdict.answered else 0
        if 0 < unanswered < _MEETINGS:
            # Host 0 comes after its last copy to the bucket, which may be slower than this host's
            # patience. It may also be lost: only its answer or `done` says that the job ended.
            _print(settings, host, f"{'; '.join(verdict.lines)}: it may still copy; waiting again")
            continue
        if verdict.lines:
            # After a preemption a host may come back on another machine, with the next start of the job.
            return PREEMPTED if starts else _stop(verdict.lines, settings)
        if ended:
            _print(settings, host, "another host starts again: so does the program here")
        starts += 1
        if not host.index:
            bucket.remove(f"{settings.bucket}/failed")  # of an earlier start
        if settings.copies and host.index:
            # Host 0 has copied its last checkpoint before it came to the meeting.
            bucket.pull(settings.remote_checkpoints, work / "checkpoints")
        _print(settings, host, " ".join(training.command()))
        with bucket.Pushing(mirrors, partial(_print, settings, host)) as pushing:
            code = training.run(path.parent / "program", log)
        if pushing.problem:
            code = code or _NOT_COPIED
        if training.terminated:
            _print(settings, host, f"preempted; the program ended with exit code {code}")
            return PREEMPTED
        code = code if code >= 0 else 128 - code
        aborts += code in SIGNALS
        if code == PREEMPTED or (code in SIGNALS and aborts <= _MOST_ABORTS):
            why = "preempted" if code == PREEMPTED else f"ended by a signal ({code})"
            _print(settings, host, f"{why}, and this host is still here: the program starts again")
            ended = ""
            continue
        ended = f"the program ended with exit code {code}"
        if code == 0 and host.index == 0:
            bucket.write_text(f"{settings.bucket}/done", "0\n")
        _print(settings, host, ended)


def _prepare(settings: HostSettings, host: SliceHost, work: Path) -> list[bucket.Mirror]:
    """Fetch what earlier starts left in the bucket, and return the folders to copy back."""
    mirrors = []
    for name, remote, writes in (  # in the order in which they are copied: seconds count at the end
        ("checkpoints", settings.remote_checkpoints, host.index == 0 and settings.copies),
        ("logs", f"{settings.bucket}/logs", True),
        ("cache", f"{settings.bucket}/cache", host.index == 0),
    ):
        local = work / name
        local.mkdir(parents=True, exist_ok=True)
        mirror = bucket.Mirror(local, remote)
        if name == "cache" or (name == "checkpoints" and settings.copies):
            bucket.pull(remote, local)
            mirror.copied_already()
        if name == "logs":
            own = f"{remote}/host-{host.index}.log"
            if bucket.exists(own):
                bucket.pull_file(own, local / f"host-{host.index}.log")
        if writes:
            mirrors.append(mirror)
    return mirrors


def _diagnose(settings: HostSettings, host: SliceHost) -> str:
    """Return what `migrate doctor` finds wrong with this host; empty: nothing."""
    checks = [["doctor"], ["doctor", "--devices"]]
    if "://" in settings.bucket:
        checks[0].append(settings.bucket)
    if os.environ.get(TRIAL):
        checks = [["doctor", "--devices", "--repeats", "2"]]
    elif (visible := len(tpu_device_files())) < settings.chips:
        return f"{visible} of {settings.chips} chips are visible (/dev/accel*, /dev/vfio/*)"
    for words in checks:
        command = [sys.executable, "-m", "migrate", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        _print(settings, host, f"migrate {' '.join(words)}: exit code {done.returncode}")
        if done.returncode:
            text = done.stdout + done.stderr
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            wrong = [line for line in lines if line.lower().startswith("fail")] or lines[-_LINES:]
            return f"migrate {' '.join(words)}: {'; '.join(wrong[:_LINES])}"
    return ""


def _stop(lines: Sequence[str], settings: HostSettings) -> int:
    line = f"{settings.name}: stopped before training; {'; '.join(lines)}\n"
    sys.stderr.write(line)
    bucket.write_text(f"{settings.bucket}/failed", line)
    return STOPPED


def _print(settings: HostSettings, host: SliceHost, text: str) -> None:
    sys.stdout.write(f"[{settings.name} host {host.index} of {host.count}] {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
