"""`--inputs`: what is drawn, read and taken from a function; what is wrong is one line."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from migrate.parity.ground.errors import InputsError
from migrate.parity.inputs.drawn import DISTRIBUTIONS
from migrate.parity.inputs.make import make_inputs
from migrate.parity.inputs.set import read_inputs
from migrate.parity.inputs.spec import InputFunction, Shaped, Stored, parse_inputs


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x=float32[2,3,32,32]", Shaped("x", "float32", (2, 3, 32, 32))),
        ("0=bfloat16[ 2, 3 ]", Shaped("0", "bfloat16", (2, 3))),
        ("ids=int64[2,500]<30522", Shaped("ids", "int64", (2, 500), bound=30522)),
        ("mask=ones:int64[2,500]", Shaped("mask", "int64", (2, 500), fill="ones")),
        ("mask=bool[2,500]", Shaped("mask", "bool", (2, 500))),
        ("t=float32[]", Shaped("t", "float32", ())),
        ("data.py:batches", InputFunction("data.py", "batches")),
        ("my.data:Loader.batches", InputFunction("my.data", "Loader.batches")),
    ],
)
def test_forms(text: str, spec: object) -> None:
    assert parse_inputs([text]) == (spec,)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["ids=int64[2,500]"], "the upper bound of the integers is unknown"),
        (["x=float31[2]"], "float31 is not a dtype"),
        (["x=float32[2,-1]"], "is not a shape"),
        (["x=float32[2,0]"], "is not a shape"),
        (["x=float32[2]<7"], "is not an upper bound"),
        (["x=float32[2], y=float32[3]"], "--inputs 'x=float32\\[2\\]' --inputs 'y=float32\\[3\\]'"),
        (["x=int8[2]<1000"], "too large for int8"),
        (["x=twos:int64[2]"], "twos: is not known"),
        (["x=2,3"], "not a dtype with a shape"),
        (["x=float32[99999,99999,99]"], "larger than 8 GiB"),
        (["x=float32[2]", "x=float32[3]"], "x is given twice"),
        (["missing.safetensors"], "no such file"),
        (["a.py:one", "b.py:two"], "combined with other inputs"),
        ([], "there are no inputs"),
    ],
)
def test_a_wrong_form_is_one_line(texts: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputsError, match=words.replace("?", r"\?")) as raised:
        make_inputs(texts, 8, 0, tmp_path)
    assert "\n" not in str(raised.value)


def test_drawn_inputs_are_of_many_distributions(tmp_path: Path) -> None:
    texts = ["x=float32[4,500]", "ids=int64[2,500]<9", "mask=bool[3,50]", "all=ones:int32[2]"]
    inputs = make_inputs(texts, 8, 0, tmp_path)
    assert (inputs.count, inputs.names) == (8, ("x", "ids", "mask", "all"))
    x = [inputs[number]["x"] for number in range(8)]
    assert {one.dtype.name for one in x} == {"float32"}
    assert np.abs(x[1]).max() <= 1
    assert 8 < x[2].std() < 12
    assert 0.6 < (x[3] == 0).mean() < 0.9
    assert x[4].min() >= 0
    assert 2.8 < x[5].mean() < 3.2
    assert not np.array_equal(x[0], x[6])
    ids = np.stack([inputs[number]["ids"] for number in range(8)])
    assert (ids.min(), ids.max(), ids.dtype) == (0, 8, np.int64)
    masks = [inputs[number]["mask"] for number in range(8)]
    assert masks[0].all()
    assert not all(mask.all() for mask in masks)
    # Padding: a row never goes from false back to true, and has a token at least.
    assert all((np.diff(mask.astype(int), axis=-1) <= 0).all() for mask in masks)
    assert all(mask[:, 0].all() for mask in masks)
    assert inputs[3]["all"].tolist() == [1, 1]
    described = "\n".join(inputs.described)
    assert all(name in described for name, _ in DISTRIBUTIONS)
    assert "0 to 8" in described
    assert read_inputs(tmp_path) == inputs


def test_a_seed_decides_every_value(tmp_path: Path) -> None:
    texts = ["x=float32[4]", "y=float32[4]"]
    first, again, other = (
        make_inputs(texts, 2, seed, tmp_path / name)
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert np.array_equal(first[0]["x"], again[0]["x"])
    assert not np.array_equal(first[0]["x"], other[0]["x"])
    assert not np.array_equal(first[0]["x"], first[0]["y"])


def test_bfloat16_is_rounded_and_kept_as_float32(tmp_path: Path) -> None:
    (values,) = make_inputs(["x=bfloat16[100]"], 1, 0, tmp_path)[0].values()
    assert values.dtype == np.float32
    assert not (values.view(np.uint32) & 0xFFFF).any()


def _saved(folder: Path, number: int) -> list[Path]:
    import torch
    from safetensors.numpy import save_file

    x = np.full((2, 3), number, np.float64)
    files = [folder / f"{number}.{form}" for form in ("safetensors", "npz", "npy", "pt")]
    save_file({"x": x}, files[0])
    np.savez(files[1], x=x)
    np.save(files[2], x)
    torch.save({"x": torch.tensor(x), "flag": True}, files[3])
    return files


def test_files_of_tensors(tmp_path: Path) -> None:
    for number, file in enumerate(_saved(tmp_path, 7)):
        inputs = make_inputs([str(file)], 8, 0, tmp_path / f"out{number}")
        (values,) = inputs[0].values()
        assert (inputs.count, values.dtype, values.tolist()) == (1, np.float32, [[7.0] * 3] * 2)
        assert "want 8 or more" in inputs.described[-1]
    assert "flag (bool True)" in inputs.described[0]


def test_a_folder_holds_an_input_a_file(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        save_file({"x": np.full(2, number, np.float32)}, folder / f"{number}.safetensors")
    inputs = make_inputs([str(folder), "mask=ones:int64[2]"], 2, 0, tmp_path / "out")
    assert [inputs[number]["x"][0] for number in range(inputs.count)] == [0, 1]
    assert inputs.names == ("x", "mask")
    assert "the first 2 of 3 files" in inputs.described
    with pytest.raises(InputsError, match="x comes from a file and from a specification"):
        make_inputs([str(folder), "x=float32[2]"], 2, 0, tmp_path / "both")


LOADER = """
import itertools

