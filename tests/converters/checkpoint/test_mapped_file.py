"""Files are viewed and copied, held open no longer than needed, and never mixed up."""

import os
import resource

import numpy as np
import pytest

from converters.checkpoint.mapped_file import MappedFile
from converters.errors import CheckpointDamagedError

UINT8, FLOAT = np.dtype(np.uint8), np.dtype(np.float32)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(64)))
    return tmp_path / "x"


def test_views_and_copies(path):
    file = MappedFile(path)
    for _ in range(2):
        view = file.array(4, UINT8, (3,))
        assert view.tolist() == [4, 5, 6]
        assert file.copy(62, 64) == b"\x3e\x3f"
        odd = file.array(1, FLOAT, (2,))  # an address that is no multiple of four
        assert odd.tobytes() == bytes(range(1, 9))
        assert odd.flags.aligned
        assert not odd.flags.writeable
        file.release(4, 7)
        assert view.tolist() == [4, 5, 6]
        file.rest()
        assert view.tolist() == [4, 5, 6]


@pytest.mark.parametrize(("start", "shape"), [(61, (4,)), (-1, (1,)), (64, (1,)), (1 << 60, (1,))])
def test_nothing_beyond_the_end(path, start, shape):
    with pytest.raises(CheckpointDamagedError, match="ends where more is announced"):
        MappedFile(path).array(start, UINT8, shape)


def test_strides_that_lead_beyond_the_end(path):
    with pytest.raises(CheckpointDamagedError, match="ends where more is announced"):
        MappedFile(path).array(0, UINT8, (2, 2), (63, 2))


def test_another_file_of_the_name_is_refused(path):
    file = MappedFile(path)
    file.rest()
    path.rename(path.with_name("old"))
    path.write_bytes(bytes(64))
    with pytest.raises(CheckpointDamagedError, match="was replaced while it was read"):
        file.copy(0, 1)
    with pytest.raises(CheckpointDamagedError, match="was replaced while it was read"):
        file.array(0, UINT8, (1,))


def test_thousands_of_files_are_not_held_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, limits[1]))
        for index in range(100):
            path = tmp_path / str(index)
            path.write_bytes(bytes([index]) * 8)
            files.append(MappedFile(path))
            files[-1].rest()
        for index, file in enumerate(files):
            assert file.array(0, UINT8, (1,)).tolist() == [index]
            file.release(0, 1)
            assert file.copy(0, 1) == bytes([index])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
