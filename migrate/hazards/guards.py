"""Which code only some of the replicas run."""

from __future__ import annotations

import re

import libcst as cst

from migrate.rewrite.context import Context

# Names that scripts give to the index of a replica, and to the question whether this is the first one.
RANK = re.compile(r"(^|_)(rank|ordinal)$", re.IGNORECASE)
DEVICE_INDEX = frozenset(
    {"gpu", "gpu_id", "device_id", "local_gpu", "gpu_idx", "proc_id", "procid"}
)
FIRST = re.compile(
    r"^_?(is_)?(local_|global_)?(master|main|primary|chief|first|root)(_?(process|proc|rank|worker|node|"
    r"ordinal|ddp))?$|^is_(rank|global|local)_?(zero|0|master|main)$|^is_rank_?(zero|0)$|^rank_?zero$",
    re.IGNORECASE,
)
FIRST_NEEDS = re.compile(r"is_|process|proc|rank|master|ordinal|chief", re.IGNORECASE)
CALLS = frozenset(
    {
        "torch.distributed.get_rank",
        "torch.distributed.get_node_local_rank",
        "torch_xla.runtime.global_ordinal",
        "torch_xla.runtime.local_ordinal",
        "torch_xla.core.xla_model.get_ordinal",
        "torch_xla.core.xla_model.get_local_ordinal",
        "torch_xla.core.xla_model.is_master_ordinal",
    }
)


class Guards:
    """Conditions that differ between replicas: `if rank == 0:`, `if is_main_process():`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._per_rank: dict[int, bool] = {}

    def around(self, node: cst.CSTNode) -> cst.If | None:
        """Return the condition because of which only some replicas run `node`, or None.

        An early return counts: below `if rank != 0: return` only the first replica goes on.
        """
        below = node
        for above in self._context.ancestors(node):
            if isinstance(above, cst.If) and below is not above.test and self._if(above):
                return above
            if isinstance(above, cst.IndentedBlock):
                early = self._early_return(above, below)
                if early is not None:
                    return early
            if isinstance(above, cst.FunctionDef | cst.ClassDef):
                return None
            below = above
        return None

    def is_per_rank(self, test: cst.BaseExpression) -> bool:
        """Whether the condition `test` differs between replicas."""
        if isinstance(test, cst.BooleanOperation):
            left, right = self.is_per_rank(test.left), self.is_per_rank(test.right)
            return left or right
        if isinstance(test, cst.UnaryOperation):
            return self.is_per_rank(test.expression)
        if isinstance(test, cst.Comparison):
            return self._comparison(test)
        if isinstance(test, cst.Call):
            return self._is_rank(test) or _says_first(_last(test.func))
        last = _last(test)
        return _says_first(last) or RANK.search(last) is not None

    def _if(self, condition: cst.If) -> bool:
        if id(condition) not in self._per_rank:
            self._per_rank[id(condition)] = self.is_per_rank(condition.test)
        return self._per_rank[id(condition)]

    def _comparison(self, test: cst.Comparison) -> bool:
        if len(test.comparisons) != 1:
            return False
        operator, right = test.comparisons[0].operator, test.comparisons[0].comparator
        if isinstance(operator, cst.Is | cst.IsNot):
            return False
        equality = isinstance(operator, cst.Equal | cst.NotEqual | cst.In | cst.NotIn)
        smaller = isinstance(operator, cst.LessThan) and isinstance(right, cst.Integer)
        if not equality and not smaller:
            return False
        if _is_minus_one(right):
            return False  # the sign of a script that runs alone
        return self._is_rank(test.left) or self._is_rank(right)

    def _is_rank(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
            return self._is_rank(node.left)
        if isinstance(node, cst.Call):
            name = self._context.qualified_name(node.func)
            return name in CALLS or _last(node.func).lower() in ("get_rank", "get_local_rank")
        if isinstance(node, cst.Name | cst.Attribute):
            last = _last(node)
            return RANK.search(last) is not None or last.lower() in DEVICE_INDEX
        return False

    def _early_return(self, block: cst.IndentedBlock, below: cst.CSTNode) -> cst.If | None:
        if not isinstance(self._context.parent(block), cst.FunctionDef):
            return None
        for statement in block.body:
            if statement is below:
                return None
            if isinstance(statement, cst.If) and self._if(statement) and _returns(statement):
                return statement
        return None


def _returns(condition: cst.If) -> bool:
    body = condition.body.body
    last = body[-1] if body else None
    leaves = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return)
    return leaves and condition.orelse is None


def _says_first(name: str) -> bool:
    return FIRST.search(name) is not None and FIRST_NEEDS.search(name) is not None


def _last(node: cst.BaseExpression) -> str:
    """Return the last part of a dotted name; nothing for another expression."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_minus_one(node: cst.BaseExpression) -> bool:
    return (
        isinstance(node, cst.UnaryOperation)
        and isinstance(node.operator, cst.Minus)
        and isinstance(node.expression, cst.Integer)
    )
