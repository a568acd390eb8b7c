"""What a dump writes once, and that the safetensors library reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from migrate.parity.dump.dump import Dump, Named
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.errors import DumpError
from migrate.parity.ground.facts import RunFacts

Array = np.ndarray[Any, Any]
FACTS = RunFacts("torch", "model.py:make", "cpu", "float32")


def written(folder: Path, *together: list[Array]) -> tuple[Dump, list[str]]:
    """Each list is the outputs of one call; the dump, and for each array where it lies."""
    writer = DumpWriter(folder, FACTS, 1)
    for number, arrays in enumerate(together):
        named = [Named(str(at), one, writer.identity(one)) for at, one in enumerate(arrays)]
        writer.call("layer", number, 0, number, (), named)
    writer.close()
    dump = Dump(folder)
    return dump, [f"{ref.file}/{ref.key}" for call in dump.calls for ref in call.outputs]


def test_tensors_of_the_same_values_are_written_once(tmp_path: Path) -> None:
    array = np.arange(20, dtype=np.float32).reshape(4, 5)
    _, places = written(tmp_path, [array, array.copy()], [array[::-1][::-1]])
    assert len(set(places)) == 1


def test_other_tensors_with_the_same_sum_are_not_taken_for_it(tmp_path: Path) -> None:
    array = np.arange(20, dtype=np.float32).reshape(4, 5)
    turned = np.ascontiguousarray(array.T)
    others = [array[::-1], array[:, ::-1], turned, array.reshape(5, 4), array.astype("f8"), -array]
    for one_call in ([[array, *others]], [[one] for one in (array, *others)]):
        folder = tmp_path / str(len(one_call))
        dump, places = written(folder, *one_call)
        assert len(set(places)) == 7
        refs = [ref for call in dump.calls for ref in call.outputs]
        for ref, one in zip(refs, [array, *others], strict=True):
            np.testing.assert_array_equal(dump.tensor(ref), one, strict=True)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int64", "int32", "uint8", "bool", "float16", "bfloat16"]
)
def test_every_dtype_and_shape_comes_back(tmp_path: Path, dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    arrays = [np.arange(7).astype(kind), np.zeros((0, 3), kind), np.ones((), kind)]
    dump, _ = written(tmp_path, arrays)
    for ref, one in zip(dump.calls[0].outputs, arrays, strict=True):
        assert ref.dtype == dtype
        np.testing.assert_array_equal(dump.tensor(ref), one)
    loaded = load_file(tmp_path / "tensors" / "000000.safetensors")
    assert {array.shape for array in loaded.values()} == {(7,), (0, 3), ()}


def test_a_smaller_file_leaves_nothing_of_the_one_that_it_is_written_over(tmp_path: Path) -> None:
    dump, _ = written(tmp_path / "one", [np.ones(1000)])
    dump.forget_layers(into=tmp_path / "other")
    dump, _ = written(tmp_path / "other", [np.zeros(10, np.float32)])
    (file,) = (tmp_path / "other" / "tensors").iterdir()
    assert file.stat().st_size < 1000
    np.testing.assert_array_equal(load_file(file)["0"], np.zeros(10, np.float32))


def test_a_damaged_tensor_is_one_line(tmp_path: Path) -> None:
    dump, _ = written(tmp_path, [np.ones(1000)])
    (file,) = (tmp_path / "tensors").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DumpError, match=r"000000\.safetensors is truncated .*; record it again"):
        dump.tensor(dump.calls[0].outputs[0])
    file.unlink()
    with pytest.raises(DumpError, match=r"000000\.safetensors.*; record it again"):
        dump.tensor(dump.calls[0].outputs[0])
