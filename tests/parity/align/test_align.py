"""Layers find their partners: by weights, by order, by values; in other layouts; scanned and shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.parity.align.align import align, load_alignment_file
from migrate.parity.ground.alignment import LayerAlignment
from migrate.parity.ground.errors import ParityError
from tests.parity.numpy_attention import (
    BLOCKS,
    HEADS,
    INPUTS,
    RNG,
    WEIGHTS,
    WIDTH,
    flax_like,
    gelu,
    names,
    torch_like,
)
from tests.parity.numpy_model import Array, Model, Run, capture


def made(
    folder: Path, mine: Model, weights: Any, truth: Model = torch_like, explicit: Any = None
) -> LayerAlignment:
    return align(
        capture(folder / "truth", truth, WEIGHTS, INPUTS, "float64"),
        capture(folder / "mine", mine, WEIGHTS, INPUTS, framework="linen"),
        weights,
        explicit,
    )


def found(alignment: LayerAlignment) -> dict[str, tuple[str, str]]:
    return {pair.layer: (pair.truth, pair.how) for pair in alignment.pairs}


def test_the_same_model_is_aligned_by_name(tmp_path: Path) -> None:
    alignment = made(tmp_path, torch_like, None)
    assert {pair.how for pair in alignment.pairs} == {"same model"}
    assert all(pair.layer == pair.truth for pair in alignment.pairs)
    assert not alignment.alone
    assert not alignment.truth_alone
    # A dropout hands on what it is given: it is neither fed nor judged.
    idle = {pair.truth for pair in alignment.pairs if not pair.outputs and not pair.arguments}
    assert idle == {f"block.{block}.drop" for block in range(BLOCKS)}


def test_weights_align_dense_layers_and_containers(tmp_path: Path) -> None:
    pairs = found(made(tmp_path, flax_like, names()))
    for block in range(BLOCKS):
        assert pairs[f"Block_{block}"] == (f"block.{block}", "weights")
        assert pairs[f"Block_{block}.attn"] == (f"block.{block}.attention", "weights")
        for part in ("q", "k", "v", "o", "up", "down"):
            assert pairs[f"Block_{block}.{part}_proj"] == (f"block.{block}.{part}", "weights")
        # It has no weights, stands between known ones, and gives the same values.
        assert pairs[f"Block_{block}.ln"] == (f"block.{block}.norm", "fingerprint")


def test_layers_without_a_partner_are_listed(tmp_path: Path) -> None:
    alignment = made(tmp_path, flax_like, names())
    assert alignment.alone == ()
    lone = {f"block.{block}.{part}" for block in range(BLOCKS) for part in ("soft", "act", "drop")}
    assert set(alignment.truth_alone) == lone | {"pool"}
    assert any("3 layers without a partner are dropout" in note for note in alignment.notes)


def test_heads_apart_or_together(tmp_path: Path) -> None:
    alignment = made(tmp_path, flax_like, names())
    query = next(pair for pair in alignment.pairs if pair.layer == "Block_0.q_proj")
    assert query.outputs[0].shape == (3, 5, HEADS, WIDTH // HEADS)


def test_one_layer_that_is_called_for_every_block(tmp_path: Path) -> None:
    stacked = {
        f"params/blocks/{part}_proj/kernel": tuple(
            f"block.{block}.{part}.weight" for block in range(BLOCKS)
        )
        for part in ("q", "k", "v", "o", "up", "down")
    }
    alignment = made(tmp_path, lambda run, x: flax_like(run, x, scanned=True), stacked)
    pairs = {(pair.layer, pair.number): (pair.truth, pair.truth_number) for pair in alignment.pairs}
    for block in range(BLOCKS):
        assert pairs["blocks", block] == (f"block.{block}", 0)
        assert pairs["blocks.q_proj", block] == (f"block.{block}.q", 0)
        assert pairs["blocks.ln", block] == (f"block.{block}.norm", 0)
    assert alignment.pair("blocks.attn", 2) is not None


def test_a_layer_of_the_truth_that_is_called_for_every_block(tmp_path: Path) -> None:
    def shared(run: Run, x: Array) -> Array:
        for _ in range(BLOCKS):
            x = run.layer(
                "dense", "Linear", lambda x: np.tanh(x @ run.weights["w"]), x, weights=("w",)
            )
        return x

    def unshared(run: Run, x: Array) -> Array:
        for at in range(BLOCKS):
            name = f"Dense_{at}"
            x = run.layer(
                name,
                "Dense",
                lambda x: np.tanh(x @ run.weights["w"]),
                x,
                weights=(f"params/{name}/k",),
            )
        return x

    weights = {"w": WEIGHTS["block.0.q.weight"]}
    alignment = align(
        capture(tmp_path / "t", shared, weights, INPUTS, "float64"),
        capture(tmp_path / "m", unshared, weights, INPUTS),
        {f"params/Dense_{at}/k": "w" for at in range(BLOCKS)},
    )
    numbers = {pair.layer: pair.truth_number for pair in alignment.pairs if pair.layer}
    assert numbers == {f"Dense_{at}": at for at in range(BLOCKS)}


def test_a_tied_head_is_the_other_method_of_the_embedding(tmp_path: Path) -> None:
    """`head.weight = embed.weight` in torch, `embed.attend` in Flax: two layers with one weight."""

    def model(embed: str, head: str, kinds: tuple[str, str], held: tuple[str, str]) -> Model:
        def run_it(run: Run, x: Array) -> Array:
            x = run.layer(embed, kinds[0], lambda x: x @ run.weights["w"], x, weights=held[:1])
            return run.layer(head, kinds[1], lambda x: x @ run.weights["w"].T, x, weights=held[1:])

        return lambda run, x: run.layer("", "Net", lambda x: run_it(run, x), x)

    torch = model("embed", "head", ("Embedding", "Linear"), ("embed.weight", "head.weight"))
    key = "params/embed/embedding"
    flax = model("embed", "embed.attend", ("PaddedEmbed", "PaddedEmbed.attend"), (key, key))
    weights = {"w": RNG.standard_normal((WIDTH, 6))}
    alignment = align(
        capture(tmp_path / "truth", torch, weights, INPUTS, "float64"),
        capture(tmp_path / "mine", flax, weights, INPUTS, framework="linen"),
        {key: "embed.weight"},
        tied={"head.weight": "embed.weight"},
    )
    assert found(alignment)["embed"] == ("embed", "weights")
    assert found(alignment)["embed.attend"] == ("head", "weights")
    assert not alignment.alone


def test_without_weights_values_and_order_decide(tmp_path: Path) -> None:
    pairs = found(made(tmp_path, flax_like, None))
    for block in range(BLOCKS):
        for part in ("q", "k", "v", "o", "up", "down"):
            assert pairs[f"Block_{block}.{part}_proj"][0] == f"block.{block}.{part}"
        assert pairs[f"Block_{block}"][0] == f"block.{block}"


def test_a_model_that_is_wrong_from_the_start_is_still_aligned(tmp_path: Path) -> None:
    pairs = found(made(tmp_path, lambda run, x: flax_like(run, x[::-1] * 3), names()))
    assert pairs["Block_2.down_proj"] == ("block.2.down", "weights")
    assert pairs["Block_1.ln"] == ("block.1.norm", "order")


@pytest.mark.parametrize("axes", [(0, 2, 1), (1, 0, 2), (0, 1, 2)])
def test_values_tell_how_a_square_tensor_lies(tmp_path: Path, axes: tuple[int, ...]) -> None:
    """Of shapes that all fit, the one with the same values: batch, time and features are equally many."""
    inputs = [np.random.default_rng(5).standard_normal((4, 4, 4))]

    def plain(run: Run, x: Array) -> Array:
        return run.layer("act", "GELU", gelu, x)

    def moved(run: Run, x: Array) -> Array:
        return run.layer("act", "GELU", gelu, x.transpose(axes))

    alignment = align(
        capture(tmp_path / "t", plain, {}, inputs, "float64"),
        capture(tmp_path / "m", moved, {}, inputs),
        {},
    )
    pair = next(pair for pair in alignment.pairs if pair.layer == "act")
    want = None if axes == (0, 1, 2) else axes
    assert pair.outputs[0].axes == want
    assert pair.arguments[0].axes == want


def test_images_channels_last_and_flattened(tmp_path: Path) -> None:
    """What follows the flattening is fed with the elements in the side's order."""
    image = [np.random.default_rng(1).standard_normal((2, 3, 4, 5))]
    weights = {"w": np.random.default_rng(2).standard_normal((60, 7))}

    def first(run: Run, x: Array) -> Array:
        x = run.layer("relu", "ReLU", lambda x: np.maximum(x, 0), x)
        x = run.layer("flat", "Flatten", lambda x: x.reshape(2, -1), x)
        return run.layer("fc", "Linear", lambda x: x @ run.weights["w"], x, weights=("w",))

    def last(run: Run, x: Array) -> Array:
        x = run.layer("Relu_0", "Relu", lambda x: np.maximum(x, 0), x.transpose(0, 2, 3, 1))
        kernel = run.weights["w"].reshape(3, 4, 5, 7).transpose(1, 2, 0, 3).reshape(60, 7)
        flat = x.reshape(2, -1)
        return run.layer("Dense_0", "Dense", lambda x: x @ kernel, flat, weights=("params/w",))

    truth = capture(tmp_path / "t", first, weights, image, "float64")
    mine = capture(tmp_path / "m", last, weights, image)
    alignment = align(truth, mine, {"params/w": "w"})
    pairs = {pair.layer: pair for pair in alignment.pairs}
    assert pairs["Relu_0"].outputs[0].axes == (0, 2, 3, 1)
    fed = pairs["Dense_0"].arguments[0]
    (t,), (m,) = (
        [call.arguments[0] for call in dump.of(name)]
        for dump, name in ((truth, "fc"), (mine, "Dense_0"))
    )
    assert np.allclose(fed.as_mine(truth.tensor(t)), mine.tensor(m), atol=1e-5)
    assert LayerAlignment.from_json(alignment.to_json()) == alignment


def test_a_file_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "align.yaml"
    file.write_text("Block_0.q_proj: block.0.k\n")
    explicit = load_alignment_file(file)
    pairs = found(made(tmp_path, flax_like, names(), explicit=explicit))
    assert pairs["Block_0.q_proj"] == ("block.0.k", "file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "not a mapping of names to names"),
        ("a: [", "align.yaml"),
        ("a: x\nb: x\n", "x appears twice"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "align.yaml"
    file.write_text(text)
    with pytest.raises(ParityError, match=message) as caught:
        load_alignment_file(file)
    assert "\n" not in str(caught.value)


def test_a_file_with_a_layer_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ParityError, match=r"no layer block\.0\.qq is called in the truth; did you mean"
    ):
        made(tmp_path, flax_like, names(), explicit={"Block_0.q_proj": "block.0.qq"})
    with pytest.raises(ParityError, match="no layer Blob is called in this side"):
        made(tmp_path, flax_like, names(), explicit={"Blob": "block.0.q"})
