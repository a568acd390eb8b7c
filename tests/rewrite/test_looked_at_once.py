"""What is expensive about a project is asked once: a second answer would be the same."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest

from migrate.reading.collectives import uneven_graphs
from migrate.reading.facts import Facts
from migrate.reading.script import Script
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left import after
from migrate.rewrite.left.after import FileAnalysis, Left
from migrate.syntax.source import parse

MAIN = """
    import torch
    from first import shift
    from second import scale


    def train(model, loader, optimizer):
        model.cuda()
        for x in loader:
            loss = model(scale(shift(x.cuda()))).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""
FIRST = """
    import torch
    from second import clip


    def shift(x):
        return clip(x + 1)
"""
SECOND = """
    import torch


    def scale(x):
        return x * 2


    def clip(x):
        if x.max().item() > 1:
            return x / 2
        return x
"""


def test_functions_that_steps_run_are_inspected_once_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`first` leads into a function of `second` that the first look at `second` did not know."""
    for name, text in {"main": MAIN, "first": FIRST, "second": SECOND}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    asked: Counter[str] = Counter()
    inspect = after._left_in

    def counted(facts: Facts, look: FileAnalysis) -> tuple[Left, ...]:
        asked[look.path.name] += 1
        return inspect(facts, look)

    monkeypatch.setattr(after, "_left_in", counted)
    done = rewrite_folder(tmp_path, processes=1)
    assert asked == {"first.py": 1, "second.py": 1}
    found = {(file.name.name, note.line) for file in done.files for note in file.findings}
    assert ("second.py", 9) in found


def test_graphs_are_not_followed_where_all_replicas_do_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`scatter` may be any function: without a guard, no replica computes something alone."""
    script = """
        import torch


        def extend(values, shape):
            return torch.tensor(values).cuda().scatter(shape)
    """

    def follow(*_: object) -> None:
        raise AssertionError("followed")

    monkeypatch.setattr(uneven_graphs._UnevenWalk, "effects", follow)
    data = textwrap.dedent(script).lstrip().encode()
    facts = Facts(Script(parse(data, Path("script.py"))))
    assert uneven_graphs.UnevenGraphs(facts).all() == []
    by_bit = data.replace(b"torch.tensor(values)", b"torch.tensor(values > 0)")
    followed = Facts(Script(parse(by_bit, Path("script.py"))))
    with pytest.raises(AssertionError, match="followed"):
        uneven_graphs.UnevenGraphs(followed).all()
