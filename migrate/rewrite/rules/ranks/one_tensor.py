"""Whether a value of the device is one tensor, and no list, tuple or dict of them."""

from __future__ import annotations

import re

import libcst as cst

from migrate.catalogue.words import IN_A_FORWARD, MOVES, ONLY_TENSORS, words
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import How

TORCH_FUNCTION = re.compile(r"torch\.(nn\.functional\.|linalg\.|special\.|fft\.)?[a-z_]\w*")
# Functions and methods that give several tensors, or something else than a tensor.
SEVERAL = words(
    "aminmax broadcast_tensors chunk compile cummax cummin dsplit eig eigh frexp geqrf hsplit jit kthvalue "
    "load lstsq lu lu_factor max median meshgrid min mode multi_head_attention_forward nanmedian nonzero qr "
    "slogdet sort split split_with_sizes std_mean svd svd_lowrank pca_lowrank tensor_split topk unbind "
    "unique unique_consecutive var_mean vsplit where"
)
# The first of them take a list of tensors.
OF_LISTS = words("cat concat stack hstack vstack dstack block_diag broadcast_tensors meshgrid")
# Batches of libraries have them as well.
OF_BATCHES = MOVES | words("cpu float half long to")
OF_NUMBERS = (cst.Subtract, cst.Divide, cst.Power, cst.MatrixMultiply)
DEEPEST = 6


def is_one_tensor(value: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether `value`, which is on the device, is one tensor for certain: by what makes it, or by its use."""
    if depth > DEEPEST:
        return False
    if isinstance(value, cst.BinaryOperation):
        operands = value.left, value.right
        if isinstance(value.operator, OF_NUMBERS):
            return True
        return any(isinstance(operand, cst.Float) for operand in operands) or any(
            is_one_tensor(operand, facts, depth + 1) for operand in operands
        )
    if isinstance(value, cst.Subscript):
        return is_one_tensor(value.value, facts, depth + 1)
    if isinstance(value, cst.Call):
        return _gives_one(value, facts, depth)
    if isinstance(value, cst.Name):
        assignments = facts.bindings.reaching(value) or facts.bindings.given(value)
        known = bool(assignments) and all(
            assignment.how is How.VALUE
            and assignment.value is not None
            and is_one_tensor(assignment.value, facts, depth + 1)
            for assignment in assignments
        )
        return known or _is_used_as_one(value, facts)
    return False


def _gives_one(call: cst.Call, facts: Facts, depth: int) -> bool:
    name = facts.names.of(call.func)
    func = call.func
    method = func.attr.value if isinstance(func, cst.Attribute) else ""
    if name is not None:
        method = name.rpartition(".")[2]
        is_function = TORCH_FUNCTION.fullmatch(name) is not None
        return is_function and not method.startswith("_") and not _gives_several(method, call, 1)
    if not isinstance(func, cst.Attribute) or _gives_several(method, call, 0):
        return False
    if method in (ONLY_TENSORS | IN_A_FORWARD) - OF_BATCHES:
        return True
    return is_one_tensor(func.value, facts, depth + 1)


def _gives_several(method: str, call: cst.Call, plain: int) -> bool:
    """Whether `call` may give several tensors; `x.max()`, with `plain` arguments, gives one."""
    if method in ("max", "min", "median", "nanmedian"):
        return len(call.args) != plain
    asked = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    return (
        method in SEVERAL
        or method.endswith("_with_indices")
        or any(name.startswith("return_") for name in asked)
    )


def _is_used_as_one(name: cst.Name, facts: Facts) -> bool:
    """Whether the variable, as it is given where `name` stands, is computed with as only a tensor is."""
    context = facts.context
    nearest = facts.bindings.nearest(name)
    if nearest is None:
        return False
    function = context.function_around(name)
    mentions = [
        mention
        for mention in facts.below(function or context.module, cst.Name)
        if mention.value == name.value and facts.bindings.nearest(mention) is nearest
    ]
    used = False
    for mention in mentions:
        above = context.parent(mention)
        if isinstance(above, cst.BinaryOperation):
            used = used or isinstance(above.operator, OF_NUMBERS)
        elif isinstance(above, cst.Attribute) and above.value is mention:
            used = used or above.attr.value in ONLY_TENSORS
        elif isinstance(above, cst.Arg):
            call = context.parent(above)
            if not isinstance(call, cst.Call):
                continue
            if isinstance(call.func, cst.Name) and call.func.value == "isinstance":
                return False  # it may be something else as well
            asked = facts.names.of(call.func) or ""
            last = asked.rpartition(".")[2]
            is_function = TORCH_FUNCTION.fullmatch(asked) is not None
            used = used or (is_function and last not in OF_LISTS and last not in SEVERAL)
    return used
