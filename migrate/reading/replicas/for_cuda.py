"""Code that is for CUDA alone, in scripts that also run elsewhere.

Such code is below `if shims.device_type() == "cuda":`, or behind `if not torch.cuda.is_available(): return`
if all that follows needs CUDA. A branch for the device "cuda" counts if it asks what only CUDA can answer. A
comparison with "cuda" counts if it decides about memory that CUDA pins, or reports to another library whether
CUDA is present, or chooses among kernels of which one is called "cuda". On XLA such code is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue import catalogue
from migrate.reading.replicas.cuda_arguments import asks_for_cuda, kernel_names, told
from migrate.syntax.tree import (
    code,
    is_attribute_of_self,
    nodes,
    nodes_of,
    string_value,
    targets,
)

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed


# Properties that torch reports for CUDA alone, and objects made for CUDA alone.
ONLY_CUDA = re.compile(
    r"torch\.cuda\.((max_)?memory_\w+|max_memory\w*|mem_get_info|get_device_(name|properties|capability)"
    r"|utilization|temperature|power_draw|list_gpu_processes|nvtx|CUDAGraph|graph|cudart|profiler)"
    r"|torch\.cuda\.synchronize$|torch\.utils\.cpp_extension\.(CUDAExtension|load(_inline)?$)"
)
WAIT = "torch.cuda.synchronize"
EIGHT_BITS = re.compile(r"fp8|float8", re.IGNORECASE)
# Calls that a script needs on any device: a branch with such a call is not for CUDA alone.
NEEDED = frozenset({"backward", "cuda", "init_process_group", "to"})
NEEDED_OF_CUDA = re.compile(r"torch\.cuda\.(manual_seed\w*|set_device|device_count|amp\..*)")
# Arguments about CUDA's memory and kernels.
FOR_CUDA = frozenset({"fused", "non_blocking", "pin_memory"})
NAMED_FOR_CUDA = re.compile("|".join(sorted(FOR_CUDA)))

# Flags for page-locked memory, and the code of torch's own loader that they enable.
PINNED = re.compile(r"(^|[._])pin(ned)?_?mem(ory)?$", re.IGNORECASE)
PINS = re.compile(r"torch\.utils\.data\._utils\.pin_memory(\.|$)")

AVAILABLE = "torch.cuda.is_available"
COUNT = "torch.cuda.device_count"
NAMES_DEVICE = re.compile(r"""["'](cuda|xla)|torch\.device\b|shims\.device""")
ASKED = frozenset({"shims.device_type"})


def guarded(context: Parsed) -> frozenset[int]:
    """Return the ids of the nodes that only CUDA runs, and of the tests for CUDA."""
    ids: set[int] = set()
    for node in context.nodes if context.references("shims") else ():
        for root in _for_cuda(node, context):
            ids.update(id(below) for below in nodes(root))
    skipped: list[cst.CSTNode] = []
    for comparison in context.all_of(cst.Comparison):
        for root in _well_skipped(comparison, context):
            ids.update(id(below) for below in nodes(root))
            skipped.append(root)
    for root in _goes_on_with(skipped, context):
        ids.update(id(below) for below in nodes(root))
    for value in (*_said_to_others(context), *kernel_names(context)):
        ids.update(id(below) for below in nodes(value))
    for choice in context.all_of(cst.IfExp):
        if _is_a_figure(choice, context):
            ids.update(id(below) for root in (choice.test, choice.body) for below in nodes(root))
    for call in context.all_of(cst.Call):
        if context.qualified_name(call.func) == AVAILABLE:
            for root in (*_only_where_available(call, context), *_only_pinned(call, context)):
                ids.update(id(below) for below in nodes(root))
    return frozenset(ids)


