"""Faults planted in small programs, each told at its line; and programs of which nothing is told."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fit.here import Here
from tests.fit.planted.programs import PROGRAMS

HERE = Path(__file__).parent / "planted"
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
            "mesh": "data=2,model=2",
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
        "mesh": "data=2,model=2",
        "rules": "Dense_1/kernel: [model, null]\n" + CUT,
    },
}


SCRIPT = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn


class Descent(torch.optim.Optimizer):
    def __init__(self, weights):
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            weight.data = weight.data - 0.1 * weight.grad  # FAULT: not donated


def main(index=0):
    device = torch_xla.device()
    model = nn.Linear(2560, 2560).to(device)
    optimizer = Descent(model.parameters())
    for _ in range(6):
        x = torch.ones(16, 2560).to(device)
        with torch_xla.step():
            loss = model(x).double().square().mean()  # FAULT: float64
            optimizer.zero_grad()
            loss.backward()
            xm.optimizer_step(optimizer)


if __name__ == "__main__":
    torch_xla.launch(main)
"""


def told(here: Here, case: dict[str, Any], folder: Path, code: int = 0) -> dict[str, Any]:
    """What `migrate fit` says of a case, with this exit code."""
    options: list[object] = ["--tpu", case.get("slice", "v5e-1")]
    if "program" in case:
        target = folder / f"{case['program']}.mlir"
        target.write_text(PROGRAMS[case["program"]]())
    else:
        target = HERE / f"models.py:{case['model']}"
        options += ["--inputs", case["inputs"]]
    if "train" in case:
        options += ["--train", case["train"]]
    if "mesh" in case:
        (folder / "rules.yaml").write_text(case["rules"])
        options += ["--mesh", case["mesh"], "--spec", folder / "rules.yaml"]
    found: dict[str, Any] = here.fitted(target, *options, code=code)["slices"][0]
    return found


def place_of(name: str) -> str:
    """`file.py:line` of a planted fault."""
    mark = {"heads of 64": "heads"}.get(name, name)
    for file in ("models.py", "programs.py"):
        lines = (HERE / file).read_text().splitlines()
        for number, line in enumerate(lines, 1):
            if line.endswith(f"# FAULT: {mark}"):
                return f"{HERE / file}:{number}"
    raise AssertionError(f"{mark} is planted nowhere")


def absolute(location: str) -> str:
    """A location that `migrate fit` reports from the working directory."""
    return str(Path(location).absolute())


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_told_at_its_line(name: str, here: Here, tmp_path: Path) -> None:
    kind, case = FAULTS[name]
    found, place = told(here, case, tmp_path, int(kind in (TOO_BIG, REFUSED))), place_of(name)
    if kind == TOO_BIG:
        assert found["state"] == TOO_BIG
        assert absolute(found["hbm"]["largest"][0]["source"]) == place
    elif kind == REFUSED:
        assert (found["state"], absolute(found["where"])) == (REFUSED, place)
    else:
        assert found["state"] == "fits"
        assert (kind, place) in {(one["kind"], absolute(one["source"])) for one in found["waste"]}


@pytest.mark.long
@pytest.mark.xla
def test_faults_of_a_torch_script_are_told_at_their_lines(here: Here, tmp_path: Path) -> None:
    """A loss in float64, and weights that are new tensors after each step: nothing is donated."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (found,) = here.fitted(script, "--tpu", "v5e-4")["slices"]
    told = {(one["kind"], one["source"]) for one in found["waste"]}
    for kind in ("float64", "not donated"):
        line = SCRIPT[: SCRIPT.index(f"# FAULT: {kind}")].count("\n") + 1
        assert (kind, f"{script}:{line}") in told
    assert found["state"] == "fits"


@pytest.mark.long
@pytest.mark.parametrize("name", CLEAN)
def test_of_a_clean_program_nothing_is_told(name: str, here: Here, tmp_path: Path) -> None:
    found = told(here, CLEAN[name], tmp_path)
    assert (found["state"], found["waste"]) == ("fits", [])
