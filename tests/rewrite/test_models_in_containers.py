"""Evaluation and sampling loops whose model is an item, computes by a method, or is an unknown object."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

EVALUATION = """
import torch


@torch.no_grad()
def evaluate(GIVEN, loader, device):
    total = 0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        LINES
        total += (out.argmax(1) == y).sum()
    return total
"""


def rewritten(folder: Path, script: str, style: Style = "native") -> tuple[str, list[str]]:
    """Return a rewritten script, and the rules and hazards that speak of it."""
    (folder / "main.py").write_text(script.lstrip())
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    (file,) = done.files
    assert not file.problem
    return file.after.decode(), [note.rule for note in file.findings]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ("models", "out = models['encoder'](x)"),
        ("nets", "out = nets[0](x)"),
        ("parts", "out = parts['head'](x)"),
        ("clip_model", "out = clip_model.encode_image(x)"),
        ("model", "out = model.get_image_features(x)"),
        ("clip", "out = clip.encode_image(x)"),
    ],
)
def test_an_evaluation_gets_its_step(tmp_path: Path, style: Style, given: str, lines: str) -> None:
    script = EVALUATION.replace("GIVEN", given).replace("LINES", lines)
    text, _ = rewritten(tmp_path, script, style)
    module = "torch_xla" if style == "native" else "shims"
    block = text[text.index(f"with {module}.step():") :]
    assert lines in block
    assert "total += " in block


def test_a_text_is_encoded_for_each_class(tmp_path: Path) -> None:
    script = """
    import torch
    from tqdm import tqdm


    def unwrap(model):
        return model.module if hasattr(model, "module") else model


    def classifier(model, names, tokenize):
        model = unwrap(model)
        with torch.no_grad():
            weights = []
            for name in tqdm(names):
                texts = tokenize([name]).cuda()
                weights.append(model.encode_text(texts).mean(0))
        return torch.stack(weights)
    """
    text, _ = rewritten(tmp_path, textwrap.dedent(script))
    block = text[text.index("with torch_xla.step():") :]
    assert "model.encode_text(texts)" in block


SAMPLING = """
import torch


class Sampler:
    def __init__(self):
        self.nets = [torch.nn.Linear(8, 8).cuda() for _ in range(2)]

    @torch.no_grad()
    def sample(self, x, steps):
        for i in range(steps):
            LINE
        return x
"""


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("x = self.nets[i % 2](x) + x", True),
        ("x = self.nets[0](x) + x", True),
        ("x = self.nets[i](x)", False),  # the layers of one model
    ],
)
def test_a_sampling_loop_of_several_models(tmp_path: Path, line: str, reported: bool) -> None:
    _, rules = rewritten(tmp_path, SAMPLING.replace("LINE", line))
    assert ("XLA116" in rules) == reported


UNKNOWN = """
import library
import torch


class Batches:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for batch in self.loader:
            yield {name: part.cuda() for name, part in batch.items()}


def collect(GIVEN, loader):
    outs = []
    with torch.no_grad():
        for batch in loader:
            LINE
    return outs


collect(library.make("cuda"), Batches(library.data()))
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("given", "line", "reported"),
    [
        ("engine", "outs.append(engine(batch['x']))", True),
        ("thing", "out = thing(batch['x']); outs.append(out)", True),
        ("engine", "outs.append(engine(batch['x']).cpu())", False),
        ("tokenize", "outs.append(tokenize(batch['x']))", False),
        ("key_fn", "outs.append(key_fn(batch['x']))", False),
    ],
)
def test_an_object_of_which_nothing_is_known(
    tmp_path: Path, given: str, line: str, reported: bool, style: Style
) -> None:
    script = UNKNOWN.replace("GIVEN", given).replace("LINE", line)
    _, rules = rewritten(tmp_path, script, style)
    assert ("XLA116" in rules) == reported
