"""Another checkpoint of a port's architecture, by its mapping and by its convert.py."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from converters import convert, load_pytree
from converters.errors import MisfitError
from converters.mapping.file import load_mapping
from converters.request import PlanOptions
from migrate.parity.sides.torch.convert import to_flax
from migrate.port.texts import convert_text
from migrate.port.weights import MAPPING, write_weights


class Places(torch.nn.Module):
    """It has an array that it computes itself, which older versions of it had in their checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 3)
        self.register_buffer("position_ids", torch.arange(5), persistent=False)


@pytest.fixture
def port(tmp_path: Path) -> Path:
    folder, work = tmp_path / "port", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    write_weights(Places(), "places", {}, None, folder, work)
    (folder / "convert.py").write_text(
        convert_text("Places", "PlacesConfig", "net.py:Places", True, False)
    )
    return folder


def test_a_checkpoint_of_an_older_version_has_what_the_model_computes(port: Path) -> None:
    state = Places().state_dict()
    torch.save(state | {"position_ids": torch.arange(5)}, port / "old.pt")
    convert(port / "old.pt", mapping=port / MAPPING, output=port / "old.safetensors")
    found = load_pytree(port / "old.safetensors")["params"]["table"]["embedding"]
    assert (found == state["table.weight"].numpy()).all()
    torch.save(state, port / "new.pt")
    convert(port / "new.pt", mapping=port / MAPPING, output=port / "new.safetensors")


def test_a_checkpoint_of_another_architecture_is_one_line(
    port: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"other.weight": torch.ones(2)}, port / "other.pt")
    monkeypatch.setattr(sys, "argv", ["convert.py", str(port / "other.pt"), str(port / "out")])
    script = port / "convert.py"
    with pytest.raises(SystemExit) as ended:
        exec(
            compile(script.read_text(), script, "exec"),
            {"__name__": "__main__", "__file__": script},
        )
    assert ended.value.code == 2
    assert "other.weight is matched by no rule" in capsys.readouterr().err
    assert not (port / "out").exists()


@pytest.mark.parametrize("size", ["depth", "depth=", "depth=[", "depth=three"])
def test_a_size_without_a_value_is_one_line(
    port: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], size: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["convert.py", "a.pt", "b.safetensors", "--size", size])
    script = port / "convert.py"
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 2
    assert f"--size: {size}: write a field of config.py and its value" in capsys.readouterr().err


class Counted(torch.nn.Module):
    """A layer, and a buffer that only training reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("average", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("ported", [True, False])
def test_a_port_has_no_place_for_what_its_forward_does_not_read(
    ported: bool, tmp_path: Path
) -> None:
    """`migrate parity ORIGINAL port:FOLDER` brings the original's weights; another target has to have all."""
    state, shapes = tmp_path / "state.safetensors", tmp_path / "shapes.safetensors"
    model = Counted()
    save_file(model.state_dict(), state)
    kernel = {"params/layer/kernel": torch.zeros(3, 2), "params/layer/bias": torch.zeros(2)}
    save_file(kernel, shapes)
    how = PlanOptions(model=model), state, tmp_path / "flax.safetensors", shapes
    rules = tmp_path / "rules.yaml"
    if ported:
        to_flax(*how, rules, ported=True)
        assert kernel.keys() <= load_file(tmp_path / "flax.safetensors").keys()
    else:
        with pytest.raises(MisfitError, match="average"):
            to_flax(*how, rules)


class Doubled(torch.nn.Conv1d):
    """A layer whose own forward the port has, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_the_mapping_of_a_port_gives_no_advice_on_writing_the_model(tmp_path: Path) -> None:
    folder, work = tmp_path / "port", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    net = torch.nn.Sequential(Doubled(4, 4, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    write_weights(net, "net", {}, [(1, 4, 4)], folder, work)
    assert not any(rule.note for rule in load_mapping(folder / MAPPING).rules)
