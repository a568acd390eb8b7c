"""Rewrite a public script in its copy, as somebody who migrates it does first."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import Script

from migrate.catalogue.target import XLA, Target
from migrate.errors import MigrateError
from migrate.rewrite.write import beside

MIGRATE = (sys.executable, "-m", "migrate")


class RewriteRefusedError(MigrateError):
    """`migrate rewrite` refuses, with a reason."""


@dataclass(frozen=True)
class Rewriting:
    """What a rewrite wrote and reported.

    Attributes:
        path: the result.
        counts: numbers of edits and findings, in words.
        errors: codes of what it says does not work as it stands.
    """

    path: Path
    counts: str
    errors: tuple[str, ...]


def rewritten(
    script: Script, repository: Path, target: Target = XLA, *, over: bool = False
) -> Rewriting:
    """Rewrite the script, or the folder that its line names.

    Args:
        script: what is rewritten.
        repository: its copy.
        target: for which library.
        over: whether it is rewritten for torch_xla first, and what that wrote for the target.
    """
    path = repository / script.path
    if over:
        first = rewritten(script, repository).path
        if first != path:
            first.replace(path)
    if not script.project:
        done = _rewrite(target, str(path))
        return Rewriting(beside(path, target), _counts(done), _errors(done[0]["findings"]))
    folder = repository / script.project
    into = repository.with_name(f"{repository.name}_xla")
    done = _rewrite(target, str(folder), "-o", str(into))
    # In the place of the originals: what the script looks for by its place is where it was.
    shutil.rmtree(folder)
    shutil.move(into, folder)
    return Rewriting(path, _counts(done), _errors(done["left_to_do"]))


def _rewrite(target: Target, *args: str) -> Any:
    done = subprocess.run(
        [*MIGRATE, "rewrite", "--json", "--target", target, *args],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RewriteRefusedError(done.stderr.strip().removeprefix("migrate: "), "see the message")
    return json.loads(done.stdout)


def _counts(done: Any) -> str:
    if isinstance(done, dict):
        edits = sum(len(file["edits"]) for file in done["files"])
        return f"{edits} rewrites, {len(done['left_to_do'])} findings (the folder)"
    return f"{len(done[0]['edits'])} rewrites, {len(done[0]['findings'])} findings"


def _errors(findings: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(sorted({note["code"] for note in findings if note["severity"] == "error"}))
