"""Generators of torch that are made by another name than torch's: a class derived from it, a partial."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import check_and_mend
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

STREAMS = """
    from torch import Generator


    class Stream(Generator):
        def __deepcopy__(self, memo):
            copy = type(self)(device=self.device)
            copy.set_state(self.get_state())
            return copy


    class Seeded(Generator):
        def __new__(cls, seed, device="cuda"):
            made = super().__new__(cls, device)
            made.manual_seed(seed)
            return made
"""
MAIN = """
    from functools import partial

    import torch
    from streams import Seeded, Stream

    Alias = torch.Generator


    class Model(torch.nn.Module):
        def __init__(self, device="cuda"):
            super().__init__()
            self.head = torch.nn.Linear(4, 8)
            self.first = LINE


    model = Model().cuda()
"""
ON_HOST = {"native": '"cpu"', "portable": "shims.generator().device"}


def texts(folder: Path, style: Style, line: str) -> dict[str, str]:
    (folder / "streams.py").write_text(dedent(STREAMS).lstrip())
    (folder / "main.py").write_text(dedent(MAIN).lstrip().replace("LINE", line))
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    assert not any(n.rule == "XLA814" for file in done.files for n in file.findings)
    return {file.name.stem: (file.after or b"").decode() for file in done.files}


@pytest.mark.parametrize("style", ["native", "portable"])
def test_the_device_of_a_generator_of_another_name(tmp_path: Path, style: Style) -> None:
    lines = [
        'Stream(device="cuda" if torch.cuda.is_available() else "cpu")',
        "Stream(device)",
        'Alias(device="cuda")',
        'partial(torch.Generator, device="cuda")',
        "Stream(); self.on_host = Stream('cpu')",
    ]
    host = ON_HOST[style]
    expected = [
        f"Stream(device={host})",
        f"Stream({host})",
        f"Alias(device={host})",
        f"partial(torch.Generator, device={host})",
        "Stream(); self.on_host = Stream('cpu')",
    ]
    both = texts(tmp_path, style, "; self.rng = ".join(lines))
    assert f"self.first = {'; self.rng = '.join(expected)}\n" in both["main"]
    assert f"made = super().__new__(cls, {host})" in both["streams"]
    assert "type(self)(device=self.device)" in both["streams"]


def test_check_names_each_of_them(tmp_path: Path) -> None:
    (tmp_path / "streams.py").write_text(dedent(STREAMS).lstrip())
    (tmp_path / "main.py").write_text("from streams import Stream\n\nrng = Stream('cuda')\n")
    done = check_and_mend([tmp_path], Config(root=tmp_path))
    reported = {(f.path.name, f.line) for f in done.findings if f.code == "XLA814"}
    assert reported == {("streams.py", 13), ("main.py", 3)}


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("fill", "reported"),
    [
        ("torch.empty_like(x).exponential_(generator=rng)", True),
        ("x.new_empty(3).cauchy_(0, 1, generator=rng)", True),
        ("x.clone().geometric_(0.5, generator=rng)", True),
        ("torch.zeros(3, device='cuda').log_normal_(generator=rng)", True),
        ("torch.empty_like(x).exponential_(generator=None)", False),
        ("torch.empty_like(x).normal_(generator=rng)", False),
        ("torch.empty(3).exponential_(generator=rng).cuda()", False),
    ],
)
def test_fills_that_xla_does_not_make_with_a_generator(
    tmp_path: Path, style: Style, fill: str, reported: bool
) -> None:
    head = "import torch\n\nrng = torch.Generator(device='cuda')\nx = torch.ones(3).cuda()\n"
    (tmp_path / "draw.py").write_text(f"{head}y = {fill}\n")
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    lines = [n.line for file in done.files for n in file.findings if n.rule == "XLA814"]
    assert lines == ([5] if reported else [])
