"""Options of `migrate port` that nobody has built together are refused before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from migrate.port.errors import PortError
from migrate.port.original import OriginalInputs
from migrate.port.pipeline import PortOptions, inputs_not_in_port, port_model

VALUES: dict[str, dict[str, Any]] = {
    "--api nnx": {"api": "nnx"},
    "--cache": {"cache": True},
    "--methods": {"methods": ("encode",)},
    "--from-script": {"script": Path("train.py")},
    "--scan": {"scan": True},
    "--remat": {"remat": "dots"},
    "--attention": {"attention": "auto"},
    "--mesh": {"mesh": True},
}
PAIRS = [
    *(("--api nnx", other) for other in ("--cache", "--scan", "--remat", "--attention", "--mesh")),
    *(("--cache", other) for other in ("--methods", "--scan", "--remat", "--attention", "--mesh")),
    ("--mesh", "--scan"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_what_does_not_go_together(one: str, other: str, tmp_path: Path) -> None:
    options = replace(PortOptions(tmp_path / "out"), **VALUES[one], **VALUES[other])
    with pytest.raises(PortError) as refusal:
        port_model("missing.py:Net", options, "migrate port", lambda _: None)
    assert one in str(refusal.value)
    assert other in str(refusal.value)
    assert not (tmp_path / "out").exists()


class Masked(torch.nn.Module):
    """A forward with optional inputs."""

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
        training: bool = False,
    ) -> torch.Tensor:
        return x


def test_optional_inputs_that_a_port_does_not_have_are_noted() -> None:
    inputs = OriginalInputs(SimpleNamespace(), Masked())  # type: ignore[arg-type]

    def notes(*names: str) -> list[str]:
        arguments = [SimpleNamespace(name=name) for name in names]
        return list(inputs_not_in_port(inputs, SimpleNamespace(inputs=arguments, left={})))

    [note] = notes("x")
    assert note.startswith("not in the port: the optional inputs mask, places; the port computes ")
    [note] = notes("x", "places")
    assert note.startswith("not in the port: the optional input mask; ")
    assert not notes("x", "places", "mask")
