"""Few rules name all weights, each with its own spec."""

from __future__ import annotations

from migrate.port.mesh.choice import WeightSpec
from migrate.port.mesh.rules import matches, rules_of

COLUMN = WeightSpec(("fsdp", "tensor"), "heads, column-parallel")
ROW = WeightSpec(("tensor", "fsdp"), "heads, row-parallel")
WHOLE = WeightSpec((), "whole on each device")


def patterns(specs: dict[str, WeightSpec]) -> list[str]:
    return [rule.pattern for rule in rules_of(specs)]


def test_layers_and_modules_of_one_spec_are_one_rule() -> None:
    specs = {}
    for layer in range(12):
        for name in ("q", "k", "v"):
            specs[f"layers_{layer}/attn/{name}/kernel"] = COLUMN
        specs[f"layers_{layer}/attn/o/kernel"] = ROW
        specs[f"layers_{layer}/norm/scale"] = WHOLE
    assert patterns(specs) == ["(q|k|v)/kernel", "o/kernel", "norm/scale"]


def test_more_names_where_an_end_is_not_enough() -> None:
    specs = {
        "layer_0/attention/output/dense/kernel": COLUMN,
        "layer_0/output/dense/kernel": ROW,
        "layer_1/attention/output/dense/kernel": COLUMN,
        "layer_1/output/dense/kernel": ROW,
    }
    assert patterns(specs) == [
        "attention/output/dense/kernel",
        r"layer_\d+/output/dense/kernel",
    ]


def test_numbers_where_layers_differ() -> None:
    specs = {
        f"blocks_{block}/layers_{layer}/kernel": COLUMN if layer else ROW
        for block in range(3)
        for layer in range(2)
    }
    assert patterns(specs) == ["layers_1/kernel", "layers_0/kernel"]


def test_the_first_rule_that_matches_has_the_spec() -> None:
    specs = {
        f"{part}_{number}/{name}/{leaf}": (COLUMN, ROW, WHOLE)[(number * len(name) + at) % 3]
        for part in ("a", "b")
        for number in range(3)
        for name in ("fc", "proj")
        for at, leaf in enumerate(("kernel", "bias"))
    }
    rules = rules_of(specs)
    for path, spec in specs.items():
        first = next(rule for rule in rules if matches(rule.pattern, path))
        assert first.spec == spec.spec, path


def test_a_rule_matches_whole_names_only() -> None:
    assert matches("o/kernel", "attn/o/kernel")
    assert not matches("o/kernel", "attn/co/kernel")
    assert not matches("o/kernel", "attn/o/kernel/x")
