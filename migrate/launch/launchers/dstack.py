"""dstack: a task, for slices of one host."""

from __future__ import annotations

from migrate.launch.errors import JobError
from migrate.launch.host.training import PREEMPTED
from migrate.launch.job import TrainingJob
from migrate.launch.launchers.gke import IMAGE
from migrate.launch.launchers.launcher import Commands, JobFile, Launcher, as_yaml, upload
from migrate.launch.pins import pins

FILE = "train.dstack.yml"
# Slices that dstack 0.22.5 offers: gpuhunt's TPU_HARDWARE_SPECS and `_is_single_host_tpu`.
SLICES = (
    "v2-8",
    "v3-8",
    "v5litepod-1",
    "v5litepod-4",
    "v5litepod-8",
    "v5p-8",
    "v6e-1",
    "v6e-4",
    "v6e-8",
)

# dstack's server takes 2 MiB of files, less than the job's wheel has: the host fetches the folder.
_FETCH = (
    'pip install --quiet {gcsfs} && python3.11 -c "import fsspec; files, folder = '
    "fsspec.url_to_fs('{bucket}/job'); files.get(folder + '/', '/job/', recursive=True)\""
)
# dstack knows no exit code that starts a task again. Of a slice that is taken away it sees an interruption.
_START = (
    f"until bash /job/start.sh; do code=$?; [ $code -eq {PREEMPTED} ] || exit $code; sleep 30; done"
)
_MEANINGS = {
    "type": "A program that runs to its end.",
    "name": "Name of the run.",
    "image": "Python; the start script installs the exact versions.",
    "commands": "What the host runs.",
    "pip": "Copy the job's folder from the bucket.",
    "until": "The start script, which sets the host up first; after a preemption of this host alone, again.",
    "env": "Variables of the program.",
    "privileged": "A container needs it to reach the TPU.",
    "backends": "Google Cloud.",
    "regions": "Region of the slice and of the bucket.",
    "availability_zones": "Zone of the slice.",
    "resources": "The slice.",
    "gpu": "The slice, as dstack names it.",
    "spot_policy": "Whether the slice may be taken away at any time.",
    "retry": "A new slice after a preemption, or when no chips are free.",
    "max_duration": "No time limit.",
}


def _check(job: TrainingJob) -> None:
    if job.product.cloud_name not in SLICES:
        kind = "several hosts" if job.product.hosts > 1 else "this kind"
        raise JobError(
            f"--with dstack: dstack creates no slices of {kind} ({job.product.name})",
            f"use one of {', '.join(SLICES)}, or --with skypilot",
        )


def _gcsfs(job: TrainingJob) -> str:
    """Return the exact requirement of the package that reads the bucket."""
    (pin,) = [pin for pin in pins(job.program.framework) if pin.startswith("gcsfs==")]
    return pin


def _files(job: TrainingJob) -> list[JobFile]:
    values = {
        "type": "task",
        "name": job.name,
        "image": IMAGE,
        "commands": [_FETCH.format(gcsfs=_gcsfs(job), bucket=job.bucket), _START],
        "env": {"PYTHONUNBUFFERED": "1"},
        "privileged": True,
        "backends": ["gcp"],
        "regions": [job.region],
        "availability_zones": [job.zone],
        "resources": {"gpu": job.product.cloud_name},
        "spot_policy": "spot" if job.spot else "on-demand",
        "retry": {"on_events": ["no-capacity", "interruption"], "duration": "7d"},
        "max_duration": "off",
    }
    return [JobFile(FILE, as_yaml(values), _MEANINGS)]


def _commands(job: TrainingJob) -> Commands:
    start = f"{upload(job)} && dstack apply -f {FILE} --detach"
    return Commands(
        create=start,
        watch=f"dstack attach {job.name} --logs",
        resume=start,
        stop=f"dstack stop {job.name}",
        clean=f"dstack delete {job.name}; gcloud storage rm --recursive {job.bucket}",
    )


DSTACK = Launcher(
    "dstack",
    "dstack",
    "pip install 'dstack[gcp]', gcloud, and a server whose gcp backend has allow_tpu and, in "
    "vm_service_account, an account that may use the bucket",
    _check,
    _files,
    _commands,
    "dstack creates a new slice; start.sh runs again",
)
