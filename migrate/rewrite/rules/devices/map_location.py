"""Checkpoints are loaded on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH, TPU
from migrate.catalogue.words import LOADED
from migrate.check.hazard import Severity
from migrate.reading.values.devices import LOADERS, Kind, is_accelerator
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.saving.save_calls import is_open_file
from migrate.rewrite.rules.saving.whole_modules import left_on_host
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, keyword, last_part, nodes_of

PARAMETERS = ("f", "map_location", "weights_only")


class MapLocation(Rule):
    """Load checkpoints to the CPU: `map_location='cpu'`.

    **What it does.** `torch.load` restores tensors to the CPU or to a GPU, never to XLA: `'xla'` raises, and
    so does a checkpoint of a GPU that is loaded without `map_location`. Every spelling of a GPU becomes
    `'cpu'`: `'cuda:0'`, `f'cuda:{rank}'`, `{'cuda:0': f'cuda:{rank}'}`, `torch.device(…)`,
    `lambda storage, location: storage.cuda(gpu)`, a variable that is used for nothing else, and no
    `map_location` at all in a script that uses a GPU, or in a file that such a script imports. The device of
    Accelerate, `accelerator.device`, is "xla:0" on a TPU.
    `load_state_dict` copies the values to where the parameters are. The same goes for
    `torch.hub.load_state_dict_from_url`.

    **Reported.** A `map_location` that cannot be read; by `migrate check` alone a file of weights that is
    loaded without one in a script that uses no GPU; a whole module that is loaded, used, and not moved.

    Source: torch_xla 2.9 (measured: 'xla' and 'cuda' raise; a function raises with tensors saved from XLA).
    """

    name = "map-location"
    code = "XLA817"
    targets = BOTH
    on_torch_tpu = (
        "A checkpoint may be loaded to `'tpu'`, where it was loaded to CUDA. `'cpu'` is written "
        "where the call names no location."
    )
    beside_frameworks = True
    nodes = (cst.Call, cst.Assign)
    words = "load"
    examples = (
        rewritten(
            """
            import torch


            def resume(model, args, rank, device):
                first = torch.load(args.first, map_location=f'cuda:{rank}')
                second = torch.load(args.second, map_location=lambda storage, loc: storage.cuda(rank))
                where = {'cuda:0': 'cuda:%d' % rank}
                third = torch.load(args.third, map_location=where)
                fourth = torch.load(args.fourth, torch.device('cuda', rank))
                fifth = torch.load(args.fifth, map_location=device)
                model.cuda().load_state_dict(torch.load(args.resume))
                return first, second, third, fourth, fifth
            """,
            """
            import torch


            def resume(model, args, rank, device):
                first = torch.load(args.first, map_location='cpu')
                second = torch.load(args.second, map_location='cpu')
                where = 'cpu'
                third = torch.load(args.third, map_location=where)
                fourth = torch.load(args.fourth, 'cpu')
                fifth = torch.load(args.fifth, map_location='cpu')
                model.to('xla').load_state_dict(torch.load(args.resume, map_location='cpu'))
                return first, second, third, fourth, fifth
            """,
        ),
        rewritten(
            """
            from torch.hub import load_state_dict_from_url

            weights = load_state_dict_from_url("https://example.org/w.pt", map_location="cuda")
            """,
            """
            from torch.hub import load_state_dict_from_url

            weights = load_state_dict_from_url("https://example.org/w.pt", map_location="cpu")
            """,
        ),
        left_alone(
            """
            import torch


            def resume(path):
                return torch.load(path, map_location='cpu'), torch.load(path, torch.device('cpu'))
            """
        ),
        left_alone(
            """
            import torch


            def resume(path, device):
                return torch.load(path, map_location=lambda storage, loc: storage)
            """,
            target=TPU,
        ),
        left_alone(
            """
            import json

            import torch

            table = json.load(open('table.json'))
            batch = torch.load('batch.pt')  # a script for the CPU
            """
        ),
        reported(
            """
            import torch


            def resume(path, options):
                return torch.load(path, **options)
            """,
            "map_location='cpu'",
        ),
        reported(
            """
            import torch


            def test(path, loader):
                model = torch.load(path, weights_only=False)
                model.eval()
                return [model(x.cuda()) for x in loader]
            """,
            "`model` is a module, loaded to the CPU",
        ),
        checked(
            """
            import torch


            def load(path):
                state = torch.load(path, map_location="cuda:0")  # XLA817
                other = torch.load(path, map_location=lambda storage, loc: storage.cuda())  # XLA817
                model = torch.load(path)  # XLA817 info
                return state, other, model
            """
        ),
        checked(
            """
            import torch
            from accelerate import Accelerator


            def load(path):
                accelerator = Accelerator()
                device = accelerator.device
                state = torch.load(path, map_location=f"{device}")  # XLA817
                return state, torch.load(path, map_location=accelerator.device)  # XLA817
            """
        ),
        checked(
            """
            import torch


            def fetch(path):
                return torch.load(path)  # XLA817 info


            def rows(path):
                return torch.load(path)


            def restore(network, path):
                content = fetch(path)
                network.load_state_dict(content["a"])
                return rows(path)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one call that loads, or of the variable that says where to."""
        if isinstance(node, cst.Assign):
            target = node.targets[0].target
            named = len(node.targets) == 1 and isinstance(target, cst.Name)
            if (
                named
                and context.devices.is_load_location(target)
                and not _is_cpu(node.value, context)
                and not _is_ours(node.value, context)
            ):
                yield self._cpu(node.value, context)
            return
        assert isinstance(node, cst.Call)
        position = LOADERS.get(context.qualified_name(node.func) or "")
        if position is None:
            return
        changes = list(self._loaded(node, position, context))
        yield from changes
        module = left_on_host(node, context) if changes and not context.for_torch_tpu else None
        if module is not None and isinstance(changes[0], Edit):
            device = context.vocabulary.device_said
            message = f"`{code(module)}` is a module, loaded to the CPU: move it to {device}"
            yield from self.report(module, message)

    def _loaded(
        self, node: cst.Call, position: int, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        arg = keyword(node, "map_location")
        if arg is None and len(node.args) > position:
            positional = node.args[position]
            arg = positional if positional.keyword is None and not positional.star else None
        if any(a.star for a in node.args):
            if arg is None:
                message = f"{code(node.func)}: see that it is told map_location='cpu'"
                yield from self.report(node, message, Severity.INFO)
        elif arg is None:
            wrong = 'tensors saved on CUDA raise without map_location="cpu"'
            # A helper that loads for a script of another file names no device itself.
            used = context.devices.are_used or context.calls.accelerated
            if used and _loads_by_shims(node, context):
                yield self._by_shims(node, context)
            elif used:
                cpu = keyword_arg("map_location", context.string("cpu"))
                yield self.edit(
                    node,
                    lambda call: with_args(call, [*call.args, cpu]),
                    f"map_location='cpu': a checkpoint of a GPU does not load without; {_move(context)}",
                    wrong=wrong,
                    severity=Severity.INFO,
                )
            elif _loads_weights(node, context):
                yield from self.report(node, wrong, Severity.INFO, is_hint=True)
        else:
            yield from self._told(node, arg.value, context)

    def _told(
        self, call: cst.Call, value: cst.BaseExpression, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        if _is_cpu(value, context) or _is_ours(value, context):
            return
        if context.calls.led is not None and not _is_accelerators(call, value, context):
            return  # whatever device the framework gives
        if isinstance(value, cst.Name) and context.devices.is_load_location(value):
            return  # its assignment is edited
        if _says_where(value, context) and _loads_by_shims(call, context):
            yield self._by_shims(call, context)
        elif _says_where(value, context):
            yield self._cpu(value, context)
        else:
            message = f"map_location={code(value)}: only 'cpu' loads beside XLA; {_move(context)}"
            yield from self.report(call, message)

    def _by_shims(self, call: cst.Call, context: Workspace) -> Edit:
        """Return the edit in the portable style: shims.load loads to the CPU, everywhere."""
        function = cst.parse_expression(f"{context.imports.require('shims')}.load")
        bound = bind(call, PARAMETERS) or {}
        unsafe = "weights_only" in bound and code(bound["weights_only"].value) != "True"
        kept = [("f", call.args.index(bound["f"]))]
        if unsafe:
            kept.append(("weights_only", call.args.index(bound["weights_only"])))
        names = {"f": "path", "weights_only": "weights_only"}

        def replace(updated: cst.Call) -> cst.Call:
            args = []
            for name, index in kept:
                arg = updated.args[index]
                named = arg.keyword is not None or name != "f"
                args.append(keyword_arg(names[name], arg.value) if named else arg)
            return with_args(updated, args).with_changes(func=function)

        gone = [arg for name, arg in bound.items() if name not in dict(kept)]
        message = f"{code(call.func)} → shims.load, to the CPU; {_move(context)}"
        return self.edit(call, replace, message, consumes=[call.func, *gone])

    def _cpu(self, value: cst.BaseExpression, context: Workspace) -> Edit:
        if context.for_torch_tpu:
            tpu = context.vocabulary.device(value, like=value)
            message = f"map_location {code(value)} → {code(tpu)}"
            wrong = "map_location of a CUDA device raises on a TPU host: 'tpu', or 'cpu'"
            return self.edit(value, lambda _: tpu, message, consumes=[value], wrong=wrong)
        cpu = context.string("cpu", like=value)
        message = (
            f"map_location {code(value)} → 'cpu': torch.load cannot load to XLA; {_move(context)}"
        )
        wrong = 'map_location of a device raises on XLA: "cpu", then .to("xla")'
        return self.edit(value, lambda _: cpu, message, consumes=[value], wrong=wrong)


def _loads_weights(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` loads a checkpoint, not data, by the use of the result or by its names."""
    statement = context.statement_around(call)
    named = LOADED.search(code(statement).partition(":")[0])
    return named is not None or _is_restored(statement, context)


