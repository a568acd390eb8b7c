"""Indexing with a mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.catalogue.words import BOOLEAN_METHODS, ENTRY_OF_MASK, SAME_VALUES, words
from migrate.check.common import method, varying
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import SHAPE_OF_VALUES
from migrate.check.rules.shapes.masked_copies import assignment_to, copied_to, is_copied_to
from migrate.model.calls.kind import TENSORS as OF_TENSORS
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import Assignment, How
from migrate.reading.steps.evaluating import in_evaluation
from migrate.reading.steps.in_step import When
from migrate.reading.values.collectives import TENSORS, called
from migrate.reading.values.masks import is_boolean
from migrate.syntax.tree import code, is_attribute_of_self, string_value

LOGARITHMS = words("log log10 log2")
COPIED = "a[mask] = b[mask] is a.copy_(torch.where(mask, b, a)), the mask with as many axes as a"

ORDERS = cst.LessThan | cst.LessThanEqual | cst.GreaterThan | cst.GreaterThanEqual

# Packages whose arrays are not torch's.
OTHER_FRAMEWORKS = frozenset({"jax", "flax", "mlx"})


class BooleanIndex(Hazard):
    """Indexing with a boolean mask has a shape that depends on values.

    **Why.** `x[mask]` is `nonzero` and a gather. Assigning (`x[mask] = 0`) is the same inside: measured on
    torch_xla 2.9, it fetches the mask too and compiles for each number of elements. Replicas whose masks
    differ in number run different graphs, and wait for each other in the next collective. An attribute that
    its class declares as `BoolTensor` is a mask. Else an entry of the batch, as `batch["valid_mask"]` and
    `graph.train_mask`, counts as one by its name, and so does what is made of one. An evaluation on the
    device compiles for each number as training does. Outside of a step, what is taken by a mask and given to
    a collective parts the replicas too.

    **What to do.** `torch.where(mask, x, 0)` and a sum divided by `mask.sum()` for means (its `.mean()` would
    count the zeros); below a logarithm, a root or a division fill with 1, as 0 gives inf and NaN gradients;
    `x.masked_fill(mask, 0)` or `torch.where(mask, new, x)` for assignments, and `a[mask] = b[mask]` is
    `a.copy_(torch.where(mask, b, a))`. The mask gets as many axes as the tensor: `mask[:, None]`.
    """

    code = "XLA103"
    name = "boolean-index"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = SHAPE_OF_VALUES
    nodes = (cst.Subscript, cst.Call)
    examples = (
        example(
            """
            import torch


            class Loss(torch.nn.Module):
                def forward(self, x, target):
                    valid = target != -100
                    x[x < 0] = 0  # XLA103
                    x.index_put_((valid,), torch.zeros(()), accumulate=True)  # XLA103
                    return x[valid].mean()  # XLA103
            """
        ),
        example(
            """
            import numpy as np
            import torch


            class Loss(torch.nn.Module):
                def forward(self, x, target):
                    index = target.argmax(dim=1)
                    x.index_put_((index,), torch.ones(()), accumulate=True)
                    return x[index, 0] + x[:, None].masked_fill(target == 0, 0.0)


            def positive(table: np.ndarray):
                return table[table > 0]
            """
        ),
        example(
            """
            import torch


            class Loss(torch.nn.Module):
                def __init__(self, criterion):
                    super().__init__()
                    self.criterion = criterion

                def points(self, gt, pred, clip=None):
                    inside = gt["valid_mask"].clone()
                    if clip is not None:
                        inside = inside & (gt["pts"].norm(dim=-1) <= clip)
                    return gt["pts"], pred["pts"], inside

                def compute_loss(self, gt, pred, **options):
                    pts, guess, on = self.points(gt, pred, **options)
                    loss = self.criterion(guess[on], pts[on])  # XLA103 # XLA103
                    (near, msk1), more = loss
                    far = gt["depth"][~gt["mask"]]  # XLA103
                    far = far + gt["depth"][more | options["near"]]  # XLA103
                    return near * pred["conf"][msk1], far, pts[gt["index"]]  # XLA103

                def forward(self, *args, **options):
                    return self.compute_loss(*args, **options)
            """
        ),
        example(
            """
            import dataclasses

            import torch


            @dataclasses.dataclass
            class Rows:
                values: torch.Tensor
                kept: torch.BoolTensor
                order: torch.LongTensor


            class Net(torch.nn.Module):
                def forward(self, graph, rows: Rows):
                    loss = graph.x[graph.train_mask].sum() + graph.x[graph.edge_index[0]].sum()  # XLA103
                    return loss + rows.values[rows.kept].sum() + rows.values[rows.order].sum()  # XLA103
            """
        ),
        example(
            """
            import torch


            @torch.no_grad()
            def evaluate(model, loader, errors):
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    out = model(x)
                    errors.append(out[y > 0].mean().item())  # XLA103
                    out, y = out.cpu(), y.cpu()
                    errors.append(out[y > 1].mean().item())
            """
        ),
        example(
            """
            import torch


            class Net(torch.nn.Module):
                def forward(self, batch, *args):
                    names = [name for name in batch]
                    order, valid = args
                    if valid:
                        names = names[order]
                    return batch["x"][order] * batch["weights"][0], batch["mask"] * batch["x"]
            """
        ),
        example(
            """
            import torch
            from masks import drawn


            class Net(torch.nn.Module):
                def __init__(self, parts):
                    super().__init__()
                    self.parts = list(parts)
                    self.fill = torch.nn.Parameter(torch.zeros(2))

                def forward(self, x, names, kind="a"):
                    mask = drawn(x.shape)
                    x = x.clone()
                    x[mask == 1] = self.fill  # XLA103
                    return x[drawn(x.shape) > 0.5].sum() + x[0 if kind == "a" else 1].sum()  # XLA103


            class FlowLoss:
                def __call__(self, net, x, labels):
                    dropped = torch.rand(labels.shape[0], device=x.device) < 0.1
                    labels[dropped] = 0  # XLA103
                    return (net(x, labels) - x).pow(2).mean()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Loss(torch.nn.Module):
            def forward(self, x, target):
                valid = target != -100
                x = x.clamp(min=0)
                return torch.where(valid, x, 0.0).sum() / valid.sum()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one subscript, or one `index_put`, with a mask among its indices."""
        if isinstance(node, cst.Call):
            yield from self._put(node, facts)
            return
        assert isinstance(node, cst.Subscript)
        if _is_of_other_framework(node.value, facts):
            return
        for element in node.slice:
            index = element.slice
            if not isinstance(index, cst.Index) or isinstance(index.value, cst.BaseNumber):
                continue
            boolean = is_boolean(index.value, facts)
            if not boolean and not _may_be_mask(node, index.value, facts):
                continue
            if _is_said_at_target(node, index.value, facts):
                return
            instead = _instead(node, facts)
            if boolean and not _is_combined(node, facts):
                message = f"a boolean mask as index: a compilation for each number; {instead}"
                yield from varying(self, node, index.value, message, facts)
            elif boolean or (_is_combined(node, facts) and not facts.steps.inside(node)):
                message = (
                    "a boolean mask before a collective: replicas whose masks differ in number run"
                )
                yield self.hit(
                    node, f"{message} different graphs, and wait for each other; {instead}"
                )
            else:
                what = f"if `{code(index.value)}` is a boolean mask"
                yield self.hit(node, f"{what}, a compilation for each number; {instead}")
            return

    def _put(self, node: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield `x.index_put_((mask,), values)`."""
        if method(node) not in ("index_put", "index_put_") or not node.args:
            return
        indices = node.args[0].value
        if not isinstance(indices, cst.Tuple | cst.List):
            return
        for element in indices.elements:
            if is_boolean(element.value, facts):
                message = "a boolean mask as index: a compilation for each number; torch.where"
                yield from varying(self, node, element.value, message, facts)
                return


