"""File of a reference: where and how it was run, its steps and weights, and its noise.

It is an archive (zip, not compressed) of `reference.json` and, below `run/`, the files that the ranks
recorded (`recording.records`: lines of JSON, and safetensors). Nothing in it is code, and nothing is
unpickled. It appears complete or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from migrate.prove.compare.noise_floor import NoiseFloor, StepFloor
from migrate.prove.errors import ReferenceFileError
from migrate.prove.recording.machine import Machine, from_json

FORMAT = 1
_INDEX = "reference.json"
_RUN = "run/"
# Names of recorded files; nothing else is extracted from an archive.
_NAME = re.compile(r"rank\d+\.[A-Za-z0-9.]+\.(jsonl|json|safetensors)")
# First bytes of such a file, even if the rest is missing.
_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True)
class Reference:
    """Run of an original on another machine.

    Attributes:
        made_by: the version of this package.
        script: the script's name.
        sources: digests of the script and of its imports from its folder, by path from there.
        args: arguments of the script.
        replicas: the requested number of ranks.
        settings: the fields of `Settings` that decide what the script computes.
        seed: seed of the generators that the script does not seed itself.
        seconds: wall time.
        machines: machine of each rank.
        floors: measurements of its noise.
        measured: how each of these was measured, in words.
        notes: notes that limit what it proves.
    """

    made_by: str
    script: str
    sources: Mapping[str, str]
    args: tuple[str, ...]
    replicas: int
    settings: Mapping[str, Any]
    seed: int
    seconds: float
    machines: Mapping[int, Machine]
    floors: tuple[NoiseFloor, ...]
    measured: tuple[str, ...]
    notes: tuple[str, ...] = ()


def write(path: Path, reference: Reference, run: Path) -> None:
    """Write a reference with the recording in the folder `run`.

    Raises:
        ReferenceFileError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_INDEX, json.dumps(_as_json(reference)))
            for file in sorted(run.iterdir()):
                if _NAME.fullmatch(file.name):
                    archive.write(file, _RUN + file.name)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ReferenceFileError(
            f"{path} cannot be written ({error.strerror})", "name a file in a writable folder"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def require_place(path: Path) -> None:
    """Require, before anything runs, that a reference can be written here.

    Raises:
        ReferenceFileError: its folder does not exist or cannot be written, or the path is a folder.
    """
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ReferenceFileError(
            f"{path} cannot be written", "name a file in an existing folder that is writable"
        )


def _beside(path: Path) -> Iterator[str]:
    """Names beside a path that could be meant: programs of `migrate train`, and files."""
    if path.parent.is_dir():
        for entry in path.parent.iterdir():
            if entry.is_file() or (entry / "loss.py").is_file():
                yield entry.name


def read(path: Path, run: Path) -> Reference:
    """Read a reference, and extract its recording into the empty folder `run`.

    Raises:
        ReferenceFileError: it does not exist, is no reference, cut short, or of another version.
    """
    try:
        with path.open("rb") as opened:
            begins_so = opened.read(len(_MAGIC)) == _MAGIC
    except FileNotFoundError as error:
        from converters.model import nearest

        near = nearest(path.name, sorted(_beside(path)))
        raise ReferenceFileError(
            f"{path}: no such file or folder",
            f"did you mean {path.with_name(near)}?"
            if near
            else "name a file of `migrate prove --record`, or a folder of `migrate train`",
        ) from error
    except OSError as error:
        raise ReferenceFileError(
            f"{path} cannot be read ({error.strerror})",
            f"record it on the GPU: migrate prove SCRIPT --record {path.name}",
        ) from error
    if not begins_so:
        raise _none(path)
    try:
        with zipfile.ZipFile(path) as archive:
            index = json.loads(archive.read(_INDEX))
            if not isinstance(index, dict) or not isinstance(index.get("format"), int):
                raise _none(path)
            if index["format"] != FORMAT:
                raise ReferenceFileError(
                    f"{path} has format {index['format']} (tpu-migrate {index.get('made_by')}), this version "
                    f"reads format {FORMAT}",
                    "record it again with this version, or use the other version",
                )
            for name in archive.namelist():
                inside = name.removeprefix(_RUN)
                if name.startswith(_RUN) and _NAME.fullmatch(inside):
                    (run / inside).write_bytes(archive.read(name))
        return _from_json(index)
    except zipfile.BadZipFile as error:
        raise ReferenceFileError(
            f"{path} is cut short or damaged ({error})", "copy it again, or record it again"
        ) from error
    except (KeyError, ValueError, TypeError) as error:
        raise _none(path) from error


def _none(path: Path) -> ReferenceFileError:
    return ReferenceFileError(
        f"{path} is not a record of migrate prove", "pass a file written by --record"
    )


def _as_json(reference: Reference) -> dict[str, Any]:
    values = asdict(reference)
    for floor in values["floors"]:
        floor["printed"] = sorted(floor["printed"])
    return {"format": FORMAT, **values}


def _from_json(index: Mapping[str, Any]) -> Reference:
    values = {name: value for name, value in index.items() if name != "format"}
    for name in ("args", "measured", "notes"):
        values[name] = tuple(values[name])
    values["machines"] = {
        int(rank): from_json(machine) for rank, machine in values["machines"].items()
    }
    values["floors"] = tuple(map(_floor, values["floors"]))
    return Reference(**values)


def _floor(values: dict[str, Any]) -> NoiseFloor:
    steps = tuple(StepFloor(**step) for step in values["steps"])
    return NoiseFloor(steps, values["final"], frozenset(values["printed"]), values["runs"])