def _is_restored(statement: cst.CSTNode, context: Workspace, depth: int = 3) -> bool:
    """Whether what a statement assigns or returns is given to `load_state_dict`, whatever its name."""
    if depth and any(nodes_of(statement, cst.Return)) and _is_returned(statement, context, depth):
        return True
    names = {
        target.value
        for assign in context.below(statement, cst.Assign)
        for target in (target.target for target in assign.targets)
        if isinstance(target, cst.Name)
    }
    return bool(names) and any(
        last_part(call.func) == "load_state_dict"
        and any(n.value in names for arg in call.args for n in context.below(arg.value, cst.Name))
        for call in context.all_of(cst.Call)
    )


def _is_returned(statement: cst.CSTNode, context: Workspace, depth: int) -> bool:
    """Whether a function of the script returns what is restored where the script calls it."""
    function = context.function_around(statement)
    for call in context.all_of(cst.Call):
        if any(callee is function for callee in context.called(call)):
            above = context.statement_around(call)
            is_passed = any(
                isinstance(node, cst.Call) and last_part(node.func) == "load_state_dict"
                for node in context.ancestors(call)
            )
            if is_passed or _is_restored(above, context, depth - 1):
                return True
    return False


def _move(context: Workspace) -> str:
    device = context.vocabulary.device_said
    return f"move to {device} what is used without load_state_dict"


