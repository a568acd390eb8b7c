"""An update of a program of `migrate train`, lowered for devices that are not there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from migrate.fit.lowered.step import Wanted
from migrate.train.write.texts import test_text as text_of_test
from tests.train.toy import FACTS, write_toy


def lowered(folder: Path, **options: Any) -> tuple[dict[str, Any], str]:
    """The answer of the process that lowers, and the program."""
    toy = write_toy(folder / "toy")
    (toy / "test_same.py").write_text(text_of_test(FACTS, 1))
    (toy / "mapping.yaml").write_text("")
    x = np.ones((8, 4), np.float32)
    arrays: Any = {"updates": np.array(1), "0/micro": np.array(2), "0/losses": np.ones(2)}
    arrays |= {f"0/{n}/x": x for n in (0, 1)} | {f"0/{n}/y": x[:, 0] for n in (0, 1)}
    np.savez(toy / "recorded.npz", **arrays)
    request, answer, program = (folder / name for name in ("request", "answer", "program"))
    request.write_text(json.dumps(asdict(Wanted(str(toy), (), **options))))
    command = [sys.executable, "-m", "migrate.fit.lowered.child"]
    subprocess.run([*command, *map(str, (request, answer, program))], check=True)
    return json.loads(answer.read_text()), program.read_text() if program.exists() else ""


def test_rows_are_divided_over_the_devices(tmp_path: Path) -> None:
    answer, text = lowered(tmp_path, devices=8)
    assert answer["trains"]
    assert answer["notes"] == ["batch: 8 rows in all, as recorded, 1 on each device"]
    (part,) = answer["parts"]
    kinds = [kind for kind, _ in part["arguments"]]
    assert [kinds.count(kind) for kind in ("parameter", "statistics", "input")] == [5, 2, 4]
    assert '"data"=8' in text
    assert text.count('[{"data"}') >= 4
    assert not answer["repeated"]


def test_rows_that_cannot_be_divided_are_computed_by_each_device(tmp_path: Path) -> None:
    answer, _ = lowered(tmp_path, devices=3)
    assert answer["repeated"]  # nothing has to bring gradients together
    assert "they cannot be divided by 3 devices" in answer["notes"][0]


def test_options_of_models_are_refused(tmp_path: Path) -> None:
    answer, _ = lowered(tmp_path, devices=3, optimizer="adamw")
    assert "has its own batch, optimizer and numbers" in answer["what"]
