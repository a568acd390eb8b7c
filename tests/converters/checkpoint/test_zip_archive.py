"""Zip archives whose list lies are refused before anything in them is used."""

import io
import struct
import zipfile

import pytest
import torch

from converters.checkpoint import open_checkpoint
from converters.checkpoint.mapped_file import MappedFile
from converters.checkpoint.zip_archive import ZipArchive
from converters.errors import CheckpointDamagedError


def archive(members, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, content in members:
            made.writestr(name, content)
    return bytearray(file.getvalue())


def opened(path, content):
    path.write_bytes(content)
    return ZipArchive(MappedFile(path))


def entry(content, name):
    """Where the list's entry of a member begins."""
    return content.rindex(name.encode()) - 46


def test_an_archive_of_nothing_is_refused(tmp_path):
    # The list may begin where it likes: the first bytes are a member's, which nothing lists.
    content = archive([("a", b"hello")])
    last = content.rindex(b"PK\5\6")
    struct.pack_into("<HHII", content, last + 8, 0, 0, 0, last)
    assert not opened(tmp_path / "x.pt", content).members
    with pytest.raises(CheckpointDamagedError, match=r"x\.pt"):
        open_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_read(tmp_path, method):
    made = opened(tmp_path / "x", archive([("a/b", b"hello" * 100), ("c", b"")], method))
    assert made.content("a/b", 1000) == b"hello" * 100
    assert made.content("c", 1000) == b""
    with pytest.raises(CheckpointDamagedError, match="has 500 bytes"):
        made.content("a/b", 499)
    with pytest.raises(CheckpointDamagedError, match="lacks 'd'"):
        made.content("d", 1)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a\\..\\x"])
def test_names_that_lead_out_are_refused(tmp_path, name, refused):
    with refused(CheckpointDamagedError, "leads out of it"):
        opened(tmp_path / "x", archive([(name, b"x")]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_of_a_name_are_refused(tmp_path, refused):
    with refused(CheckpointDamagedError, "two members named 'a'"):
        opened(tmp_path / "x", archive([("a", b"1"), ("a", b"2")]))


def test_members_of_the_same_bytes_are_refused(tmp_path, refused):
    content = archive([("a", b"1" * 100), ("b", b"2" * 100)])
    at = entry(content, "b")
    content[at + 42 : at + 46] = bytes(4)  # b's content is said to be where a's is
    with refused(CheckpointDamagedError, "overlaps"):
        opened(tmp_path / "x", content)


def test_a_name_that_differs_in_its_own_header_is_refused(tmp_path, refused):
    content = archive([("a", b"1")])
    content[30:31] = b"z"
    with refused(CheckpointDamagedError, "another name in its own header"):
        opened(tmp_path / "x", content).content("a", 10)


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        (8, b"\x01\x00", "is encrypted"),
        (10, b"\x0c\x00", "compressed by the method 12"),
        (20, b"\xff\xff\xff\x0f", "two sizes"),
        (24, b"\xff\xff\xff\x0f", "two sizes"),
        (42, b"\xff\xff\xff\x0f", "reaches beyond the end"),
        (0, b"XX", "damaged"),
        (28, b"\xff\x0f", "damaged"),
    ],
)
def test_an_impossible_entry_is_refused(tmp_path, field, value, part, refused):
    content = archive([("a", b"1")])
    at = entry(content, "a") + field
    content[at : at + len(value)] = value
    with refused(CheckpointDamagedError, part):
        opened(tmp_path / "x", content)


def test_an_inflation_beyond_the_possible_is_refused(tmp_path, refused):
    content = archive([("a", b"1" * 100)], zipfile.ZIP_DEFLATED)
    at = entry(content, "a") + 24
    content[at : at + 4] = (1 << 30).to_bytes(4, "little")
    with refused(CheckpointDamagedError, "cannot have 1073741824 bytes"):
        opened(tmp_path / "x", content)


def test_a_bomb_is_refused(tmp_path, refused):
    content = archive([("a", bytes(1 << 26))], zipfile.ZIP_DEFLATED)  # 65 kB, repeated in its list
    at = entry(content, "a") + 20
    content[at : at + 8] = (2 << 20).to_bytes(4, "little") + (2 << 30).to_bytes(4, "little")
    with refused(CheckpointDamagedError, "2097152 bytes and would have 2147483648"):
        opened(tmp_path / "x", content)


def test_more_content_than_announced_is_refused(tmp_path, refused):
    content = archive([("a", b"1" * 10_000)], zipfile.ZIP_DEFLATED)
    at = entry(content, "a") + 24
    content[at : at + 4] = (9_000).to_bytes(4, "little")
    with refused(CheckpointDamagedError, "larger than announced"):
        opened(tmp_path / "x", content).content("a", 10_000)


def test_a_compressed_torch_archive_is_read(tmp_path):
    torch.save({"a": torch.arange(100), "b": torch.ones(3).to(torch.bfloat16)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as old:
        members = [(name, old.read(name)) for name in old.namelist()]
    (tmp_path / "y.pt").write_bytes(archive(members, zipfile.ZIP_DEFLATED))
    checkpoint = open_checkpoint(tmp_path / "y.pt")
    assert checkpoint.read("a").tolist() == list(range(100))
    checkpoint.release("a")
    assert checkpoint.read("b").tolist() == [1, 1, 1]


def test_the_form_for_many_members_and_bytes(tmp_path, refused):
    content = archive([("a", b"1" * 100), ("b", b"2" * 50)])
    end = len(content) - 22
    count, length, offset = struct.unpack_from("<H2L", content, end + 10)
    record = struct.pack(
        "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, length, offset
    )
    place = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    struct.pack_into("<2H2L", content, end + 8, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    content[end:end] = record + place
    with zipfile.ZipFile(io.BytesIO(content)) as peer:
        assert peer.read("b") == b"2" * 50
    made = opened(tmp_path / "x", content)
    assert made.content("a", 100) == b"1" * 100
    assert made.content("b", 100) == b"2" * 50
    content[end + 48 : end + 56] = (1 << 40).to_bytes(8, "little")
    with refused(CheckpointDamagedError, "not where it should be"):
        opened(tmp_path / "x", content)
