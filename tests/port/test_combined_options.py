"""Options of `migrate port` that nobody has built together are refused before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from migrate.port.errors import PortError
from migrate.port.pipeline import PortOptions, port_model

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
