"""DistributedDataParallel without CUDA device ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import libcst as cst

from migrate.catalogue.launchers import DDP, DDP_DEVICES
from migrate.catalogue.prescan import spelled
from migrate.catalogue.target import BOTH
from migrate.catalogue.words import DEVICE_NAME
from migrate.check.hazard import Severity
from migrate.reading.names.bindings import How
from migrate.reading.values.devices import device_argument
from migrate.rewrite.edits.nodes import keyword_arg, with_args
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
from migrate.rewrite.rules.models.ddp_options import DdpOptions
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

UNREAD = (
    "DistributedDataParallel with arguments that cannot be read off the call: "
    "see that device_ids and output_device are not among them"
)
DELAYED = (
    "delay_all_reduce_named_params keeps its gradients on the CPU without device_ids, and on XLA the "
    "backward pass raises: leave it out, with param_to_hook_all_reduce"
)
PARAMETERS = (
    "module",
    "device_ids",
    "output_device",
    "dim",
    "broadcast_buffers",
    "init_sync",
    "process_group",
    "bucket_cap_mb",
    "find_unused_parameters",
    "check_reduction",
    "gradient_as_bucket_view",
    "static_graph",
    "delay_all_reduce_named_params",
    "param_to_hook_all_reduce",
    "mixed_precision",
    "device_mesh",
    "skip_all_reduce_unused_params",
)


class Ddp(Rule):
    """Wrap the model in DistributedDataParallel without CUDA device ids.

    **What it does.** `DDP(model, device_ids=[rank])` becomes `DDP(model, gradient_as_bucket_view=True)`.
    `device_ids` and `output_device` name CUDA devices; on XLA `[0]` constructs and `[3]` fails in the
    forward. `gradient_as_bucket_view` spares one copy of the gradients.

    `(DDP if distributed else Plain)(model, device_ids=[rank])` only loses its devices: the other class may
    not know the rest.

    Arguments that a dictionary passes are followed: `**options` loses `device_ids` and `output_device` where
    the script puts them into the dictionary.

    **Reported.** A call with `*` arguments, and one with a `**` argument that is not made in the script, or
    that is used for more than DistributedDataParallel. `delay_all_reduce_named_params`, which raises. An
    explicit `gradient_as_bucket_view=False`, and a script that makes the model and moves nothing to a device,
    its own or one that another file names, are reported too, the call being rewritten all the same.

    Source: torch_xla 2.9 (measured); pytorch/xla's own DDP example.
    """

    name = "ddp"
    code = "XLA824"
    targets = BOTH
    on_torch_tpu = (
        "`device_ids=[1]` raises an IndexError. Nothing is added: gradients as views of the "
        "buckets are a choice, as on CUDA."
    )
    beside_frameworks = True
    stage = Stage.DEVICE
    nodes = (cst.Call,)
    words = spelled(DDP)
    examples = (
        rewritten(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model, rank):
                # one process per device
                return DDP(model.cuda(), device_ids=[rank], find_unused_parameters=True)
            """,
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model, rank):
                # one process per device
                return DDP(model.to("xla"), find_unused_parameters=True, gradient_as_bucket_view=True)
            """,
        ),
        rewritten(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP

            from models import Plain


            def wrap(model, distributed):
                devices = dict(device_ids=[torch.device("cuda:0")])
                both = (DDP if distributed else Plain)(model, device_ids=[0], output_device=0)
                return both, DDP(model, device_ids=[torch.device("cuda", 0)])
            """,
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP

            from models import Plain


            def wrap(model, distributed):
                devices = dict(device_ids=[torch.device("xla")])
                both = (DDP if distributed else Plain)(model)
                return both, DDP(model, gradient_as_bucket_view=True)
            """,
        ),
        left_alone(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP

            import setup


            def wrap(model):
                model.to(setup.dev())
                return DDP(model, gradient_as_bucket_view=True)
            """
        ),
        left_alone(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model):
                return DDP(model.to('xla'), gradient_as_bucket_view=True)
            """
        ),
        reported(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model, late):
                model = model.cuda()
                return DDP(model, delay_all_reduce_named_params=late, param_to_hook_all_reduce=late[0][1])
            """,
            "on XLA the backward pass raises",
        ),
        reported(
            """
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel as DDP

            model = DDP(nn.Linear(3, 1))
            """,
            "moves no model to a device",
        ),
        reported(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model, options):
                return DDP(model, **options)
            """,
            "arguments that cannot be read",
        ),
        rewritten(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model, args):
                model = model.to(args.device)
                options = dict(device_ids=[args.gpu], static_graph=True)
                more = {}
                if args.unused:
                    more["find_unused_parameters"] = True
                if args.gpu is not None:
                    more["output_device"] = args.gpu
                if args.plain:
                    return DDP(model, **options)
                return DDP(model, device_ids=[args.gpu], **more)
            """,
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model, args):
                model = model.to(args.device)
                options = dict(static_graph=True)
                more = {}
                if args.unused:
                    more["find_unused_parameters"] = True
                if args.plain:
                    return DDP(model, gradient_as_bucket_view=True, **options)
                return DDP(model, gradient_as_bucket_view=True, **more)
            """,
        ),
        reported(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP

            from models import Plain


            def wrap(model, distributed, options):
                return (DDP if distributed else Plain)(model, **options)
            """,
            "no device ids are among",
        ),
        checked(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model, rank, inner):
                model.to("xla")
                inner = DDP(inner, device_ids=None)  # XLA824 info
                return inner, DDP(model, device_ids=[rank], output_device=rank)  # XLA824
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one construction of DistributedDataParallel."""
        assert isinstance(node, cst.Call)
        if isinstance(node.func, cst.IfExp):
            yield from self._one_of_two(node, node.func, context)
            return
        if context.qualified_name(node.func) not in DDP:
            return
        spreads = [arg for arg in node.args if arg.star == "**"]
        plain = [arg for arg in node.args if arg.star != "**"]
        bound = bind(node.with_changes(args=plain), PARAMETERS)
        if bound is None:
            yield from self.report(node, UNREAD, Severity.INFO)
            return
        options = DdpOptions(self, spreads, context)
        yield from options.edits()
        last = [i for i, arg in enumerate(node.args) if arg.star and arg not in options.emptied]
        if not options.are_read:
            yield from self.report(node, UNREAD, Severity.INFO)
        placed = context.moves_to_accelerator or context.devices.by_default
        moves = placed or _moves_to_a_named_device(context)
        moves = moves or context.calls.led is not None  # by the framework
        moves = moves or context.effects.wraps_placed(node)
        if not moves and _is_made_here(bound.get("module"), context):
            moved = "shims.to_device(model)" if context.portable else "model.to('xla')"
            message = f"the script moves no model to a device: `{moved}` must come before DDP"
            yield from self.report(node, message)
        if "delay_all_reduce_named_params" in bound:
            yield from self.report(node, DELAYED)
        if context.portable:
            yield self._by_shims(node, bound, last, context)
            return
        view = bound.get("gradient_as_bucket_view")
        if view is not None and code(view.value) == "False" and not context.for_torch_tpu:
            yield RuleFinding(self.name, node, "gradient_as_bucket_view=False costs a copy on XLA")
        gone = [arg for name, arg in bound.items() if name in DDP_DEVICES]
        gone += options.emptied
        adds_view = view is None and options.may_add("gradient_as_bucket_view")
        adds_view = adds_view and not context.for_torch_tpu
        if not adds_view and not gone:
            return
        # An argument after a removed positional one would change its meaning: it gets its name.
        names = {id(arg): name for name, arg in bound.items()}
        kept = [
            (index, names[id(arg)])
            for index, arg in enumerate(node.args)
            if id(arg) in names and names[id(arg)] not in DDP_DEVICES
        ]

        def replace(updated: cst.Call) -> cst.Call:
            args = []
            for index, name in kept:
                arg = updated.args[index]
                named = arg.keyword is not None or name == "module"
                args.append(arg if named else keyword_arg(name, arg.value))
            if adds_view:
                args.append(keyword_arg("gradient_as_bucket_view", cst.Name("True")))
            return with_args(updated, [*args, *(updated.args[index] for index in last)])

        message = "DistributedDataParallel without device ids"
        if adds_view:
            message += ", gradients as views of the buckets"
        wrong, severity = self._wrong(bound, options)
        yield self.edit(node, replace, message, consumes=gone, wrong=wrong, severity=severity)

    def _wrong(
        self, bound: Mapping[str, cst.Arg], options: DdpOptions
    ) -> tuple[str, Severity | None]:
        """Return the effect of a construction without its edit, and its severity."""
        arguments = list(options.emptied)
        arguments += [bound[name] for name in DDP_DEVICES if name in bound]
        devices = [arg.value for arg in arguments if code(arg.value) != "None"]
        if not devices:
            return "", Severity.INFO
        ids = bound.get("device_ids")
        what = f"device_ids={code(ids.value)}" if ids is not None else code(devices[0])
        return f"{what} fails in forward: leave it out", None

    def _by_shims(
        self, node: cst.Call, bound: dict[str, cst.Arg], last: list[int], context: Workspace
    ) -> Edit:
        """Return the edit in the portable style: `shims.ddp` chooses the devices.

        Args:
            node: the construction.
            bound: its arguments by the parameters that receive them.
            last: the positions of the `**` arguments that stay.
            context: the script.
        """
        function = cst.parse_expression(f"{context.imports.require('shims')}.ddp")
        gone = [arg for name, arg in bound.items() if name in DDP_DEVICES]
        kept = [
            (name, node.args.index(arg)) for name, arg in bound.items() if name not in DDP_DEVICES
        ]
        kept.sort(key=lambda pair: pair[0] != "module")

        def replace(updated: cst.Call) -> cst.Call:
            args = []
            for name, index in kept:
                arg = updated.args[index]
                if name == "module":
                    args.append(arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT))
                else:
                    args.append(arg if arg.keyword else keyword_arg(name, arg.value))
            args += [updated.args[index] for index in last]
            return with_args(updated, args).with_changes(func=function)

        message = "DistributedDataParallel → shims.ddp, for the replica's device"
        return self.edit(node, replace, message, consumes=[node.func, *gone])

    def _one_of_two(
        self, node: cst.Call, choice: cst.IfExp, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        """Take the devices out of `(DDP if distributed else Plain)(model, device_ids=[…])`."""
        if not {context.qualified_name(c) or "" for c in (choice.body, choice.orelse)} & DDP:
            return
        gone = [arg for arg in node.args if arg.keyword and arg.keyword.value in DDP_DEVICES]
        kept = [index for index, arg in enumerate(node.args) if arg not in gone]
        positional = [arg for arg in node.args if arg.keyword is None]
        if len(positional) > 1 or any(arg.star for arg in node.args):
            message = f"{code(choice)}: see that no device ids are among its arguments"
            yield from self.report(node, message, Severity.INFO)
        if not gone and not context.portable:
            return
        wraps = [
            side for side in (choice.body, choice.orelse) if context.qualified_name(side) in DDP
        ]
        if context.portable:
            shims = cst.parse_expression(f"{context.imports.require('shims')}.ddp")
            for side in wraps:
                yield self.edit(side, lambda _: shims, "→ shims.ddp", consumes=[side])

        def replace(updated: cst.Call) -> cst.Call:
            return with_args(updated, [updated.args[index] for index in kept])

        message = f"{code(choice)}: without device ids; see that the other class does not need them"
        wrong = "device_ids fails in DistributedDataParallel's forward: leave it out"
        yield self.edit(node, replace, message, consumes=gone, wrong=wrong)


def _moves_to_a_named_device(context: Workspace) -> bool:
    """Whether the script moves values to a device that is named elsewhere: `model.to(setup.dev())`."""
    for call in context.all_of(cst.Call):
        arg = device_argument(call)
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "to" or arg is None:
            continue
        named = arg.value.func if isinstance(arg.value, cst.Call) else arg.value
        last = named.attr if isinstance(named, cst.Attribute) else named
        if isinstance(last, cst.Name) and DEVICE_NAME.fullmatch(last.value):
            return True
    return False


def _is_made_here(module: cst.Arg | None, context: Workspace) -> bool:
    """Whether the script itself makes the model, and no function that moves to an accelerator does.

    A model that the script is given its caller has moved.
    """
    value = module.value if module is not None else None
    if not isinstance(value, cst.Name | cst.Attribute):
        return value is not None
    name = code(value)
    bound = list(context.bound_values(value)) if isinstance(value, cst.Name) else []
    if isinstance(value, cst.Attribute):
        assigns = context.all_of(cst.Assign)
        bound = [a.value for a in assigns if any(code(t.target) == name for t in a.targets)]
    wraps = [
        value
        for value in bound
        if isinstance(value, cst.Call) and context.qualified_name(value.func) in DDP
    ]
    assignments = context.values.bindings.given(value) if isinstance(value, cst.Name) else []
    # With those of `model, average = create(args)`.
    values = (
        *bound,
        *(assignment.value for assignment in assignments),
    )
    if any(isinstance(value, cst.Call) and context.effects.moves(value) for value in values):
        return False
    if assignments and all(assignment.how is How.ELEMENT for assignment in assignments):
        return False  # one of several: `for model in models`
    return any(
        value not in wraps and not isinstance(value, cst.Param | cst.Name) for value in bound
    )
