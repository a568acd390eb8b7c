"""A turn that trains in one of several branches has its step in each of them."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

STYLES = ("native", "portable")
HEAD = """
import torch


def train(model, loader, optimizer, scaler, meter, accumulate):
    model.cuda()
    for i, batch in enumerate(loader):
        batch = batch.to("cuda")
"""
CASES = {
    "a read in the first": """
        if scaler is not None:
            loss = model(batch).mean()
            meter.update(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()
    """,
    "a read in the last": """
        if scaler is None:
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()
        elif i % 2:
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
        else:
            loss = model(batch).mean()
            print(loss.item())
            loss.backward()
            optimizer.step()
    """,
    "a part of a step in one": """
        if i % accumulate:
            loss = model(batch).mean()
            loss.backward()
        else:
            loss = model(batch).mean()
            meter.update(loss.item())
            loss.backward()
            optimizer.step()
    """,
    "below what is caught": """
        try:
            loss = model(batch).mean()
            meter.update(loss.item())
            loss.backward()
            optimizer.step()
        except RuntimeError:
            loss = model(batch[:1]).mean()
            loss.backward()
            optimizer.step()
    """,
}
CALLED = """
import torch


def simple(net, batch, o):
    loss = net(batch).mean()
    loss.backward()
    o.step()
    return loss


class Trainer:
    def __init__(self, net, o, parts):
        self.net, self.o, self.parts = net.cuda(), o, parts

    def turn(self, batch):
        self.o.zero_grad()
        if self.parts == 1:
            loss = self.net(batch).mean()
            loss.backward()
            self.o.step()
            return loss
        for part in batch.chunk(self.parts):
            loss = self.net(part).mean()
            loss.backward()
        self.o.step()
        return loss

    def fit(self, loader, plain, every):
        for i, batch in enumerate(loader):
            batch = batch.to("cuda")
            if plain:
                loss = simple(self.net, batch, self.o)
            else:
                loss = self.turn(batch)
            if i % every == 0:
                print(loss.item())
"""


def rewritten(text: str, style: Style) -> str:
    done = rewrite_source(
        parse(text.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )
    assert not [note for note in done.findings if note.rule == "step"]
    return done.data.decode()


def outside(text: str) -> list[str]:
    """Return the backward passes and updates of a script that lie in no step."""
    tree = ast.parse(text)
    steps = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and ast.unparse(node.items[0]).endswith(".step()")
    ]
    within = {id(node) for step in steps for node in ast.walk(step)}
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in ("backward", "step")
        and id(node) not in within
    ]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", CASES)
def test_each_branch_has_its_step(case: str, style: Style) -> None:
    text = rewritten(HEAD + textwrap.indent(textwrap.dedent(CASES[case]), " " * 8), style)
    assert outside(text) == []


@pytest.mark.parametrize("style", STYLES)
def test_each_function_of_a_choice_has_its_step(style: Style) -> None:
    text = rewritten(CALLED, style)
    assert outside(text) == ["loss.backward()", "o.step()"]  # of `simple`, whose call has one
    assert "step():\n                    loss = simple(self.net, batch, self.o)" in text
