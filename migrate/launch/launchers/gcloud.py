"""gcloud: a queued resource, whose start-up script runs the job, and a loop that requests it again."""

from __future__ import annotations

import shlex

from migrate.launch.errors import JobError
from migrate.launch.host.training import PREEMPTED
from migrate.launch.job import TrainingJob
from migrate.launch.launchers.launcher import Commands, JobFile, Launcher, project_flag, upload

CREATE, STARTUP, REQUEUE = "create.sh", "startup.sh", "requeue.sh"
SERVICE, ENDED = "job.service", "ended.sh"

_GRACE_SECONDS = 90  # for the last checkpoint after SIGTERM

_MEANINGS = {
    "gcloud storage rsync": "Copy this folder into the bucket, from which each host takes it.",
    "gcloud storage rm": "Forget an earlier failure.",
    "gcloud compute tpus queued-resources create": "Ask for the slice; the request waits for free chips.",
    "--node-id": "Name of the TPU VM.",
    "--zone": "Zone of the slice.",
    "--accelerator-type": "The slice, as gcloud names it.",
    "--runtime-version": "Software version of the TPU VM for this generation.",
    "--scopes": "The hosts may use the bucket.",
    "--metadata-from-file": "Script that each host runs at every boot.",
    "--spot": "The slice may be taken away at any time.",
    "--project": "Project of Google Cloud.",
}


def create_arguments(job: TrainingJob) -> list[str]:
    """Return the arguments of `gcloud compute tpus queued-resources create`."""
    words = [
        f"{job.name}-request",
        f"--node-id={job.name}",
        f"--zone={job.zone}",
        f"--accelerator-type={job.product.cloud_name}",
        f"--runtime-version={job.generation.runtime}",
        "--scopes=https://www.googleapis.com/auth/cloud-platform",
        f"--metadata-from-file=startup-script={STARTUP}",
    ]
    if job.spot:
        words.append("--spot")
    return words + project_flag(job).split()


def _check(job: TrainingJob) -> None:
    if not job.generation.runtime:
        raise JobError(
            f"--with gcloud: the TPU VM API does not create {job.product.name}",
            "use --with gke or --with xpk",
        )


def _create(job: TrainingJob) -> str:
    command = " \\\n  ".join(
        ["gcloud compute tpus queued-resources create", *map(shlex.quote, create_arguments(job))]
    )
    return f"""\
#!/usr/bin/env bash
# Copy the job into its bucket, and ask for the slice.
set -euo pipefail
cd "$(dirname "$0")"

{upload(job)}
gcloud storage rm {job.bucket}/failed 2>/dev/null || true
{command}
"""


def _startup(job: TrainingJob) -> str:
    return f"""\
#!/usr/bin/env bash
# Each host runs this as root at every boot: the job continues where it was.
set -euo pipefail
export HOME=/root PATH=$PATH:/snap/bin

# The job's folder, from the bucket.
mkdir -p /opt/{job.name}
gcloud storage rsync --recursive {job.bucket}/job /opt/{job.name}

# Start the job as a service. A child of this script would get SIGTERM only after the network is gone.
cp /opt/{job.name}/{SERVICE} /etc/systemd/system/job-{job.name}.service
systemctl daemon-reload
systemctl start --no-block job-{job.name}
"""


def _service(job: TrainingJob) -> str:
    folder, log = f"/opt/{job.name}", f"/var/log/{job.name}.log"
    return f"""\
# The job as a service of a host.
[Unit]
Description=Job {job.name}

# It stops before the network does, so that the last checkpoint reaches the bucket.
Wants=network-online.target
After=network-online.target

# How it starts, stops, and starts again.
[Service]

# The start script; its output is on the host and, each minute, in the bucket.
Environment=HOME=/root
ExecStart=/bin/bash {folder}/start.sh
StandardOutput=append:{log}
StandardError=append:{log}

# SIGTERM for the start script alone: it reaches the program, which stores a checkpoint.
KillMode=mixed
TimeoutStopSec={_GRACE_SECONDS}

# Preempted, but this host is still there: start again.
RestartForceExitStatus={PREEMPTED}
RestartSec=30

# After another end the slice must not stay: {REQUEUE} deletes it when it sees the file `failed`.
ExecStopPost=/bin/bash {folder}/{ENDED}
"""


