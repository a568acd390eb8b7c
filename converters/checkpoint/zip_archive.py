"""Zip archives, read by their central directory; uncompressed members stay in the file.

Python's `zipfile` reads one member at a time through a stream, but tensors must be viewed in place.
It also accepts inconsistent directories: two members of one name, or of the same bytes.

The format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3.7 to 4.3.16.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

from converters.checkpoint.reader import COPY_AGAIN
from converters.checkpoint.source import ByteFile
from converters.errors import CheckpointDamagedError

ZIP_MAGIC = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s2x2H16x2H")  # magic, flags, method, lengths of name and extra
_MEMBER = struct.Struct("<4s4x2H4x3L3H8xL")
_END = struct.Struct("<4s4x2xH2L2x")  # entries, then bytes and offset of the directory
_END64_PLACE = struct.Struct("<4s4xQ4x")
_END64 = struct.Struct("<4s8x4x8x8xQ2Q")
_LONGEST_COMMENT = 1 << 16
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 1
_MOST_INFLATION = 1040  # deflate makes at most 1,032 bytes from one
_LARGE, _LARGE_INFLATION = 1 << 30, 100  # weights are not zeros; larger inflation is a zip bomb
_PIECE = 1 << 20


class Member(NamedTuple):
    """File in an archive.

    Attributes:
        name: its path in the archive.
        header: the offset of its local header in the file.
        compressed: the number of bytes in the archive.
        size: the number of bytes of its content.
        method: the compression method.
        checksum: the CRC-32 of its content.
    """

    name: str
    header: int
    compressed: int
    size: int
    method: int
    checksum: int

    @property
    def stored(self) -> bool:
        """Whether its content is uncompressed in the archive."""
        return self.method == _STORED


class ZipArchive:
    """Members of an archive, which may be a part of a file.

    Args:
        file: the file.
        start: the offset of the archive in the file.
        end: its end; None for the end of the file.

    Attributes:
        members: by name, in the order of the archive.

    Raises:
        CheckpointDamagedError: the archive is truncated, damaged or inconsistent.
    """

    def __init__(self, file: ByteFile, start: int = 0, end: int | None = None) -> None:
        self.file = file
        self._start = start
        self._end = file.size if end is None else end
        self.members: dict[str, Member] = {}
        listing, count = self._listing()
        self._read_members(listing, count)
        self._require_apart()
        starts = sorted(member.header for member in self.members.values())
        self._ends = dict(zip(starts, [*starts, self._listed][1:], strict=True))

    def content_start(self, member: Member) -> int:
        """Return the offset of the content in the file.

        Raises:
            CheckpointDamagedError: its local header is missing or inconsistent.
        """
        # One read for both: a name is usually as long here as in the directory.
        start = member.header + _LOCAL.size
        expected = start + len(member.name.encode())
        header = self._copy(member.header, min(expected, self._end))
        magic, flags, method, name_length, extra_length = _LOCAL.unpack_from(header)
        if start + name_length == expected:
            name = header[_LOCAL.size :]
        else:
            name = self._copy(start, start + name_length)
        if magic != ZIP_MAGIC or method != member.method or flags & _ENCRYPTED:
            raise self._damaged(f"the header of {member.name!a} is not there")
        if _decoded(name) != member.name:
            raise self._damaged(f"{member.name!a} has another name in its own header")
        start += name_length + extra_length
        if start + member.compressed > self._end:
            raise self._damaged(f"{member.name!a} reaches beyond the end")
        return start

    def bounds(self, member: Member) -> tuple[int, int]:
        """Return the offset of a member's local header, and an upper bound of its end."""
        return member.header, self._ends[member.header]

    def content(self, name: str, limit: int) -> bytes:
        """Return the complete content of a small member.

        Raises:
            CheckpointDamagedError: the member is missing, damaged, or larger than `limit` bytes.
        """
        member = self.members.get(name)
        if member is None:
            raise self._damaged(f"it lacks {name!a}")
        if member.size > limit:
            raise self._damaged(f"{name!a} has {member.size} bytes")
        if not member.stored:
            return self.inflate(member).tobytes()
        start = self.content_start(member)
        return self.file.copy(start, start + member.size)

    def inflate(self, member: Member) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the content of a compressed member, with a verified checksum.

        Raises:
            CheckpointDamagedError: the member is damaged.
        """
        start = self.content_start(member)
        held = np.empty(member.size, np.uint8)  # the memory is only taken as it is filled
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        done, checksum = 0, 0
        try:
            for at in range(start, start + member.compressed, _PIECE):
                piece = self.file.copy(at, min(at + _PIECE, start + member.compressed))
                while piece:
                    part = inflater.decompress(piece, _PIECE)
                    if done + len(part) > member.size:
                        raise self._damaged(f"{member.name!a} is larger than announced")
                    held[done : done + len(part)] = np.frombuffer(part, np.uint8)
                    checksum = zlib.crc32(part, checksum)
                    done += len(part)
                    piece = inflater.unconsumed_tail
        except zlib.error as error:
            raise self._damaged(f"{member.name!a}: {error}") from None
        if done != member.size or checksum != member.checksum:
            raise self._damaged(f"the content of {member.name!a} is not what was written")
        return held

    def inflated_start(self, member: Member, size: int) -> bytes:
        """Return the first bytes of a compressed member, at most `size`.

        Raises:
            CheckpointDamagedError: the member is damaged there.
        """
        start = self.content_start(member)
        packed = self.file.copy(start, start + min(member.compressed, size))
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, size)
        except zlib.error as error:
            raise self._damaged(f"{member.name!a}: {error}") from None

    def _listing(self) -> tuple[bytes, int]:
        """Return the bytes of the central directory, and the number of members."""
        tail_start = max(self._start, self._end - _END.size - _LONGEST_COMMENT)
        tail = self._copy(tail_start, self._end)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or at + _END.size > len(tail):
            raise self._damaged("the list of its members is not there")
        _, count, length, offset = _END.unpack_from(tail, at)
        end = tail_start + at
        if 0xFFFF in (count,) or 0xFFFFFFFF in (length, offset):
            end, count, length, offset = self._listing64(end, count, length, offset)
        if offset + length > end - self._start:
            raise self._damaged("the list of its members is not where it should be")
        self._listed = start = self._start + offset
        return self._copy(start, start + length), count

    def _listing64(self, end: int, *small: int) -> tuple[int, int, int, int]:
        """Return the location of the directory in ZIP64 archives."""
        start = end - _END64_PLACE.size
        if start < self._start:
            return (end, *small)  # type: ignore[return-value]
        magic, offset = _END64_PLACE.unpack(self._copy(start, end))
        if magic != b"PK\x06\x07":
            return (end, *small)  # type: ignore[return-value]
        at = self._start + offset
        if at + _END64.size > start:
            raise self._damaged("the list of its members is not where it should be")
        magic, count, length, offset = _END64.unpack(self._copy(at, at + _END64.size))
        if magic != b"PK\x06\x06":
            raise self._damaged("the list of its members is not where it should be")
        return at, count, length, offset

    def _read_members(self, listing: bytes, count: int) -> None:
        at = 0
        for _ in range(count):
            if at + _MEMBER.size > len(listing):
                raise self._damaged("the list of its members is cut off")
            magic, flags, method, crc, compressed, size, *lengths, header = _MEMBER.unpack_from(
                listing, at
            )
            name_length, extra_length, comment_length = lengths
            at += _MEMBER.size
            name = _decoded(listing[at : at + name_length])
            extra = listing[at + name_length : at + name_length + extra_length]
            at += name_length + extra_length + comment_length
            if magic != b"PK\x01\x02" or at > len(listing):
                raise self._damaged("the list of its members is damaged")
            size, compressed, header = self._sizes64(extra, size, compressed, header)
            self._add(Member(name, self._start + header, compressed, size, method, crc), flags)
        if at != len(listing):
            raise self._damaged("the list of its members has another length")

    def _sizes64(self, extra: bytes, *fields: int) -> tuple[int, int, int]:
        """Return the sizes and the offset of a member from the extra field, which holds large values."""
        values = list(fields)
        if 0xFFFFFFFF not in values:
            return values[0], values[1], values[2]
        at = 0
        while at + 4 <= len(extra):
            tag, length = struct.unpack_from("<2H", extra, at)
            at += 4
            if tag == 1:
                for index, value in enumerate(values):
                    if value == 0xFFFFFFFF:
                        if at + 8 > len(extra):
                            raise self._damaged("a size is cut off")
                        (values[index],) = struct.unpack_from("<Q", extra, at)
                        at += 8
                return values[0], values[1], values[2]
            at += length
        return values[0], values[1], values[2]

    def _add(self, member: Member, flags: int) -> None:
        name = member.name
        if name in self.members:
            raise self._damaged(f"it has two members named {name!a}")
        if name.startswith("/") or ".." in name.split("/") or "\\" in name:
            raise self._damaged(f"a member's name leads out of it: {name!a}"[:200])
        if flags & _ENCRYPTED:
            raise CheckpointDamagedError(f"{self.file.path} is encrypted", "decrypt it first")
        if member.method not in (_STORED, _DEFLATED):
            raise self._damaged(f"{name!a} is compressed by the method {member.method}")
        if member.stored and member.size != member.compressed:
            raise self._damaged(f"{name!a} has two sizes")
        if member.size > _MOST_INFLATION * max(member.compressed, 1):
            raise self._damaged(f"{name!a} cannot have {member.size} bytes")
        if member.size > max(_LARGE, _LARGE_INFLATION * member.compressed):
            raise CheckpointDamagedError(
                f"{self.file.path}: {name!a} has {member.compressed} bytes and would have {member.size}",
                "save it without compression",
            )
        if member.header + _LOCAL.size + member.compressed > self._end:
            raise self._damaged(f"{name!a} reaches beyond the end")
        self.members[name] = member

    def _require_apart(self) -> None:
        """Check that no two members share bytes: such archives grow without bound when unpacked."""
        end, before = self._start, ""
        for member in sorted(self.members.values(), key=lambda member: member.header):
            if member.header < end:
                raise self._damaged(f"{member.name!a} overlaps {before!a}")
            end = member.header + _LOCAL.size + member.compressed
            before = member.name

    def _copy(self, start: int, end: int) -> bytes:
        if end > self._end or start < self._start:
            raise self._damaged("it ends where more is announced")
        return self.file.copy(start, end)

    def _damaged(self, reason: str) -> CheckpointDamagedError:
        return CheckpointDamagedError(
            f"{self.file.path} is truncated or damaged ({reason})", COPY_AGAIN
        )


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "replace")
