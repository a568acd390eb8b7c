"""Which model a text names."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.cli.weights_request import _named_models
from migrate.parity.sides.target import parse_target


@pytest.fixture
def port(tmp_path: Path) -> Path:
    (tmp_path / "__init__.py").write_text("from .modeling import Net\n")
    (tmp_path / "modeling.py").write_text("class Net: ...\nclass Block: ...\n")
    (tmp_path / "mapping.yaml").write_text("")
    return tmp_path


def test_the_class_of_a_port_in_its_file_is_the_port(port: Path) -> None:
    text = f"{port / 'modeling.py'}:Net"
    named = parse_target(text)
    assert (named.kind, named.spec, named.shown) == ("port", str(port), text)
    assert _named_models(None, text)[2] == port


def test_another_class_of_a_port_is_a_class(port: Path) -> None:
    text = f"{port / 'modeling.py'}:Block"
    assert parse_target(text).kind == ""
    assert _named_models(None, text)[2] is None


def test_a_class_of_such_a_file_elsewhere_is_a_class(port: Path) -> None:
    (port / "mapping.yaml").unlink()
    assert parse_target(f"{port / 'modeling.py'}:Net").kind == ""
