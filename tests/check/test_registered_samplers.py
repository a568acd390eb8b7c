"""XLA116: the loop of a sampler that only a registry hands out."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

REGISTRY = """
REGISTRY = {}


def register(name):
    def wrap(made):
        REGISTRY[name] = made
        return made
    return wrap


def build(name, **settings):
    return REGISTRY[name](**settings)
"""
SAMPLERS = """
import torch

from registry import register


@register("euler")
class Euler:
    def __init__(self, steps):
        self.steps = steps

    def solve(self, network, x):
        for step in range(self.steps):
            x = x - network(x) / self.steps
        return x


@register("heun")
def heun(network, x, steps=50):
    for step in range(steps):
        x = x - network(x) / steps
    return x
"""
MAIN = """
import argparse

import torch

import samplers
from registry import REGISTRY, build


def main(args):
    network = torch.nn.Linear(4, 4).cuda().eval()
    SAMPLER
    with CONTEXT:
        x = torch.randn(4, 4).cuda()
        y = CALL
    OTHER
    print(y.mean().item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sampler")
    main(parser.parse_args())
"""
METHOD = {"SAMPLER": "sampler = build(args.sampler, steps=50)", "CALL": "sampler.solve(network, x)"}
HELD = {"SAMPLER": "sampler = REGISTRY[args.sampler](steps=9)", "CALL": "sampler.solve(network, x)"}
FUNCTION = {"SAMPLER": "sampler = REGISTRY[args.sampler]", "CALL": "sampler(network, x)"}
TAKEN = {"SAMPLER": "pass", "CALL": "REGISTRY[args.sampler](network, x)"}
CASES = {
    "built": (METHOD, 13),
    "held": (HELD, 13),
    "function": (FUNCTION, 20),
    "taken": (TAKEN, 20),
}


def lines(folder: Path, words: dict[str, str], context: str, other: str = "pass") -> list[int]:
    """Return the lines of the samplers that are reported."""
    main = MAIN
    for word, text in {**words, "CONTEXT": context, "OTHER": other}.items():
        main = main.replace(word, text)
    for name, text in {"registry": REGISTRY, "samplers": SAMPLERS, "main": main}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    findings = check_paths([folder], Config()).findings
    return [one.line for one in findings if one.code == "XLA116"]


@pytest.mark.parametrize(("words", "line"), CASES.values(), ids=CASES)
def test_registered_sampler_without_gradients_is_reported(
    words: dict[str, str], line: int, tmp_path: Path
) -> None:
    assert line in lines(tmp_path, words, "torch.no_grad()")


@pytest.mark.parametrize(("words", "line"), CASES.values(), ids=CASES)
def test_sampler_with_gradients_is_not(words: dict[str, str], line: int, tmp_path: Path) -> None:
    assert line not in lines(tmp_path, words, "torch.enable_grad()")


def test_call_with_gradients_elsewhere_decides(tmp_path: Path) -> None:
    other = "loss = sampler.solve(network, x).mean(); loss.backward()"
    assert not lines(tmp_path, METHOD, "torch.no_grad()", other)