def _loads_by_shims(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` is one of torch.load that shims.load can take the place of, in its style."""
    if not context.portable or context.qualified_name(call.func) != "torch.load":
        return False
    bound = bind(call, PARAMETERS)
    return bound is not None and "f" in bound and not is_open_file(bound["f"].value, context)


def _is_cpu(value: cst.BaseExpression, context: Workspace) -> bool:
    return context.devices.kind(value) is Kind.CPU


def _is_ours(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether torch_tpu loads to `value`: its device, or a name whose own device another edit changes."""
    if not context.for_torch_tpu:
        return False
    if isinstance(value, cst.Lambda):  # `lambda storage, loc: storage` stays on the CPU
        names = value.params.params
        return bool(names) and code(value.body) == names[0].name.value
    kind = context.devices.kind(value)
    is_name = isinstance(value, cst.Name | cst.Attribute)
    return kind is Kind.XLA or (is_name and kind is not Kind.INDEX)


def _says_where(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` certainly names a device, or a way from one to another."""
    if isinstance(value, cst.Dict):
        elements = [e for e in value.elements if isinstance(e, cst.DictElement)]
        kinds = [context.devices.kind(e.value) for e in elements]
        return len(kinds) == len(value.elements) and Kind.UNKNOWN not in kinds
    if isinstance(value, cst.Lambda):
        return bool(value.params.params) and _is_storage(value.body, value.params.params[0])
    if context.devices.kind(value) is not Kind.UNKNOWN or code(value) == "None":
        return True
    last = value.func if isinstance(value, cst.Call) else value
    name = last.attr.value if isinstance(last, cst.Attribute) else code(last)
    return "dev" in name.lower()


def _is_accelerators(call: cst.Call, value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is certainly not the host: a device in a literal, or the device of Accelerate."""
    if context.place(call) in context.calls.loading_to_device:
        return True
    if isinstance(value, cst.Dict):
        return any(_is_accelerators(call, element.value, context) for element in value.elements)
    if isinstance(value, cst.Lambda):
        return _says_where(value, context)
    return not isinstance(value, cst.Name) and is_accelerator(value, context)


def _is_storage(body: cst.BaseExpression, storage: cst.Param) -> bool:
    if isinstance(body, cst.Call) and isinstance(body.func, cst.Attribute):
        return body.func.attr.value in {"cuda", "cpu"} and _is_storage(body.func.value, storage)
    return isinstance(body, cst.Name) and body.value == storage.name.value
