"""`--try shard`: weights and optimizer state cut along the axes of the batch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from migrate.fit.lowered.child import lower
from migrate.fit.lowered.step import Wanted

MODELS = Path(__file__).with_name("models.py")
RULES = "Dense_0/kernel: [null, model]\ndefault: []\n"


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
    text = lower(wanted).parts[0].program.data.decode()
    main = text[text.index("@main") : text.index("->", text.index("@main"))]
    cut = re.findall(r"tensor<512x1024xf32> \{[^}]*?sharding<@mesh, \[(.*?)\]>", main)
    assert cut == [kernel] * 3  # the weight and both moments
