"""CUDA devices become the XLA device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_distributed import MESHES
from migrate.catalogue.words import DEVICE_NAME
from migrate.check.hazard import Severity
from migrate.check.only_cuda import only_with_cuda
from migrate.model.objects.asked import OTHERS
from migrate.reading.facts import facts_of
from migrate.reading.values.devices import (
    ACCELERATOR,
    CURRENT,
    DEVICE,
    TAKE_A_DEVICE,
    Kind,
    device_argument,
    is_move,
    is_option,
    makes_generator,
    names_cuda,
    option_names,
    pins,
)
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import (
    Edit,
    Replacement,
    Rule,
    RuleFinding,
    Stage,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.devices.kept_devices import (
    device_for,
    device_variable,
    is_device_of,
    is_device_or_number,
    is_given_as_device,
    is_kept,
    is_number,
    is_spelled,
    is_text,
    says_a_device,
    to_port,
    unpinned,
    used_as_number,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, dotted, elements, keyword, last_part

# Libraries of their own kernels: an index of theirs is no device of torch.
PINNED = "XLA605"  # the code of the rule `pinned-memory`
GPU_LIBRARIES = frozenset({"cuml", "cupy", "faiss", "nvidia", "onnxruntime", "tensorrt"})

# Calls whose device stays an argument on torch_tpu; the parameter of the device of a mesh.
TAKE_ON_TORCH_TPU = MESHES | frozenset(
    {
        "torch.Generator",
        "torch.distributed.device_mesh.DeviceMesh",
        "torch.distributed.DeviceMesh",
        "torch.distributed.tensor.DeviceMesh",
    }
)
MESH = "device_type"

LITERALS = frozenset({"typing.Literal", "typing_extensions.Literal"})


class DeviceRule(Rule):
    """Move models and tensors to the XLA device.

    **What it does.** Wherever a script says which device, it says `'xla'`:

    - `x.cuda()`, `x.cuda(rank)`, `x.to(rank)`, `x.to(args.gpu)`, `x.to('cuda:0')`, `x.to(f'cuda:{i}')`,
      `device='cuda'`;
    - `torch.device('cuda')`, `torch.device('cuda', i)`, `torch.device(f'{accelerator}:{i}')`,
      `torch.accelerator.current_accelerator()`;
    - where a device is kept: `device = 'cuda:%d' % rank`, `device = rank % torch.cuda.device_count()`,
      `args.device = torch.cuda.current_device()`, `def f(device='cuda')`, and the default of the option
      `--device`;
    - the default of `kwargs.get('device', 'cuda')` and of `getattr(args, 'device', 'cuda')`: who gives
      another device means it;
    - `self.device = [0, 'cpu'][0]` of a configuration, whose `device` another file moves to.

    `x.pin_memory()` goes, which raises without a GPU. A program imports torch_xla, which torch needs for it.

    Always `'xla'`, never `'xla:3'`: a replica sees one device, and its index is not the rank. The rank is
    followed from the launched worker through direct calls and assignments (`self.gpu_id = gpu_id`);
    `gpu`, `local_rank` and their like are an index by their name where nothing else is known of them.

    An index that the project calculates with (`seed + device`, also in a function of another file that gets
    it) stays a number: `torch.cuda.current_device()` becomes `torch_xla.runtime.local_ordinal()` there.

    **Left alone.** What may be something else than a CUDA device: `x.to(dtype)`, `x.to(other)`, `'cpu'`,
    and `x.to(device)`, where `device` itself becomes `'xla'` at the place that makes it.

    **Reported.** `.cuda()` with arguments that cannot be read; the index of a GPU that another library takes
    (`config.device = 0` of faiss).

    Source: torch_xla 2.9 (measured: `xla:3` fails in a replica; `x.to(0)` means CUDA there).
    """

    name = "device"
    names_device = True
    yields = (cst.SimpleString, cst.Integer)
    code = "XLA724"
    targets = BOTH
    on_torch_tpu = (
        "The device is `'tpu'`, never with an index: `'tpu:1'` is `tpu:0` in every rank. torch "
        "loads torch_tpu itself, so nothing is imported. "
        "`torch.accelerator.current_accelerator()` stays; `init_device_mesh('cuda', …)` and "
        "`torch.Generator('cuda')` change their device too."
    )
    stage = Stage.DEVICE
    nodes = (
        cst.Call,
        cst.Assign,
        cst.AnnAssign,
        cst.Param,
        cst.Return,
        cst.DictElement,
        cst.SimpleString,
        cst.Integer,
    )
    examples = (
        rewritten(
            """
            from typing import Literal

            import torch


            class Config:
                device: Literal["cpu", "cuda"] = "cuda"
                optimizer: Literal["plain", "cuda"] = "plain"


            def build(config):
                return torch.nn.Linear(2, 2).to(config.device)
            """,
            """
            from typing import Literal

            import torch
            import torch_xla


            class Config:
                device: Literal["cpu", "xla"] = "xla"
                optimizer: Literal["plain", "cuda"] = "plain"


            def build(config):
                return torch.nn.Linear(2, 2).to(config.device)
            """,
        ),
        rewritten(
            """
            import torch.multiprocessing as mp


            class Trainer:
                def __init__(self, model, gpu_id):
                    self.gpu_id = gpu_id
                    self.model = model.to(gpu_id)  # to this process's device

                def move(self, batch):
                    return batch.to(self.gpu_id, non_blocking=True)


            def worker(rank, model):
                Trainer(model, rank).move(model.weight.cuda())


            def main(model):
                mp.spawn(worker, args=(model,), nprocs=2)
            """,
            """
            import torch_xla


            class Trainer:
                def __init__(self, model, gpu_id):
                    self.gpu_id = gpu_id
                    self.model = model.to("xla")  # to this process's device

                def move(self, batch):
                    return batch.to("xla", non_blocking=True)


            def worker(rank, model):
                Trainer(model, rank).move(model.weight.to("xla"))


            def main(model):
                torch_xla.launch(worker, args=(model,))
            """,
        ),
        rewritten(
            """
            import torch

            device = torch.device('cuda:0')
            weight = torch.zeros(3, device='cuda').to(device)
            """,
            """
            import torch
            import torch_xla

            device = torch.device('xla')
            weight = torch.zeros(3, device='xla').to(device)
            """,
        ),
        rewritten(
            """
            import argparse

            import torch
            from torch import device as Device

            parser = argparse.ArgumentParser()
            parser.add_argument('--device', default='cuda', choices=['cpu', 'cuda'], help='where to train')
            parser.add_argument('--gpu', type=int)
            args = parser.parse_args()


            class Trainer:
                def __init__(self, model, local_rank, device='cuda'):
                    self.device = f'cuda:{local_rank}'
                    self.model = model.to(self.device)
                    self.probe = torch.empty(1).cuda().device
                    self.options['device'] = 'cuda:0'

                def where(self):
                    return Device('cuda', args.gpu), torch.device(args.device)


            def run(x, y, choose):
                x = x.cuda(args.gpu, non_blocking=True)
                x.pin_memory()
                y = y.pin_memory().to(device=torch.device(f'cuda'))
                return x.to('cuda:%d' % args.gpu), y.to('cuda' if choose else 'cpu'), y.to(device=args.gpu)
            """,
            """
            import argparse

            import torch
            import torch_xla
            from torch import device as Device

            parser = argparse.ArgumentParser()
            parser.add_argument('--device', default='xla', choices=['cpu', 'xla'], help='where to train')
            parser.add_argument('--gpu', type=int)
            args = parser.parse_args()


            class Trainer:
                def __init__(self, model, local_rank, device='xla'):
                    self.device = 'xla'
                    self.model = model.to(self.device)
                    self.probe = torch.empty(1).to('xla').device
                    self.options['device'] = 'xla'

                def where(self):
                    return Device('xla'), torch.device(args.device)


            def run(x, y, choose):
                x = x.to('xla', non_blocking=True)
                y = y.to(device=torch.device('xla'))
                return x.to('xla'), y.to('xla' if choose else 'cpu'), y.to(device='xla')
            """,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist

            rank = dist.get_rank()
            acc = torch.accelerator.current_accelerator()
            first = torch.device(f"{acc}:{rank}")
            device = rank % torch.cuda.device_count()
            second = torch.ones(3).to(device)
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla

            rank = dist.get_rank()
            acc = torch.device("xla")
            first = torch.device("xla")
            device = "xla"
            second = torch.ones(3).to(device)
            """,
        ),
        rewritten(
            """
            import os

            import torch


            def main(args, model, x):
                device = torch.device("cuda")
                if args.distributed:
                    args.rank = device = int(os.environ["LOCAL_RANK"])
                return model.to(device), x.to(device), args.rank + 1
            """,
            """
            import os

            import torch


            def main(args, model, x):
                device = torch.device("xla")
                if args.distributed:
                    args.rank, device = int(os.environ["LOCAL_RANK"]), "xla"
                return model.to(device), x.to(device), args.rank + 1
            """,
        ),
        left_alone(
            """
            import torch


            def convert(x, other, device):
                return x.to(torch.bfloat16).to(other).to('cpu').to(device)
            """
        ),
        left_alone(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument('--device', default='cpu')
            parser.add_argument('--rank', default=0)
            args = parser.parse_args()


            def where(job):
                return job.move(args.rank, where=args.device)
            """
        ),
        reported(
            """
            def move(x, options):
                return x.cuda(**options)
            """,
            "cannot be read",
        ),
        reported(
            """
            import faiss


            def index(dim):
                config = faiss.GpuIndexFlatConfig()
                config.device = 0
                return faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), dim, config)
            """,
            "which GPU faiss takes",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of one place that names a CUDA device."""
        if type(node) is cst.Call:
            yield from self._call(node, context)
        elif type(node) is cst.SimpleString:
            if not names_cuda(node):
                return
            if context.devices.is_moved_to(node) or _is_choice_of_type(node, context):
                xla = context.vocabulary.device_type(like=node)
                message = f"device {code(node)} → {code(xla)}"
                yield self.edit(node, lambda _: xla, message, consumes=[node])
        elif isinstance(node, cst.Param) and node.default is not None:
            yield from self._kept(node.default, node.name, context)
        elif isinstance(node, cst.Assign | cst.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, cst.Assign) else node
            if isinstance(node, cst.Assign) and len(node.targets) > 1:
                yield from self._chained(node, context)
            else:
                yield from self._kept(node.value, target.target, context)
        elif isinstance(node, cst.Return) and node.value is not None:
            around = context.function_around(node)
            if around is not None and re.search("dev", around.name.value):
                if says_a_device(around.name.value):
                    calls = [*_calls_of(around, context)]
                    is_argument = any(is_device_of(call, context) for call in calls)
                    if not is_argument and _is_any_number(node.value, calls, context):
                        return
                    yield from self._named(node.value, context, is_argument=is_argument)
                else:
                    yield from self._spelled(node.value, context)
        elif isinstance(node, cst.Integer):
            if context.devices.is_moved_to(node) and _is_kept_as_device(node, context):
                yield self._literal(node, context)
        elif isinstance(node, cst.DictElement) and DEVICE_NAME.fullmatch(_text(node.key)):
            yield from self._spelled(node.value, context)

    def _call(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        name = context.qualified_name(node.func) or ""
        if context.devices.says_where_to_load(node):
            return
        if pins(node, context):
            yield self._unpinned(node, context)
        elif is_move(node, context):
            assert isinstance(node.func, cst.Attribute)
            if node.func.attr.value == "cuda":
                yield from self._cuda(node, context)
                return
            arg = device_argument(node)
            assert arg is not None
            yield from self._device(arg.value, context)
        elif name in DEVICE:
            yield from self._torch_device(node, context)
        elif name in ACCELERATOR:
            if not context.for_torch_tpu:  # to which it is the accelerator
                yield self._accelerator(node, context)
        elif is_option(node):
            if any(DEVICE_NAME.fullmatch(option) for option in option_names(node)):
                default = keyword(node, "default")
                if default is not None:
                    yield from self._spelled(default.value, context)
                choices = keyword(node, "choices")
                for element in elements(choices) if choices is not None else ():
                    yield from self._spelled(element.value, context)
        elif (context.for_torch_tpu and _keeps_its_device(name, node, context)) or (
            not name.startswith(OTHERS) and not makes_generator(node, context)
        ):
            first = TAKE_A_DEVICE | TAKE_ON_TORCH_TPU if context.for_torch_tpu else TAKE_A_DEVICE
            for arg in node.args:
                parameter = arg.keyword.value if arg.keyword is not None else ""
                named = parameter == "device" or (
                    parameter == MESH and context.for_torch_tpu and name in TAKE_ON_TORCH_TPU
                )
                if named or (name in first and arg is node.args[0]):
                    yield from self._device(arg.value, context)
                elif is_number(arg.value, context):
                    yield from self._number(arg.value, context)

    def _chained(self, node: cst.Assign, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of `args.rank = device = int(…)`, whose number elsewhere is a device."""
        targets = [target.target for target in node.targets]
        devices = [target for target in targets if self._is_device_too(target, context)]
        if not devices:
            return
        if len(devices) == len(targets):
            yield from self._kept(node.value, devices[0], context)
        elif context.devices.kind(node.value) is Kind.INDEX:
            numbers = [target for target in targets if target not in devices]
            device = context.vocabulary.device(node.value, like=node)
            message = f"device {code(devices[0])} → {code(device)}"

            def divided(updated: cst.Assign) -> cst.Assign:
                names = ", ".join(map(code, (*numbers, *devices)))
                values = [code(updated.value)] * len(numbers) + [code(device)] * len(devices)
                line = cst.parse_statement(f"{names} = {', '.join(values)}")
                return cst.ensure_type(
                    cst.ensure_type(line, cst.SimpleStatementLine).body[0], cst.Assign
                )

            yield self.edit(node, divided, message)

    def _is_device_too(self, target: cst.BaseExpression, context: Workspace) -> bool:
        """Whether `target` is named and used as a device, and not as a number."""
        if not isinstance(target, cst.Attribute | cst.Name):
            return False
        last = target.attr.value if isinstance(target, cst.Attribute) else target.value
        return (
            DEVICE_NAME.fullmatch(last) is not None
            and says_a_device(last)
            and not context.devices.is_load_location(target)
            and not used_as_number(target, context)
        )

    def _kept(
        self, value: cst.BaseExpression, target: cst.BaseExpression, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of a value that is stored under a name that suggests a device."""
        if isinstance(target, cst.Subscript) and DEVICE_NAME.fullmatch(_text(target.slice[0])):
            yield from self._spelled(value, context)
        if isinstance(target, cst.Attribute | cst.Name):
            last = target.attr.value if isinstance(target, cst.Attribute) else target.value
            if isinstance(value, cst.Integer) and (library := _made_by_library(target, context)):
                message = f"{code(value)} is which GPU {library} takes: it has none on a TPU"
                yield from self.report(value, message)
            elif DEVICE_NAME.fullmatch(last) and not context.devices.is_load_location(target):
                if not says_a_device(last) or used_as_number(target, context):
                    yield from self._spelled(value, context)
                elif not _is_other_number(value, last, target, context):
                    is_argument = is_given_as_device(target, context)
                    yield from self._named(value, context, is_argument=is_argument)
            elif is_spelled(value) and is_given_as_device(target, context):
                yield from self._device(value, context)

    def _named(
        self, value: cst.BaseExpression, context: Workspace, *, is_argument: bool
    ) -> Iterable[Edit]:
        """Yield the edits of a value named as a device. An index as text alone is no device for torch.

        Args:
            value: the expression.
            context: the script.
            is_argument: whether something is given it as its device.
        """
        if isinstance(value, cst.IfExp):
            yield from self._named(value.body, context, is_argument=is_argument)
            yield from self._named(value.orelse, context, is_argument=is_argument)
        elif is_argument or not (is_text(value) and context.devices.kind(value) is Kind.INDEX):
            yield from self._device(value, context)

    def _device(self, value: cst.BaseExpression, context: Workspace) -> Iterable[Edit]:
        """Yield the edits of an expression that is a device and nothing else."""
        if isinstance(value, cst.IfExp):
            yield from self._device(value.body, context)
            yield from self._device(value.orelse, context)
            return
        if isinstance(value, cst.Subscript) and isinstance(
            value.value, cst.List | cst.Tuple | cst.Dict
        ):  # which of them is the index's to say
            for part in value.value.elements:
                if isinstance(part, cst.Element | cst.DictElement):
                    yield from self._device(part.value, context)
            return
        default = _default_of(value)
        if default is not None:  # who gives another one means it
            yield from self._device(default, context)
            return
        if is_number(value, context):
            yield from self._number(value, context)
            return
        if is_device_or_number(value, context):
            yield self._literal(value, context)
            return
        kind = context.devices.kind(value)
        if isinstance(value, cst.Name | cst.Attribute) and (
            kind is not Kind.INDEX or is_kept(value, context)
        ):
            return  # the place that makes the device is edited
        is_index = kind is Kind.INDEX or isinstance(value, cst.Integer)
        is_cuda = kind is Kind.CUDA and not _makes(value, context)
        if names_cuda(value) or is_index or is_cuda or to_port(value, context):
            yield self._literal(value, context)

    def _number(self, value: cst.BaseExpression, context: Workspace) -> Iterable[Edit]:
        """Yield the edit of the index of a device that the project calculates with: it stays a number."""
        name = context.qualified_name(value.func) if isinstance(value, cst.Call) else None
        if name in CURRENT:
            local = context.vocabulary.expression("local rank")
            message = f"{code(value)} → {context.vocabulary.say('local rank')}: the script calculates with it"
            yield self.edit(value, lambda _: local, message, consumes=[value])

    def _spelled(self, value: cst.BaseExpression, context: Workspace) -> Iterable[Edit]:
        """Yield the edits of the literals for CUDA devices in a value that may be something else."""
        if is_number(value, context):
            yield from self._number(value, context)
            return
        if isinstance(value, cst.IfExp):
            yield from self._spelled(value.body, context)
            yield from self._spelled(value.orelse, context)
        elif names_cuda(value) or to_port(value, context):
            yield self._literal(value, context)

    def _unpinned(self, call: cst.Call, context: Workspace) -> Edit:
        """Return the edit of `x.pin_memory()`, reported under the rule `pinned-memory`."""
        message = "`.pin_memory()` is for copies to a GPU, and raises without one"
        wrong = ".pin_memory() of a tensor raises without a GPU: leave it out"
        around = context.function_around(call)
        # A loader calls `pin_memory` of a batch only where it is told to pin.
        by_loader = isinstance(around, cst.FunctionDef) and around.name.value == "pin_memory"
        never = by_loader or only_with_cuda(call, facts_of(context))
        severity = Severity.INFO if never else Severity.ERROR
        statement = context.parent(call)
        node: cst.CSTNode = call
        gone = [cst.ensure_type(call.func, cst.Attribute).attr, *call.args]
        replace: Callable[..., Replacement] = unpinned(context)
        if isinstance(statement, cst.Expr) and not context.portable:
            node, gone = statement, [statement]

            def replace(_: cst.CSTNode) -> Replacement:
                return cst.RemoveFromParent()

        return self.edit(
            node, replace, message, consumes=gone, wrong=wrong, severity=severity, code=PINNED
        )

    def _torch_device(self, node: cst.Call, context: Workspace) -> Iterable[Edit]:
        first = keyword(node, "type") or (node.args[0] if node.args else None)
        if first is None:
            return
        if context.devices.kind(node) is not Kind.CUDA and not to_port(first.value, context):
            return
        if isinstance(first.value, cst.IfExp):
            yield from self._device(first.value, context)
            if len(node.args) > 1:
                yield self.edit(
                    node, lambda call: with_args(call, call.args[:1]), f"{code(node)}: no index"
                )
            return
        kept = first.value
        if (
            isinstance(kept, cst.Name | cst.Attribute)
            and len(node.args) == 1
            and not is_device_or_number(kept, context)
            and (context.devices.kind(kept) is not Kind.INDEX or is_kept(kept, context))
        ):
            return  # the place that makes the device is edited
        xla = context.vocabulary.device(node, like=first.value)
        message = f"{code(node)} → {code(xla)}"
        if context.portable and code(xla) == context.vocabulary.device_said:  # no name of one
            yield self.edit(node, lambda _: xla, message, consumes=[node])
            return
        yield self.edit(
            node, lambda call: call.with_changes(args=[cst.Arg(xla)]), message, consumes=node.args
        )

    def _accelerator(self, node: cst.Call, context: Workspace) -> Edit:
        device = context.vocabulary.device(node)
        said = context.vocabulary.device_said
        if not context.portable or code(device) != said:
            module = context.imports.require("torch")
            device = cst.Call(cst.parse_expression(f"{module}.device"), [cst.Arg(device)])
        return self.edit(node, lambda _: device, f"{code(node)} → {said}", consumes=[node])

    def _cuda(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        bound = bind(node, ("device", "non_blocking", "memory_format"))
        if bound is None:
            yield from self.report(node, "the arguments of .cuda() cannot be read: edit by hand")
            return
        kept = [(name, node.args.index(arg)) for name, arg in bound.items() if name != "device"]
        gone = [arg for name, arg in bound.items() if name == "device"]
        variable = device_variable(node, context)
        device = cst.Name(variable) if variable else context.vocabulary.device(node)
        xla = cst.Arg(device)
        assert isinstance(node.func, cst.Attribute)

        def replace(updated: cst.Call) -> cst.Call:
            named = [keyword_arg(name, updated.args[index].value) for name, index in kept]
            to = cst.ensure_type(updated.func, cst.Attribute).with_changes(attr=cst.Name("to"))
            return with_args(updated, [xla, *named]).with_changes(func=to)

        message = f".cuda() → .to({variable or context.vocabulary.device_said})"
        yield self.edit(node, replace, message, consumes=[node.func.attr, *gone])

    def _literal(self, value: cst.BaseExpression, context: Workspace) -> Edit:
        xla = device_for(value, context)
        if context.portable and _is_for_safetensors(value, context):
            xla = cst.Call(cst.Name("str"), [cst.Arg(xla)])  # it takes names of devices alone
        message = f"device {code(value)} → {code(xla)}"
        return self.edit(value, lambda _: xla, message, consumes=[value])


def _default_of(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the default of what is asked for in a dictionary: `kwargs.get("device", "cuda")`."""
    if not isinstance(value, cst.Call) or any(arg.star for arg in value.args):
        return None
    if isinstance(value.func, cst.Attribute) and value.func.attr.value in ("get", "pop"):
        size = 2
    elif isinstance(value.func, cst.Name) and value.func.value == "getattr":
        size = 3
    else:
        return None
    return value.args[-1].value if len(value.args) == size else None


def _calls_of(function: cst.FunctionDef, context: Workspace) -> Iterator[cst.Call]:
    """Yield the calls of the script that run `function`."""
    for call in context.all_of(cst.Call):
        if any(callee is function for callee in context.called(call)):
            yield call


def _is_any_number(value: cst.BaseExpression, calls: list[cst.Call], context: Workspace) -> bool:
    """Whether `value`, the result of `calls`, is a number that all callers keep as something else.

    `self.peak = self._get_device_peak()`, and that function returns 1979.
    """
    if not isinstance(value, cst.Integer) or context.devices.is_moved_to(value):
        return False
    return bool(calls) and all(_is_kept_as_other(call, context) for call in calls)


def _is_kept_as_other(call: cst.Call, context: Workspace) -> bool:
    """Whether the result of `call` is an operand, or is assigned to what is no device."""
    above = context.parent(call)
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        target = above.targets[0].target
    elif isinstance(above, cst.AnnAssign):
        target = above.target
    else:
        return isinstance(above, cst.BinaryOperation)
    if not isinstance(target, cst.Name | cst.Attribute):
        return False
    named = says_a_device(last_part(target)) or DEVICE_NAME.fullmatch(last_part(target))
    return not named and not is_given_as_device(target, context)


def _is_kept_as_device(number: cst.Integer, context: Workspace) -> bool:
    """Whether `number` is assigned under the name of a device, and nothing here calculates with that name."""
    for above in context.ancestors(number):
        if isinstance(above, cst.BaseStatement | cst.Call):
            return False
        if isinstance(above, cst.Assign | cst.AnnAssign):
            targets = (
                [target.target for target in above.targets]
                if isinstance(above, cst.Assign)
                else [above.target]
            )
            return all(
                isinstance(target, cst.Name | cst.Attribute)
                and says_a_device(last_part(target))
                and not used_as_number(target, context)
                for target in targets
            )
    return False


def _is_for_safetensors(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is an argument of a function of safetensors."""
    call = context.parent(context.parent(value))
    name = context.qualified_name(call.func) if isinstance(call, cst.Call) else None
    return (name or "").startswith("safetensors.")


def _text(key: cst.CSTNode) -> str:
    return code(key).strip("'\"")


def _keeps_its_device(name: str, call: cst.Call, context: Workspace) -> bool:
    """Whether `call` makes a mesh or a generator, whose device torch_tpu knows."""
    return name in TAKE_ON_TORCH_TPU or makes_generator(call, context)


def _made_by_library(target: cst.BaseExpression, context: Workspace) -> str:
    """Return the library that makes what has the attribute `device`; nothing for torch, and for options."""
    base = target.value if isinstance(target, cst.Attribute) else None
    if not isinstance(base, cst.Name) or not code(target).endswith(".device"):
        return ""
    for value in context.bound_values(base):
        name = context.qualified_name(value.func) if isinstance(value, cst.Call) else None
        root = (name or "").partition(".")[0]
        if root in GPU_LIBRARIES:
            return root
    return ""


def _makes(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether another edit of this rule covers the call `value`, which creates a device."""
    if not isinstance(value, cst.Call):
        return isinstance(value, cst.Name | cst.Attribute)
    if context.run_by(value):
        return True
    name = context.qualified_name(value.func) or dotted(value.func)
    return name in DEVICE | ACCELERATOR or (name == "str" and name not in CURRENT)


def _is_other_number(
    value: cst.BaseExpression, name: str, target: cst.Attribute | cst.Name, context: Workspace
) -> bool:
    """Whether `value` is a number that nothing moves to, under the name of another kind of device.

    `joystick_device: int = 0`. A number called `device` alone counts as a GPU's.
    """
    if not isinstance(value, cst.Integer) or "_" not in name.strip("_"):
        return False
    if is_given_as_device(target, context) or context.devices.is_moved_to(value):
        return False
    return not any(
        attribute.attr.value == name and _is_moved_to(attribute, context)
        for attribute in context.all_of(cst.Attribute)
    )


def _is_moved_to(node: cst.Attribute, context: Workspace) -> bool:
    """Whether `node`, of whatever value, is given to `.to(…)`, or as the device of something else."""
    call = context.parent(context.parent(node))
    return is_device_of(node, context) or (
        isinstance(call, cst.Call) and last_part(call.func) in ("to", "to_empty", "cuda")
    )


def _is_choice_of_type(text: cst.SimpleString, context: Workspace) -> bool:
    """Whether `text` is one of the values of a type of devices: `device: Literal["cpu", "cuda"]`."""
    if context.portable:
        return False
    literal = next((a for a in context.ancestors(text) if isinstance(a, cst.Subscript)), None)
    if literal is None or context.qualified_name(literal.value) not in LITERALS:
        return False
    for above in context.ancestors(literal):
        if isinstance(above, cst.Param):
            return DEVICE_NAME.fullmatch(above.name.value) is not None
        if isinstance(above, cst.AnnAssign):
            return DEVICE_NAME.fullmatch(_text(above.target)) is not None
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            break
    return False
