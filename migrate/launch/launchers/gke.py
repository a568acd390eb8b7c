"""GKE: a Job for a slice of one host, a JobSet for a slice of several."""

from __future__ import annotations

from typing import Any

from migrate.launch.errors import JobError
from migrate.launch.host.meeting import PORT
from migrate.launch.host.training import PREEMPTED, SIGNALS
from migrate.launch.job import TrainingJob
from migrate.launch.launchers.launcher import Commands, JobFile, Launcher, as_yaml, upload

FILE = "job.yaml"
IMAGE = "python:3.11-bookworm"
ACCOUNT = "training"  # Kubernetes service account that may use the bucket

_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_GRACE_SECONDS = 90
_MEANINGS = {
    "apiVersion": "Version of the resource's schema.",
    "kind": "A Job for one host; a JobSet for several, which start and restart together.",
    "metadata": "Name of the job, in kubectl too.",
    "name": "Name of the job, a container or a volume.",
    "spec": "What the resource runs.",
    "failurePolicy": "When the whole slice starts again.",
    "rules": "Exit codes with a meaning of their own.",
    "action": "A program that fails, or a host at fault, is not started again: it would cost.",
    "onJobFailureReasons": "The reason that the exit code below gives.",
    "onExitCodes": "The exit code of the start script.",
    "maxRestarts": "How often all hosts start again, after preemptions too.",
    "replicatedJobs": "One slice.",
    "replicas": "One slice.",
    "template": "What each host runs.",
    "parallelism": "A pod for each host of the slice.",
    "completions": "All hosts have to finish.",
    "completionMode": "Each pod has a number, which is the number of its host.",
    "backoffLimit": "How often failed pods are started again; in a JobSet, it does that for all.",
    "podFailurePolicy": "What exit codes mean.",
    "containerName": "The container whose exit code counts.",
    "operator": "How the values below are compared.",
    "values": "Exit codes: preempted, and programs that a signal ended, as when a host is lost.",
    "annotations": "Settings of JobSet, or of Cloud Storage FUSE.",
    _EXCLUSIVE: "All hosts in one node pool: two pools of this kind would be two slices.",
    "gke-gcsfuse/volumes": "GKE mounts the bucket in this pod.",
    "restartPolicy": "A new pod after a failure, not a new container.",
    "serviceAccountName": "Account that may read and write the bucket.",
    "terminationGracePeriodSeconds": "Seconds for the last checkpoint after SIGTERM.",
    "nodeSelector": "Nodes of this kind of slice, in this zone.",
    "tolerations": "Nodes with TPUs, and spot nodes, accept only pods that say so.",
    "subdomain": "Names of the hosts, by which they find each other.",
    "containers": "The start script.",
    "image": "Python; the start script installs the exact versions.",
    "command": "Copy the job's folder from the mounted bucket, and start it.",
    "env": "Variables of the program.",
    "ports": "Port at which the hosts meet.",
    "resources": "All chips of the host.",
    "volumeMounts": "Where the bucket is seen.",
    "volumes": "The bucket.",
    "network": "Names of the hosts, before they are ready: they meet first.",
}


def _check(job: TrainingJob) -> None:
    if not job.generation.label:
        raise JobError(
            f"--with gke: GKE has no {job.generation.name}", "use --with gcloud or --with skypilot"
        )


