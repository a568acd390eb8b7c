"""A port's folder is there whole or not at all, and never over edits."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.port.errors import EditedError, PortError
from migrate.port.folder import edits, port_name, record, require_place, writing


@pytest.fixture
def port(tmp_path: Path) -> Path:
    folder = tmp_path / "out" / "net"
    with writing(folder) as place:
        (place / "modeling.py").write_text("x = 1\n")
        (place / "README.md").write_text("a port\n")
        record(place, "net.py:Net")
    return folder


def test_what_was_written_has_no_edits(port: Path) -> None:
    (port / "__pycache__").mkdir()
    (port / "__pycache__" / "modeling.pyc").write_bytes(b"")
    assert edits(port) == ()


def test_changed_and_new_files_are_edits_and_lost_ones_are_not(port: Path) -> None:
    (port / "modeling.py").write_text("x = 2\n")
    (port / "more.py").write_text("")
    (port / "README.md").unlink()
    assert edits(port) == ("modeling.py", "more.py")


@pytest.mark.parametrize("damage", ["not JSON", "{}", "[]"])
def test_without_a_record_all_is_the_users(port: Path, damage: str) -> None:
    (port / ".port.json").write_text(damage)
    assert edits(port) == ("README.md", "modeling.py")


def test_a_port_is_replaced_only_if_told_to(port: Path) -> None:
    with pytest.raises(PortError, match="already exists"):
        require_place(port, 0)
    assert require_place(port, 1) == ()


def test_edits_are_lost_only_if_told_to_twice(port: Path) -> None:
    (port / "modeling.py").write_text("x = 2\n")
    for force in (0, 1):
        with pytest.raises(EditedError, match=r"has edits \(modeling\.py\)"):
            require_place(port, force)
    assert require_place(port, 2) == ("modeling.py",)


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out" / "net"
    with pytest.raises(FileNotFoundError), writing(folder) as place:
        (place / "gone" / "modeling.py").write_text("")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_what_was_there(port: Path) -> None:
    with pytest.raises(ValueError, match="stop"), writing(port):
        raise ValueError("stop")
    assert (port / "modeling.py").read_text() == "x = 1\n"
    assert [path.name for path in port.parent.iterdir()] == ["net"]


def test_a_new_port_takes_the_place_of_the_old_one(port: Path) -> None:
    with writing(port) as place:
        (place / "config.py").write_text("")
    assert [path.name for path in port.iterdir()] == ["config.py"]
    assert [path.name for path in port.parent.iterdir()] == ["net"]


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for folder in (tmp_path / "out", tmp_path / "out" / "net"):
        with pytest.raises(PortError, match="is a file"):
            require_place(folder, 2)


@pytest.mark.parametrize(
    ("proposed", "name"),
    [
        ("Net", "net"),
        ("BertModel", "bert_model"),
        ("all-MiniLM-L6-v2", "all_mini_lm_l6_v2"),
        ("HTTPNet", "http_net"),
        ("7b-chat", "port_7b_chat"),
        ("class", "class_port"),
        ("", "port"),
    ],
)
def test_names_are_those_of_packages(proposed: str, name: str) -> None:
    assert port_name(None, proposed) == name


@pytest.mark.parametrize("given", ["3x", "a-b", "class", "a.b", ""])
def test_a_name_that_cannot_be_imported_is_refused(given: str) -> None:
    with pytest.raises(PortError, match="cannot be imported"):
        port_name(given, "Net")
