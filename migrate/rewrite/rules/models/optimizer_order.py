"""An optimizer that is made before the model is on the device would never change the weights."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Severity
from migrate.model.calls.kind import Kind
from migrate.reading.values.devices import moves
from migrate.rewrite.edits.imports import bindings
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Stage,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code

SWAP = "torch.__future__.set_swap_module_params_on_conversion"
COMMENT = "# The optimizer was made before: it keeps the weights of the model."
TAKEN = (
    "# The parameters of the optimizer were collected before: they stay the weights of the model."
)
LATER = "# The model moves to the device later: the optimizer keeps its weights."
MADE_BEFORE = (
    "{} is made before the model moves here: these weights would never change, move it first"
)
TAKEN_BEFORE = (
    "the parameters of an optimizer are collected before the model moves here: these weights would never "
    "change, move it first"
)
ON_META = (
    'the model is on "meta" here, and `to_empty` makes new parameters, on CUDA as on XLA: these weights '
    "never change; make the optimizer after it ({})"
)
LEAVES = (
    "`{}` makes new parameters, and so does the move back, where the optimizer of {} keeps the old ones: "
    f"from then on nothing trains; move a copy (`copy.deepcopy`), or call {SWAP}(True) before both"
)
BY_HAND = (
    "if the model is moved to the device only after this, its weights never change, with no "
    f"error: move it before the optimizer is made, or call {SWAP}(True) first"
)


class OptimizerOrder(Rule):
    """Let an optimizer that is made before the model is on the device keep the model's weights.

    **Why.** `.to('xla')` replaces the parameters of a module. An optimizer that holds the old ones steps
    without an error, and the weights never change.

    **What it does.** An optimizer is what makes one, whatever it is called: a class of torch, of the
    project or of another library, also one that is chosen while the script runs. Its model is followed
    through functions, attributes, containers and files. Where the model moves to the device only after
    the optimizer is made, `torch.__future__.set_swap_module_params_on_conversion(True)` comes before the
    optimizer, where its function makes the model, else before the move: the move then keeps the
    parameters themselves, so that the order no longer matters (measured: the optimizer made before the
    move changes the weights). A function that unknown callers give a model and an optimizer, and that
    moves the model, gets the same before the move. Where the project loads state dicts, the switch is on
    for the move alone, or from the optimizer to the move, and `…(False)` comes after it:
    `load_state_dict` of a model in DDP raises while the switch is on.

    The same holds for parameters that a list, a comprehension or a loop collects before the move, also where
    the optimizer of them is made after it. A generator as `model.parameters()` itself runs in the optimizer.

    **Left alone.** An optimizer whose model has moved on every way that leads to it, or is made on the device
    (`with torch.device("cuda"):`, `device=`). A move to XLA in a script for torch_xla whose callers are not
    known.

    **Reported.** An optimizer whose model is not seen to move, in a function that moves nothing to the device
    before it, in a script that does so elsewhere: move the model first, or see that the caller has. A move
    that no statement can stand before. A switch that stays on where state dicts are loaded, as the script
    does not show the move. An optimizer of a model on the device "meta", made before `to_empty`: it trains
    nothing on CUDA either. A model that goes to the CPU, as for an evaluation or a save, and comes back to be
    trained by the same optimizer.

    Source: torch_xla 2.9 (measured); pytorch/xla#3675, #1764.
    """

    name = "optimizer-order"
    code = "XLA805"
    targets = BOTH
    on_torch_tpu = "The move makes new parameters too, so the same weights never change (measured)."
    beside_frameworks = True
    stage = Stage.DEVICE
    nodes = (cst.Call,)
    examples = (
        rewritten(
            """
            import torch


            def load_objects():
                dataset = make_dataset()
                model = torch.nn.Linear(20, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                return dataset, model, optimizer


            def train(rank):
                dataset, model, optimizer = load_objects()
                model = model.to(rank)
                torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
            """,
            """
            import torch


            def load_objects():
                dataset = make_dataset()
                model = torch.nn.Linear(20, 1)
                # The model moves to the device later: the optimizer keeps its weights.
                torch.__future__.set_swap_module_params_on_conversion(True)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                return dataset, model, optimizer


            def train(rank):
                dataset, model, optimizer = load_objects()
                model = model.to("xla")
                torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            """,
        ),
        rewritten(
            """
            import torch


            class Trainer:
                def __init__(self, model, optimizer, batch, rank):
                    self.optimizer = optimizer
                    self.batch = batch.to(rank)
                    self.model = model.to(rank)
                    self.ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
            """,
            """
            import torch


            class Trainer:
                def __init__(self, model, optimizer, batch, rank):
                    self.optimizer = optimizer
                    self.batch = batch.to("xla")
                    # The optimizer was made before: it keeps the weights of the model.
                    torch.__future__.set_swap_module_params_on_conversion(True)
                    self.model = model.to("xla")
                    self.ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            """,
        ),
        left_alone(
            """
            import torch


            def main(loader):
                model = torch.nn.Linear(4, 4)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                model = model.to("xla")
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                return model, optimizer
            """
        ),
        left_alone(
            """
            import torch


            def train(batch, optimizer):
                return batch.to('xla')
            """
        ),
        left_alone(
            """
            import torch


            def make(batch):
                torch.set_default_device('xla')
                model = torch.nn.Linear(2, 2)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                return model, optimizer, batch.to('xla')
            """
        ),
        left_alone(
            """
            import torch


            def make(model):
                model.to('xla')
                return model, torch.optim.SGD(model.parameters(), lr=0.1)
            """
        ),
        left_alone(
            """
            import torch


            def fit(network, batches):
                optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
                return optimizer, batches


            def main(batches):
                network = torch.nn.Linear(2, 2).to('xla')
                network.fit(fit=batches)
                fit(network, batches)
            """
        ),
        left_alone(
            """
            import torch


            def make_for_the_cpu(model):
                return torch.optim.SGD(model.parameters(), lr=0.1)
            """
        ),
        reported(
            """
            import torch


            def make(model):
                return torch.optim.SGD(model.parameters(), lr=0.1)


            def moved(batch):
                return batch.to('xla')
            """,
            "before",
        ),
        checked(
            """
            import torch


            def make(net):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                net.cuda()  # XLA805
                return optimizer
            """
        ),
        checked(
            """
            import torch


            def make(net, loss_fn):
                net.to("xla")
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                loss_fn.cuda()
                return optimizer


            def make_there(Net, device):
                net = Net().to("cuda")
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                net.cpu()
                net.to("cuda")
                return optimizer


            def make_before(net):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                torch.__future__.set_swap_module_params_on_conversion(True)
                net.to("xla")
                torch.__future__.set_swap_module_params_on_conversion(False)
                return optimizer
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for one construction of an optimizer, or one move of a model."""
        assert isinstance(node, cst.Call)
        if (kept := context.calls.optimizers.leaves.get(context.place(node))) is not None:
            where = _line_of(kept, context)
            yield from self.report(node, LEAVES.format(code(node), where))
            return
        if context.calls.led is not None:
            if wrong := _moves_later(node, context):
                yield from self.report(node, wrong)
            return
        there = context.moves_to_accelerator or context.calls.run_on_accelerator
        if not there or _is_swapped(context):
            return
        if _makes_optimizer(node, context):
            yield from self._optimizer(node, context)
        elif id(node) in (switched := _switched(context)):
            line = context.statement_around(node)
            message = f"{SWAP}: on for the move of the model alone"
            comment = COMMENT if switched[id(node)] else ""
            yield self.edit(
                line,
                lambda updated: around_move(updated, comment, context),
                message,
                wrong=MADE_BEFORE.format("its optimizer"),
            )
        elif _is_late(node, context) and not _is_switched_above(node, context):
            line = context.statement_around(node)
            if isinstance(line, cst.SimpleStatementLine):
                swap = SWAP.replace("torch", context.imports.require("torch"), 1)
                is_taken = context.place(node) in context.calls.optimizers.taken
                comment = TAKEN if is_taken else COMMENT
                message = f"{SWAP}(True): the optimizer was made before this"
                if is_taken:
                    message = f"{SWAP}(True): parameters were collected before this"
                yield self.edit(
                    line,
                    lambda updated: around_move(updated, comment, context, swap),
                    message,
                    wrong=_made_before(node, context),
                )
            else:
                yield from self.report(
                    node,
                    "the optimizer of this model is made before it moves, and would keep the weights that "
                    f"it had: call {SWAP}(True) before this",
                )
        elif (handed := context.calls.optimizers.handed.get(context.place(node))) is not None:
            name, to = handed
            yield from self.report(
                node,
                f"`{name}` goes with this model to `{to}`, which the project does not contain: if it is an "
                "optimizer, it was made before the model moves here, keeps the weights that the model had, "
                f"and nothing trains; call {SWAP}(True) before this, and see that `{to}` ends its steps",
                Severity.INFO,
            )

    def _optimizer(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        if _is_replaced(node, context):
            return
        early = context.calls.optimizers.early.get(context.place(node))
        if early is not None and early.on_meta:
            yield from self.report(node, _moves_later(node, context))
            return
        line = _line_of_own_model(node, context)
        if early is not None and line is None:
            if early.taken is not None and not early.at_moves:
                yield from self.report(node, _moves_later(node, context))
            elif not early.at_moves and not _is_below_another(node, context):
                yield from self._at_optimizer(node, context)
            return  # else the moves have the switch
        if not _is_too_early(node, context):
            return
        if line is not None:
            loads = context.calls.ties.loads
            if loads and _late_moves(node, context):
                return  # which have the switch
            if loads and not _switched(context):
                yield from self.report(
                    node,
                    "torch's switch stays on from here, and load_state_dict of a model in DDP raises while "
                    f"it is: call {SWAP}(False) where the model has moved",
                )
            if _is_below_another(node, context):
                return
            message = f"{SWAP}(True): the model moves after this"
            wrong = _moves_later(node, context) or BY_HAND
            yield self.edit(line, lambda updated: below_swap(updated, LATER), message, wrong=wrong)
            return
        yield from self.report(node, BY_HAND)

    def _at_optimizer(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the switch above an optimizer whose model moves elsewhere."""
        line = context.statement_around(node)
        if isinstance(line, cst.SimpleStatementLine):
            swap = SWAP.replace("torch", context.imports.require("torch"), 1)
            message = f"{SWAP}(True): the model moves after this"
            yield self.edit(
                line,
                lambda updated: below_swap(updated, LATER, swap),
                message,
                wrong=_moves_later(node, context),
            )
        else:
            yield from self.report(node, BY_HAND)


def _is_replaced(node: cst.Call, context: Workspace) -> bool:
    """Whether the name that is given the optimizer `node` is given another value below, before any use."""
    statement = context.statement_around(node)
    block = context.parent(statement)
    assign = context.parent(node)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return False
    name = assign.targets[0].target
    if not isinstance(name, cst.Name) or not isinstance(block, cst.IndentedBlock | cst.Module):
        return False
    below = [*block.body][[*block.body].index(statement) + 1 :]  # type: ignore[arg-type]
    for other in below:
        uses = [use for use in context.below(other, cst.Name) if use.value == name.value]
        if not uses:
            continue
        small = other.body[0] if isinstance(other, cst.SimpleStatementLine) else None
        return (
            len(uses) == 1
            and isinstance(small, cst.Assign)
            and len(small.targets) == 1
            and small.targets[0].target is uses[0]
        )
    return False


def _moves_later(node: cst.Call, context: Workspace) -> str:
    """Return the message for the optimizer `node` if its model moves later. Empty for other calls."""
    early = context.calls.optimizers.early.get(context.place(node))
    if early is None:
        return ""
    where = _line_of(early.moves[0], context)
    if early.on_meta:
        return ON_META.format(where)
    if early.taken is not None:
        return (
            f"its parameters are collected in {_line_of(early.taken, context)}, before the model moves in "
            f"{where}: these weights would never change, collect them after it"
        )
    return f"the model moves only in {where}: these weights would never change"


def _line_of(line: tuple[Path, int], context: Workspace) -> str:
    path, number = line
    return at_line(number, None if path == context.file.resolve() else path)


def _made_before(move: cst.Call, context: Workspace) -> str:
    """Return the message for optimizers that are created before their model moves at `move`."""
    if context.place(move) in context.calls.optimizers.taken:
        return TAKEN_BEFORE
    own, _ = context.calls.optimizers.moves[context.place(move)]
    lines = sorted({line for line, _ in own})
    return MADE_BEFORE.format(f"the optimizer of {at_line(lines[0])}" if lines else "its optimizer")


def _makes_optimizer(node: cst.Call, context: Workspace) -> bool:
    """Whether `node` creates an optimizer itself. Functions of the project are analyzed separately."""
    places = context.calls.optimizers.created
    if places and context.place(node) in places:
        return True
    return context.values.kind(node) is Kind.OPTIMIZER and not context.run_by(node)


@lru_cache(maxsize=2)  # the last ones: each call of a script asks
def _swaps_above(context: Workspace) -> bool:
    """Whether an optimizer of the script gets the switch at its own line."""
    return any(_has_switch(call, context) for call in context.all_of(cst.Call))


def _is_swapped(context: Workspace) -> bool:
    if not context.references(SWAP.rpartition(".")[2]):
        return False
    return any(context.qualified_name(call.func) == SWAP for call in context.all_of(cst.Call))


def _has_torch(context: Workspace) -> bool:
    return any(binding.target == binding.name == "torch" for binding in bindings(context.module))


def _is_too_early(node: cst.Call, context: Workspace) -> bool:
    """Whether `node` makes an optimizer whose model is not seen to move before it."""
    optimizers = context.calls.optimizers
    if not _makes_optimizer(node, context) or context.place(node) in optimizers.settled:
        return False
    if (early := optimizers.early.get(context.place(node))) is not None:
        return not early.on_meta
    if context.devices.by_default:
        return False  # the model is made there
    return not _is_moved_before(node, context, frozenset())


def _is_moved_before(node: cst.CSTNode, context: Workspace, seen: frozenset[int]) -> bool:
    """Whether the function around `node` moves something before it, or everybody who calls it has."""
    function = context.function_around(node)
    around = function or context.module
    here = context.position(node)
    if any(
        (context.position(call).line, context.position(call).column) < (here.line, here.column)
        and context.function_around(call) is function
        for call in moves(around, context)
    ):
        return True
    if function is None or id(function) in seen:
        return False
    name = function.name.value
    if context.functions.get(name) is not function:
        return False
    occurrences = context.mentions(function.name)
    mentions = [mention for mention in occurrences if mention is not function.name]
    calls = [context.parent(mention) for mention in mentions]
    return bool(calls) and all(
        isinstance(call, cst.Call)
        and call.func is mention
        and _is_moved_before(call, context, seen | {id(function)})
        for call, mention in zip(calls, mentions, strict=True)
    )


@lru_cache(maxsize=2)  # the last ones: each call of a script asks
def _switched(context: Workspace) -> dict[int, bool]:
    """Map the id of each move to whether the switch is turned on just before it; it is off after it.

    Where the script shows no move in the function that makes the optimizer, it goes on there, and off where
    other functions move a model. What `tied-weights` switches is left to it.
    """
    if not context.calls.ties.loads:
        return {}
    early = [
        call
        for call in context.all_of(cst.Call)
        if _is_too_early(call, context) and _line_of_own_model(call, context) is not None
    ]
    is_tied: dict[int, bool] = {}
    for call in early:
        late = _late_moves(call, context)
        is_tied |= {id(move): True for move in late if not _is_tied(move, context)}
        if not late:
            others = (
                move
                for move in moves(context.module, context)
                if isinstance(move.func, cst.Attribute)
                and context.values.kind(move.func.value) is Kind.MODEL
                and not _is_tied(move, context)
                and _is_line(move, context)
            )
            is_tied |= {id(move): False for move in others if id(move) not in is_tied}
    return is_tied


def _is_tied(move: cst.Call, context: Workspace) -> bool:
    return context.place(move) in context.calls.ties.moves


def _is_line(move: cst.Call, context: Workspace) -> bool:
    line = context.statement_around(move)
    return isinstance(line, cst.SimpleStatementLine) and is_switched_off(line, context)


def _late_moves(optimizer: cst.Call, context: Workspace) -> list[cst.Call]:
    """Return the moves of the model below its optimizer in the same function, if there are such."""
    model = _model_of(optimizer)
    if model is None:
        return []
    function, here = context.function_around(optimizer), context.position(optimizer).line
    return [
        move
        for move in moves(function or context.module, context)
        if isinstance(move.func, cst.Attribute)
        and isinstance(move.func.value, cst.Name)
        and move.func.value.value == model.value
        and context.function_around(move) is function
        and context.position(move).line > here
        and _is_line(move, context)
    ]


def _model_of(optimizer: cst.Call) -> cst.Name | None:
    """Return the model of `SGD(model.parameters())`."""
    weights = optimizer.args[0].value if optimizer.args else None
    if not (isinstance(weights, cst.Call) and isinstance(weights.func, cst.Attribute)):
        return None
    model = weights.func.value
    is_own = weights.func.attr.value == "parameters" and isinstance(model, cst.Name)
    return cst.ensure_type(model, cst.Name) if is_own else None


def _line_of_own_model(node: cst.Call, context: Workspace) -> cst.SimpleStatementLine | None:
    """Return the line of `SGD(model.parameters())` after `model = Model()` in the same function."""
    model = _model_of(node)
    if model is None or context.bound_to(model)[0] is not context.function_around(node):
        return None
    here = context.position(node).line
    values = [
        value
        for binding, value in zip(context.bindings(model), context.bound_values(model), strict=True)
        if context.position(binding.node).line < here
    ]
    for value in values or [None]:
        if not isinstance(value, cst.Call):
            return None
        if isinstance(value.func, cst.Name) and value.func.value in context.functions:
            return None  # a function of the script's own, which may have moved it
    if not _goes_on(model, context):
        return None
    line = context.statement_around(node)
    return line if isinstance(line, cst.SimpleStatementLine) and _has_torch(context) else None


def _goes_on(model: cst.Name, context: Workspace) -> bool:
    """Whether a model is moved, or may be moved elsewhere: it is returned, passed, kept or called."""
    owner, _ = context.bound_to(model)
    bound = {id(binding.node) for binding in context.bindings(model)}
    for mention in context.references(model.value):
        if context.bound_to(mention)[0] is not owner or id(mention) in bound:
            continue
        above = context.parent(mention)
        if not isinstance(above, cst.Attribute) or above.attr.value in ("to", "cuda"):
            return True
    return False


def _is_late(node: cst.Call, context: Workspace) -> bool:
    """Whether `node` moves a model whose optimizer exists already, and keeps the switch for itself."""
    late = context.calls.optimizers.moves.get(context.place(node))
    if late is None:
        return False
    own, has_others = late
    if not own.isdisjoint(_left_to_moves(context)):
        return True
    return has_others and not _swaps_above(context)


@lru_cache(maxsize=2)  # the last ones: each call of a script asks
def _left_to_moves(context: Workspace) -> frozenset[tuple[int, int]]:
    """Return where the optimizers end whose models get the switch when they move."""
    early = context.calls.optimizers.early
    return frozenset(
        context.place(call)
        for call in (context.all_of(cst.Call) if early else ())
        if (early_optimizer := early.get(context.place(call))) is not None
        and early_optimizer.at_moves
        and _line_of_own_model(call, context) is None
    )


def _is_below_another(node: cst.Call, context: Workspace) -> bool:
    """Whether an optimizer above `node`, which is always made before it, has the switch, which stays on."""
    if context.calls.ties.loads:
        return False
    function, here = context.function_around(node), context.position(node).line
    around = [id(above) for above in context.ancestors(node)]
    return any(
        context.position(call).line < here
        and context.function_around(call) is function
        and id(context.parent(context.statement_around(call))) in around
        and _has_switch(call, context)
        for call in context.all_of(cst.Call)
    )


def _has_switch(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` creates an optimizer and the switch is turned on above it."""
    early = context.calls.optimizers.early.get(context.place(call))
    if early is not None and not early.at_moves:
        return isinstance(context.statement_around(call), cst.SimpleStatementLine)
    return _is_too_early(call, context) and _line_of_own_model(call, context) is not None


def _is_switched_above(node: cst.Call, context: Workspace) -> bool:
    """Whether a move above `node` in the same block has turned the switch on for good."""
    if context.calls.ties.loads:
        return False
    function, here = context.function_around(node), context.position(node).line
    around = [id(ancestor) for ancestor in context.ancestors(node)]
    return any(
        context.position(move).line < here
        and id(context.parent(context.statement_around(move))) in around
        and _is_late(move, context)
        for move in moves(function or context.module, context)
    )


def below_swap(
    updated: cst.SimpleStatementLine, comment: str, swap: str = SWAP
) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return `swap(True)`, with a comment, and the line `updated` below it."""
    line = _switch(swap, on=True)
    above = [*updated.leading_lines, cst.EmptyLine(comment=cst.Comment(comment))]
    return cst.FlattenSentinel(
        [line.with_changes(leading_lines=above), updated.with_changes(leading_lines=[])]
    )


def around_move(
    updated: cst.SimpleStatementLine, comment: str, context: Workspace, swap: str = SWAP
) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return the line `updated`, which moves a model, below `swap(True)`; without a comment it is on already.

    Below it the switch goes off again where state dicts are loaded: while it is on, `load_state_dict`
    exchanges parameters as well, and raises where DDP holds them.
    """
    lines = below_swap(updated, comment, swap).nodes if comment else [updated]
    off = [_switch(swap, on=False)] if is_switched_off(updated, context) else []
    return cst.FlattenSentinel([*lines, *off])


def is_switched_off(line: cst.SimpleStatementLine, context: Workspace) -> bool:
    """Whether the switch is on for the move in `line` only.

    So it is in a notebook: a cell that is run later, or written later, may load a state dict.
    """
    loads = context.calls.ties.loads or context.source.is_notebook
    return loads and not isinstance(line.body[-1], cst.Return)


def _switch(swap: str, *, on: bool) -> cst.SimpleStatementLine:
    return cst.ensure_type(cst.parse_statement(f"{swap}({on})"), cst.SimpleStatementLine)
