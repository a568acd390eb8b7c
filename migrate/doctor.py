"""Diagnosis of this environment: versions, devices, environment variables, and which commands are ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from converters.checkpoint.source import RemoteSource
from converters.errors import ConversionError
from converters.installing import EXTRAS, install_command, missing_modules
from converters.remote.names import source_of, without_secrets
from converters.remote.ready import Ready, ready
from converters.remote.region import location_of, region_of, zone_of_machine
from converters.remote.retries import TemporaryError
from migrate.gpus import gpu_names
from migrate.versions import NEEDS, PACKAGES, installed, versions
from shims._simulated_tpu import versions as torch_tpu
from shims.errors import ShimError
from shims.tpu import chips, tpu_device_files

# Subject of checks of the simulation of a TPU, which torch_tpu on a TPU does not need.
SIMULATED = "simulated TPU"
TORCH_TPU_COMMANDS = (
    "run --target torch_tpu",
    "prove --target torch_tpu",
    "parity tpu:net.py:Net",
)
FRAMEWORKS = ("torch", "torch_xla", "jax", "torch_tpu")
PROBE_SECONDS = 120  # starting a TPU runtime takes up to a minute on a fresh VM


class Status(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    MISSING = "missing"  # a framework is not installed; some commands need it
    OPTIONAL = "not installed"  # what few need: the commands run without it
    WARNING = "warning"  # works, perhaps not as intended
    FAIL = "fail"  # something will go wrong


@dataclass(frozen=True)
class Check:
    """Line of the diagnosis.

    Args:
        subject: the subject of the check.
        status: its outcome.
        detail: what was found.
        remedy: advice, often a command; empty if nothing is to be done.
        stops: the frameworks that do not work because of it.
    """

    subject: str
    status: Status
    detail: str
    remedy: str = ""
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Readiness:
    """Readiness of a command in this environment.

    Args:
        command: its name.
        obstacle: what is missing or does not work; empty if the command is ready.
        remedy: advice.
    """

    command: str
    obstacle: str = ""
    remedy: str = ""

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return not self.obstacle


@dataclass(frozen=True)
class Diagnosis:
    """All checks, in the order in which they are shown, and the commands."""

    checks: tuple[Check, ...]
    commands: tuple[Readiness, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing failed."""
        return all(check.status is not Status.FAIL for check in self.checks)

    @property
    def light(self) -> bool:
        """Whether no framework is installed, as after `pip install .`."""
        lacks = (Status.MISSING, Status.OPTIONAL)
        missing = {check.subject for check in self.checks if check.status in lacks}
        return missing.issuperset(FRAMEWORKS)

    @property
    def fit(self) -> bool:
        """Whether nothing failed, and a command that needs a framework is ready."""
        working = [entry.ready for entry in self.commands if NEEDS.get(entry.command) != ()]
        return self.sound and (any(working) or not working)


def diagnose(
    environment: Mapping[str, str] = os.environ,
    progress: Callable[[str], None] = lambda _: None,
    places: Sequence[str] = (),
) -> Diagnosis:
    """Return the diagnosis of this environment.

    Args:
        environment: the environment variables.
        places: buckets, repositories and URLs that should be reachable from here.
        progress: receiver of the current check.
    """
    tpu = tpu_device_files()
    checks = [
        *check_versions(versions(), has_tpu=bool(tpu)),
        *check_torch_tpu(has_tpu=bool(tpu)),
        *check_variables(environment, has_tpu=bool(tpu)),
        _check_device_files(tpu),
        *check_gpus(gpu_names(), _torch_gpus),
        *check_places(ready(environment)),
        *map(check_place, places),
    ]
    probes = {name: code for name, code in PROBES.items() if installed(name) is not None}
    if not tpu and installed("torch_tpu") is not None and not torch_tpu.problems_of_simulation():
        probes["torch_tpu"] = SIMULATED_TPU
    checks += _probe_all(probes, has_tpu=bool(tpu), progress=progress)
    commands = [
        *check_commands(checks, missing_modules(PACKAGES)),
        *check_torch_tpu_commands(checks, chips()),
    ]
    return Diagnosis(tuple(checks), tuple(commands))


# Alternatives on a TPU VM: they need different versions of libtpu.
INSTALL = {name: install_command(EXTRAS[name]) for name in PACKAGES} | {
    "tpu-migrate": "pip install .",
    "libtpu": f"{install_command('tpu')} (Flax) or pip install 'torch_xla[tpu]==2.9.0' (torch)",
}