def _ended(job: TrainingJob) -> str:
    return f"""\
#!/usr/bin/env bash
# The start script has ended on this host; systemd says how, in these variables.
export HOME=/root PATH=$PATH:/snap/bin

# Done, preempted, or stopped by a signal: nothing has failed.
if [ "$EXIT_CODE" != exited ] || [ "$EXIT_STATUS" = 0 ] || [ "$EXIT_STATUS" = {PREEMPTED} ]; then
  exit 0
fi

# A set-up that failed has not reported itself; the job has.
gcloud storage ls {job.bucket}/failed >/dev/null 2>&1 && exit 0
line="start.sh ended with exit code $EXIT_STATUS on $(hostname): see /var/log/{job.name}.log there"
echo "$line" | gcloud storage cp - {job.bucket}/failed
"""


def _requeue(job: TrainingJob) -> str:
    place = f"--zone={job.zone}{project_flag(job)}"
    request = f"{job.name}-request {place}"
    return f"""\
#!/usr/bin/env bash
# Keep the job going until it is done: run this where it stays, such as in tmux or on a small VM.
set -euo pipefail
cd "$(dirname "$0")"

# What gcloud reports when it does not answer.
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

# Print the state of the request: NONE if there is none, UNKNOWN if gcloud does not answer.
state() {{
  if ! gcloud compute tpus queued-resources describe {request} \\
    --format='value(state.state)' 2>"$errors"; then
    if grep -q NOT_FOUND "$errors"; then echo NONE; else echo UNKNOWN; fi
  fi
}}

# Delete the slice and the request for it, and try until they are gone: they cost.
delete() {{
  until [ "$(state)" = NONE ]; do
    gcloud compute tpus queued-resources delete {request} --force --quiet || sleep 60
  done
}}

# Once a minute: is it done, has it failed, or was the slice taken away?
while true; do
  # The hosts write these files.
  for end in done failed; do
    if gcloud storage ls {job.bucket}/$end >/dev/null 2>&1; then
      delete
      echo "{job.name}: $end; the slice is deleted"
      gcloud storage cat {job.bucket}/$end
      [ $end = done ] && exit 0 || exit 1
    fi
  done

  # UNKNOWN is no reason to delete a slice that may be training.
  state=$(state)
  case $state in
    SUSPENDED | FAILED | NONE)
      echo "{job.name}: $state; the slice is requested again"
      delete
      bash {CREATE} || echo "{job.name}: {CREATE} failed; it is tried again in a minute"
      ;;
    UNKNOWN) cat "$errors" ;;
  esac
  sleep 60
done
"""


def _files(job: TrainingJob) -> list[JobFile]:
    return [
        JobFile(CREATE, _create(job), _MEANINGS),
        JobFile(STARTUP, _startup(job), {}),
        JobFile(SERVICE, _service(job), {}),
        JobFile(ENDED, _ended(job), {}),
        JobFile(REQUEUE, _requeue(job), {}),
    ]


def _commands(job: TrainingJob) -> Commands:
    place = f"--zone={job.zone}{project_flag(job)}"
    delete = (
        f"gcloud compute tpus queued-resources delete {job.name}-request {place} --force --quiet"
    )
    log = f"tail -n 100 -f /var/log/{job.name}.log"
    return Commands(
        create=f"bash {CREATE} && bash {REQUEUE}",
        watch=f"gcloud compute tpus tpu-vm ssh {job.name} {place} --worker=0 --command='{log}'",
        resume=f"gcloud storage rm {job.bucket}/failed; bash {REQUEUE}",
        stop=delete,
        clean=f"{delete}; gcloud storage rm --recursive {job.bucket}",
    )


GCLOUD = Launcher(
    "gcloud",
    "gcloud",
    "gcloud, logged in",
    _check,
    _files,
    _commands,
    f"{REQUEUE} deletes the request and creates it again; the start-up script continues the job",
)
