"""The index of a replica is followed through dictionaries, `**kwargs`, tuples and generators."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

# The names say nothing: what made the values decides.
OPTIMIZER = """
import torch
import torch.distributed as dist


class Own(torch.optim.Optimizer):
    def __init__(self, params, group):
        super().__init__(params, {{}})
        self.who, self.n = dist.get_rank(group), dist.get_world_size(group)

    def step(self):
        xs = self.param_groups[0]["params"]
{step}

{functions}

def body(xs, who, n):
    grads = [p.grad for p in xs]
    start = who * (len(grads) // n)
    mine = torch.stack(grads[start : start + len(grads) // n])
    dist.all_gather_into_tensor(torch.empty(1), mine)
"""
UPDATE = "def update(xs, who, n):\n    body(xs, who, n)"
WAYS = {
    "dict": ("args = dict(who=self.who, n=self.n)\nupdate(xs, **args)", UPDATE),
    "display": ('args = {"who": self.who, "n": self.n}\nupdate(xs=xs, **args)', UPDATE),
    "in-the-call": ("update(xs, **dict(who=self.who, n=self.n))", UPDATE),
    "spread": ('one = {"who": self.who}\nupdate(xs, **{**one, "n": self.n})', UPDATE),
    "merged": ('one = {"who": self.who}\nupdate(xs, **(one | {"n": self.n}))', UPDATE),
    "selected": (
        "one = dict(who=self.who, n=self.n, k=1)\n"
        'update(xs, **{name: value for name, value in one.items() if name != "k"})',
        UPDATE,
    ),
    "keys-set": (
        'args = {}\nargs["who"], args["n"] = self.who, self.n\nupdate(xs, **args)',
        UPDATE,
    ),
    "updated": ("args = {}\nargs.update(who=self.who, n=self.n)\nupdate(xs, **args)", UPDATE),
    "attribute": ("self.args = dict(who=self.who, n=self.n)\nupdate(xs, **self.args)", UPDATE),
    "tuple": ("args = self.who, self.n\nupdate(xs, *args)", UPDATE),
    "given-dict": (
        "update(xs, dict(who=self.who, n=self.n))",
        'def update(xs, args):\n    body(xs, args["who"], args["n"])',
    ),
    "handed-on-dict": (
        "update(xs, dict(who=self.who, n=self.n))",
        "def update(xs, args):\n    body(xs, **args)",
    ),
    "kwargs": ("update(xs=xs, who=self.who, n=self.n)", "def update(**kw):\n    body(**kw)"),
    "key-of-kwargs": (
        "update(xs, who=self.who, n=self.n)",
        'def update(xs, **kw):\n    body(xs, kw["who"], kw["n"])',
    ),
    "varargs": ("update(xs, self.who, self.n)", "def update(*args):\n    body(*args)"),
    "one-tuple-twice": (
        "pair = self.who, self.n\nsame = pair if xs else pair\nupdate(xs, *same)",
        UPDATE,
    ),
    "behind-a-tuple": (
        "pair = xs, self.who\nupdate(*pair, self.n)",
        "def update(xs, *more):\n    inner(xs, *more)\n\n"
        "def inner(xs, who, n):\n    body(xs, who, n)",
    ),
    "generator": (
        "for _ in update(xs, self.who, self.n):\n    pass",
        "def update(xs, who, n):\n    yield\n    body(xs, who, n)",
    ),
    "yielded": (
        "for who, n in update(self.who, self.n):\n    body(xs, who, n)",
        "def update(who, n):\n    yield who, n",
    ),
    "next": (
        "body(xs, next(update(self.who)), self.n)",
        "def update(who):\n    yield who",
    ),
    "yielded-from": (
        "for who in update(self.who):\n    body(xs, who, self.n)",
        "def update(who):\n    yield from inner(who)\n\ndef inner(who):\n    yield who",
    ),
    "returned-by-generator": (
        "for _ in update(xs, self.who, self.n):\n    pass",
        "def update(xs, who, n):\n    got = yield from inner(who)\n    body(xs, got, n)\n\n"
        "def inner(who):\n    yield\n    return who",
    ),
}


def reported(text: str, code: str = "XLA310") -> list[str]:
    """Return the lines of a script that `code` is reported at."""
    findings = check_source(parse(text.encode(), Path("script.py")), Config(select=(code,)))
    return [text.splitlines()[finding.line - 1].strip() for finding in findings]


@pytest.mark.parametrize(("step", "functions"), WAYS.values(), ids=WAYS)
def test_an_index_on_its_way_to_a_graph_is_followed(step: str, functions: str) -> None:
    text = OPTIMIZER.format(step=textwrap.indent(step, " " * 8), functions=functions)
    assert reported(text) == ["mine = torch.stack(grads[start : start + len(grads) // n])"]


NOT_ITS_WAY = {
    "number": ("args = dict(who=0, n=self.n)\nupdate(xs, **args)", UPDATE),
    "other-key": (
        'args = dict(who=0, rank=self.who)\nupdate(xs, **{**args, "n": 1})',
        "def update(xs, who, n, rank=0):\n    body(xs, who, n)",
    ),
    "kwargs": (
        "update(xs, who=0, n=self.n)",
        'def update(xs, **kw):\n    body(xs, kw["who"], kw["n"])',
    ),
    "behind-a-tuple": (
        "pair = xs, 0, 2\nupdate(*pair, self.who)",
        "def update(xs, *more):\n    inner(xs, *more)\n\n"
        "def inner(xs, who, n, k):\n    body(xs, who, n)",
    ),
    "generator": (
        "for _ in update(xs, 0, self.n):\n    pass",
        "def update(xs, who, n):\n    yield self\n    body(xs, who, n)",
    ),
}


@pytest.mark.parametrize(("step", "functions"), NOT_ITS_WAY.values(), ids=NOT_ITS_WAY)
def test_other_values_beside_an_index_are_none(step: str, functions: str) -> None:
    text = OPTIMIZER.format(step=textwrap.indent(step, " " * 8), functions=functions)
    assert reported(text) == []


def test_a_share_of_data_beside_parameters_is_no_share_of_parameters() -> None:
    text = """
import torch
import torch.distributed as dist


def main(model, files):
    args = dict(params=list(model.parameters()), files=files, who=dist.get_rank(), n=dist.get_world_size())
    train(**args)


def train(params, files, who, n):
    for file in files[who::n]:
        read(file)
    dist.all_reduce(params[0])
"""
    assert reported(text) == []
