"""xpk: one command, which packs this folder into an image and creates a JobSet on a GKE cluster."""

from __future__ import annotations

import shlex

from migrate.launch.errors import JobError
from migrate.launch.host.training import PREEMPTED
from migrate.launch.job import TrainingJob
from migrate.launch.launchers.gke import IMAGE
from migrate.launch.launchers.launcher import Commands, JobFile, Launcher, project_flag

FILE = "create.sh"


def arguments(job: TrainingJob) -> list[str]:
    """Return the arguments of `xpk workload create`."""
    words = [
        f"--workload={job.name}",
        f"--cluster={job.request.cluster}",
        f"--zone={job.zone}",
        f"--tpu-type={job.product.cloud_name}",
        "--num-slices=1",
        f"--base-docker-image={IMAGE}",
        "--script-dir=.",
        "--command=bash start.sh",
        f"--max-restarts={job.request.restarts}",
        f"--restart-on-exit-codes={PREEMPTED}",
        "--termination-grace-period-seconds=90",
    ]
    if job.spot:
        words.append("--spot")
    return words + project_flag(job).split()


_MEANINGS = {
    "xpk workload create": "xpk creates a JobSet on the cluster.",
    "--workload": "Name of the job.",
    "--cluster": "GKE cluster; xpk cluster create makes one.",
    "--zone": "Zone of the cluster's slice.",
    "--tpu-type": "The slice.",
    "--num-slices": "One slice.",
    "--base-docker-image": "Python; the start script installs the exact versions.",
    "--script-dir": "This folder is added to the image.",
    "--command": "Each host runs the start script.",
    "--max-restarts": "How often all hosts start again, after preemptions too.",
    "--restart-on-exit-codes": "The program was preempted and has stored a checkpoint.",
    "--termination-grace-period-seconds": "Seconds for the last checkpoint after SIGTERM.",
    "--spot": "The slice may be taken away at any time.",
    "--project": "Project of Google Cloud.",
}


def _check(job: TrainingJob) -> None:
    if not job.request.cluster:
        raise JobError("--with xpk: no cluster", "add --cluster NAME; xpk cluster create makes one")
    if job.generation.name in ("v2", "v3"):
        raise JobError(
            f"--with xpk: xpk has no {job.generation.name}", "use --with gcloud or --with skypilot"
        )


def _files(job: TrainingJob) -> list[JobFile]:
    lines = [
        "#!/usr/bin/env bash",
        "# Create the job. Run this in the job's folder, with xpk, docker and kubectl installed.",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        "",
        " \\\n  ".join(["xpk workload create", *map(shlex.quote, arguments(job))]),
        "",
    ]
    return [JobFile(FILE, "\n".join(lines), _MEANINGS)]


def _commands(job: TrainingJob) -> Commands:
    place = f"--cluster={job.request.cluster} --zone={job.zone}{project_flag(job)}"
    delete = f"xpk workload delete --workload={job.name} {place}"
    return Commands(
        create=f"bash {FILE}",
        watch=f"kubectl logs --follow --prefix --max-log-requests=64 "
        f"-l jobset.sigs.k8s.io/jobset-name={job.name}",
        resume=f"{delete} && bash {FILE}",
        stop=delete,
        clean=f"gcloud storage rm --recursive {job.bucket}",
    )


XPK = Launcher(
    "xpk",
    "xpk",
    "pip install xpk, docker, and a cluster made by xpk cluster create",
    _check,
    _files,
    _commands,
    "the JobSet starts all hosts again; start.sh runs again",
)