import numpy as np
import torch


def dicts():
    from beside import SIDE

    for number in itertools.count():
        yield {"ids": torch.full((2, SIDE), number), "mask": None, "x": torch.ones(2).bfloat16()}


def tuples():
    return [(np.ones((2, 3)), torch.zeros(4, dtype=torch.bool))]


def arrays():
    return [np.float64(2.5) * np.ones(3)] * 4


def differ():
    return [{"x": np.ones(2)}, {"y": np.ones(2)}]


def texts():
    return [{"x": "words"}]


def nothing():
    return []


def fails():
    raise ValueError("no data\\nhere")


def one():
    return {"x": np.ones(2)}
"""


@pytest.fixture
def loader(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("SIDE = 3\n")
    file = tmp_path / "loaders.py"
    file.write_text(LOADER)
    return file


def test_a_function_gives_inputs(loader: Path, tmp_path: Path) -> None:
    inputs = make_inputs([f"{loader}:dicts"], 4, 0, tmp_path / "dicts")
    assert (inputs.count, inputs.names) == (4, ("ids", "x"))
    assert (inputs[3]["ids"].tolist(), inputs[3]["x"].dtype) == ([[3] * 3] * 2, np.float32)
    assert make_inputs([f"{loader}:tuples"], 4, 0, tmp_path / "tuples").names == ("0", "1")
    arrays = make_inputs([f"{loader}:arrays"], 8, 0, tmp_path / "arrays")
    assert (arrays.count, arrays[3]["0"].tolist()) == (4, [2.5] * 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("differ", "different arguments, or none"),
        ("texts", "holds str"),
        ("nothing", "returns no inputs"),
        ("fails", "ValueError: no data"),
        ("one", "returns a dict"),
        ("absent", "has no absent; it defines dicts, tuples"),
    ],
)
def test_what_a_function_does_wrong_is_one_line(
    loader: Path, name: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputsError, match=words) as raised:
        make_inputs([f"{loader}:{name}"], 8, 0, tmp_path / "out")
    assert "\n" not in str(raised.value)


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("executed"),))


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pt").write_bytes(pickle.dumps({"x": _Runs()}))
    np.save(tmp_path / "bad.npy", np.array([_Runs()], object))
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    for name in ("bad.pt", "bad.npy", "cut.safetensors"):
        with pytest.raises(InputsError) as raised:
            make_inputs([name], 1, 0, tmp_path / "out")
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "executed").exists()


def test_the_path_of_a_stored_input_is_a_path(tmp_path: Path) -> None:
    assert parse_inputs([str(tmp_path)]) == (Stored(tmp_path),)
