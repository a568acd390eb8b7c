"""An independent look at the output of a rewrite: what of CUDA is left on lines without a finding."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from migrate.rewrite.results import Note


def unaccounted(text: str, findings: Iterable[Note]) -> list[str]:
    """Return what of CUDA the script `text`, an output, holds on lines without a finding."""
    said = {note.line for note in findings}
    tree = ast.parse(text)
    imported = dict(imports_of(tree))
    tree = ast.fix_missing_locations(_WithoutDisabledScalers().visit(tree))
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found: list[str] = []

    def look(statement: ast.AST, excused: bool) -> None:
        inner = [
            child
            for part in ("body", "orelse", "finalbody", "handlers")
            for child in getattr(statement, part, ())
            if isinstance(child, ast.stmt | ast.ExceptHandler)
        ]
        first = getattr(statement, "lineno", 0)
        last = max(first, inner[0].lineno - 1) if inner else getattr(statement, "end_lineno", 0)
        spoken = any(line in said for line in range(first, last + 1))
        if not (spoken or excused):
            inside = {id(node) for child in inner for node in ast.walk(child)}
            found.extend(
                ast.unparse(node)
                for node in ast.walk(statement)
                if id(node) not in inside and is_cuda(node, imported, own)
            )
        for child in inner:
            look(child, excused or (spoken and isinstance(statement, ast.If)))

    look(tree, excused=False)
    return found


class _WithoutDisabledScalers(ast.NodeTransformer):
    """Takes out scalers that are switched off: they need no CUDA."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        off = [ast.unparse(word.value) for word in node.keywords if word.arg == "enabled"] == [
            "False"
        ]
        if off and ast.unparse(node.func).endswith("GradScaler"):
            return ast.Name("switched_off", ast.Load())
        return ast.fix_missing_locations(self.generic_visit(node))  # type: ignore[return-value]


def imports_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def is_cuda(node: ast.AST, imported: dict[str, str], own: set[str]) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "nccl"
    if isinstance(node, ast.Call):
        moves = isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"
        return moves and "cuda" not in own
    if isinstance(node, ast.Attribute | ast.Name):
        text = ast.unparse(node)
        root, _, rest = text.partition(".")
        name = f"{imported.get(root, '')}.{rest}".rstrip(".")
        return name.startswith("torch.cuda.")
    return False
