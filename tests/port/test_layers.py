"""`layers.py` of a port: stacked weights, and each layer's apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from converters.graph.writing.repeated.runs import Run
from converters.graph.writing.repeated.stacks import LayerStack
from migrate.port.errors import PortError
from migrate.port.layers import layers_text, require_stackable
from tests.port.conftest import Run as RunPort
from tests.port.standin import RIGHT


def functions(*stacks: LayerStack) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(layers_text(stacks), namespace)
    return namespace


def layers(name: str, count: int, start: int = 0) -> dict[str, Any]:
    return {
        f"{name}_{number}": {"kernel": jnp.full((2, 3), start + number), "bias": jnp.ones(3)}
        for number in range(count)
    }


def test_any_number_of_layers_is_stacked() -> None:
    names = functions(LayerStack("model/layers", (Run(0, 1, 0),)))
    apart = {"params": {"model": layers("layers", 4), "head": {"kernel": jnp.ones(2)}}}
    stacked = names["stack_layers"](apart)
    kernel = stacked["params"]["model"]["layers_0"]["kernel"]
    np.testing.assert_array_equal(kernel[:, 0, 0], [0, 1, 2, 3])
    assert set(stacked["params"]["model"]) == {"layers_0"}
    jax.tree.map(np.testing.assert_array_equal, names["unstack_layers"](stacked), apart)


def test_groups_and_a_rest_have_places_of_their_own() -> None:
    # Three layers that repeat twice, one by itself, and two equal ones.
    names = functions(LayerStack("layers", (Run(0, 3, 2), Run(6, 1, 1), Run(7, 1, 2))))
    apart = {"params": layers("layers", 9)}
    stacked = names["stack_layers"](apart)["params"]
    first = {
        name: np.asarray(layer["kernel"])[..., 0, 0].tolist() for name, layer in stacked.items()
    }
    assert first == {
        "layers_0": [0, 3],
        "layers_1": [1, 4],
        "layers_2": [2, 5],
        "layers_3": 6,
        "layers_4": [7, 8],
    }
    again = names["unstack_layers"]({"params": stacked})
    jax.tree.map(np.testing.assert_array_equal, again, apart)


def test_layers_within_layers() -> None:
    names = functions(
        LayerStack(r"stages_\d+/blocks", (Run(0, 1, 0),)), LayerStack("stages", (Run(0, 1, 0),))
    )
    apart = {"params": {f"stages_{n}": layers("blocks", 3, 10 * n) for n in range(2)}}
    stacked = names["stack_layers"](apart)
    kernel = stacked["params"]["stages_0"]["blocks_0"]["kernel"]
    assert kernel[..., 0, 0].tolist() == [[0, 1, 2], [10, 11, 12]]
    jax.tree.map(np.testing.assert_array_equal, names["unstack_layers"](stacked), apart)


def test_statistics_are_stacked_too_and_shapes_may_be_abstract() -> None:
    names = functions(LayerStack("layers", (Run(0, 1, 0),)))
    apart = {"params": layers("layers", 2), "batch_stats": layers("layers", 2)}
    shapes = jax.eval_shape(names["stack_layers"], apart)
    assert shapes["batch_stats"]["layers_0"]["kernel"].shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("runs", "numbers"), [((Run(0, 1, 0),), (0, 2)), ((Run(0, 1, 3),), (0, 1))]
)
def test_a_missing_layer_is_an_error(runs: tuple[Run, ...], numbers: tuple[int, ...]) -> None:
    names = functions(LayerStack("layers", runs))
    apart = {"params": {f"layers_{n}": {"kernel": jnp.ones(2)} for n in numbers}}
    with pytest.raises(ValueError, match="the weights of a layer are missing"):
        names["stack_layers"](apart)


def test_a_layer_too_many_is_an_error() -> None:
    names = functions(LayerStack("layers", (Run(0, 1, 2),)))
    with pytest.raises(ValueError, match="layer 2: the model has fewer layers"):
        names["stack_layers"]({"params": layers("layers", 3)})


def test_layers_of_different_shapes_are_refused_in_one_line(tmp_path: Path) -> None:
    package = tmp_path / "net"
    package.mkdir()
    (package / "layers.py").write_text(layers_text([LayerStack("layers", (Run(0, 1, 0),))]))
    (package / "__init__.py").write_text(
        "from .layers import stack_layers\n\n\ndef model_paths():\n    return set()\n"
    )
    kernels = {f"params/layers_{n}/kernel": np.ones((2 + n, 3), np.float32) for n in range(2)}
    save_file(kernels, package / "params.safetensors")
    with pytest.raises(PortError, match="--scan: the layers cannot be stacked") as caught:
        require_stackable(package)
    assert "\n" not in str(caught.value)
    kernels["params/layers_1/kernel"] = kernels["params/layers_0/kernel"]
    save_file(kernels, package / "params.safetensors")
    require_stackable(package)


def test_weights_that_are_not_trained_are_refused_with_a_scan(run: RunPort, tmp_path: Path) -> None:
    (tmp_path / "frozen.py").write_text(
        "from net import Net\n\n\ndef build():\n    net = Net()\n"
        "    net.inp.weight.requires_grad = False\n    return net\n"
    )
    stacked = replace(RIGHT, stacks=(LayerStack("blocks", (Run(0, 1, 0),)),))
    words = ("--inputs", "x=float32[2,7,12]", "--scan", "-o", "ported")
    done = run("frozen.py:build", *words, gives=stacked)
    assert done.exit_code == 2
    assert "--scan: the original trains only some of its weights (not params/inp/" in done.stderr
    assert not (tmp_path / "ported").exists()
