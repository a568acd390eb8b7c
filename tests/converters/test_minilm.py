"""The real MiniLM checkpoint: every key accounted for, every value exact.

The expected pytree is written out here from the torch names alone, with plain numpy, without the
package's own layouts and paths.
"""

import numpy as np
import pytest
from safetensors.torch import load_file

from converters import convert, load_pytree, plan
from converters.checkpoint import flatten


def expected_arrays(state):
    """`/`-joined path → array, by the names that the checkpoint has."""
    arrays = {}
    for key, tensor in state.items():
        if key == "embeddings.position_ids":
            continue
        array = tensor.numpy()
        *modules, name = key.split(".")
        if name == "weight":
            if modules[-1] == "LayerNorm":
                name = "scale"
            elif modules[-1].endswith("_embeddings"):
                name = "embedding"
            else:
                name, array = "kernel", array.T
        path = "/".join(["params", *modules, name])
        for layer in range(6):
            path = path.replace(f"/layer/{layer}/", f"/layer_{layer}/")
        arrays[path] = array
    return arrays


@pytest.fixture(scope="module")
def state(minilm_folder):
    return load_file(minilm_folder / "model.safetensors")


def test_every_key_has_an_outcome(minilm_folder, state):
    made = plan(minilm_folder)
    assert [row.key for row in made.rows].count("embeddings.position_ids") == 1
    assert {row.key for row in made.rows} == set(state)
    assert len(made.rows) == 104
    assert made.counts == {"mapped": 103, "tied": 0, "dropped": 1, "refused": 0}
    (dropped,) = (row for row in made.rows if row.outcome == "dropped")
    assert dropped.key == "embeddings.position_ids"
    assert "non-persistent buffer" in dropped.note
    kinds = {kind: sum(row.kind == kind for row in made.mapped) for kind in ("Linear", "LayerNorm")}
    assert kinds == {"Linear": 74, "LayerNorm": 26}  # 37 and 13 layers, weight and bias


@pytest.mark.parametrize("form", ["safetensors", "msgpack"])
def test_the_written_pytree_is_exact(minilm_folder, state, tmp_path, form):
    conversion = convert(minilm_folder, output=tmp_path / f"x.{form}")
    assert conversion.format == form
    assert conversion.parameters == 22_713_216
    assert conversion.size == 4 * 22_713_216
    loaded = flatten(load_pytree(conversion.output))
    expected = expected_arrays(state)
    assert loaded.keys() == expected.keys()
    assert len(expected) == 103
    for path, array in expected.items():
        assert loaded[path].dtype == np.float32
        assert loaded[path].shape == array.shape
        assert loaded[path].tobytes() == array.tobytes(), path


def test_the_file_in_the_folder_is_enough(minilm_folder):
    made = plan(minilm_folder / "model.safetensors")
    assert made.counts["mapped"] == 103
