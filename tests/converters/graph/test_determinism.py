"""A port is the same bytes whatever Python's hashes of text are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT

ROOT = Path(__file__).parents[3]
# Models with several forms of a class, fields, arguments that not every call gives, functions, comments.
SMALL = ("two towers", "stages", "named", "modulated", "commented")
_CHILD = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from converters.graph import port

def said(made):
    texts = [made.modeling, made.config, *made.notes, *made.baked, *made.free]
    return [*texts, *made.methods_left, *made.settings]

found = {}
if sys.argv[1] == "small":
    from tests.converters.graph import test_methods, test_port
    for name in sys.argv[2:]:
        found[name] = said(test_port.made(name)[2])
    found["coder"] = said(test_methods.made("coder")[2])
else:
    from benchmarks.zoo_models import gallery
    for name in sys.argv[2:]:
        found[name] = said(port(*gallery.build(name)))
json.dump(found, sys.stdout)
"""


def written(seeds: tuple[int, ...], *words: str) -> list[dict[str, list[str]]]:
    """What processes with these seeds of hashes write, which run side by side."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, *words],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in seeds
    ]
    found = []
    for one in running:
        output, errors = one.communicate(timeout=LIMIT)
        assert one.returncode == 0, errors[-2000:]
        found.append(json.loads(output))
    return found


@pytest.mark.long
def test_small_models_are_written_alike() -> None:
    first, second = written((1, 2), "small", *SMALL)
    assert len(first) == len(SMALL) + 1
    assert first == second


@pytest.mark.long
def test_the_command_fixes_the_hashes(tmp_path: Path) -> None:
    """The order of a set of names is that of the command, whatever process it runs in."""
    (tmp_path / "net.py").write_text("raise RuntimeError(' '.join({*'abcdefgh'}))\n")
    program = Path(sys.executable).with_name("migrate")
    environment = {key: one for key, one in os.environ.items() if key != "PYTHONHASHSEED"}
    running = [
        subprocess.Popen(
            [program, "port", "net.py:Net", "-o", "out"],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    first, second = (one.communicate(timeout=LIMIT)[0] for one in running)
    assert "RuntimeError" in first
    assert first == second


@pytest.mark.long
def test_the_gallery_is_written_alike() -> None:
    """But for Gemma 3, which goes over a set itself: `migrate port` fixes the hashes for it."""
    first, second, third = written((1, 2, 3), "gallery", "gpt_oss", "t5", "swin", "whisper")
    assert first == second == third
