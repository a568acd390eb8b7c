"""Mistakes that are planted into programs of `migrate train` are found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.train_mistakes.planted import outcomes


@pytest.mark.long
@pytest.mark.parametrize("script", ["language", "vision"])
def test_every_planted_mistake_is_named(tmp_path: Path, script: str) -> None:
    missed = {o.mistake.words: o.causes for o in outcomes(tmp_path, script) if not o.named}
    assert missed == {}
