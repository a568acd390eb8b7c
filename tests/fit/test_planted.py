"""Faults planted in small programs, each told at its line; and programs of which nothing is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT

HERE = Path(__file__).parent / "planted"
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")

# Name of the fault in `planted/` → what is told of it, and how `migrate fit` comes to its program.
REFUSED, TOO_BIG = "refused", "too big"
CUT = "Dense_0/kernel: [null, model]\nDense_0/bias: [model]\ndefault: []\n"
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "vocabulary": ("uneven side", {"model": "Vocabulary", "inputs": "tokens=int32[8,256]"}),
    "heads": ("idle matrix unit", {"model": "Heads", "inputs": "x=float32[8,4,256,48]"}),
    "heads of 64": (
        "idle matrix unit",
        {"model": "Heads", "inputs": "x=float32[8,4,256,64]", "slice": "v6e-1"},
    ),
    "one-hot": (
        "one-hot product",
        {"model": "OneHot", "inputs": "tokens=int32[8,256]", "train": "sgd"},
    ),
    "depthwise": ("idle matrix unit", {"model": "Depthwise", "inputs": "x=float32[8,16,16,256]"}),
    "windows": ("padding", {"model": "Windows", "inputs": "x=float32[60,33,65,128]"}),
    "turned": ("copies", {"model": "Turned", "inputs": "x=float32[8,1024,1024]"}),
    "mixed": ("float32 among bfloat16", {"model": "Mixed", "inputs": "x=float32[1024,1024]"}),
    "half": ("float16", {"model": "Half", "inputs": "x=float32[1024,1024]"}),
    "exact": ("exact products", {"model": "Exact", "inputs": "x=float32[1024,1024]"}),
    "whole": (
        "not cut",
        {
            "model": "Tower",
            "inputs": "x=float32[64,1024]",
            "train": "sgd",
            "slice": "v5e-4",
            "mesh": {"data": 2, "model": 2},
            "rules": CUT,
        },
    ),
    "batch": (TOO_BIG, {"model": "Kept", "inputs": "x=float32[400000,1024]"}),
    "wide loss": ("float64", {"program": "wide_loss"}),
    "complex": ("float64", {"program": "complex_values"}),
    "whole numbers": (REFUSED, {"program": "whole_numbers"}),
    "unknown call": (REFUSED, {"program": "unknown_call"}),
    "any length": (REFUSED, {"program": "any_length"}),
    "not donated": ("not donated", {"program": "not_donated"}),
    "captured": ("constant", {"program": "captured"}),
    "unsharded state": ("not cut", {"program": "unsharded_state", "slice": "v5e-4"}),
}
CLEAN: dict[str, dict[str, Any]] = {
    "wide layers, a step of four replicas": {
        "model": "Tower",
        "inputs": "x=float32[1024,1024]",
        "train": "adamw",
        "slice": "v5e-4",
    },
    "a block in bfloat16": {"model": "LanguageModel", "inputs": "tokens=int32[8,256]"},
    "a block in float32": {"model": "full_language_model", "inputs": "tokens=int32[8,256]"},
    "convolutions with statistics, a step": {
        "model": "Images",
        "inputs": "x=float32[16,16,16,128]",
        "train": "sgd",
    },
    "layers in a loop, computed again": {
        "model": "Looped",
        "inputs": "x=float32[1024,512]",
        "train": "adamw",
    },
    "a donated step": {"program": "donated"},
    "a state cut as its weight": {"program": "sharded_state", "slice": "v5e-4"},
    "heads of 128": {"model": "Heads", "inputs": "x=float32[8,4,256,128]"},
    "a vocabulary that fills its tiles": {
        "model": "full_vocabulary",
        "inputs": "tokens=int32[8,256]",
    },
    "all of the weights cut": {
        "model": "Tower",
        "inputs": "x=float32[64,1024]",
        "train": "sgd",
        "slice": "v5e-4",
        "mesh": {"data": 2, "model": 2},
        "rules": "Dense_1/kernel: [model, null]\n" + CUT,
    },
}


def together(cases: dict[str, Any], folder: Path) -> dict[str, Any]:
    asked, answer = folder / "cases.json", folder / "answer.json"
    asked.write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-m", "tests.fit.planted.together", str(asked), str(answer)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
        timeout=LIMIT,
    )
    assert answer.exists(), done.stdout[-500:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = {name: case for name, (_, case) in FAULTS.items()}
    return together(cases, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return together(CLEAN, tmp_path_factory.mktemp("clean"))


def place_of(name: str) -> str:
    """`file.py:line` of a planted fault."""
    mark = {"heads of 64": "heads"}.get(name, name)
    for file in ("models.py", "programs.py"):
        lines = (HERE / file).read_text().splitlines()
        for number, line in enumerate(lines, 1):
            if line.endswith(f"# FAULT: {mark}"):
                return f"{HERE / file}:{number}"
    raise AssertionError(f"{mark} is planted nowhere")


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_told_at_its_line(name: str, faults: dict[str, Any]) -> None:
    kind, found, place = FAULTS[name][0], faults[name], place_of(name)
    if kind == TOO_BIG:
        assert found["state"] == TOO_BIG
        assert found["largest"] == place
    elif kind == REFUSED:
        assert (found["state"], found["where"]) == (REFUSED, place)
    else:
        assert found["state"] == "fits"
        assert [kind, place] in found["waste"]


@pytest.mark.long
@pytest.mark.parametrize("name", CLEAN)
def test_of_a_clean_program_nothing_is_told(name: str, clean: dict[str, Any]) -> None:
    assert (clean[name]["state"], clean[name]["waste"]) == ("fits", [])
