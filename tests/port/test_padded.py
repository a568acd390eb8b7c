"""Padded batches in the proof of a port that takes a mask, and what its README says of the mask."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from migrate.parity.inputs.set import write_inputs
from migrate.port import texts
from migrate.port.padded import padded_batches, write_padding
from migrate.port.proof import asked
from migrate.port.readme import readme_text
from tests.port.standin import RIGHT, Argument

IDS = Argument("input_ids", "int64", ("batch", "length"))
MASK = Argument("attention_mask", "int64", ("batch", "length"), optional=True)
PLACES = Argument("position_ids", "int64", ("batch", "length"), optional=True)
INPUT = {"input_ids": np.arange(12).reshape(3, 4)}


def test_each_row_is_padded_by_another_length() -> None:
    made = padded_batches(INPUT, (IDS, MASK))
    left, right, empty = (one["attention_mask"].tolist() for one in made.values())
    assert left == [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
    assert right == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    assert empty == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]]


def test_positions_begin_at_the_first_token() -> None:
    left = padded_batches(INPUT, (IDS, MASK, PLACES))["padding on the left"]
    assert left["position_ids"].tolist() == [[0, 0, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_a_decoder_is_padded_by_its_own_tokens() -> None:
    both = {**INPUT, "decoder_input_ids": np.zeros((3, 2), np.int64)}
    decoders = replace(MASK, name="decoder_attention_mask")
    left = padded_batches(both, (IDS, MASK, decoders))["padding on the left"]
    assert left["attention_mask"].shape == (3, 4)
    assert left["decoder_attention_mask"].tolist() == [[0, 1], [0, 1], [0, 1]]


def test_a_model_without_a_mask_of_tokens_is_not_padded() -> None:
    assert padded_batches(INPUT, (IDS, PLACES)) == {}
    assert padded_batches({"x": np.zeros((3, 4))}, (Argument("x"), MASK)) == {}


def test_a_mask_of_which_the_port_takes_one_value_is_not_padded() -> None:
    fixed = replace(MASK, fixed=True)
    assert padded_batches({**INPUT, "attention_mask": np.ones((3, 4))}, (IDS, fixed)) == {}
    hidden = Argument("real", "bool", ("batch", "length"), hides=True, fixed=True)
    assert padded_batches({**INPUT, "real": np.ones((3, 4), bool)}, (IDS, hidden)) == {}


def test_what_hides_is_padded_whatever_its_name_and_its_dtype() -> None:
    seen = Argument("real", "bool", ("batch", "length"), hides=True)
    arrays = {"x": np.zeros((3, 4, 2)), "real": np.ones((3, 4), bool)}
    made = padded_batches(arrays, (Argument("x"), seen))
    masks = {name: one["real"] for name, one in made.items()}
    assert all(mask.dtype == bool for mask in masks.values())
    assert not masks["a row of padding"][0].any()
    assert masks["a row of ones"][0].all(), "where True means that a key is ignored"
    square = {"mask": np.ones((3, 1, 4, 4), np.float32)}
    hidden = Argument("mask", "float32", ("batch", 1, 4, 4), hides=True)
    assert padded_batches(square, (hidden,))["padding on the left"]["mask"].shape == (3, 1, 4, 4)
    bias = {"mask": np.full((3, 4), 0.5)}
    assert padded_batches(bias, (replace(hidden, shape=("batch", 4)),)) == {}


def test_padded_batches_are_compared_with_their_gradients(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, [INPUT, INPUT])
    batches = list(padded_batches(INPUT, (IDS, MASK)).values())
    cases = {one.name: one for one in asked(inputs, (IDS, MASK), lambda _: True, padded=batches)}
    assert len(cases["padded batches"].inputs) == 3
    assert cases["gradients, padded batches"].gradients
    assert "attention_mask" not in cases["float32"].inputs[0]


def test_a_batch_that_is_nan_in_the_original_is_compared_without_gradients(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, [INPUT, INPUT])
    left, _, empty = padded_batches(INPUT, (IDS, MASK)).values()
    rows = "row 0 (a row of padding)"
    made = asked(inputs, (IDS, MASK), lambda _: True, padded=[left], undefined={rows: empty})
    cases = {one.name: one for one in made}
    outputs, gradients = cases["padded batches"], cases["gradients, padded batches"]
    assert (len(outputs.inputs), outputs.undefined) == (2, rows)
    assert (len(gradients.inputs), gradients.undefined) == (1, "")


def test_a_mask_that_was_given_is_left_out_once(tmp_path: Path) -> None:
    given = {**INPUT, "attention_mask": np.ones((3, 4), np.int64)}
    inputs = write_inputs(tmp_path, [given, given])
    cases = {one.name: one for one in asked(inputs, (IDS, MASK), lambda _: True)}
    assert set(cases["without attention_mask"].inputs[0]) == {"input_ids"}


def test_the_readme_says_what_a_mask_does() -> None:
    port = replace(
        RIGHT,
        inputs=(IDS, MASK, replace(PLACES, needs="attention_mask")),
        left={"decoder_attention_mask": "the recordings differ"},
    )
    page = readme_text("net", "net.py:Net", port, "", (), None, (), "migrate port", "torch 2")
    said = page.partition("## Masks and other optional inputs")[2].partition("\n## ")[0]
    assert "`attention_mask`: 1 for a token, 0 for padding" in said
    assert "It is refused without `attention_mask`." in said
    assert "`decoder_attention_mask` is not in this port" in said
    assert "`attention_mask` int32[batch, length] (optional)" in page
    assert "outputs = jax.jit(model.apply)(variables, input_ids=input_ids)" in page


def test_masks_of_padded_batches_are_written_for_the_test_of_a_port(tmp_path: Path) -> None:
    batches = padded_batches(INPUT, (IDS, MASK))
    write_padding(tmp_path / "padding", INPUT, batches)
    written = load_file(tmp_path / "padding")
    assert set(written) == {f"{name}.attention_mask" for name in batches}
    way = texts.OriginalTexts("net.py:Net", tmp_path, None, weights=False)
    text = texts.test_text("Net", way, 0, True, (), (), tuple(batches), "linen")
    names = "['padding on the left', 'padding on the right', 'a row of padding']"
    assert f'@pytest.mark.parametrize("padding", {names})' in text
    plain = texts.test_text("Net", way, 0, True, (), (), (), "linen")
    assert "padding" not in plain
    ast.parse(text)