def _instead(node: cst.Subscript, facts: Facts) -> str:
    """Return the replacement for `x[mask]`, by its use: a target, a mean, a logarithm, or an unknown use."""
    if is_copied_to(node, facts):
        return COPIED
    if assignment_to(node, facts) or isinstance(facts.context.parent(node), cst.Element):
        return "masked_fill or torch.where"
    arg = facts.context.parent(node)
    call = facts.context.parent(arg)
    done = ""
    if isinstance(call, cst.Call):
        done = method(call) if isinstance(arg, cst.Attribute | cst.Arg) else ""
    if done == "mean":
        return "the mean is torch.where(mask, x, 0).sum() / mask.sum()"
    if done in LOGARITHMS:
        return "torch.where(mask, x, 1), since the logarithm of 0 is -inf"
    return (
        "torch.where(mask, x, 0); a mean is its sum / mask.sum(), and below a logarithm fill with 1"
    )


def _is_said_at_target(node: cst.Subscript, index: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is `b[mask]` of `a[mask] = b[mask]`, which is reported once, at `a[mask]`."""
    target = copied_to(node, facts)
    if target is None or _is_of_other_framework(target.value, facts):
        return False
    return is_boolean(index, facts) or _may_be_mask(target, index, facts)


def _is_of_other_framework(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is an array of JAX or MLX: by what made it, or in a file without torch."""
    if facts.names.roots & OTHER_FRAMEWORKS and "torch" not in facts.names.roots:
        return True
    values = (
        facts.values.given_to(value) if isinstance(value, cst.Name | cst.Attribute) else [value]
    )
    callees = [facts.names.of(call.func) or "" for call in values if isinstance(call, cst.Call)]
    return len(callees) == len(values) > 0 and all(
        name.partition(".")[0] in OTHER_FRAMEWORKS for name in callees
    )


def _may_be_mask(node: cst.Subscript, index: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `index` is a mask, by its construction or its name, if its device is unknown.

    A step computes with it: an entry of the batch, or what a method made of one returns. In an evaluation,
    and beside the step, it is one where it or what it takes from lies on the device.
    """
    while isinstance(index, cst.Call) and method(index) in SAME_VALUES:
        index = cst.ensure_type(index.func, cst.Attribute).value
    if isinstance(index, cst.UnaryOperation) and isinstance(index.operator, cst.BitInvert):
        index = index.expression
    compared = isinstance(index, cst.Comparison) and (
        code(index.left) == code(node.value) or _compares_unknown(node, index, facts)
    )
    joined = _joins(index)
    if not (compared or joined or isinstance(index, cst.Name | cst.Subscript | cst.Attribute)):
        return False  # `x[x > 0]` compares itself, which a list and a number cannot
    if not facts.steps.inside(node):
        every = facts.steps.when(node) is When.EVERY_STEP or in_evaluation(node, facts)
        placed = facts.values.on_device(index) or facts.values.on_device(node.value)
        meets = (every and placed) or _is_combined(node, facts)
        return meets and _is_made_as_mask(index, facts)
    holds = (facts.values.kind(node.value), facts.values.kind(index))
    if any(kind not in {Kind.UNKNOWN, *OF_TENSORS} for kind in holds):
        return False
    return compared or joined or _is_made_as_mask(index, facts)


def _compares_unknown(node: cst.Subscript, index: cst.Comparison, facts: Facts) -> bool:
    """Whether `index` compares a value of unknown kind, and a tensor is indexed: `x[drawn(x.shape) == 1]`.

    A comparison of numbers or text as index of a tensor has no use.
    """
    compares = len(index.comparisons) == 1 and isinstance(
        index.comparisons[0].operator, ORDERS | cst.Equal | cst.NotEqual
    )
    other = index.comparisons[0].comparator
    return (
        compares
        and facts.values.is_tensor(node.value)
        and facts.values.kind(index.left) is Kind.UNKNOWN
        and string_value(other) is None
    )


def _is_combined(node: cst.Subscript, facts: Facts) -> bool:
    """Whether all replicas combine what is computed of `node`: `mean_std(x[mask])`, with an all-reduce."""
    kind = facts.values.kind(node.value)
    if not facts.context.calls.replicated or kind not in (Kind.UNKNOWN, Kind.ON_DEVICE):
        return False
    script = facts.context
    uses: list[cst.CSTNode] = [node]
    whole = _result(node, facts)
    statement = script.parent(whole)
    if isinstance(statement, cst.Assign) and isinstance(statement.targets[0].target, cst.Name):
        uses += [
            use
            for use in script.mentions(statement.targets[0].target)
            if isinstance(use, cst.Name) and facts.bindings.nearest(use) is not None
        ]
    for use in uses:
        arg = script.parent(_result(use, facts))
        call = script.parent(arg)
        if not isinstance(arg, cst.Arg) or not isinstance(call, cst.Call) or not call.args:
            continue
        ran = script.run_by(call)
        if called(call, script) in TENSORS or (ran and all(f.combines for f in ran)):
            return True
    return False


def _result(node: cst.CSTNode, facts: Facts) -> cst.CSTNode:
    """Return `x[mask].abs().sum()`, the methods that are called on `node`."""
    while isinstance(above := facts.context.parent(node), cst.Attribute) and above.value is node:
        call = facts.context.parent(above)
        if not isinstance(call, cst.Call) or call.func is not above:
            break
        node = call
    return node


def _joins(index: cst.BaseExpression) -> bool:
    """Whether `index` joins two values bitwise, neither of them a plain number: `first | second`."""
    return (
        isinstance(index, cst.BinaryOperation)
        and isinstance(index.operator, cst.BitAnd | cst.BitOr)
        and not isinstance(index.left, cst.BaseNumber)
        and not isinstance(index.right, cst.BaseNumber)
    )


def _is_made_as_mask(node: cst.CSTNode | None, facts: Facts, depth: int = 6) -> bool:
    """Whether `node` is a mask: a comparison, a bitwise operation, or something named as a mask."""
    if depth == 0:
        return False
    if isinstance(node, cst.BinaryOperation):
        both = (node.left, node.right)
        joins = isinstance(node.operator, cst.BitAnd | cst.BitOr)
        return joins and any(
            isinstance(side, cst.Comparison) or _is_made_as_mask(side, facts, depth - 1)
            for side in both
        )
    if isinstance(node, cst.UnaryOperation):
        inverts = isinstance(node.operator, cst.BitInvert)
        return inverts and _is_made_as_mask(node.expression, facts, depth - 1)
    if isinstance(node, cst.Subscript):
        key = node.slice[0].slice
        text = string_value(key.value) if isinstance(key, cst.Index) else None
        if text is not None:
            return ENTRY_OF_MASK.search(text) is not None
        return _is_made_as_mask(node.value, facts, depth - 1)  # a part of a mask
    if isinstance(node, cst.ListComp):  # a mask for each view, `masks[i]`
        return _is_made_as_mask(node.elt, facts, depth - 1)
    if isinstance(node, cst.List | cst.Tuple):
        return any(_is_made_as_mask(part.value, facts, depth - 1) for part in node.elements)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if method(node) in BOOLEAN_METHODS:
            return True
        of = node.func.value
        is_mask = isinstance(of, cst.Comparison) or _is_made_as_mask(of, facts, depth - 1)
        return method(node) in SAME_VALUES and is_mask
    if isinstance(node, cst.Attribute):  # of a batch that is an object: `graph.train_mask`
        named = ENTRY_OF_MASK.search(node.attr.value) is not None
        return named and not is_attribute_of_self(node)
    if not isinstance(node, cst.Name):
        return False
    assignments = facts.bindings.reaching(node)
    for value in (part for assignment in assignments for part in _parts(assignment, facts)):
        if isinstance(value, cst.Comparison) or _is_made_as_mask(value, facts, depth - 1):
            return True
    if any(_hands_back_mask(assignment, facts) for assignment in assignments):
        return True
    known = bool(assignments) and all(assignment.how is How.VALUE for assignment in assignments)
    return not known and ENTRY_OF_MASK.search(node.value) is not None


def _hands_back_mask(assignment: Assignment, facts: Facts) -> bool:
    """Whether a name gets a mask from the tuple that a function of the project returns."""
    call, position = assignment.value, assignment.index
    if position is None or not isinstance(call, cst.Call):
        return False
    return any(position in function.masks for function in facts.context.run_by(call))


def _parts(assignment: Assignment, facts: Facts) -> list[cst.BaseExpression]:
    """Return the possible values of a name, including results of the script's functions."""
    value = assignment.value
    if value is None or assignment.how is How.VALUE:
        return [value] if value is not None else []
    if assignment.index is None or not isinstance(value, cst.Call):
        return []
    returned = (r for f in facts.context.called(value) for r in facts.bindings.returns[id(f)])
    return [
        value.elements[assignment.index].value
        for value in returned
        if isinstance(value, cst.Tuple) and len(value.elements) == assignment.count
    ]
