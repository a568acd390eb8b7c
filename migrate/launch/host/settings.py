"""Settings of a job on its hosts: `job.json`, as `migrate launch` wrote it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

# Variables for a trial without a TPU: replicas of a host, a folder as bucket, number of this host,
# addresses of all.
TRIAL, TRIAL_BUCKET, INDEX, ADDRESSES = "JOB_TRIAL", "JOB_BUCKET", "JOB_HOST", "JOB_ADDRESSES"
SKIP_DOCTOR = "JOB_SKIP_DOCTOR"


@dataclass(frozen=True)
class HostSettings:
    """Settings of a job on its hosts.

    Attributes:
        name: name of the job.
        launcher: name of the launcher, which sets the variables of the hosts.
        framework: "torch_xla", "torch_tpu" or "jax".
        processes: "host" for one process per host, "chip" for one per chip.
        option: option of the program that takes the number of the process on its host; empty: none.
        entry: the file to run, relative to the folder `program`.
        args: its arguments; `{checkpoints}` and `{data}` stand for folders.
        hosts: the number of hosts.
        chips: chips of a host.
        ranks: processes of a host that starts one per device; a chip has one device or two.
        topology: shape of the slice as torch_tpu spells it, such as "4,4,1".
        bucket: folder of the job in the bucket.
        data: folder of the data; empty: none.
        copies: whether checkpoints are written to the disk of host 0 and copied to the bucket.
        environment: further variables of the program.
        patience: seconds to wait for all hosts.
    """

    name: str
    launcher: str
    framework: str
    processes: str
    option: str
    entry: str
    args: tuple[str, ...]
    hosts: int
    chips: int
    ranks: int
    topology: str
    bucket: str
    data: str
    copies: bool
    environment: dict[str, str]
    patience: float

    def as_json(self) -> str:
        """Return the text of `job.json`."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @property
    def remote_checkpoints(self) -> str:
        """Folder of the checkpoints in the bucket."""
        return f"{self.bucket}/checkpoints"


def read_settings(path: Path, environment: Mapping[str, str] = os.environ) -> HostSettings:
    """Return the settings of a job; a trial may have another bucket and fewer hosts."""
    values: dict[str, Any] = json.loads(path.read_text())
    values = {field.name: values[field.name] for field in fields(HostSettings)}
    values["args"] = tuple(values["args"])
    if bucket := environment.get(TRIAL_BUCKET):
        values["bucket"] = bucket.rstrip("/")
    if environment.get(TRIAL) and (addresses := environment.get(ADDRESSES)):
        values["hosts"] = len(addresses.split(","))
    return HostSettings(**values)
