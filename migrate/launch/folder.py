"""Files of a job that every launcher needs: start script, set-up, exact versions, settings, README."""

from __future__ import annotations

from migrate.fit.products import Slice
from migrate.launch.framework import Framework
from migrate.launch.host.settings import HostSettings
from migrate.launch.job import TrainingJob
from migrate.launch.launchers.launcher import JobFile, Launcher
from migrate.launch.pins import pins
from migrate.launch.program import Resume
from migrate.launch.start import ProcessStart
from migrate.launch.wheel import wheel_name

PROGRAM, WHEELS = "program", "wheels"

_SETTINGS = {
    "name": "Name of the job.",
    "launcher": "Whose variables give the number of a host and the address of host 0.",
    "framework": "The package that drives the TPU, as the program's imports show.",
    "processes": "Which processes a host starts: one, or one per chip.",
    "option": "Option of the program that takes the number of the process on its host; empty: none.",
    "entry": "The file that is run, in the folder program.",
    "args": "Its arguments; {checkpoints} and {data} stand for folders in the bucket.",
    "hosts": "Hosts of the slice.",
    "chips": "Chips of each host.",
    "ranks": "Processes of a host that starts one per device.",
    "topology": "Shape of the slice.",
    "bucket": "Folder of the job: checkpoints, compilation cache, logs.",
    "data": "Folder of the data.",
    "copies": "Whether checkpoints go to the disk of host 0 first, and are copied once a minute.",
    "environment": "Further variables of the program.",
    "patience": "Seconds to wait for all hosts.",
}
_START = """\
#!/usr/bin/env bash
# Start the job on this host: every host of the slice runs this script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# A trial on a machine without a TPU (JOB_TRIAL=2: two replicas per host) takes the Python that is there.
if [ -n "${JOB_TRIAL:-}" ]; then
  PYTHON=${JOB_PYTHON:-python3}
else
  # The environment of this host, with exact versions; sets PYTHON.
  . ./setup.sh
fi

# Check this host (migrate doctor, migrate doctor --devices), meet the other hosts, train, and resume.
# SIGTERM reaches the program, which stores a checkpoint; exit code 75: start the job again.
exec "$PYTHON" -m migrate.launch.host job.json
"""
_SETUP = r"""# Environment of a host. start.sh reads this file; it sets PYTHON.

# Root needs no sudo, and a container has none.
SUDO=
if [ "$(id -u)" != 0 ]; then SUDO=sudo; fi

# Python 3.11: images of TPU VMs are Ubuntu 22.04, whose own is 3.10; the container image has it. A new VM
# updates itself at first, and holds the lock of apt for minutes.
for attempt in 1 2 3 4 5 6 7 8 9 10; do
  if command -v python3.11 >/dev/null; then break; fi
  if [ "$attempt" -gt 1 ]; then sleep 30; fi
  $SUDO apt-get update -qq || continue
  $SUDO env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq python3.11 python3.11-venv || continue
done
if ! command -v python3.11 >/dev/null; then
  echo "this host has no Python 3.11, and apt did not install it" >&2
  exit 1
fi

# One environment per set of versions; it is made once and kept as long as the disk.
VERSIONS=$(find requirements.txt program wheels -type f \( -name requirements.txt -o -name '*.whl' \) \
  -exec sha256sum {} + | sort | sha256sum | cut -c1-12)
ENVIRONMENT=${JOB_ENVIRONMENT:-$HOME/.job-environments/$VERSIONS}
PYTHON=$ENVIRONMENT/bin/python
if [ ! -f "$ENVIRONMENT/complete" ]; then
  python3.11 -m venv --clear "$ENVIRONMENT"
  # The framework, migrate and shims, in the versions of requirements.txt.
  "$PYTHON" -m pip install --quiet --no-input -r requirements.txt
  # What the program itself needs; it cannot change a version above.
  if [ -f program/requirements.txt ]; then
    "$PYTHON" -m pip install --quiet --no-input -c constraints.txt -r program/requirements.txt
  fi
  touch "$ENVIRONMENT/complete"
fi
"""