def _pod(job: TrainingJob) -> dict[str, Any]:
    bucket, _, folder = job.bucket.removeprefix("gs://").partition("/")
    chips = {"google.com/tpu": job.product.chips_per_host}
    selector = {
        "cloud.google.com/gke-tpu-accelerator": job.generation.label,
        "cloud.google.com/gke-tpu-topology": "x".join(map(str, job.product.shape)),
        "topology.kubernetes.io/zone": job.zone,
    }
    tolerations = [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    if job.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        tolerations.append(
            {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"}
        )
    return {
        "metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": ACCOUNT,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "nodeSelector": selector,
            "tolerations": tolerations,
            "containers": [
                {
                    "name": "train",
                    "image": IMAGE,
                    "command": ["bash", "-c", "cp -r /bucket/job /job && exec bash /job/start.sh"],
                    "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
                    "ports": [{"containerPort": PORT}],
                    "resources": {"requests": dict(chips), "limits": dict(chips)},
                    "volumeMounts": [{"name": "bucket", "mountPath": "/bucket"}],
                }
            ],
            "volumes": [
                {
                    "name": "bucket",
                    "csi": {
                        "driver": "gcsfuse.csi.storage.gke.io",
                        "volumeAttributes": {
                            "bucketName": bucket,
                            "mountOptions": f"implicit-dirs,only-dir={folder}",
                        },
                    },
                }
            ],
        },
    }


def _job_spec(job: TrainingJob) -> dict[str, Any]:
    """Return the spec of the Job, which in a JobSet starts no pod again by itself."""
    alone = job.product.hosts == 1
    failed = {"containerName": "train", "operator": "NotIn", "values": [PREEMPTED, *SIGNALS]}
    rules: list[dict[str, Any]] = [{"action": "FailJob", "onExitCodes": failed}]
    if alone:
        disrupted = [{"type": "DisruptionTarget", "status": "True"}]
        preempted = {"containerName": "train", "operator": "In", "values": [PREEMPTED]}
        rules.insert(0, {"action": "Ignore", "onPodConditions": disrupted})
        rules.append({"action": "Ignore", "onExitCodes": preempted})
    return {
        "parallelism": job.product.hosts,
        "completions": job.product.hosts,
        "completionMode": "NonIndexed" if alone else "Indexed",
        "backoffLimit": job.request.restarts if alone else 0,
        "podFailurePolicy": {"rules": rules},
        "template": _pod(job),
    }


def inner_job(values: dict[str, Any]) -> dict[str, Any]:
    """Return the Job of a resource: itself, or the one in a JobSet."""
    if values["kind"] == "Job":
        return values
    (replicated,) = values["spec"]["replicatedJobs"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": values["metadata"],
        "spec": replicated["template"]["spec"],
    }


def _files(job: TrainingJob) -> list[JobFile]:
    values: dict[str, Any]
    if job.product.hosts == 1:
        values = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job.name},
            "spec": _job_spec(job),
        }
    else:
        fails = {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
        values = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {
                "name": job.name,
                "annotations": {_EXCLUSIVE: "cloud.google.com/gke-nodepool"},
            },
            "spec": {
                "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                "failurePolicy": {"maxRestarts": job.request.restarts, "rules": [fails]},
                "replicatedJobs": [
                    {"name": "slice", "replicas": 1, "template": {"spec": _job_spec(job)}}
                ],
            },
        }
    meanings = _MEANINGS | {"onPodConditions": "A node that was taken away is no failure."}
    return [JobFile(FILE, as_yaml(values), meanings)]


def _commands(job: TrainingJob) -> Commands:
    label = "job-name" if job.product.hosts == 1 else "jobset.sigs.k8s.io/jobset-name"
    start = f"{upload(job)} && kubectl apply -f {FILE}"
    return Commands(
        create=start,
        watch=f"kubectl logs --follow --prefix --max-log-requests=64 -l {label}={job.name}",
        resume=f"kubectl delete --ignore-not-found -f {FILE} && {start}",
        stop=f"kubectl delete -f {FILE}",
        clean=f"gcloud storage rm --recursive {job.bucket}",
    )


GKE = Launcher(
    "gke",
    "GKE",
    "a cluster with a node pool of this slice, the Cloud Storage FUSE driver, for several hosts JobSet, and "
    f"a service account `{ACCOUNT}` that may use the bucket",
    _check,
    _files,
    _commands,
    "Kubernetes waits for a node pool with free chips and starts all hosts again; start.sh runs again",
)
