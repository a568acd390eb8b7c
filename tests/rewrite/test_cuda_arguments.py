"""Arguments that say to another library whether there is CUDA stay false on XLA, or are reported."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

HEAD = """
import functools

import faiss
import torch
import torch_fidelity
from torch_fidelity import calculate_metrics


def evaluate(samples, device="cuda"):
    torch.ones(1).to(device)
"""


def done(body: str, style: str) -> Rewrite:
    script = HEAD.lstrip() + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"
    return rewrite_source(
        parse(script.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )


QUESTIONS = [
    "return calculate_metrics(samples, cuda=(device == 'cuda'))",
    "return torch_fidelity.calculate_metrics(samples, cuda='cuda' in device)",
    "return calculate_metrics(samples, cuda=device.startswith('cuda'))",
    "return calculate_metrics(samples, cuda=True if device == 'cuda' else False)",
    "return faiss.Kmeans(8, 8, gpu=device == 'cuda')",
    "return functools.partial(calculate_metrics, cuda=device == 'cuda')",
    "options = dict(isc=True, cuda=(device == 'cuda'))\nreturn calculate_metrics(**options)",
    "options = {'isc': True, 'cuda': device == 'cuda'}\nreturn calculate_metrics(**options)",
    "if samples:\n    options = dict(cuda=device == 'cuda')\n"
    "else:\n    options = dict(cuda=device == 'cuda')\n"
    "return calculate_metrics(**options)",
    "on = device == 'cuda'\nreturn calculate_metrics(samples, cuda=on)",
]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("body", QUESTIONS)
def test_a_question_for_cuda_stays_one(body: str, style: str) -> None:
    made = done(body, style)
    assert textwrap.indent(body, "    ") in made.data.decode()
    assert not made.findings


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "body",
    [
        "return calculate_metrics(samples, cuda=True)",
        "return faiss.Kmeans(8, 8, gpu=device != 'cpu')",
        "options = dict(cuda=True)\nreturn calculate_metrics(**options)",
        # The other use asks for an accelerator.
        "on = device == 'cuda'\nif on:\n    samples.cuda()\nreturn calculate_metrics(samples, cuda=on)",
    ],
)
def test_what_is_true_on_xla_is_reported(body: str, style: str) -> None:
    (finding,) = done(body, style).findings
    assert "that there is CUDA" in finding.message


@pytest.mark.parametrize(
    "body",
    [
        "return calculate_metrics(samples, cuda=False)",
        "return own(samples, cuda=True)",
        "return dict(cuda=True)",
    ],
)
def test_what_is_no_other_library_is_left_alone(body: str) -> None:
    assert done(body, "native").findings == ()
