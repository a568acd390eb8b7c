"""Expressions that an edit builds around a user's expression: parentheses where precedence asks for them."""

from __future__ import annotations

import ast
from pathlib import Path

import libcst as cst
import pytest

from migrate.rewrite.edits.nodes import with_parentheses
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse
from migrate.syntax.tree import code

# Each kind of expression, loosest first.
KINDS = (
    "(yield x)", "(x for x in y)", "x, y", "(x := y)", "lambda: x", "x if y else z", "x or y", "x and y",
    "not x", "x < y", "x not in y", "x | y", "x ^ y", "x & y", "x << y", "x + y", "x @ y", "-x", "x ** y",
    "await x", "x", "x.y", "x(y)", "x[y]", "1", "1.5", "'x'", "'x' 'y'", "[x]", "{x}", "f'{x}'",
)  # fmt: skip


def bare(text: str) -> cst.BaseExpression:
    """Return an expression without the parentheses around it."""
    return cst.parse_expression(text).with_changes(lpar=(), rpar=())


def around(value: cst.BaseExpression) -> dict[str, cst.BaseExpression]:
    """Return what is built around `value`, by the text with `#` in its place."""
    name = cst.Name("a")
    both = cst.BinaryOperation(name, cst.Add(), value)
    return {
        "(#) if a else a": cst.IfExp(test=name, body=value, orelse=name),
        "a if (#) else a": cst.IfExp(test=value, body=name, orelse=name),
        "a if a else (#)": cst.IfExp(test=name, body=name, orelse=value),
        "(#).cpu()": cst.Call(cst.Attribute(value, cst.Name("cpu"))),
        "(#)(a)": cst.Call(value, [cst.Arg(name)]),
        "(#)[a]": cst.Subscript(value, [cst.SubscriptElement(cst.Index(name))]),
        "a + (#)": both,
        "(#) + a": cst.BinaryOperation(value, cst.Add(), name),
        "a ** (#)": cst.BinaryOperation(name, cst.Power(), value),
        "(#) ** a": cst.BinaryOperation(value, cst.Power(), name),
        "(#) * a": cst.BinaryOperation(value, cst.Multiply(), name),
        "(#) and a": cst.BooleanOperation(value, cst.And(), name),
        "a or (#)": cst.BooleanOperation(name, cst.Or(), value),
        "not (#)": cst.UnaryOperation(cst.Not(), value),
        "(#) == a": cst.Comparison(value, [cst.ComparisonTarget(cst.Equal(), name)]),
        "a == (#)": cst.Comparison(name, [cst.ComparisonTarget(cst.Equal(), value)]),
        "a(a, (#))": cst.Call(name, [cst.Arg(name), cst.Arg(value)]),
        "a(b=(#))": cst.Call(name, [cst.Arg(value, keyword=cst.Name("b"))]),
        "[(#), a]": cst.List([cst.Element(value), cst.Element(name)]),
        "(a + (#)).cpu()": cst.Call(cst.Attribute(both, cst.Name("cpu"))),
        "f'{(#)}'": cst.FormattedString([cst.FormattedStringExpression(value)], "f'", "'"),
    }


def meaning(text: str) -> str:
    """Return what Python makes of an expression: without parentheses, operands of `or` in one row."""

    class Row(ast.NodeTransformer):
        def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
            self.generic_visit(node)
            values: list[ast.expr] = []
            for value in node.values:
                if isinstance(value, ast.BoolOp) and type(value.op) is type(node.op):
                    values += value.values
                else:
                    values.append(value)
            return ast.BoolOp(node.op, values)

    tree = ast.parse(f"async def f():\n    return {text}")
    return ast.dump(Row().visit(tree))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_built_means_what_was_meant(kind: str) -> None:
    for text, built in around(bare(kind)).items():
        if text.startswith("f") and kind[0] in "'f{":
            continue  # the quotes are the builder's affair
        written = code(with_parentheses(built))
        assert meaning(written) == meaning(text.replace("#", kind)), (text, written)


def test_an_expression_that_needs_none_gets_none() -> None:
    for kind in ("x", "x.y", "x(y)", "x[y]", "'x'", "[x]"):
        for text, built in around(bare(kind)).items():
            written = code(with_parentheses(built))
            assert written == text.replace("(#)", kind).replace("(b=", "(b = ")


def test_written_code_keeps_its_parentheses() -> None:
    """Nothing that Python accepts is given parentheses: the tables ask for no more than the grammar."""
    for path in sorted(Path(__file__).parents[1].glob("rewrite/test_s*.py"))[:12]:
        module = cst.parse_module(path.read_text())
        assert with_parentheses(module) is module
    text = (
        "f(x for x in y)\nx = yield\nfor a in 1, 2: pass\nwhile y := f(): pass\nx[a, b]\nx[a:b if c else d]\n"
        "{**(a or b), 1: lambda: 2}\nf(*a or b, **c or d, e=lambda: (yield))\n[x for x in (a if b else c)]\n"
        "assert x, y if z else w\nraise E if x else F\nf'{x if y else z!r:>{w}} {a, b}'\nlambda x=1 or 2: x\n"
        "not not x\n- -x\n2 ** -x ** 2\n(a := 1, b)\nx if lambda: y else z\n(await x) ** 2 if y else z\n"
    ).replace("x if lambda: y else z\n", "")
    module = cst.parse_module(text)
    assert with_parentheses(module) is module


SCRIPT = """
import os

import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel as DDP


def main(args):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if args.wandb and rank == 0:
        wandb.init(project="p")
    model = DDP(torch.nn.Linear(4, 4).cuda())
    if rank == 0:
        state = {{"model": model.state_dict(), "run": {value}}}
        torch.save(state, "last.pt")


if __name__ == "__main__":
    main(None)
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            "wandb.run.dir if args.wandb else None",
            '"run": (wandb.run.dir if rank == 0 else None) if',
        ),
        ("args.wandb and wandb.run.dir", "and (wandb.run.dir if rank == 0 else None)}"),
        ("not wandb.run.dir", "not (wandb.run.dir if rank == 0 else None)}"),
        ('wandb.run.dir + "/x"', '(wandb.run.dir if rank == 0 else None) + "/x"'),
        ("wandb.run.dir", '"run": wandb.run.dir if rank == 0 else None}'),
    ],
)
def test_a_value_of_one_replica_within_an_expression(
    value: str, expected: str, style: Style
) -> None:
    source = SCRIPT.format(value=value)
    done = rewrite_source(
        parse(source.encode(), Path("train.py")), options=RewriteOptions(style=style)
    )
    text = done.data.decode()
    if "wandb.run.dir if rank == 0" in text:
        assert expected in text
    else:
        assert any("wandb" in f.message for f in done.findings)