def _only_where_available(call: cst.Call | cst.Name, context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the test `call` and the code that runs only with CUDA, if that code needs CUDA.

    Examples: `return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9`, and a
    function that continues behind `if not torch.cuda.is_available(): return False`. The test may be kept in a
    variable that has no other use: `available = torch.cuda.is_available()`.
    """
    above = context.parent(call)
    if isinstance(above, cst.Assign) and isinstance(call, cst.Call):
        targets = [target.target for target in above.targets]
        guarded = [*_behind_uses(targets[0], context)] if len(targets) == 1 else []
        if guarded:
            yield call
            yield from guarded
        return
    if isinstance(above, cst.BooleanOperation) and isinstance(above.operator, cst.And):
        if above.left is call and needs_cuda(above.right, context):
            yield above
        return
    if not isinstance(above, cst.UnaryOperation) or not isinstance(above.operator, cst.Not):
        return
    test: cst.CSTNode = above
    either = context.parent(test)
    if (
        isinstance(either, cst.BooleanOperation)
        and isinstance(either.operator, cst.Or)
        and either.left is test
        and needs_cuda(either.right, context)
    ):
        yield either
        return
    while isinstance(either, cst.BooleanOperation) and isinstance(either.operator, cst.Or):
        test, either = either, context.parent(either)
    if not isinstance(either, cst.If) or either.test is not test:
        return
    rest: list[cst.CSTNode] = []
    if isinstance(either.orelse, cst.Else):
        rest = list(either.orelse.body.body)
    elif either.orelse is None and _gives_up(either.body):
        block = context.parent(either)
        if isinstance(block, cst.IndentedBlock):
            rest = list(block.body[block.body.index(either) + 1 :])
    behind = cst.IndentedBlock(rest)  # type: ignore[arg-type]
    if needs_cuda(behind, context) or _imports_kernels(behind):
        yield either
        yield from rest


def decides_about_pinned(call: cst.Call, context: Parsed) -> bool:
    """Whether the test `call`, with a flag for it, decides about memory that CUDA alone pins.

    Examples: `loader.pin_memory and torch.cuda.is_available()`, or a variable that is used only for that.
    """
    whole = _all_of(call, context)
    if whole is call:
        return False
    operands = [whole]
    while operands:
        operand = operands.pop()
        if isinstance(operand, cst.BooleanOperation) and isinstance(operand.operator, cst.And):
            operands += [operand.left, operand.right]
        elif isinstance(operand, cst.Name | cst.Attribute) and PINNED.search(code(operand)):
            return True
    flag = _kept_as(whole, context)
    branches = list(_below(flag, context)) if flag is not None else []
    return bool(branches) and all(pins(branch.body, context) for branch in branches)


def pins(branch: cst.CSTNode, context: Parsed) -> bool:
    """Whether `branch` pins memory, as torch's loader does for CUDA, and does nothing that training needs."""
    pinned = False
    for node in nodes(branch):
        method = node.func if isinstance(node, cst.Call) else None
        if isinstance(method, cst.Attribute) and method.attr.value in NEEDED:
            return False
        if isinstance(method, cst.Attribute) and method.attr.value == "pin_memory":
            pinned = True
        elif isinstance(node, cst.Name | cst.Attribute):
            pinned = pinned or PINS.match(context.qualified_name(node) or "") is not None
    return pinned


def _only_pinned(call: cst.Call, context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the test `call` and the code that pins memory if the answer is yes."""
    if not decides_about_pinned(call, context):
        return
    yield call
    whole = _all_of(call, context)
    above = context.parent(whole)
    if isinstance(above, cst.If | cst.IfExp) and above.test is whole and pins(above.body, context):
        yield above.body
    flag = _kept_as(whole, context)
    for branch in _below(flag, context) if flag is not None else ():
        if pins(branch.body, context):
            yield branch.body


def _kept_as(value: cst.BaseExpression, context: Parsed) -> cst.Name | cst.Attribute | None:
    """Return the name or attribute that is the only target of `value`."""
    assign = context.parent(value)
    if isinstance(assign, cst.AnnAssign):
        target: cst.CSTNode = assign.target
    elif isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target = assign.targets[0].target
    else:
        return None
    return target if isinstance(target, cst.Name | cst.Attribute) else None


def _below(flag: cst.Name | cst.Attribute, context: Parsed) -> Iterator[cst.If | cst.IfExp]:
    """Yield the branches that run if `flag`, a variable or an attribute of `self`, is true."""
    last = flag.attr.value if isinstance(flag, cst.Attribute) else flag.value
    around = context.class_around(flag)
    for mention in context.references(last):
        use: cst.CSTNode | None = mention
        if isinstance(flag, cst.Attribute):
            use = mention if isinstance(mention, cst.Attribute) else context.parent(mention)
            if not isinstance(use, cst.Attribute) or code(use) != code(flag):
                continue
            if not _is_or_derives(context.class_around(use), around, context):
                continue
        elif context.bound_to(mention)[0] is not context.bound_to(flag)[0]:
            continue
        assert isinstance(use, cst.BaseExpression)
        whole = _all_of(use, context)
        above = context.parent(whole)
        if isinstance(above, cst.If | cst.IfExp) and above.test is whole:
            yield above


def lists_of_gpus(root: cst.CSTNode, context: Parsed) -> list[cst.BaseExpression]:
    """Return the comprehensions at and below `root` that list all GPUs of the host by name.

    They are the devices of workers. On a TPU each replica has one device, and the list is empty.
    """
    lists: list[cst.BaseExpression] = []
    for node in (*nodes_of(root, cst.ListComp), *nodes_of(root, cst.GeneratorExp)):
        asked = nodes_of(node.for_in.iter, cst.Call)
        counts = any(context.qualified_name(call.func) == COUNT for call in asked)
        if counts and NAMES_DEVICE.search(code(node.elt)):
            lists.append(node)
    return lists


def _is_or_derives(
    definition: cst.ClassDef | None, base: cst.ClassDef | None, context: Parsed
) -> bool:
    """Whether the class `definition` is `base`, or derives from it in the same file."""
    by_name = {node.name.value: node for node in context.all_of(cst.ClassDef)}
    open_classes, seen = [definition], set[int]()
    while open_classes:
        current = open_classes.pop()
        if current is base:
            return True
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        names = (code(arg.value) for arg in current.bases)
        open_classes += [by_name[name] for name in names if name in by_name]
    return False


def _behind_uses(target: cst.CSTNode, context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the code guarded by uses of the variable `target`, if each use guards code that needs CUDA."""
    if not isinstance(target, cst.Name) or len(context.bindings(target)) != 1:
        return
    owner, _ = context.bound_to(target)
    nodes: list[cst.CSTNode] = []
    for use in context.references(target.value):
        if use is target or context.bound_to(use)[0] is not owner:
            continue
        guarded = [*_only_where_available(use, context)]
        whole = _all_of(use, context)
        above = context.parent(whole)
        if isinstance(above, cst.If | cst.IfExp) and above.test is whole:
            guarded = [above.body] if needs_cuda(above.body, context) else []
        if not guarded:
            return
        nodes += guarded
    yield from nodes


def _imports_kernels(block: cst.IndentedBlock) -> bool:
    """Whether `block` imports a library of CUDA kernels, and does nothing that training needs."""
    for node in nodes(block):
        method = node.func if isinstance(node, cst.Call) else None
        if isinstance(method, cst.Attribute) and method.attr.value in NEEDED:
            return False
    froms = [
        statement.module
        for statement in nodes_of(block, cst.ImportFrom)
        if statement.module is not None
    ]
    plain = [alias.name for statement in nodes_of(block, cst.Import) for alias in statement.names]
    entries = (catalogue.of_import(code(name)) for name in (*froms, *plain))
    return any(entry is not None and entry.code.startswith("XLA40") for entry in entries)


def _gives_up(body: cst.BaseSuite) -> bool:
    """Whether `body` returns, or continues with the next turn; an exception would demand CUDA instead."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, cst.Return | cst.Continue)


def _said_to_others(context: Parsed) -> Iterator[cst.BaseExpression]:
    """Yield the tests for the device "cuda" whose answer is passed to other libraries only."""
    calls = context.all_of(cst.Call)
    arguments = {id(value): value for call in calls for value, _ in told(call, context)}
    for value in arguments.values():
        element = context.parent(value)
        if isinstance(element, cst.DictElement):
            yield element.key  # "cuda" is the name of the argument
        if not isinstance(value, cst.Name):
            if asks_for_cuda(value):
                yield value
            continue
        _, bound = context.bound_to(value)
        if not isinstance(bound, cst.BaseExpression) or not asks_for_cuda(bound):
            continue
        uses = [use for use in context.references(value.value) if context.bound_to(use)[1] is bound]
        targets = (cst.AssignTarget, cst.AnnAssign)
        if all(id(use) in arguments or isinstance(context.parent(use), targets) for use in uses):
            yield bound


def _is_a_figure(choice: cst.IfExp, context: Parsed) -> bool:
    """Whether `choice` is a value that only CUDA can provide, or a substitute for it."""
    test = choice.test.func if isinstance(choice.test, cst.Call) else None
    is_available = test is not None and context.qualified_name(test) == "torch.cuda.is_available"
    return is_available and needs_cuda(choice.body, context)


def needs_cuda(branch: cst.CSTNode, context: Parsed) -> bool:
    """Whether `branch` does what only CUDA can, and nothing that training needs, such as a move.

    Code that waits for the device has to wait on XLA too, whatever else is in the branch.
    """
    has_cuda = False
    for node in nodes(branch):
        method = node.func if isinstance(node, cst.Call) else None
        if context.qualified_name(method) == WAIT:
            return False
        if isinstance(method, cst.Attribute) and method.attr.value in NEEDED:
            return False
        if isinstance(node, cst.Name | cst.Attribute):
            name = context.qualified_name(node) or ""
            if NEEDED_OF_CUDA.fullmatch(name):
                return False
            has_cuda = has_cuda or ONLY_CUDA.match(name) is not None
            has_cuda = has_cuda or (
                isinstance(node, cst.Name) and EIGHT_BITS.search(node.value) is not None
            )
        elif isinstance(node, cst.Arg) and node.keyword is not None:
            has_cuda = has_cuda or (node.keyword.value == "fused" and code(node.value) == "True")
    return has_cuda


def _well_skipped(comparison: cst.Comparison, context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield `comparison` and the code it guards, if it tests for "cuda" and only CUDA can answer."""
    if len(comparison.comparisons) != 1:
        return
    asked = comparison.comparisons[0]
    sides = (string_value(comparison.left), string_value(asked.comparator))
    if "cuda" not in sides or not isinstance(asked.operator, cst.Equal | cst.NotEqual | cst.In):
        return
    is_equal = not isinstance(asked.operator, cst.NotEqual)
    whole = _all_of(comparison, context)
    above = context.parent(whole)
    if isinstance(above, cst.If | cst.IfExp) and above.test is whole:
        branch: cst.CSTNode | None = above.body if is_equal else above.orelse
        if branch is not None and needs_cuda(branch, context):
            yield comparison
            if not any(context.qualified_name(node) == WAIT for node in nodes(branch)):
                yield branch  # otherwise the code that waits is still to be rewritten
    elif isinstance(above, cst.Arg):
        if is_equal and above.keyword is not None and above.keyword.value in FOR_CUDA:
            yield comparison
    elif is_equal and isinstance(above, cst.Assign) and len(above.targets) == 1:
        target = above.targets[0].target
        if not isinstance(target, cst.Name):
            return
        uses = list(_guarded_by(target, context))
        # An optimizer that is only printed after it was made without the option is still named for it.
        decides = bool(uses) or NAMED_FOR_CUDA.search(target.value) is not None
        if decides and all(use is not None for use in uses):
            yield comparison
            yield from (use for use in uses if use is not None)


def _goes_on_with(skipped: list[cst.CSTNode], context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the tests for "cuda" above code that uses names bound only in `skipped` branches.

    Example: `if device == "cuda": torch.backends.cuda.matmul.allow_tf32 = before`, after a branch for CUDA
    alone that reads the flag. If that branch is skipped, `before` does not exist.
    """
    branches = {id(branch) for branch in skipped if isinstance(branch, cst.BaseSuite)}
    bound = {
        name: owner
        for branch in skipped
        if isinstance(branch, cst.BaseSuite)
        for name, owner in _bound_in(branch, context)
    }
    if not bound:
        return
    for test in context.all_of(cst.Comparison):
        above = context.parent(_all_of(test, context))
        asked = test.comparisons[0]
        if not isinstance(above, cst.If) or "cuda" not in (
            string_value(test.left),
            string_value(asked.comparator),
        ):
            continue
        equal = not isinstance(asked.operator, cst.NotEqual | cst.NotIn)
        branch = above.body if equal else above.orelse
        if branch is None or id(branch) in branches:
            continue
        if any(
            bound.get(code(part), branch) is _owner(part, context)
            for part in nodes(branch)
            if isinstance(part, cst.Name | cst.Attribute)
        ):
            yield test
            yield branch


def _bound_in(branch: cst.BaseSuite, context: Parsed) -> Iterator[tuple[str, cst.CSTNode | None]]:
    """Yield the variables and attributes of `self` that only `branch` binds, with their owners."""
    inside = {id(node) for node in nodes(branch)}
    for target in targets(branch):
        owner = _owner(target, context)
        if isinstance(target, cst.Name):
            bindings = [binding.node for binding in context.bindings(target)]
        elif is_attribute_of_self(target):
            bindings = [
                node
                for node, _ in context.attributes.get(target.attr.value, ())
                if _owner(node, context) is owner
            ]
        else:
            continue
        if all(id(node) in inside for node in bindings):
            yield code(target), owner


def _owner(node: cst.CSTNode, context: Parsed) -> cst.CSTNode | None:
    """Return the class that owns an attribute of `self`, or the function or module that owns a variable."""
    if is_attribute_of_self(node):
        return context.class_around(node)
    return context.function_around(node) or context.module


def _guarded_by(target: cst.Name, context: Parsed) -> Iterator[cst.CSTNode | None]:
    """Yield the CUDA-only code that each use of `target` decides about; None for any other use."""
    owner, _ = context.bound_to(target)
    for mention in context.references(target.value):
        if mention is target or context.bound_to(mention)[0] is not owner:
            continue
        whole = _all_of(mention, context)
        above = context.parent(whole)
        if isinstance(above, cst.FormattedStringExpression):
            continue
        if isinstance(above, cst.If | cst.IfExp) and above.test is whole:
            yield above.body if needs_cuda(above.body, context) else None
        elif isinstance(above, cst.Arg) and above.keyword is mention:
            continue
        else:
            by_name = isinstance(above, cst.Arg) and above.keyword is not None
            yield mention if by_name and above.keyword.value in FOR_CUDA else None  # type: ignore[union-attr]


def _all_of(part: cst.BaseExpression, context: Parsed) -> cst.BaseExpression:
    """Return the whole condition that `part` is a necessary part of: `part and other`."""
    above = context.parent(part)
    while isinstance(above, cst.BooleanOperation) and isinstance(above.operator, cst.And):
        part, above = above, context.parent(above)
    return part


def _for_cuda(node: cst.CSTNode, context: Parsed) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Comparison) and asks_for_device_type(node, context):
        yield node
    elif isinstance(node, cst.If | cst.IfExp) and _is_cuda(node.test, context):
        yield node.body
    elif isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
        if _is_cuda(node.left, context):
            yield node.right
    elif isinstance(node, cst.BooleanOperation) and _is_cuda(node.left, context, cst.NotEqual):
        yield node.right


def asks_for_device_type(node: cst.Comparison, context: Parsed) -> bool:
    """Whether `node` compares `shims.device_type()`, or `shims.device().type`, with something."""
    left = node.left
    if isinstance(left, cst.Attribute) and left.attr.value == "type":
        left = left.value
        return isinstance(left, cst.Call) and context.qualified_name(left.func) == "shims.device"
    return isinstance(left, cst.Call) and context.qualified_name(left.func) in ASKED


def _is_cuda(
    test: cst.BaseExpression, context: Parsed, operator: type[cst.BaseCompOp] = cst.Equal
) -> bool:
    """Whether `test` holds on CUDA only; with `NotEqual`, everywhere else."""
    joined = isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And)
    if joined and operator is cst.Equal and isinstance(test, cst.BooleanOperation):
        return _is_cuda(test.left, context) or _is_cuda(test.right, context)
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    asked = test.comparisons[0]
    equal = isinstance(asked.operator, operator) and string_value(asked.comparator) == "cuda"
    return equal and asks_for_device_type(test, context)
