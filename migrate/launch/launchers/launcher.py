"""Parts of every launcher: its files, its commands, what each line is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from migrate.launch.job import TrainingJob


@dataclass(frozen=True)
class JobFile:
    """A text file of a job.

    Attributes:
        name: path in the job's folder.
        text: the content.
        meanings: meaning of a line by its key; the lines below a key belong to it.
    """

    name: str
    text: str
    meanings: Mapping[str, str]


@dataclass(frozen=True)
class Commands:
    """Commands of a job, to be run in its folder."""

    create: str
    watch: str
    resume: str
    stop: str
    clean: str


@dataclass(frozen=True)
class Launcher:
    """A program that creates slices and runs jobs on them.

    Attributes:
        name: value of `--with`.
        title: name in sentences.
        needs: what has to be installed or set up, in one line.
        check: raises `JobError` if the launcher cannot run a job.
        files: returns its files.
        commands: returns its commands.
        on_preemption: what happens when the slice is taken away, in one line.
    """

    name: str
    title: str
    needs: str
    check: Callable[[TrainingJob], None]
    files: Callable[[TrainingJob], list[JobFile]]
    commands: Callable[[TrainingJob], Commands]
    on_preemption: str


class _Dumper(yaml.SafeDumper):
    """YAML with texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(values: Any) -> str:
    """Return values as YAML, in their order."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=1000))


def upload(job: TrainingJob) -> str:
    """Return the command that copies the job's folder into its bucket."""
    return f"gcloud storage rsync --recursive --delete-unmatched-destination-objects . {job.bucket}/job"


def project_flag(job: TrainingJob) -> str:
    """Return gcloud's flag for the project, with a space before it; empty: gcloud's own default."""
    return f" --project={job.request.project}" if job.request.project else ""
