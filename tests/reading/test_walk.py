"""The walk of a tree gives what libcst's own, slower way gives."""

from __future__ import annotations

import ast
import inspect
from abc import ABCMeta
from collections.abc import Iterator
from textwrap import dedent

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, ParentNodeProvider

from migrate.syntax import walk, walk_ast

EVERYTHING = dedent(
    '''
    # a comment above
    from __future__ import annotations
    import a.b as c, d
    from . import (
        e,  # which is needed
        f as g,
    )
    from h import *

    @decorator(1, *args, k=2, **kwargs)
    class C(Base, metaclass=M):  # trailing
        """Docstring."""

        x: int = 1; y: str

        async def method(self, p, /, q: int = 3, *rest, r=4, **more) -> None:
            async with a as b, c: await d
            async for i in range(3): yield i
            else:
                pass
            return [i async for i in j if i if not k], {1: 2, **z}, {1, 2}, (n for n in m)

    def f(*, only, other=None):
        global name
        nonlocal_ = lambda v, *w: v if w else -v
        try:
            raise E from cause
        except (A, B) as e:
            del x[1:2, ::3], y.z
        except* C: ...
        else:
            assert a and not b, "text"
        finally:
            x += 1
        while (n := next(it)) < 3 <= m: break
        match x:
            case [1, *_, {"k": v, **rest}] | Point(x=0, y=None) as p if p: continue
            case _: pass
        print(f"{x!r:>{width}} {y}", "a" "b", b'c', 1.5e3, 2j, ..., *z)
        if x: return (yield)
        elif y: pass
        else: pass

    # a comment at the end
    '''
).replace("except* C: ...", "except C: ...")


def slowly(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield root
    for child in root.children:
        yield from slowly(child)


def without_blanks(root: cst.CSTNode) -> list[int]:
    return [id(node) for node in slowly(root) if type(node) not in walk.BLANK]


def test_every_node_but_spaces_in_the_order_of_libcst() -> None:
    module = cst.parse_module(EVERYTHING)
    assert [*map(id, walk.nodes(module))] == without_blanks(module)


def test_parents_are_those_of_libcst() -> None:
    wrapper = MetadataWrapper(cst.parse_module(EVERYTHING))
    found, above = walk.order(wrapper.module)
    assert [*map(id, found)] == without_blanks(wrapper.module)
    expected = wrapper.resolve(ParentNodeProvider).items()
    assert above == {id(node): parent for node, parent in expected if type(node) not in walk.BLANK}


KINDS = [
    kind for _, kind in inspect.getmembers(cst, inspect.isclass) if issubclass(kind, cst.CSTNode)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nodes_of_a_kind_are_all_of_them(kind: type[cst.CSTNode]) -> None:
    module = cst.parse_module(EVERYTHING)
    kept = (node for node in slowly(module) if type(node) not in walk.BLANK)
    expected = [id(node) for node in kept if isinstance(node, kind)]
    assert [id(node) for node in walk.nodes_of(module, kind)] == expected


def test_code_is_what_is_no_white_space() -> None:
    module = cst.parse_module(EVERYTHING)
    expected = [id(node) for node in slowly(module) if not isinstance(node, walk.WHITE)]
    assert [id(node) for node in walk.code_nodes(module)] == expected


def test_trees_of_ast_are_walked_in_the_order_of_ast_without_their_contexts() -> None:
    tree = ast.parse(
        EVERYTHING + "global a\nmatch a:\n    case {'k': None, **rest} | C(x=1): pass\n"
    )
    expected = [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    assert len(expected) > 200
    assert all(a is b for a, b in zip(walk_ast.walk(tree), expected, strict=True))
    for node in expected:
        below = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr_context)]
        assert [*map(id, walk_ast.children(node))] == [*map(id, below)]


def test_of_which_kind_a_node_is_as_abstract_classes_answer() -> None:
    kinds = {*walk.with_subclasses(cst.CSTNode)}
    assert {type(kind) for kind in kinds} == {walk._Plain}
    seen = {type(node): node for node in walk.nodes(cst.parse_module(EVERYTHING))}
    assert len(seen) > 50
    for node in seen.values():
        for kind in kinds:
            assert isinstance(node, kind) is ABCMeta.__instancecheck__(kind, node)
