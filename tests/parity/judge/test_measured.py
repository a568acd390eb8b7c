"""What is measured where it is computed is what the written tensors show; nothing of it stays on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from migrate.parity.compare import compare_sides
from migrate.parity.dump.dump import Dump
from migrate.parity.ground.errors import DumpError, ParityError
from migrate.parity.ground.options import ParityOptions
from migrate.parity.ground.results import Parity, ParityVerdict
from migrate.parity.judge.measured import measured_of
from migrate.parity.run import runs
from migrate.parity.sides.side import InProcess
from migrate.progress import no_progress
from tests.parity.sides.torch.torch_made import Attention, Deep, Recurrent, runner


def parity(
    folder: Path, make: Any, spec: str, *, keep: bool = False, fault: bool = False
) -> Parity:
    folder.mkdir()
    torch.manual_seed(0)
    one, other = make(), make()
    if fault:
        other.blocks[2].norm.eps = 1e-3
    a, b = (InProcess(runner(model), folder) for model in (one, other))
    options = ParityOptions(inputs=(spec,), count=4, keep=folder if keep else None)
    return compare_sides(a, b, options, folder, no_progress)


@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (Deep, "x=float32[3,5,16]"),
        (Attention, "x=float32[2,6,16]"),
        (Recurrent, "ids=int64[2,7]<50"),
    ],
)
@pytest.mark.long_cases("Recurrent-ids=int64[2,7]<50", "Attention-x=float32[2,6,16]")
def test_the_figures_are_those_of_the_written_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, spec: str
) -> None:
    written = parity(tmp_path / "written", make, spec, keep=True)
    measured = parity(tmp_path / "measured", make, spec)
    monkeypatch.setattr(runs, "_BYTES", 1)
    one_by_one = parity(tmp_path / "one", make, spec)
    assert written.verdict is ParityVerdict.MATCH
    assert written.layers
    for found in (measured, one_by_one):
        assert found.layers == written.layers
        assert found.sections == written.sections
        assert found.notes == written.notes


def test_no_layer_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_BYTES", 1)
    parity(tmp_path / "one", Deep, "x=float32[3,5,16]")
    for name in ("truth", "a", "b"):
        parts = sorted((tmp_path / "one" / name).iterdir())
        assert [part.name for part in parts] == ["000", "001", "002", "003"]
        for part in parts:
            files = {file.stem for file in (part / "tensors").iterdir()}
            assert files == {ref.file for refs in Dump(part).outputs.values() for ref in refs}


def test_where_a_side_parts_its_tensors_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_BYTES", 1)
    written = parity(tmp_path / "written", Deep, "x=float32[3,5,16]", keep=True, fault=True)
    measured = parity(tmp_path / "measured", Deep, "x=float32[3,5,16]", fault=True)
    assert (
        [cause.name for cause in measured.causes]
        == ["norm-eps"]
        == [one.name for one in written.causes]
    )
    assert measured.first is not None
    assert measured.first == written.first
    assert measured.first.name == "blocks.2.norm"
    looked = {one[0]: one[2:] for one in measured.histograms}["blocks.2.norm"]
    assert sum(looked[0]) == sum(looked[1]) == 2 * 3 * 5 * 16  # the two inputs that show it most


class Changing(nn.Module):
    """Other outputs where an input is negative."""

    def forward(self, x: Any) -> Any:
        return {"y": x} if float(x.sum()) > 0 else {"y": x, "z": x}


def test_other_outputs_of_a_later_input_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_BYTES", 1)
    with pytest.raises(ParityError, match="returns other outputs"):
        parity(tmp_path / "one", Changing, "x=float32[3,5]")


def test_damaged_figures_are_said(tmp_path: Path) -> None:
    parity(tmp_path / "one", Deep, "x=float32[3,5,16]")
    dump = Dump(tmp_path / "one" / "a" / "000")
    assert measured_of(dump)
    (dump.folder / "measured.json").write_text("[[1]]")
    with pytest.raises(DumpError, match=r"measured\.json: damaged"):
        measured_of(dump)
