from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import migrate.report.schema
from migrate.parity.ground.results import (
    LayerResult,
    LayerVerdict,
    Parity,
    ParityCheck,
    Section,
    TensorLayout,
)
from migrate.report.text.parity.nodes import module_tree
from migrate.report.text.parity.summary import parity_as_json, parity_summary
from tests.parity import sample_comparisons as comparisons

SCHEMA = Path(migrate.report.schema.__file__).with_name("parity.json")


def shown(parity: Parity, width: int = 120) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    for renderable in parity_summary(parity):
        console.print(renderable)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120, 180])
@pytest.mark.parametrize("name", comparisons.ALL)
def test_the_verdict_comes_first_and_nothing_is_cut(name: str, width: int) -> None:
    parity = comparisons.ALL[name]()
    text = shown(parity, width)
    assert " ".join(text.split()).startswith(f"{parity.verdict.value}: {parity.sentence}")
    assert max(map(len, text.splitlines())) <= width
    folded = text.split("layers:")[-1] if parity.layers else ""
    assert len(folded.splitlines()) < 120


def test_what_matches_is_folded() -> None:
    text = shown(comparisons.matching(12))
    assert "layers: 227 match" in text
    assert "✓ encoder  BertEncoder  217 layers  worst" in text
    assert "layer.0" not in text
    assert len(text.splitlines()) < 30


def test_a_layer_that_parts_is_shown_in_full() -> None:
    text = shown(comparisons.parting())
    lines = text.splitlines()
    (line,) = [
        line for line in lines if "intermediate_act_fn  GELUActivation  B diverges  first" in line
    ]
    after = " ".join(lines[lines.index(line) : lines.index(line) + 16])
    for expected in (
        "4.4e-04",
        "5500 (5170 … 5885)",
        "limit     1.0e-06  7.1e-06",
        "models/bert.py:476",
        "ports/bert_flax.py:476",
        "cause: B's GELU has the tanh form, A's the exact one (erf). [gelu-form]",
        "shown by: with the tanh form",
        "perhaps: B's activation may compute in another dtype.",
    ):
        assert expected in after
    assert "✓ layer.0 … layer.2  3 × BertLayer (55 layers)" in text
    assert "~ layer.4 … layer.11  8 × BertLayer (144 layers), inherited" in text
    assert "without a partner: 2 layers" in text
    assert "only B  encoder.layer_0.attention.rotary  RotaryEmbedding" in text
    assert "only A  pooler.dropout" in text


def test_how_a_side_lies_is_shown() -> None:
    parity = comparisons.parting()
    lies = TensorLayout("output", "", None, (0, 2, 3, 1), None)
    merged = TensorLayout("argument", "0", None, (0, 2, 1), (8, 96))

    def laid(layer: LayerResult) -> LayerResult:
        assert layer.b is not None
        return dataclasses.replace(layer, b=dataclasses.replace(layer.b, layouts=(lies, merged)))

    layers = tuple(laid(one) if one.kind == "GELUActivation" else one for one in parity.layers)
    first = next(one for one in layers if parity.first and one.name == parity.first.name)
    parity = dataclasses.replace(parity, layers=layers, first=first)
    text = " ".join(shown(parity, 180).split())
    name = "encoder.layer.0.intermediate.intermediate_act_fn"
    assert f"layouts B has another layout: axes 0, 2, 3, 1 at {name}, " in text
    assert "and 9 more" in text
    assert "B: output: axes 0, 2, 3, 1 of the reference's" in text
    assert "B: argument: axes 0, 2, 1, then reshaped to (8, 96) of the reference's" in text
    side = parity_as_json(parity)["first"]["b"]
    assert side["layouts"][0] == {
        "what": "output",
        "path": "",
        "split": None,
        "axes": [0, 2, 3, 1],
        "shape": None,
    }


def test_no_figure_is_cut_on_a_narrow_terminal() -> None:
    lines = [line.strip("│├└─ ") for line in shown(comparisons.parting(), 72).splitlines()]
    assert "B: local 4.4e-04  accumulated 4.4e-04  max/rms 2.6e-03" in lines
    assert "ρ 5500 (5170 … 5885)" in lines
    assert "limit: local 1.0e-06  accumulated 7.1e-06" in lines


def test_modules_that_only_pass_on_are_one_line() -> None:
    parity = comparisons.parting(1, "pooler.dense")
    outer = dataclasses.replace(parity.layers[-1], order=1000, verdict=LayerVerdict.MATCH)
    layers = [
        dataclasses.replace(one, name=f"model.inner.{one.name}".rstrip("."))
        for one in parity.layers
    ]
    layers += [dataclasses.replace(outer, name=name) for name in ("model", "")]
    text = shown(dataclasses.replace(parity, layers=tuple(layers), first=None))
    assert "└── ✗ model.inner  BertModel" in text


def test_hundreds_of_layers_that_part_stay_short() -> None:
    everywhere = {name: 50.0 for name, kind in comparisons.bert(12) if kind == "Linear"}
    text = shown(
        dataclasses.replace(comparisons.parting(), layers=tuple(comparisons.layers(12, everywhere)))
    )
    assert "73 B diverges" in text
    assert "more layers diverge" in text
    assert len(text.splitlines()) < 150


