"""`migrate port --from-script`: the script's own model and what it is given; and inputs that do not fit."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file
from torch import nn

from migrate.cli import commands
from migrate.errors import MigrateError
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.target import parse_target
from migrate.port.original import given_inputs, load_original
from migrate.port.scripted import RecordedModel, record_script
from migrate.port.spelled import RecordedConstructions, spelled
from tests.waiting import LIMIT

NET = """
    from dataclasses import dataclass

    import torch
    from torch import nn

    @dataclass
    class Sizes:
        width: int = 6
        act: type = nn.ReLU

    class Encoder(nn.Module):
        def __init__(self, width, out):
            super().__init__()
            self.fc = nn.Linear(width, out)

        def forward(self, x):
            return self.fc(x)

    class Graph(nn.Module):
        def __init__(self, encoder, sizes, rate=0.5):
            super().__init__()
            self.encoder, self.act = encoder, sizes.act()

        def forward(self, x, edges, mask=None, scale=1.0):
            x = self.act(edges @ self.encoder(x)) * scale
            return x if mask is None else x * mask[:, None]
"""
TRAIN = """
    import argparse

    import torch
    from net import Encoder, Graph, Sizes

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--out", type=int, default=3)
        parser.add_argument("--steps", type=int, default=100)
        asked = parser.parse_args()
        torch.manual_seed(0)
        model = Graph(Encoder(5, asked.out), Sizes(width=5), rate=0.25).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss_of = torch.nn.MSELoss()
        for step in range(asked.steps):
            x, edges = torch.full((7, 5), float(step)).cuda(), torch.eye(7).cuda()
            mask = torch.arange(7, device="cuda") < 5
            found = model(x, edges, mask=mask, scale=2.0)
            loss = loss_of(found, torch.zeros_like(found))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            open("saved.txt", "w").write(str(step))

    if __name__ == "__main__":
        main()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in (("net.py", NET), ("train.py", TRAIN)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    # Other tests have modules of this name.
    sys.modules.pop("net", None)
    yield tmp_path
    sys.modules.pop("net", None)


def recorded(
    project: Path, *args: str, target: str | None = None, count: int = 2, script: str = "train.py"
) -> RecordedModel:
    return record_script(
        project / script,
        args,
        target,
        count=count,
        timeout=LIMIT,
        folder=project / "record",
        originals=project / "originals",
    )


def test_the_script_s_own_model_and_what_it_is_given(project: Path) -> None:
    found = recorded(project, "--out", "4")
    assert found.name == "Graph"
    files = sorted(found.inputs.glob("*.safetensors"))
    assert len(files) == 2
    for number, file in enumerate(files):
        arrays = load_file(file)
        assert {name: (one.shape, one.dtype.name) for name, one in arrays.items()} == {
            "x": ((7, 5), "float32"),
            "edges": ((7, 7), "float32"),
            "mask": ((7,), "bool"),
        }
        assert (arrays["x"] == number).all()
        assert arrays["mask"].sum() == 5
    assert any("scale=2.0" in note for note in found.notes)
    assert not (project / "saved.txt").exists()
    runner: Any = load_runner(parse_target(found.target), 0)[0]
    assert type(runner.module).__name__ == "Graph"
    assert runner.module.encoder.fc.out_features == 4


@pytest.mark.long
def test_a_part_of_the_model_by_its_class(project: Path) -> None:
    found = recorded(project, target="net.py:Encoder")
    assert (found.name, found.target) == ("Encoder", "net.py:Encoder")
    assert set(load_file(found.inputs / "000.safetensors")) == {"x"}


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("--steps", "1"), "ended before it called a model with trainable parameters 2 times"),
        (("--unknown",), "ended with exit code 2 before its model was called 2 times"),
    ],
)
@pytest.mark.long_cases("args1-ended with exit code 2 before its model was called 2 times")
def test_a_script_that_shows_no_model_is_one_line(
    project: Path, args: tuple[str, ...], line: str
) -> None:
    with pytest.raises(MigrateError, match=line):
        recorded(project, *args)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("port -o out", "no model is given; name file.py:Class, or --from-script train.py"),
        ("port net.py:Graph -o out -- --steps 3", "--steps: arguments after -- belong to a script"),
        (
            "port --from-script none.py -o out -- --steps 3",
            "--from-script none.py: no such file",
        ),
    ],
)
def test_words_that_name_no_script_are_one_line(project: Path, words: str, line: str) -> None:
    done = CliRunner().invoke(commands, words.split())
    assert done.exit_code == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("migrate: ")
    assert line in last
    assert not (project / "out").exists()


def test_what_has_no_form_in_source_is_named() -> None:
    assert spelled(nn.Linear(2, 3), RecordedConstructions()) == {
        "why": "Linear, of which no constructor was seen"
    }


class Adjacent(nn.Module):
    """Takes the root of degrees: NaN for matrices that are none of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return edges.sum(1, keepdim=True) ** -0.5 * (edges @ self.fc(x))


GRAPHS = """
    import numpy

    def given():
        for number in range(3):
            edges = numpy.eye(7, dtype=numpy.float32)
            yield {"x": numpy.ones((7, 5), numpy.float32), "edges": edges * (1 - 2 * (number == 1))}
"""


def test_inputs_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    original = load_original(f"{__name__}:Adjacent", None, tmp_path)
    with pytest.raises(
        MigrateError, match=r"returns NaN for all 2 inputs .* values of x, edges"
    ) as at:
        given_inputs(original, ["x=float32[7,5]", "edges=float32[7,7]"], 2, tmp_path / "drawn")
    assert "--from-script train.py" in str(at.value)


def test_an_input_that_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "graphs.py").write_text(textwrap.dedent(GRAPHS))
    original = load_original(f"{__name__}:Adjacent", None, tmp_path)
    found = given_inputs(original, [f"{tmp_path}/graphs.py:given"], 8, tmp_path / "read")
    assert found.inputs.count == 2
    assert all((np.diag(found.inputs[number]["edges"]) == 1).all() for number in range(2))
    (note,) = found.notes
    assert "gives NaN for 1 of 3 inputs (1)" in note