def shared_files(job: TrainingJob, launcher: Launcher) -> list[JobFile]:
    """Return the files that do not depend on the launcher, and the README."""
    exact = pins(job.program.framework, job.program.imports)
    constraints = "\n".join(_without_extras(pin) for pin in exact) + "\n"
    meanings = {
        "./wheels": "This project: migrate doctor, shims, and the program that runs on each host.",
    }
    versions = dict.fromkeys(exact, "Exact version, as tested.")
    bare = {
        _without_extras(pin): "The program itself cannot change this version." for pin in versions
    }
    return [
        JobFile("start.sh", _START, {}),
        JobFile("setup.sh", _SETUP, {}),
        JobFile(
            "requirements.txt",
            "\n".join([*exact, f"./{WHEELS}/{wheel_name()}"]) + "\n",
            versions | meanings,
        ),
        JobFile("constraints.txt", constraints, bare),
        JobFile("job.json", settings_of(job).as_json(), _SETTINGS),
        JobFile("README.md", readme(job, launcher), {}),
    ]


def settings_of(job: TrainingJob) -> HostSettings:
    """Return the settings of a job on its hosts."""
    return HostSettings(
        name=job.name,
        launcher=job.request.launcher,
        framework=str(job.program.framework),
        processes="host" if job.program.style.start is ProcessStart.HOST else "chip",
        option=job.program.style.option,
        entry=job.program.entry.as_posix(),
        args=job.request.args,
        hosts=job.product.hosts,
        chips=job.product.chips_per_host,
        ranks=_ranks(job),
        topology=_topology(job.product),
        bucket=job.bucket,
        data=job.request.data or "",
        copies=job.program.resume is Resume.OWN,
        environment=job.environment,
        patience=job.request.patience,
    )


def _ranks(job: TrainingJob) -> int:
    """Return the processes that torchrun starts on a host: torch_tpu wants one per device of a chip."""
    devices = job.generation.devices if job.program.framework is Framework.TORCH_TPU else 1
    return job.product.chips_per_host * devices


def _topology(product: Slice) -> str:
    """Return the shape in three dimensions, and the devices of a chip if they are several."""
    sides = [*product.shape, 1][:3]
    if product.generation.devices > 1:
        sides.append(product.generation.devices)
    return ",".join(map(str, sides))


def _without_extras(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{name.partition('[')[0]}=={version}"


def readme(job: TrainingJob, launcher: Launcher) -> str:
    """Return the README of a job."""
    commands = launcher.commands(job)
    hosts = "1 host" if job.product.hosts == 1 else f"{job.product.hosts} hosts"
    chips = "1 chip" if job.product.chips_per_host == 1 else f"{job.product.chips_per_host} chips"
    kind = "spot" if job.spot else "on-demand"
    rows = [
        ("create", commands.create),
        ("watch", commands.watch),
        ("resume", commands.resume),
        ("stop", commands.stop),
        ("clean", commands.clean),
    ]
    table = "\n".join(f"| {name} | `{command}` |" for name, command in rows)
    warnings = "".join(f"\n> {line}.\n" for line in (*job.warnings, *job.notes))
    return f"""\
# {job.name}: {job.program.entry} on {job.product.name} in {job.zone}

{hosts} with {chips} each, {kind}, by {launcher.title}. Needs: {launcher.needs}.
{warnings}
Run these in this folder:

| to | run |
|---|---|
{table}

The bucket has to exist, in the region of the slice:
`gcloud storage buckets create {_bucket_of(job)} --location={job.region}`

- **Before training**, each host runs `migrate doctor` and `migrate doctor --devices`. A host with a bad chip,
  or one that does not come within {job.request.patience} s, ends the job with one line and exit code 3.
- **Preemption.** The program {job.program.resume.sentence}; {launcher.on_preemption}.
- **Checkpoints** are in `{job.checkpoints}`, the compilation cache in `{job.bucket}/cache`, the log of each
  host in `{job.bucket}/logs`: `gcloud storage cat {job.bucket}/logs/host-0.log`
- **The end.** `{job.bucket}/done` exists when all is trained, `{job.bucket}/failed` after a failure. To train
  longer in the same folder, delete `done` first.
- **Try it here, without a TPU**, with two replicas and a local folder as bucket:
  `JOB_TRIAL=2 JOB_HOST=0 JOB_ADDRESSES=localhost JOB_BUCKET=/tmp/{job.name} bash start.sh`
- **Each line** of these files: `migrate launch … --explain`
"""


def _bucket_of(job: TrainingJob) -> str:
    return "gs://" + job.bucket.removeprefix("gs://").partition("/")[0]