def check_commands(checks: Iterable[Check], missing: Sequence[str]) -> Iterator[Readiness]:
    """Yield for each command whether it is ready.

    Args:
        checks: of the environment.
        missing: the frameworks that are not installed.
    """
    broken = {name: check for check in checks for name in check.stops}
    for command, needs in NEEDS.items():
        if lacking := [name for name in needs if name in missing]:
            remedy = install_command(*(EXTRAS[name] for name in lacking))
            yield Readiness(command, f"{', '.join(lacking)} not installed", remedy)
        elif stopped := [name for name in needs if name in broken]:
            check = broken[stopped[0]]
            yield Readiness(command, f"{stopped[0]} does not work: {check.detail}", check.remedy)
        else:
            yield Readiness(command)


def check_torch_tpu_commands(checks: Iterable[Check], tpus: int) -> Iterator[Readiness]:
    """Yield for each command that runs torch_tpu whether it is ready; nothing if torch_tpu is missing.

    Args:
        checks: of the environment.
        tpus: number of TPU chips that would be used; these commands run simulated TPUs only.
    """
    known = list(checks)
    if not any(
        check.subject == "torch_tpu" and check.status is not Status.OPTIONAL for check in known
    ):
        return
    obstacle = next((check for check in known if {"torch_tpu", SIMULATED} & set(check.stops)), None)
    for command in TORCH_TPU_COMMANDS:
        if obstacle is not None:
            yield Readiness(command, obstacle.detail, obstacle.remedy)
        elif tpus:
            yield Readiness(command, "runs on simulated TPUs only", "PJRT_DEVICE=CPU simulates one")
        else:
            yield Readiness(command)


def check_versions(versions: Mapping[str, str | None], *, has_tpu: bool) -> Iterator[Check]:
    """Yield a check for each package: there, missing, or at odds with another one.

    Args:
        versions: the installed version of each package, or None.
        has_tpu: whether this machine has a TPU, which torch_xla and jax drive with different libtpus.
    """
    for package, version in versions.items():
        if version is None:
            users = [command for command, needs in NEEDS.items() if package in needs]
            detail = f"not installed; needed for {', '.join(users) or 'everything'}"
            yield Check(package, Status.MISSING, detail, INSTALL[package])
        elif package == "libtpu" and versions.get("torch_xla") and versions.get("jax"):
            detail = f"{version} belongs to jax; on a TPU torch_xla needs 0.0.21"
            remedy = 'use two environments on a TPU VM; see "Install" in the README'
            status, advice = (Status.WARNING, remedy) if has_tpu else (Status.OK, "")
            yield Check("libtpu", status, detail, advice)
        else:
            yield Check(package, Status.OK, version)
    torch, xla = versions.get("torch"), versions.get("torch_xla")
    if torch and xla and torch_tpu.minor(torch) != torch_tpu.minor(xla):
        detail = f"torch_xla {xla} is built against torch {torch_tpu.minor(xla)}, torch is {torch}"
        remedy = f"pip install 'torch=={torch_tpu.minor(xla)}.*'"
        yield Check("torch / torch_xla", Status.FAIL, detail, remedy, ("torch_xla",))


def check_torch_tpu(
    *, has_tpu: bool, version_of: Callable[[str], str | None] = torch_tpu.installed
) -> Iterator[Check]:
    """Yield a check of torch_tpu, and one for each package that does not go together with it.

    Args:
        has_tpu: whether this machine has a TPU; without one torch_tpu is simulated, in tested versions.
        version_of: returns the installed version of a distribution, or None.
    """
    version = version_of("torch_tpu")
    if version is None:
        detail = f"optional: for {', '.join(TORCH_TPU_COMMANDS)} and shims on torch_tpu"
        yield Check("torch_tpu", Status.OPTIONAL, detail, torch_tpu.INSTALL)
        return
    yield Check("torch_tpu", Status.OK, version)
    for problem in torch_tpu.problems(version_of):
        subject = f"{problem.package} / torch_tpu"
        yield Check(subject, Status.FAIL, problem.what, problem.remedy, ("torch_tpu",))
    for problem in () if has_tpu else torch_tpu.problems_of_simulation_alone(version_of):
        yield Check(SIMULATED, Status.WARNING, problem.what, problem.remedy, (SIMULATED,))


