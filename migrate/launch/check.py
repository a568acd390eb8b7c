"""Checks of a job's files by the launchers' own parsers, where they are installed, and by this project.

No check reaches a network or a cloud. A launcher's parser runs in the Python that has it: this one, or
the one that `--python` names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from migrate.launch.errors import InvalidJobError
from migrate.launch.job import TrainingJob
from migrate.launch.launchers import dstack, gcloud, gke, jobman, skypilot, xpk

_SECONDS = 180
_MISSING = 77  # exit code where the launcher's package is not installed
# A flag that no version of gcloud has: it reports this flag alone, and never reaches the network.
_NO_FLAG = "--migrate-launch-only-parses"
# Up to a redirection, a pipe, or the end of the command.
_GCLOUD = re.compile(
    r"""\bgcloud ((?:compute|storage) (?:'[^']*'|"[^"]*"|(?!\s\d?>)[^\n|;&)'"])*)"""
)
_VERSION = re.compile(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class Validation:
    """Result of a check.

    Attributes:
        validator: what checked, with its version.
        ran: whether the launcher's own parser ran.
        install: how to install the launcher's parser, if it did not run.
    """

    validator: str
    ran: bool
    install: str = ""


def check_files(job: TrainingJob, folder: Path, python: str | None = None) -> Validation:
    """Check the launcher's file of a job.

    Args:
        job: the job.
        folder: its folder.
        python: an interpreter that has the launcher's package; None: this one.

    Raises:
        InvalidJobError: the launcher would refuse the file.
    """
    check_ours(job, folder)
    return _VALIDATORS[job.request.launcher](job, folder, python or sys.executable)


def check_ours(job: TrainingJob, folder: Path) -> None:
    """Check what no launcher's parser does: the slice in the file is the one of the table.

    Raises:
        InvalidJobError: a file names another slice or zone, or is no YAML.
    """
    launcher = job.request.launcher
    names = {
        "skypilot": (skypilot.FILE, (f"tpu-{job.product.cloud_name}:1", job.zone)),
        "gke": (gke.FILE, (job.generation.label, "x".join(map(str, job.product.shape)))),
        "xpk": (xpk.FILE, (f"--tpu-type={job.product.cloud_name}", job.zone)),
        "gcloud": (gcloud.CREATE, (f"--accelerator-type={job.product.cloud_name}", job.zone)),
        "jobman": (jobman.FILE, (job.product.cloud_name, job.zone)),
        "dstack": (dstack.FILE, (job.product.cloud_name, job.zone)),
    }
    name, words = names[launcher]
    text = (folder / name).read_text()
    if missing := [word for word in words if word not in text]:
        raise InvalidJobError(f"{name} does not name {missing[0]}", "write the job again")
    if name.endswith((".yaml", ".yml")):
        try:
            values = yaml.safe_load(text)
        except yaml.YAMLError as error:
            line = str(error).splitlines()[0]
            raise InvalidJobError(f"{name}: {line}", "write the job again") from None
        if launcher == "jobman":
            _check_keys(values, name)


def _check_keys(values: dict[str, Any], name: str) -> None:
    """Check jobman's configuration: it has no schema, so a wrong key is ignored silently."""
    for section, entries in values.items():
        if section not in jobman.KEYS:
            raise InvalidJobError(f"{name}: jobman reads no section {section}", "remove it")
        for key in set(entries or {}) - jobman.KEYS[section]:
            raise InvalidJobError(f"{name}: jobman reads no {section}.{key}", "remove it")
    if "ssh" in values and not values["ssh"]:
        raise InvalidJobError(f"{name}: jobman fails where ssh is empty", "remove the section")
    if values["tpu"]["pricing"] not in jobman.PRICING:
        raise InvalidJobError(f"{name}: tpu.pricing", f"one of {', '.join(jobman.PRICING)}")
    if values["tpu"]["allocation_mode"] not in jobman.MODES:
        raise InvalidJobError(f"{name}: tpu.allocation_mode", f"one of {', '.join(jobman.MODES)}")


_SKYPILOT = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
assert list(task.resources), 'no resources'
print(sky.__version__)
"""
_DSTACK = """
import sys, yaml
from importlib.metadata import version
from dstack._internal.core.models.configurations import parse_run_configuration
parse_run_configuration(yaml.safe_load(open(sys.argv[1])))
print(version('dstack'))
"""
_KUBERNETES = """
import json, sys
from importlib.metadata import version
import kubernetes_validate
kubernetes_validate.validate(json.load(sys.stdin), kubernetes_validate.latest_version(), strict=True)
print(version('kubernetes-validate'))
"""


def _skypilot(job: TrainingJob, folder: Path, python: str) -> Validation:
    return _by_package(python, "sky", _SKYPILOT, folder / skypilot.FILE, "SkyPilot", "skypilot")


def _dstack(job: TrainingJob, folder: Path, python: str) -> Validation:
    return _by_package(python, "dstack", _DSTACK, folder / dstack.FILE, "dstack", "dstack")


def _gke(job: TrainingJob, folder: Path, python: str) -> Validation:
    # No schema of JobSet is published there; the Job in it is most of the file.
    inner = gke.inner_job(yaml.safe_load((folder / gke.FILE).read_text()))
    return _by_package(
        python,
        "kubernetes_validate",
        _KUBERNETES,
        folder / gke.FILE,
        "kubernetes-validate",
        "kubernetes-validate",
        json.dumps(inner),
    )


def _by_package(
    python: str, module: str, code: str, path: Path, title: str, package: str, text: str = ""
) -> Validation:
    """Run a launcher's parser in an interpreter that has it."""
    install = f"pip install {package}"
    asked = f"import importlib.util, sys\nif not importlib.util.find_spec('{module}'): sys.exit({_MISSING})\n"
    with tempfile.TemporaryDirectory(prefix="migrate-launch-") as home:
        done = _run([python, "-c", asked + code, str(path.resolve())], home, text)
    if done.returncode == _MISSING:
        return Validation("tpu-migrate's own table and keys", False, install)
    if done.returncode:
        raise InvalidJobError(
            f"{path.name}: {title} refuses it ({_last_line(done)})", "report this line"
        )
    return Validation(f"{title} {done.stdout.split()[-1]}", True)


def _xpk(job: TrainingJob, folder: Path, python: str) -> Validation:
    program = shutil.which("xpk", path=f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        return Validation("tpu-migrate's own table and keys", False, "pip install xpk")
    words = [word for word in xpk.arguments(job) if not word.startswith(("--base-", "--script-"))]
    with tempfile.TemporaryDirectory(prefix="migrate-launch-") as home:
        manifest = Path(home) / "jobset.yaml"
        command = [
            *(program, "workload", "create", *words, f"--docker-image={gke.IMAGE}"),
            *("--dry-run", "--skip-validation", "--project-number=1", "--project=checked"),
            f"--output-manifest-file={manifest}",
        ]
        done = _run(command, home)
        if done.returncode or not manifest.exists():
            line = _last_line(done)
            raise InvalidJobError(f"{xpk.FILE}: xpk refuses it ({line})", "report this line")
        spec = yaml.safe_load(manifest.read_text())["spec"]["replicatedJobs"][0]["template"]["spec"]
    if spec["parallelism"] != job.product.hosts:
        raise InvalidJobError(
            f"xpk starts {spec['parallelism']} hosts for {job.product.name}, the table has "
            f"{job.product.hosts}",
            "report this line",
        )
    with tempfile.TemporaryDirectory(prefix="migrate-launch-") as home:
        version = _VERSION.search(_run([program, "version"], home).stdout)
    return Validation(f"xpk {version[0] if version else '?'} (dry run)", True)


def _gcloud(job: TrainingJob, folder: Path, python: str) -> Validation:
    program = shutil.which("gcloud")
    if program is None:
        return Validation(
            "tpu-migrate's own table and keys", False, "gcloud: cloud.google.com/sdk/docs/install"
        )
    texts = [(folder / file.name).read_text() for file in gcloud.GCLOUD.files(job)]
    texts += asdict(gcloud.GCLOUD.commands(job)).values()
    for words in dict.fromkeys(line for text in texts for line in _gcloud_commands(text)):
        # Zones are only text to the parser: jobs in other zones share the answers.
        asked = words if "create" in words else (w.replace(job.zone, "ZONE") for w in words)
        if line := _gcloud_refusal(program, tuple(asked)):
            raise InvalidJobError(
                f"gcloud refuses: gcloud {' '.join(words)} ({line})", "report this line"
            )
    with tempfile.TemporaryDirectory(prefix="migrate-launch-") as home:
        version = _run([program, "version", "--format=value('Google Cloud SDK')"], home)
    return Validation(f"gcloud {version.stdout.strip()} (its parser, all commands)", True)


@cache  # gcloud takes a second to start, and jobs share commands
def _gcloud_refusal(program: str, words: tuple[str, ...]) -> str:
    """Return why gcloud refuses a command; empty: it does not."""
    with tempfile.TemporaryDirectory(prefix="migrate-launch-") as home:
        Path(home, gcloud.STARTUP).write_text("")  # gcloud reads it before it parses the rest
        done = _run([program, *words, _NO_FLAG], home)
    lines = " ".join(done.stderr.split())
    refused = lines.partition("unrecognized arguments:")[2].split()
    if done.returncode == 2 and refused[:1] == [_NO_FLAG]:
        return ""
    return _last_line(done) if not refused else f"unrecognized arguments: {refused[0]}"


def _gcloud_commands(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each gcloud command in a script, without redirections."""
    for match in _GCLOUD.finditer(text.replace("\\\n", " ")):
        yield tuple(shlex.split(match[1]))


def _jobman(job: TrainingJob, folder: Path, python: str) -> Validation:
    return Validation(
        "tpu-migrate's list of the keys that jobman reads (commit 785e8f4); jobman has no schema",
        False,
    )


def _run(
    words: list[str], home: str, text: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a parser without the user's configuration and credentials."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": home,
        "CLOUDSDK_CONFIG": home,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
    }
    try:
        return subprocess.run(
            words,
            input=text,
            cwd=cwd or home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidJobError(f"{words[0]} did not answer ({error})", "check it by hand") from None


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


_VALIDATORS: dict[str, Callable[[TrainingJob, Path, str], Validation]] = {
    "skypilot": _skypilot,
    "gke": _gke,
    "xpk": _xpk,
    "gcloud": _gcloud,
    "jobman": _jobman,
    "dstack": _dstack,
}
