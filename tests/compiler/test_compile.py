"""What is told of a compiler that gave no answer."""

from __future__ import annotations

import sys

import pytest

from migrate import process
from migrate.compiler.compile import compile_for_tpu
from migrate.compiler.program import CompilerProgram

# As libtpu 0.0.42 says of float64 that becomes complex128.
ABORT = """WARNING: Logging before InitGoogle() is written to STDERR
E0000 00:00:1795460903.222649   22195 common_lib.cc:554] INVALID_ARGUMENT: Error: unexpected worker
F1123 19:08:23.596898   22195 xprecision_rewriter.cc:2101] Unsupported CVT X{64} expansion from f64 to c128
*** Check failure stack trace: ***
    @     0x7fd5ab49bc54  absl::log_internal::LogMessage::SendToLog()
"""


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        (
            ABORT,
            ": Unsupported CVT X{64} expansion from f64 to c128 (xprecision_rewriter.cc:2101)",
        ),
        ("", ""),
    ],
)
def test_an_abort_says_why(printed: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libtpu")
    monkeypatch.setattr(process, "run", lambda *_, **__: (-6, printed))
    found = compile_for_tpu(CompilerProgram("f", "stablehlo", b""), [{}])
    assert found.undetermined == f"the TPU compiler ended by SIGABRT{why}"


def test_a_compiler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    found = compile_for_tpu(CompilerProgram("f", "stablehlo", b""), [{}])
    assert found.undetermined == (
        "libtpu not installed; pip install '.[tpu]' in a clone of tpu-migrate"
    )
    assert not found.texts
