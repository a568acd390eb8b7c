"""Two checkpoints of the same weights: the values alone say which array is made of what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from converters import load_pytree
from converters.checkpoint import StateDict
from converters.errors import MisfitError
from converters.output.arrays import open_arrays
from converters.target.values import fit_values
from migrate.cli import commands


def state(seed: int) -> dict[str, torch.Tensor]:
    """Convolution, fused and separate projections, two layers, a table."""
    torch.manual_seed(seed)
    shapes = {
        "conv": (4, 3, 5, 5),
        "qkv": (24, 8),
        "out": (8, 8),
        "table": (11, 8),
        "token": (1, 1, 8),
    }
    shapes |= {f"blocks.{n}.{name}": (6, 8) for n in range(2) for name in ("k", "v")}
    return {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}


def converted(given: dict[str, torch.Tensor]) -> dict[str, Any]:
    """As somebody has brought it to Flax, by hand."""
    one = {key.removesuffix(".weight"): value.numpy() for key, value in given.items()}
    kv = [[one[f"blocks.{n}.{name}"].T for name in ("k", "v")] for n in range(2)]
    query, key, value = np.split(one["qkv"], 3)
    return {
        "params": {
            "stem": {"kernel": one["conv"].transpose(2, 3, 1, 0)},
            "q": query.reshape(2, 4, 8).transpose(0, 2, 1),
            "k": key.T,
            "v": value.T,
            "o": one["out"].T.reshape(2, 4, 8),
            "kv": np.array(kv),
            "embed": one["table"],
            "cls": one["token"].reshape(8),
        }
    }


def flat(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{above}/{name}" if above else name
        found |= flat(value, path) if isinstance(value, dict) else {path: value}
    return found


def saved(tree: dict[str, Any], file: Path) -> Path:
    from safetensors.numpy import save_file

    save_file({key: np.ascontiguousarray(one) for key, one in flat(tree).items()}, file)
    return file


def test_the_mapping_converts_another_checkpoint(tmp_path: Path) -> None:
    given = state(0)
    file = saved(converted(given), tmp_path / "theirs.safetensors")
    torch.save(given, tmp_path / "mine.pt")
    mapping, output = tmp_path / "map.yaml", tmp_path / "out.safetensors"
    words = ["--target", str(file), "--values", "--save-mapping", str(mapping), "-o", str(output)]
    done = CliRunner().invoke(commands, ["weights", str(tmp_path / "mine.pt"), *words])
    assert done.exit_code == 0, done.output
    other = state(1)
    torch.save(other, tmp_path / "other.pt")
    again = tmp_path / "again.safetensors"
    words = ["--mapping", str(mapping), "-o", str(again)]
    done = CliRunner().invoke(commands, ["weights", str(tmp_path / "other.pt"), *words])
    assert done.exit_code == 0, done.output
    wanted, made = flat(converted(other)), flat(load_pytree(again))
    assert wanted.keys() == made.keys()
    assert all(np.array_equal(made[path], value) for path, value in wanted.items())


def test_a_cast_checkpoint_has_the_same_values(tmp_path: Path) -> None:
    given = state(0)
    tree = {path: one.astype(np.float16) for path, one in flat(converted(given)).items()}
    found = fit_values(StateDict("mine", given), open_arrays(tree))
    assert not found.alike
    assert len(found.plan.mapped) == len(given)


def test_what_the_values_do_not_tell_apart_is_said_and_not_written(tmp_path: Path) -> None:
    given = {"a.weight": torch.ones(4), "b.weight": torch.ones(4), "c.weight": torch.randn(4)}
    torch.save(given, tmp_path / "mine.pt")
    tree = {"params": {name: one.numpy() for name, one in zip("xyz", given.values(), strict=True)}}
    file = saved(tree, tmp_path / "theirs.safetensors")
    words = ["weights", str(tmp_path / "mine.pt"), "--target", str(file), "--values"]
    words += ["-o", str(tmp_path / "out.safetensors")]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 2, done.output
    assert "one number throughout: a.weight, b.weight and params/x, params/y" in done.output
    assert not (tmp_path / "out.safetensors").exists()
    assert CliRunner().invoke(commands, [*words, "--unproven"]).exit_code == 0


def test_a_symmetric_square_is_not_told_from_its_transpose() -> None:
    square = torch.randn(4, 4)
    given = {"a.weight": square + square.T}
    found = fit_values(StateDict("mine", given), open_arrays({"a": given["a.weight"].numpy()}))
    assert found.alike


def test_other_values_are_named_on_both_sides() -> None:
    given = state(0)
    tree = flat(converted(given))
    tree["params/embed"] = tree["params/embed"] + 1
    with pytest.raises(MisfitError) as raised:
        fit_values(StateDict("mine", given), open_arrays(tree))
    said = "\n".join(raised.value.misfits)
    assert "params/embed" in said
    assert "table.weight" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [("--values", "--target"), ("--values --target x.safetensors --model net.py:Net", "--model")],
)
def test_words_that_do_not_go_together_are_one_line(words: str, said: str, tmp_path: Path) -> None:
    torch.save(state(0), tmp_path / "mine.pt")
    done = CliRunner().invoke(commands, ["weights", str(tmp_path / "mine.pt"), *words.split()])
    assert done.exit_code == 2
    assert said in done.output
