"""Report CUDA and torch.distributed constructs that no rule handles.

Every construct is accounted for. A construct that no rule handles, and that is not known to work unchanged
on XLA, becomes a finding that says what to do by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import CatalogueEntry, OnXla, names
from migrate.catalogue.target import in_words
from migrate.catalogue.torch_distributed import HOOKS
from migrate.catalogue.torch_other import DATA_PARALLEL, DDP, SYNC_BATCH_NORM
from migrate.check.hazard import Severity
from migrate.reading.names.quoted import quoted
from migrate.reading.values.collectives import is_comm_hook, makes_gloo_group
from migrate.reading.values.devices import names_cuda
from migrate.reading.values.environment import CALLS
from migrate.rewrite.rule import RuleFinding
from migrate.rewrite.styles.advice import BACKEND, DEVICE
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword, string_value

NAME = "unhandled"

PARALLEL = names(*DATA_PARALLEL)
NORMS = names(*SYNC_BATCH_NORM)
WRAPPERS = names(*DDP)
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "it has no effect on a TPU",
}

SPOKEN_OF = (
    cst.Attribute,
    cst.BinaryOperation,
    cst.Call,
    cst.ConcatenatedString,
    cst.FormattedString,
    cst.Name,
    cst.SimpleString,
)


def remaining(context: Workspace, handled: frozenset[int]) -> Iterator[RuleFinding]:
    """Yield a finding for each construct of CUDA or torch.distributed that is left.

    Args:
        context: the script.
        handled: ids of the nodes that an edit or a rule's finding covers.
    """
    for node in context.all_of(*SPOKEN_OF):
        if id(node) in handled or id(node) in context.for_cuda:
            continue
        if _goes_with_its_scaler(node, context, handled):
            continue
        if (advice := _advice(node, context)) is not None:
            if context.for_torch_tpu:
                message = in_words(advice.message, context.target, quoted(node, context))
                advice = replace(advice, message=message)
            yield advice


def _goes_with_its_scaler(node: cst.CSTNode, context: Workspace, handled: frozenset[int]) -> bool:
    """Whether `node` is the device of a gradient scaler that is removed: `GradScaler("cuda")`."""
    argument = context.parent(node)
    call = context.parent(argument)
    if not isinstance(argument, cst.Arg) or not isinstance(call, cst.Call):
        return False
    name = context.qualified_name(call.func) or ""
    return name.rpartition(".")[2] == "GradScaler" and id(call.func) in handled


def _advice(node: cst.CSTNode, context: Workspace) -> RuleFinding | None:
    """Return what to do about `node`. None if it works unchanged."""
    if isinstance(node, cst.Name | cst.Attribute):
        return _advice_on_name(node, context)
    if isinstance(node, cst.SimpleString):
        value = string_value(node)
        if value == "nccl":
            backend = context.vocabulary.group_backend
            said = BACKEND if context.portable else f"'nccl': the backend on XLA is '{backend}'"
            return RuleFinding(NAME, node, said)
        if value in ENVIRONMENT and not context.portable and _is_environment_key(node, context):
            return RuleFinding(NAME, node, f"{value}: {ENVIRONMENT[value]}", subject=value)
    if isinstance(node, cst.Call) and (name := _looked_up(node, context)) is not None:
        entry = catalogue.of(name, context.target)
        works = entry is None or entry.on_xla in (OnXla.WORKS, OnXla.NOTHING)
        return None if entry is None or works else _said(node, name, entry, context)
    if names_cuda(node) and not _is_entry(node, context):
        said = DEVICE if context.portable else "the device on XLA is 'xla'"
        return RuleFinding(NAME, node, f"{code(node)}: {said}")
    return None


def _is_entry(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is the name of an entry: `config["cuda"]`. A new one, of a device by number, is not.

    `jobs[f"cuda:{i}"] = []` makes the name of a device, for whoever goes through the names.
    """
    index = context.parent(node)
    if not isinstance(index, cst.Index):
        return False
    entry = context.parent(context.parent(index))
    return "cuda:" not in code(node) or not isinstance(context.parent(entry), cst.AssignTarget)


