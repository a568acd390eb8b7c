"""A copy of a public repository, with the data and the environment in which its script runs."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from scripts import Script, images

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Place:
    """Where a script is run.

    Attributes:
        repository: the copy.
        folder: the working directory.
        data: a folder of images.
        out: an empty folder.
        variables: of the environment, besides those of this process.
    """

    repository: Path
    folder: Path
    data: Path
    out: Path
    variables: dict[str, str]

    def args(self, template: str) -> list[str]:
        """Return the arguments of the script, with the folders of this place in them."""
        return template.format(
            data=self.data, port=free_port(), out=self.out, repository=self.repository
        ).split()


def prepared(script: Script, repositories: Path, scratch: Path, each: int = 8) -> Place:
    """Copy the repository of `script` from the folder `repositories` to `scratch`, and make its data.

    `each`: images of each class.
    """
    repository = scratch / script.repository
    shutil.copytree(
        repositories / script.repository,
        repository,
        ignore=shutil.ignore_patterns(".git", "*.pt", "*.pth", "__pycache__"),
    )
    if script.prepare is not None:
        script.prepare(repository)
    folder = repository / (script.folder or str(Path(script.path).parent))
    # Where the script runs, so that each run of a proof has one of its own.
    data, out = scratch / "data", folder / "written-by-the-run"
    for made in (data, out):
        made.mkdir()
    images(data, each)
    # The repository itself, as if it were installed.
    python_path = [HERE / "site", HERE.parents[1], repository, os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(str(entry) for entry in python_path if str(entry)),
        "PUBLIC_SCRIPTS_SMALL_RESNET": "1" if script.small_resnet else "",
        "PUBLIC_SCRIPTS_SAMPLES": str(script.samples),
        "PUBLIC_SCRIPTS_WORKERS": "" if script.workers is None else str(script.workers),
        "PUBLIC_SCRIPTS_DEVICES": str(script.devices or ""),
        "OPENAI_LOGDIR": str(out),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", _xla_flags(script)),
    }
    return Place(repository, folder, data, out, variables)


def _xla_flags(script: Script) -> str:
    """Return what lets XLA compile faster, where compiling is most of the time."""
    return "" if script.optimized else "--xla_backend_optimization_level=0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
