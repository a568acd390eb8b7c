"""`--try shard`: weights and optimizer state cut along the axes of the batch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jax.sharding import PartitionSpec as P

from migrate.fit.errors import FitError
from migrate.fit.lowered.child import lower
from migrate.fit.lowered.of_jax import lower_jax
from migrate.fit.lowered.step import LoweredStep, Wanted
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.target import parse_target

MODELS = Path(__file__).with_name("models.py")
RULES = "Dense_0/kernel: [null, model]\ndefault: []\n"


def arguments(step: LoweredStep) -> str:
    text = step.parts[0].program.data.decode()
    return text[text.index("@main") : text.index("->", text.index("@main"))]


@pytest.mark.parametrize(
    ("mesh", "rules", "kernel"),
    [
        ({"data": 4}, "", '{}, {"data"}'),  # [512, 1024]: the longer side
        ({"data": 2, "model": 2}, RULES, '{"data"}, {"model"}'),  # beside what the rules have cut
        ({"data": 2, "fsdp": 2}, "", '{}, {"data", "fsdp"}'),
    ],
)
def test_the_longest_axis_that_is_whole_is_cut(
    mesh: dict[str, int], rules: str, kernel: str, tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(rules)
    wanted = Wanted(
        f"{MODELS}:Tower",
        ("x=float32[64,512]",),
        "adamw",
        mesh=mesh,
        rules=str(tmp_path / "rules.yaml") if rules else "",
        devices=4,
        shard=True,
    )
    cut = re.findall(
        r"tensor<512x1024xf32> \{[^}]*?sharding<@mesh, \[(.*?)\]>", arguments(lower(wanted))
    )
    assert cut == [kernel] * 3  # the weight and both moments


@pytest.mark.parametrize(
    ("mesh", "x"),
    [
        ({"tensor": 4}, "tensor<64x512xf32>"),  # whole, as the port's shard_batch leaves it
        ({"data": 2, "tensor": 2}, "tensor<128x512xf32>"),
    ],
)
@pytest.mark.parametrize("shard", [False, True])
def test_the_batch_of_a_port_is_divided_over_the_axes_of_the_batch_only(
    mesh: dict[str, int], x: str, shard: bool
) -> None:
    target = f"{MODELS}:Tower"
    runner, _ = load_runner(parse_target(target))
    runner.model.partition = lambda weights, _: {
        name: P(*[None] * (len(array.shape) - 1), "tensor") for name, array in weights.items()
    }
    runner.model.batch_axes = ("data", "fsdp")
    wanted = Wanted(target, ("x=float32[64,512]",), "adamw", mesh=mesh, devices=4, shard=shard)
    step = lower_jax(runner, wanted)
    (batch,) = set(re.findall(r"tensor<\d+x512xf32>", arguments(step)))
    assert batch == x
    divided = "data" in mesh
    assert any(note.startswith("batch: ") for note in step.notes) is divided
    assert any("along the axes of the batch" in note for note in step.notes) is (divided and shard)
    unchanged = any(note.startswith("shard changes nothing") for note in step.notes)
    assert unchanged is (shard and not divided)


def test_an_axis_that_a_port_does_not_know_is_refused() -> None:
    target = f"{MODELS}:Tower"
    runner, _ = load_runner(parse_target(target))
    runner.model.partition = lambda weights, _: dict.fromkeys(weights, P())
    runner.model.batch_axes = ("data", "fsdp")
    wanted = Wanted(target, ("x=float32[64,512]",), "adamw", mesh={"dp": 4}, devices=4)
    with pytest.raises(FitError, match=r"^--mesh dp=4: no rule of .* divides a weight over dp"):
        lower_jax(runner, wanted)