def test_one_layer_of_a_class_is_shown_in_full() -> None:
    text = shown(
        dataclasses.replace(comparisons.parting(), layers=tuple(comparisons.layers(2, BROKEN)))
    )
    assert text.count("ρ (95 %)") == 2
    assert text.split("layers:")[1].count("B diverges") == 1 + len(BROKEN)


BROKEN = {name: 50.0 for name, kind in comparisons.bert(2) if kind in ("Linear", "LayerNorm")}


def test_what_is_no_layer_at_a_side_is_placed_before_the_next() -> None:
    parity = comparisons.parting(2, "encoder.layer.1.intermediate.dense")
    layers = list(parity.layers)
    at = next(number for number, one in enumerate(layers) if one == parity.first)
    assert layers[at].b is not None
    nameless = dataclasses.replace(
        layers[at].b, name="", aligned="in what the next layer is given", defined="", called=""
    )
    layers[at] = dataclasses.replace(layers[at], b=nameless)
    text = shown(dataclasses.replace(parity, layers=tuple(layers), first=layers[at]), 180)
    after = layers[at + 1].b
    assert after is not None
    assert "no layer of its own, measured in what the next layer is given" in text
    assert f"before {after.name} is called at {after.called}" in text


def test_layers_that_are_nowhere_below_the_model() -> None:
    parity = comparisons.parting(2, "encoder.layer.1.output.dense")
    rootless = [layer for layer in parity.layers if layer.name not in ("", "encoder")]
    text = shown(dataclasses.replace(parity, layers=tuple(rootless)))
    assert "encoder.layer.1  BertLayer" in text
    assert "dense  Linear  B diverges  first" in text


def test_every_layer_is_once_in_the_tree() -> None:
    layers = comparisons.parting().layers
    again = dataclasses.replace(layers[3], order=900, a=None, verdict=LayerVerdict.ALONE)
    everything = (*layers, again)
    found = module_tree(everything).layers
    assert sorted(map(id, found)) == sorted(map(id, everything))


def test_a_section_that_passed_is_a_line_and_one_that_failed_has_its_rows() -> None:
    text = shown(comparisons.with_all_sections(), 180)
    assert "✓ gradients  101 checks, all passed; nearest to its limit" in text
    assert "✗ logits  2 of 4 checks failed" in text
    assert "KL               0.031  ≤ 0.015" in text
    assert "top-1 agreement  0.997  ≥ 1" in text
    assert "112 of 4096 tokens are near-ties" in text
    many = Section("gradients", (ParityCheck("w", 1.0, math.nan, 1e-6, False, "float32"),) * 50)
    text = shown(dataclasses.replace(comparisons.matching(), sections=(many,)))
    assert text.count("NaN") == 8
    assert "… 42 more failed" in text


def test_markup_in_names_is_text() -> None:
    parity = comparisons.parting(1, "pooler.dense")
    layers = tuple(dataclasses.replace(one, kind="[bold]Odd[/b]") for one in parity.layers)
    text = shown(
        dataclasses.replace(
            parity, layers=layers, sentence="[red]x", notes=("[/]",), first=layers[-3]
        )
    )
    assert "[bold]Odd[/b]" in text
    assert "[red]x" in text


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", comparisons.ALL)
def test_the_json_is_that_of_its_schema(name: str, validator: Any) -> None:
    parity = comparisons.ALL[name]()
    text = json.dumps(parity_as_json(parity), allow_nan=False)
    value = json.loads(text)
    validator.validate(value)
    assert value["matches"] is parity.matches
    assert [layer["name"] for layer in value["layers"]] == [one.name for one in parity.layers]
    assert (value["first"] or {}).get("name") == (parity.first.name if parity.first else None)


def test_numbers_that_json_has_not_are_strings() -> None:
    value = parity_as_json(comparisons.with_nan())
    assert value["floor"] == "nan"
    assert value["first"]["b"]["local"]["relative_l2"] == "nan"
    assert value["first"]["b"]["local"]["not_finite"] == 4096


def test_the_schema_refuses_what_it_does_not_describe(validator: Any) -> None:
    value = parity_as_json(comparisons.parting())
    value["layers"][0]["b"]["local"]["relative_l2"] = "much"
    value["verdict"] = "fine"
    del value["first"]["a"]
    value["more"] = 1
    found = {".".join(map(str, error.absolute_path)) for error in validator.iter_errors(value)}
    assert found == {"", "layers.0.b", "verdict", "first"}


def described(schema: Any) -> Iterator[tuple[str, set[str]]]:
    for name, one in schema["$defs"].items():
        if "properties" in one:
            yield name, set(one["properties"])


def test_the_schema_has_the_fields_of_the_results() -> None:
    from migrate.parity.dump import dump
    from migrate.parity.ground import results

    of = dict(described(json.loads(SCHEMA.read_text())))
    for name, kind in (
        ("facts", dump.RunFacts),
        ("errors", results.Errors),
        ("ratio", results.Ratio),
        ("side", results.SideResult),
        ("layer", results.LayerResult),
        ("cause", results.ParityCause),
        ("check", results.ParityCheck),
    ):
        assert of[name] == {field.name for field in dataclasses.fields(kind)}, name


def test_the_documentation_names_every_field() -> None:
    schema = json.loads(SCHEMA.read_text())
    names = set(schema["properties"]).union(*(names for _, names in described(schema)))
    text = (Path(__file__).parents[2] / "docs" / "parity" / "report.md").read_text()
    table = text[text.index("## JSON") :]
    assert {name for name in names if f"`{name}`" not in table} == set()
