"""SkyPilot: a managed job, which SkyPilot creates again after a preemption."""

from __future__ import annotations

from migrate.launch.errors import JobError
from migrate.launch.host.training import PREEMPTED
from migrate.launch.job import TrainingJob
from migrate.launch.launchers.launcher import Commands, JobFile, Launcher, as_yaml

FILE = "task.yaml"
_MEANINGS = {
    "name": "Name of the job in `sky jobs queue`.",
    "workdir": "This folder is copied to every host.",
    "num_nodes": "One slice; SkyPilot runs the job on all of its hosts.",
    "resources": "The slice.",
    "infra": "Cloud, region and zone: the grant's, and the bucket's region.",
    "accelerators": "The slice, as SkyPilot names it.",
    "accelerator_args": "Arguments of the TPU VM.",
    "runtime_version": "Software version of the TPU VM for this generation.",
    "use_spot": "Whether the slice may be taken away at any time.",
    "job_recovery": "What a managed job does when it ends early.",
    "strategy": "After a preemption: the same zone again, since the bucket is there.",
    "recover_on_exit_codes": "The program was preempted and has stored a checkpoint.",
    "max_restarts_on_errors": "A program that fails is not started again: it would cost.",
    "envs": "Variables of the program.",
    "run": "Each host runs the start script, which sets the host up first.",
}


def _check(job: TrainingJob) -> None:
    if not job.generation.runtime:
        raise JobError(
            f"--with skypilot: {job.product.name} is no TPU VM", "use --with gke or --with xpk"
        )


def _files(job: TrainingJob) -> list[JobFile]:
    values = {
        "name": job.name,
        "workdir": ".",
        "num_nodes": 1,
        "resources": {
            "infra": f"gcp/{job.region}/{job.zone}",
            "accelerators": f"tpu-{job.product.cloud_name}:1",
            "accelerator_args": {"runtime_version": job.generation.runtime},
            "use_spot": job.spot,
            "job_recovery": {
                "strategy": "FAILOVER",
                "recover_on_exit_codes": [PREEMPTED],
                "max_restarts_on_errors": 0,
            },
        },
        "envs": {"PYTHONUNBUFFERED": "1"},
        "run": "bash start.sh\n",
    }
    return [JobFile(FILE, as_yaml(values), _MEANINGS)]


def _commands(job: TrainingJob) -> Commands:
    return Commands(
        create=f"sky jobs launch --name {job.name} {FILE}",
        watch=f"sky jobs logs --name {job.name}",
        resume=f"sky jobs launch --name {job.name} {FILE}",
        stop=f"sky jobs cancel --name {job.name}",
        clean=f"gcloud storage rm --recursive {job.bucket}",
    )


SKYPILOT = Launcher(
    "skypilot",
    "SkyPilot",
    "pip install 'skypilot[gcp]', then sky check gcp",
    _check,
    _files,
    _commands,
    "SkyPilot creates the slice again; start.sh runs again",
)