def check_variables(environment: Mapping[str, str], *, has_tpu: bool) -> Iterator[Check]:
    """Yield a check for each environment variable that changes results or keeps the runtime from starting."""
    for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        if environment.get(name, "0") not in ("", "0"):
            detail = "float32 matrix products silently run in bfloat16"
            yield Check(name, Status.FAIL, detail, f"unset {name}; use torch.autocast('xla')")
    for name in ("XLA_USE_F16", "XLA_DOWNCAST_FP16", "XLA_USE_32BIT_LONG"):
        if environment.get(name, "0") not in ("", "0"):
            yield Check(name, Status.FAIL, "changes dtypes silently", f"unset {name}")
    if "XRT_TPU_CONFIG" in environment:
        detail = "belongs to the XRT runtime, which torch_xla 2.1 removed"
        yield Check("XRT_TPU_CONFIG", Status.WARNING, detail, "unset XRT_TPU_CONFIG")
    if environment.get("CPU_NUM_DEVICES", "1") != "1":
        detail = "replicas as threads of one process fail at the first collective"
        remedy = "unset CPU_NUM_DEVICES; migrate run --replicas N"
        yield Check("CPU_NUM_DEVICES", Status.FAIL, detail, remedy)
    pjrt = environment.get("PJRT_DEVICE", "")
    if pjrt in ("CUDA", "GPU"):
        detail = f"PJRT_DEVICE={pjrt}: torch_xla 2.9 has no CUDA runtime"
        yield Check("PJRT_DEVICE", Status.FAIL, detail, "export PJRT_DEVICE=TPU")
    elif pjrt == "TPU" and not has_tpu:
        yield Check(
            "PJRT_DEVICE", Status.FAIL, "PJRT_DEVICE=TPU, but there is no TPU", "unset PJRT_DEVICE"
        )
    elif pjrt == "CPU" and has_tpu:
        detail = "PJRT_DEVICE=CPU keeps torch_xla off the TPU of this machine"
        yield Check("PJRT_DEVICE", Status.WARNING, detail, "export PJRT_DEVICE=TPU")
    platforms = environment.get("JAX_PLATFORMS", "")
    if "tpu" in platforms.split(",") and not has_tpu:
        detail = f"JAX_PLATFORMS={platforms}, but there is no TPU"
        yield Check("JAX_PLATFORMS", Status.FAIL, detail, "unset JAX_PLATFORMS")
    elif platforms == "cpu" and has_tpu:
        detail = "JAX_PLATFORMS=cpu keeps jax off the TPU of this machine"
        yield Check("JAX_PLATFORMS", Status.WARNING, detail, "unset JAX_PLATFORMS")
    ranks = environment.get("MIGRATE_RANKS", "1")
    host = torch_tpu.problem_of_host(ranks) if environment.get("MIGRATE_BACKEND") == "tpu" else None
    if host is not None:
        yield Check("MIGRATE_RANKS", Status.FAIL, host.what, host.remedy)
    if environment.get("XLA_FLAGS", "").find("xla_force_host_platform_device_count") >= 0:
        detail = "XLA_FLAGS splits the CPU into several devices, for torch_xla as well"
        yield Check(
            "XLA_FLAGS", Status.WARNING, detail, "unset XLA_FLAGS for migrate run and prove"
        )


def _check_device_files(tpu: list[Path]) -> Check:
    if tpu:
        return Check("TPU", Status.OK, f"{len(tpu)} chips ({', '.join(str(path) for path in tpu)})")
    detail = "no TPU here: migrate run and prove simulate replicas on the CPU"
    return Check("TPU", Status.OK, detail)


def check_gpus(names: Sequence[str], torch_sees: Callable[[], int | None]) -> Iterator[Check]:
    """Yield a check of the GPUs of this machine, and one of torch where it uses none of them.

    Args:
        names: of the GPUs.
        torch_sees: counts those that torch uses; None: torch is not installed or does not start.
    """
    if not names:
        yield Check(
            "GPU", Status.OK, "no GPU here; only prove --record and parity --device cuda need a GPU"
        )
        return
    counts = Counter(names)
    yield Check("GPU", Status.OK, ", ".join(f"{count} × {name}" for name, count in counts.items()))
    if torch_sees() == 0:
        detail = "torch uses none of the GPUs: prove --record and parity --device cuda need them"
        remedy = "install a torch that is built with CUDA, in an environment of its own"
        yield Check("torch / GPU", Status.WARNING, detail, remedy)


def _torch_gpus() -> int | None:
    if installed("torch") is None:
        return None
    code = "import torch; print(torch.cuda.device_count())"
    try:
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    lines = ran.stdout.split()
    return int(lines[-1]) if ran.returncode == 0 and lines else None


