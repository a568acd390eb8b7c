"""jobman: its configuration, with a command that it may run again and again.

Its configuration has no schema. The keys are those that github.com/zlab-princeton-internal/jobman reads at
commit 785e8f4 (2026-04-24). jobman ends a command after 300 seconds (`SSH_CMD_TIMEOUT`) and, with `loop`,
runs it again. So the command starts the job in the background if it does not run, and shows its log.
"""

from __future__ import annotations

from migrate.launch.errors import JobError
from migrate.launch.job import TrainingJob
from migrate.launch.launchers.launcher import Commands, JobFile, Launcher, as_yaml, upload

FILE, ATTACH = "jobman.yaml", "attach.sh"
# Sections and keys that jobman reads.
KEYS = {
    "job": {"name", "env_type", "loop", "remote_user", "environment", "queue", "worker_num"},
    "tpu": {
        *("allocation_mode", "accelerator", "name", "zone", "version", "pricing", "flags", "tags"),
        *("metadata", "startup_script"),
    },
    "gcsfuse": {"bucket_name", "mount_path", "extra_mounts"},
    "ssh": {"private_key", "identities"},
    "command": {"cmd", "workers"},
}
PRICING = ("spot", "ondemand", "preemptible")
MODES = ("tpu-vm", "queued-resources")

_MEANINGS = {
    "job": "The job as a whole.",
    "name": "Name of the job or of the TPU VM; jobman adds its number.",
    "env_type": "No environment by jobman: the start script makes its own.",
    "loop": "Run again when the command ends: after a preemption on a new slice.",
    "remote_user": "Your name on the hosts.",
    "tpu": "The slice.",
    "allocation_mode": "A request that waits for free chips.",
    "accelerator": "The slice, as gcloud names it.",
    "zone": "Zone of the slice.",
    "version": "Software version of the TPU VM for this generation.",
    "pricing": "Whether the slice may be taken away at any time.",
    "flags": "Further flags of gcloud: the hosts may use the bucket.",
    "gcsfuse": "No mounted bucket: the job copies what it needs.",
    "command": "What each host runs.",
    "cmd": "Take the job's folder from the bucket, start it if it does not run, show its log.",
    "workers": "All hosts, by number: jobman's own count is wrong for some slices (v5litepod-8, v5p-16).",
}


def _check(job: TrainingJob) -> None:
    if not job.generation.runtime:
        raise JobError(
            f"--with jobman: {job.product.name} is no TPU VM", "use --with gke or --with xpk"
        )
    if job.request.project:
        raise JobError(
            "--with jobman takes gcloud's default project, not --project",
            f"leave it out, and run: gcloud config set project {job.request.project}",
        )


def _files(job: TrainingJob) -> list[JobFile]:
    folder = f"$HOME/{job.name}"
    values = {
        "job": {
            "name": job.name,
            "env_type": None,
            "loop": True,
            "remote_user": "${oc.env:USER}",
        },
        "tpu": {
            "allocation_mode": "queued-resources",
            "accelerator": job.product.cloud_name,
            "name": job.name,
            "zone": job.zone,
            "version": job.generation.runtime,
            "pricing": "spot" if job.spot else "ondemand",
            "flags": ["--scopes=https://www.googleapis.com/auth/cloud-platform"],
        },
        # No section ssh: jobman reads it if it is not there, and fails where it is empty.
        "gcsfuse": None,
        "command": {
            "cmd": f"mkdir -p {folder}\n"
            f"gcloud storage rsync --recursive {job.bucket}/job {folder}\n"
            f"bash {folder}/{ATTACH}\n",
            "workers": list(range(job.product.hosts)),
        },
    }
    attach = f"""\
#!/usr/bin/env bash
# Start the job in the background unless it runs, then show its log for four minutes.
cd "$(dirname "$0")"
touch host.log

# jobman runs this again and again, also after the end: it keeps the slice, which costs, until you stop it.
for end in done failed; do
  if gcloud storage ls {job.bucket}/$end >/dev/null 2>&1; then
    echo "{job.name}: $end; delete the slice: jobman clean ID"
    sleep 240
    exit 0
  fi
done

# The lock is held as long as the job runs; a second start ends at once.
setsid nohup flock --nonblock job.lock bash start.sh >> host.log 2>&1 < /dev/null &

# jobman ends a command after five minutes, so this ends before.
timeout 240 tail -n 20 -f host.log
exit 0
"""
    return [JobFile(FILE, as_yaml(values), _MEANINGS), JobFile(ATTACH, attach, {})]


def _commands(job: TrainingJob) -> Commands:
    forget = f"gcloud storage rm {job.bucket}/failed"
    return Commands(
        create=f"{forget}; {upload(job)} && jobman create {FILE}",
        watch="jobman list    # the logs are in jobs/USER/ID/logs",
        resume=f"{forget}; jobman resume ID",
        stop="jobman stop ID",
        clean=f"jobman clean ID; gcloud storage rm --recursive {job.bucket}",
    )


JOBMAN = Launcher(
    "jobman",
    "jobman",
    "jobman from github.com/zlab-princeton-internal/jobman (PyPI's is another program), gcloud and tmux",
    _check,
    _files,
    _commands,
    "jobman deletes the slice and requests it again; its command continues the job; after the end jobman "
    "keeps the slice, which costs: run `clean`",
)
