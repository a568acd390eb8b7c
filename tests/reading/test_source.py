"""Reading scripts: what is refused, and how; what is read comes back byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import (
    NotPythonError,
    NotUtf8Error,
    UnreadableScriptError,
    parse,
    read,
)

SCRIPT = Path("script.py")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x = 1",
        b"x = 1\r\ny = 2\r\n",
        b"x = 1\r\ny = 2\n\x0c\nz = 3",
        b"x = 1  \n\n\n   \n",
        b"\xef\xbb\xbfx = 1\n",
        b'# -*- coding: latin-1 -*-\nx = "\xe9"\n',
        b"if x:\n\ty = 1\n\t# done\n",
        b"#!/usr/bin/env python\n# comment\n\n\nx = 1 ;\n# end\n",
    ],
)
def test_what_is_read_is_written_back(data: bytes) -> None:
    source = parse(data, SCRIPT)
    assert source.render(source.module) == data
    assert rewrite_source(source).data == data


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("tail", [b"", b"\n", b"\n\n  \n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_an_edit_keeps_encoding_line_endings_and_the_end_of_the_file(
    ending: bytes, tail: bytes, mark: bytes
) -> None:
    tail = tail.replace(b"\n", ending)
    before = mark + b"import torch" + ending + b"x = torch.zeros(3).cuda()" + tail
    lines = [b"import torch", b"import torch_xla", b"", b'x = torch.zeros(3).to("xla")']
    after = mark + ending.join(lines) + tail
    assert rewrite_source(parse(before, SCRIPT)).data == after


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"x = 1\nprint x\n", NotPythonError, "script.py:2:1: Missing parentheses"),
        (b"x.cuda(async=True)\n", NotPythonError, "script.py:1:8: "),
        (b"x = (\n", NotPythonError, "script.py:1:5: '(' was never closed"),
        (b"x = 1\nif x:\n  a\n b\n", NotPythonError, "script.py:4:"),
        (b"\x00", NotPythonError, "script.py:1:1: "),
        (b'x = 1\ny = "\xe9"\n', NotUtf8Error, "script.py:2: byte 0xe9 is not valid utf-8"),
        ("x = 1\n".encode("utf-16"), NotUtf8Error, "script.py:1: is UTF-16"),
        (b"# coding: nonsense\n", NotUtf8Error, "script.py:1: unknown encoding"),
    ],
)
def test_what_cannot_be_read(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        parse(data, SCRIPT)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(UnreadableScriptError, match="no such file"):
        read(tmp_path / "missing.py")
    with pytest.raises(UnreadableScriptError, match="is a directory"):
        read(tmp_path)
