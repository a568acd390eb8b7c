"""Options of `migrate launch`, typed but not yet checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LaunchRequest:
    """Options of the user.

    Attributes:
        target: the script, or the folder of the program.
        launcher: name of the launcher.
        tpu: name of the slice.
        zone: the zone; None: the grant's, with `trc`.
        output: folder of the job.
        args: arguments of the program.
        spot: whether the slice may be taken away at any time.
        trc: whether the slice has to be covered by a usual grant of the TPU Research Cloud.
        bucket: folder in a bucket, for the job's files, checkpoints, cache and logs.
        bucket_region: location of the bucket; None: the region of the slice.
        data: folder with the data; None: the program knows.
        data_region: location of the data; None: the region of the slice.
        name: name of the job; None: made from the program's name.
        project: project of Google Cloud; None: the launcher's default.
        cluster: name of the GKE cluster, for xpk.
        entry: the file of a folder that is run; None: the usual names.
        hosts: the number of hosts that the user expects; None: any.
        environment: variables for the program, `NAME=VALUE`.
        resumes: whether the program has to resume after a preemption.
        new_zone: whether a zone is accepted that the table does not list.
        restarts: how often a failed job is started again.
        patience: seconds to wait for all hosts.
        force: whether an existing folder is replaced.
    """

    target: Path
    launcher: str
    tpu: str
    zone: str | None
    output: Path
    args: tuple[str, ...] = ()
    spot: bool = False
    trc: bool = False
    bucket: str | None = None
    bucket_region: str | None = None
    data: str | None = None
    data_region: str | None = None
    name: str | None = None
    project: str | None = None
    cluster: str | None = None
    entry: str | None = None
    hosts: int | None = None
    environment: tuple[str, ...] = ()
    resumes: bool = True
    new_zone: bool = False
    restarts: int = 100
    patience: int = 600
    force: bool = False