def _said(node: cst.CSTNode, name: str, entry: CatalogueEntry, context: Workspace) -> RuleFinding:
    """Return the finding for a name, from the catalogue."""
    severity = Severity.INFO if entry.stands else Severity.ERROR
    message = f"{name}: {entry.says(context.portable)}"
    return RuleFinding(NAME, node, message, severity, entry.code, name)


def _looked_up(call: cst.Call, context: Workspace) -> str | None:
    """Return the name that `getattr(torch, "GradScaler")` looks up, if no finding is at its module."""
    is_getattr = isinstance(call.func, cst.Name) and call.func.value == "getattr"
    if not is_getattr or len(call.args) < 2:
        return None
    module, last = context.qualified_name(call.args[0].value), string_value(call.args[1].value)
    known = None if module is None else catalogue.of(module, context.target)
    if module is None or last is None or (known is not None and known.on_xla is not OnXla.WORKS):
        return None
    return f"{module}.{last}"


def _advice_on_name(node: cst.Name | cst.Attribute, context: Workspace) -> RuleFinding | None:
    name = context.qualified_name(node)
    if name is None:
        return None
    above = context.parent(node)
    if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.AsName):
        return None  # a part of a longer name, or the name in the import
    if isinstance(above, cst.FunctionDef | cst.ClassDef) and above.name is node:
        return None  # a replacement for the import: `def barrier()` below `except ImportError:`
    entry = catalogue.of(name, context.target)
    if entry is None or entry.on_xla is OnXla.WORKS:
        return None
    if entry.on_xla is OnXla.NOTHING and context.portable:
        return None
    if entry.on_xla is OnXla.CALLED and _is_called_or_asked(node, context):
        return None
    makes_nothing = context.asks_for_type(node) or context.sets_on_class(node)
    if name in _never_made(context) and makes_nothing:
        return None
    if entry.name == HOOKS and is_comm_hook(node, context):
        return None  # the rule comm-hooks reports the registration
    if isinstance(above, cst.Call) and _is_over_gloo(above, context):
        return None
    if _is_asked_for(node, context):
        return None
    return _said(node, name, entry, context)


def _is_asked_for(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether the script only tests whether `node` exists: `dist is not None`, `hasattr(dist, "x")`."""
    if context.is_only_tested(node):
        return True
    arg = context.parent(node)
    call = context.parent(arg)
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
        return False
    if call.func.value == "hasattr":
        return True
    above = context.parent(call)
    return (
        call.func.value == "getattr"
        and isinstance(above, cst.Comparison)
        and code(above.comparisons[0].comparator) == "None"
    )


def _never_made(context: Workspace) -> frozenset[str]:
    """Return the classes that the rewritten script never instantiates. Tests for them may stay."""
    return PARALLEL if context.calls.norms_over_replicas else PARALLEL | NORMS


def _is_called_or_asked(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is a called function, an argument of isinstance, or in an annotation."""
    above = context.parent(node)
    if any(isinstance(a, cst.Annotation) for a in context.ancestors(node)):
        return True
    wraps = context.qualified_name(node) in WRAPPERS
    if wraps and isinstance(above, cst.IfExp) and node is not above.test:
        node, above = above, context.parent(above)  # `(DDP if distributed else Plain)(model)`
    if isinstance(above, cst.Call):
        return above.func is node
    return context.asks_for_type(node)


def _is_over_gloo(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` gets a group over gloo, where all collectives work."""
    group = keyword(call, "group")
    return group is not None and makes_gloo_group(group.value, context)


def _is_environment_key(node: cst.SimpleString, context: Workspace) -> bool:
    for above in context.within_statement(node):
        if isinstance(above, cst.Subscript):
            return context.qualified_name(above.value) == "os.environ"
        if isinstance(above, cst.Call):
            name = context.qualified_name(above.func) or ""
            return name in CALLS or name.startswith("os.environ.")
    return False
