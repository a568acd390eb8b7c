"""What a test needs of the frameworks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need_torch_xla() -> None:
    """Skip the test where torch_xla is not installed.

    It is not imported here: it replaces layers of torch, for all tests of the process.
    """
    if find_spec("torch_xla") is None:
        pytest.skip("torch_xla is not installed")
