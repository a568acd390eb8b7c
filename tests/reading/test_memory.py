"""Searches for garbage are rare while scripts are worked at, and what they were afterwards."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from migrate.reading.tree.memory import SELDOM, seldom_collected
from migrate.reading.tree.source import UnreadableScriptError
from migrate.rewrite import file


def test_only_in_the_block() -> None:
    before = gc.get_threshold()
    assert before != SELDOM

    @seldom_collected()
    def failing() -> None:
        assert gc.get_threshold() == SELDOM
        raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert gc.get_threshold() == before


def test_while_a_file_is_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = gc.get_threshold()
    seen = []
    monkeypatch.setattr(file, "rewrite", lambda *_, **__: seen.append(gc.get_threshold()))
    file.rewrite_file(tmp_path / "script.py")
    assert seen == [SELDOM]
    monkeypatch.undo()
    with pytest.raises(UnreadableScriptError):
        file.rewrite_file(tmp_path / "missing.py")
    assert gc.get_threshold() == before