def check_places(places: Iterable[Ready]) -> Iterator[Check]:
    """Yield a check for each kind of place that a checkpoint may be read from or written to."""
    for place in places:
        if place.version is None:
            detail = f"optional: for checkpoints at {place.name}"
            yield Check(place.name, Status.OPTIONAL, detail, place.install)
        elif not place.credentials:
            detail = f"{place.version}, no credentials found: {place.without}"
            yield Check(place.name, Status.OK, detail, place.log_in)
        else:
            yield Check(place.name, Status.OK, f"{place.version}, credentials: {place.credentials}")


def check_place(url: str) -> Check:
    """Whether a place can be reached from here, and whether it lies in the region of this machine."""
    zone = zone_of_machine()
    try:
        place = source_of(url)
        if isinstance(place, RemoteSource) and not place.is_file():
            place.names()
    except ConversionError as error:
        return Check(without_secrets(url), Status.FAIL, error.what, error.remedy)
    name = str(place)
    try:
        location = location_of(place)
    except FileNotFoundError:
        return Check(name, Status.FAIL, "no such bucket", "check the name")
    except (ConversionError, TemporaryError, OSError):
        location = None
    if location is None:
        return Check(name, Status.OK, "reachable; its region is unknown")
    if not zone:
        return Check(name, Status.OK, f"reachable, in {location}")
    if location.contains(region_of(zone)):
        return Check(name, Status.OK, f"in {location}, the region of this machine ({zone})")
    detail = f"in {location}, but this machine is in {zone}: transfers cost money and time"
    return Check(name, Status.WARNING, detail, f"use a bucket in {region_of(zone)}")


# Each prints one JSON line. A process of its own: a runtime holds its TPU until the process ends.
PROBES = {
    "torch_xla": (
        "import torch_xla, torch_xla.runtime as xr, json;"
        "print(json.dumps([xr.device_type(), xr.addressable_device_count()]))"
    ),
    "jax": "import jax, json; d = jax.devices(); print(json.dumps([d[0].device_kind, len(d)]))",
}

SIMULATED_TPU = (
    "from shims import simulate_tpu; simulate_tpu.install(1); import torch, json;"
    "torch.zeros(1, device='tpu').cpu();"
    "print(json.dumps(['XLA:CPU (simulated)', torch.accelerator.device_count()]))"
)


def _reported(line: str, remedy: str) -> tuple[str, str]:
    """Return detail and remedy of the last line of a traceback; an error of shims has its own remedy."""
    if not line.startswith(f"{ShimError.__module__}."):
        return line, remedy
    what, _, advice = line.partition(": ")[2].rpartition("; ")
    return what, advice


def _probe_all(
    probes: Mapping[str, str], *, has_tpu: bool, progress: Callable[[str], None]
) -> list[Check]:
    """Ask frameworks for their devices: together, except on a TPU, which one process at a time can hold."""
    if not probes:
        return []
    progress(f"asking {', '.join(probes)} for devices")
    with ThreadPoolExecutor(1 if has_tpu else len(probes)) as pool:
        ask = partial(_probe, has_tpu=has_tpu)
        return list(pool.map(ask, probes, probes.values()))


def _probe(framework: str, code: str, *, has_tpu: bool) -> Check:
    """Start the framework's runtime in a process of its own and ask for its devices."""
    subject = f"{framework} devices"
    environment = dict(os.environ)
    if not has_tpu:
        # An installed libtpu would look for a TPU and its metadata server for a long time.
        environment.setdefault("JAX_PLATFORMS", "cpu")
        environment.setdefault("PJRT_DEVICE", "CPU")
    try:
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"the runtime did not start within {PROBE_SECONDS} s"
        remedy = "check that no other process holds the TPU"
        return Check(subject, Status.FAIL, detail, remedy, (framework,))
    if ran.returncode != 0:
        lines = ran.stderr.strip().splitlines() or ["no message"]
        detail, remedy = _reported(lines[-1], f'python -c "import {framework}" shows the rest')
        return Check(subject, Status.FAIL, detail, remedy, (framework,))
    kind, count = json.loads(ran.stdout.strip().splitlines()[-1])
    if has_tpu and "TPU" not in kind.upper():
        detail = f"{count} × {kind}, though this machine has a TPU"
        return Check(subject, Status.FAIL, detail, INSTALL["libtpu"])
    return Check(subject, Status.OK, f"{count} × {kind}")
