"""Gloo prints its connections nowhere; the output is the script's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import LIMIT

pytest.importorskip("torch")
PROGRAM = """\
import torch.distributed as dist
from shims._shared import gloo_output

gloo_output.keep_off_stdout()
print("before")
store = dist.TCPStore("127.0.0.1", 0, 1, True)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
assert isinstance(dist.new_group(backend="gloo"), dist.ProcessGroup)
print("after")
"""


@pytest.mark.parametrize("closed", ["", "2>&-", ">&-"])
@pytest.mark.long_cases("2>&-", ">&-")
def test_stdout_has_only_what_the_script_prints(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, PROGRAM],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert done.stdout == ("" if closed == ">&-" else "before\nafter\n")
    assert "[Gloo]" not in done.stderr
