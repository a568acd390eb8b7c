"""Imported names and positions are those that libcst's own, slower providers find."""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing.context
import typing
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import libcst as cst
import pytest
from libcst.metadata import (
    MetadataWrapper,
    PositionProvider,
    QualifiedNameSource,
    ScopeProvider,
)

from migrate.reading.script import Script
from migrate.syntax.source import parse
from migrate.syntax.tree import is_dotted_name

SCOPES = dedent(
    """
    import torch
    import torch.nn, torch.nn.functional as F, os.path
    import torch.distributed as dist
    from torch import nn, optim as o, cuda
    from . import near
    from .. import above as over
    from .package.module import name as other
    from everything import *  # and of two, libcst and we know none of the names
    from more import *

    torch.nn.functional.relu(torch.zeros(1)).torch.nn
    torch.cuda, torch.nn.Linear, os.path.join, os.getcwd, F.relu, near.a, over.b, other, nothing.c
    early()
    from late import early
    early()
    try:
        import json
    except ImportError:
        import simplejson as json
    json.dumps

    @torch.no_grad()
    def f(torch, x: torch.Tensor = torch.ones(1), *nn: nn.Module, o) -> torch.Tensor:
        torch.cuda, nn.Linear, o.Adam, dist.barrier
        import dist
        dist.barrier
        def inner():
            nonlocal torch
            torch = 1
            return torch, dist.a, cuda.synchronize

    def g():
        cuda.early
        cuda = 1
        cuda.late
        global dist, fresh
        dist.a
        dist = other.b
        import fresh.part
        fresh.part.c
        for nn in nn.x: nn.y
        else: nn.z
        with o.open() as o, cuda: o.b
        (F := F.x).y
        del near
        near.c
        return [torch.a for torch in torch.b if torch.c for nn in nn.d], {o.a: o.b for o in o.c}

    class C(nn.Module, metaclass=o.M):
        nn = nn.a
        import torch.late as torch
        torch.x
        [torch.a for _ in torch.b]
        def method(self, torch=torch.y, p=lambda torch, F=F.relu: torch.x + F.x):
            return torch.z, nn.b, self.torch, (lambda: dist.c)().d, torch[dist.e].f

    fresh.part, fresh.d
    x, (near, *over[torch.i].j) = 1, 2
    near.y, over.z
    other.a.b += other.c
    o: o.T = o.U
    match F.value:
        case o.A(x=nn.B) | {"k": cuda, **dist}: cuda.q
    """
)


def of_libcst(wrapper: MetadataWrapper) -> dict[cst.CSTNode, str | None]:
    names: dict[cst.CSTNode, str | None] = {}
    for node, scope in wrapper.resolve(ScopeProvider).items():
        if is_dotted_name(node):
            found = scope.get_qualified_names_for(node) if scope is not None else ()
            imported = {name.name for name in found if name.source is QualifiedNameSource.IMPORT}
            names[node] = imported.pop() if len(imported) == 1 else None
    return names


def source_of(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text()


SOURCES = [
    pytest.param(SCOPES, id="scopes"),
    pytest.param(SCOPES.replace("\n", "\r\n").rstrip(), id="other line ends"),
    pytest.param("", id="nothing"),
    pytest.param("\n# only a comment", id="comment"),
    *(
        pytest.param(source_of(module), id=module.__name__)
        for module in (argparse, dataclasses, multiprocessing.context, typing)
    ),
]


@pytest.mark.parametrize("text", SOURCES)
def test_imported_names_are_those_of_libcst(text: str) -> None:
    context = Script(parse(text.encode(), Path("script.py")))
    expected = of_libcst(MetadataWrapper(context.module, unsafe_skip_copy=True))
    found = {node: context.qualified_name(node) for node in expected}
    code = context.module.code_for_node
    different = [
        (context.position(node).line, code(node), name, expected[node])
        for node, name in found.items()
        if name != expected[node]
    ]
    assert not different
    if text == SCOPES:
        assert sum(name is not None for name in found.values()) > 60
        rest = [node for node in context.nodes if is_dotted_name(node) and node not in expected]
        assert not any(context.qualified_name(node) for node in rest)


@pytest.mark.parametrize("text", SOURCES)
def test_positions_are_those_of_libcst(text: str) -> None:
    context = Script(parse(text.encode(), Path("script.py")))
    wrapper = MetadataWrapper(context.module, unsafe_skip_copy=True)
    for node, expected in wrapper.resolve(PositionProvider).items():
        assert context.position(node) == expected.start
        assert context.end(node) == expected.end
    assert context.source.positions.code == context.module.code


def test_a_name_that_the_script_binds_again_is_no_import() -> None:
    text = """
        import model, data
        try:
            import fast
        except ImportError:
            fast = None
        data.load()
        model = model.Net()
        model.cuda()
        fast.run()

        def train():
            model.cuda()
        """
    script = Script(parse(dedent(text).encode(), Path("script.py")))
    names = [script.qualified_name(call.func) for call in script.all_of(cst.Call)]
    assert names == ["data.load", "model.Net", None, "fast.run", None]


@pytest.mark.parametrize(
    ("attempt", "fallback", "name"),
    [
        (
            "from torch import GradScaler",
            "from torch.cuda.amp import GradScaler",
            "torch.GradScaler",
        ),
        ("import torch.amp as amp", "import torch.cuda.amp as amp", "torch.amp"),
        ("from apex.amp import GradScaler", "from torch.amp import GradScaler", None),
    ],
)
@pytest.mark.parametrize(
    ("test", "other"),
    [("try:", "except ImportError:"), ("if new:", "else:"), ("if new:", "elif old:")],
)
def test_a_name_that_torch_has_moved(
    attempt: str, fallback: str, name: str | None, test: str, other: str
) -> None:
    text = f"{test}\n    {attempt}\n{other}\n    {fallback}\n\n{attempt.split()[-1]}\n"
    script = Script(parse(text.encode(), Path("script.py")))
    last = script.module.body[-1]
    assert isinstance(last, cst.SimpleStatementLine)
    assert isinstance(last.body[0], cst.Expr)
    assert script.qualified_name(last.body[0].value) == name


def test_branches_that_select_another_function_are_unknown() -> None:
    text = "if old:\n    from torch import sum as f\nelse:\n    from torch import mean as f\nf(x)\n"
    script = Script(parse(text.encode(), Path("script.py")))
    assert [script.qualified_name(call.func) for call in script.all_of(cst.Call)] == [None]
