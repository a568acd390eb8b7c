"""Jobs that the tests write: programs, launchers, slices."""

from __future__ import annotations

from pathlib import Path

from migrate.launch.pipeline import WrittenJob, launch
from migrate.launch.request import LaunchRequest

PROGRAMS = Path(__file__).with_name("programs")
TARGETS = {
    "torch_xla": PROGRAMS / "xla_script.py",
    "torch_tpu": PROGRAMS / "tpu_script.py",
    "jax": PROGRAMS / "jax_program",
}
LAUNCHERS = ("skypilot", "gke", "xpk", "gcloud", "jobman", "dstack")
# Slice → a zone that sells it. dstack creates slices of one host only.
SLICES = {
    "v5e-16": "us-central1-a",
    "v6e-64": "europe-west4-a",
    "v4-32": "us-central2-b",
    "v5p-8": "us-east5-a",
}
ONE_HOST = {
    "v5e-8": "us-central1-a",
    "v6e-8": "us-east1-d",
    "v5e-4": "europe-west4-b",
    "v5p-8": "us-east5-a",
}


def trained_program(folder: Path) -> Path:
    """Write a program as `migrate train` does, and return its folder."""
    from tests.train.toy import write_toy  # imports JAX, with what torch_tpu's environment lacks

    return write_toy(folder)


def slices_of(launcher: str) -> dict[str, str]:
    return ONE_HOST if launcher == "dstack" else SLICES


def request(
    output: Path, launcher: str = "gcloud", framework: str = "torch_xla", **options: object
) -> LaunchRequest:
    values: dict[str, object] = {
        "target": TARGETS[framework],
        "launcher": launcher,
        "tpu": "v5e-16",
        "zone": "us-central1-a",
        "output": output / "job",
        "args": ("--run", "{checkpoints}"),
        "bucket": "gs://lab-runs/exp-1",
        "cluster": "lab" if launcher == "xpk" else None,
    }
    return LaunchRequest(**(values | options))  # type: ignore[arg-type]


def written(output: Path, *names: str, check: bool = False, **options: object) -> WrittenJob:
    return launch(request(output, *names, **options), check=check)
