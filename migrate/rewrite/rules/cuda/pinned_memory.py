"""Remove `pin_memory`: page-locked memory belongs to CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.prescan import named
from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_other import DATA_LOADERS
from migrate.catalogue.words import MADE_ON_HOST, words
from migrate.check.common import truth
from migrate.check.hazard import Severity
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import facts_of
from migrate.reading.values.devices import names_cuda
from migrate.rewrite.edits.nodes import argument, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.styles.cuda_only import and_on_cuda, is_cuda
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword, nodes, string_value

LOADERS = names(*DATA_LOADERS)
POSITION = 7  # of pin_memory among the parameters of a DataLoader
AVAILABLE = names(*torch_cuda.AVAILABLE)
NO_USE = "pin_memory=True: there is no pinned memory on a TPU host, leave it out"
OFF = ("False", "0", "None")
NEW = words("new_empty new_full new_ones new_tensor new_zeros")


class PinnedMemory(Rule):
    """Load batches without page-locked memory.

    **Why.** Page-locked memory makes copies to a CUDA device faster. Without one,
    `DataLoader(pin_memory=True)` warns in every process and loads as if it were not there (measured).
    `torch.empty(n, pin_memory=True)` and `tensor.pin_memory()` raise on a host without a GPU: "Found no
    NVIDIA driver on your system".

    **What it does.** `pin_memory=True` and `pin_memory_device=` go, also where the value asks for CUDA
    (`pin_memory=use_cuda`, `pin_memory=device.type == 'cuda'`), and so does the entry
    `'pin_memory': True` of a dictionary of loader arguments. The unnamed argument becomes False.

    The same goes for tensors: `torch.empty(n, pin_memory=True)` and `x.new_empty(n, pin_memory=True)`.
    `x.pin_memory()` is the rule `device`'s.

    **Reported.** `pin_memory=args.pin_mem` and other values that the file does not show: for a loader they
    can only warn, for a tensor they raise where they are true. By `migrate check` alone, `pin_memory=True`
    for a function that is no part of the project.

    **The last batch.** `drop_last` is left as it is, since it changes which samples are trained on: a
    shorter last batch costs one more compilation.

    Source: torch 2.9, torch_xla 2.9 (measured).
    """

    name = "pinned-memory"
    code = "XLA605"
    targets = BOTH
    on_torch_tpu = (
        "Pinned memory needs the allocator of the device's runtime, which was not there when "
        "measured (XLA:CPU)."
    )
    beside_frameworks = True
    edited = Severity.INFO
    severity = Severity.INFO
    nodes = (cst.Call, cst.Dict)
    words = named(LOADERS) + "|pin_memory"
    examples = (
        rewritten(
            """
            import torch

            device = torch.device('cuda')
            host = torch.empty(32, pin_memory=True)
            options = dict(dtype=torch.float32, pin_memory=True)
            more = torch.zeros(32, **options)


            def load(x, array):
                like = x.new_empty(4, pin_memory=torch.cuda.is_available())
                host.copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
                return like, x.to(device)
            """,
            """
            import torch
            import torch_xla

            device = torch.device('xla')
            host = torch.empty(32)
            options = dict(dtype=torch.float32)
            more = torch.zeros(32, **options)


            def load(x, array):
                like = x.new_empty(4)
                host.copy_(torch.from_numpy(array), non_blocking=True)
                return like, x.to(device)
            """,
        ),
        rewritten(
            """
            from torch.utils.data import DataLoader


            def load(dataset, sampler):
                return DataLoader(dataset, batch_size=8, pin_memory=True, sampler=sampler)
            """,
            """
            from torch.utils.data import DataLoader


            def load(dataset, sampler):
                return DataLoader(dataset, batch_size=8, sampler=sampler)
            """,
        ),
        rewritten(
            """
            import torch
            from torch.utils import data

            use_cuda = torch.cuda.is_available()
            options = {'num_workers': 1, 'pin_memory': True} if use_cuda else {}


            class Batches(data.DataLoader):
                def __init__(self, dataset, device):
                    super().__init__(dataset, pin_memory=device.type == 'cuda', pin_memory_device='cuda')


            def load(dataset):
                more = dict(pin_memory=True, batch_size=4)
                yield data.DataLoader(dataset, **options)
                yield data.DataLoader(dataset, pin_memory=use_cuda, **more)
                yield data.DataLoader(dataset, 8, True, None, None, 2, None, True)
            """,
            """
            from torch.utils import data

            use_cuda = True
            options = {'num_workers': 1} if use_cuda else {}


            class Batches(data.DataLoader):
                def __init__(self, dataset, device):
                    super().__init__(dataset)


            def load(dataset):
                more = dict(batch_size=4)
                yield data.DataLoader(dataset, **options)
                yield data.DataLoader(dataset, **more)
                yield data.DataLoader(dataset, 8, True, None, None, 2, None, False)
            """,
        ),
        left_alone(
            """
            from loaders import DataLoader


            def load(dataset):
                return DataLoader(dataset, pin_memory=True)
            """
        ),
        reported(
            """
            from torch.utils.data import DataLoader


            def load(dataset, args):
                return DataLoader(dataset, pin_memory=args.pin_mem)
            """,
            "only warns",
        ),
        reported(
            """
            import torch


            def buffer(args):
                return torch.empty(32, pin_memory=args.pin_mem)
            """,
            "raises without a GPU",
        ),
        checked(
            """
            import torch

            loader = torch.utils.data.DataLoader(images, pin_memory=True)  # XLA605
            host = torch.empty(32, pin_memory=True)  # XLA605 error
            like = host.new_zeros(32, pin_memory=True)  # XLA605 error
            array = torch.from_numpy(images).pin_memory()  # XLA605 error
            if torch.cuda.is_available():
                host = host.pin_memory()  # XLA605
            """
        ),
        checked(
            """
            from tensordict import TensorDict


            def batch(observations, size, buffer):
                sampled, info = buffer.sample(return_info=True)
                sampled = sampled.pin_memory()  # XLA605 error
                held = TensorDict(observations, batch_size=size).pin_memory(num_threads=2)  # XLA605 error
                return sampled, held
            """
        ),
        checked(
            """
            class Batch:
                def pin_memory(self):
                    return self


            def ready(pieces):
                return [piece.pin_memory() for piece in pieces]
            """
        ),
        checked(
            """
            import torch

            loader = torch.utils.data.DataLoader(images, pin_memory=False)
            host = torch.empty(32, pin_memory=False)


            class Batch:
                def pin_memory(self):
                    return self

                def ready(self):
                    return self.pin_memory()
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one loader, or of its arguments in a dictionary, or the finding."""
        if isinstance(node, cst.Dict):
            yield from self._dictionary(node, context)
            return
        assert isinstance(node, cst.Call)
        makes = _makes_tensor(node, context)
        loads = _makes_loader(node, context) or _keeps_arguments(node, context)
        device = keyword(node, "pin_memory_device")
        pinned = keyword(node, "pin_memory")
        if not makes and not loads:
            if pinned is not None and truth(pinned.value, facts_of(context)):
                yield from self._elsewhere(node, pinned, context)
            return
        if context.portable:
            yield from self._portable(node, pinned, device, context)
            return
        if not makes and pinned is None and len(node.args) > POSITION:
            yield from self._unnamed(node.args[: POSITION + 1])
        if pinned is not None and code(pinned.value) in OFF:
            return
        if makes and pinned is not None and _stays_off(pinned.value, context):
            return
        if pinned is not None and not _is_on(pinned.value, context):
            does = "raises without a GPU where it is true" if makes else "only warns on XLA"
            if context.for_torch_tpu and not makes:
                does = "needs the allocator of the TPU's runtime"
            message = f"pin_memory={code(pinned.value)} {does}: False is right"
            yield from self.report(pinned.value, message)
            return
        gone = [arg for arg in node.args if arg is pinned or arg is device]
        if gone:
            indexes = [i for i, arg in enumerate(node.args) if arg in gone]

            def replace(updated: cst.Call) -> cst.Call:
                args = [arg for index, arg in enumerate(updated.args) if index not in indexes]
                return with_args(updated, args)

            tensor = makes and not only_with_cuda(node, facts_of(context))
            raises = "pin_memory=True of a tensor raises without a GPU: leave it out"
            yield self.edit(
                node,
                replace,
                f"remove {argument(gone[0])}: only CUDA uses pinned memory",
                consumes=gone,
                wrong=raises if makes else NO_USE,
                severity=Severity.ERROR if tensor else Severity.INFO,
            )

    def _elsewhere(
        self, call: cst.Call, pinned: cst.Arg, context: Workspace
    ) -> Iterable[RuleFinding]:
        """Yield the finding at a function of another package that is asked to pin."""
        if not context.run_by(call) and code(call.func) != "dict":
            yield from self.report(pinned.value, NO_USE, is_hint=True)

    def _portable(
        self, node: cst.Call, pinned: cst.Arg | None, device: cst.Arg | None, context: Workspace
    ) -> Iterable[Edit]:
        """Yield the edits in the portable style: pinned on CUDA only, by the current device."""
        if pinned is None and len(node.args) > POSITION and not _makes_tensor(node, context):
            plain = not any(arg.star or arg.keyword for arg in node.args[: POSITION + 1])
            pinned = node.args[POSITION] if plain else None
        if pinned is not None:
            yield from self._on_cuda(pinned, context)
        if device is not None:
            index = node.args.index(device)
            yield self.edit(
                node,
                lambda updated: with_args(
                    updated, [*updated.args[:index], *updated.args[index + 1 :]]
                ),
                f"remove {code(device)}: the current device is the replica's",
                consumes=[device],
            )

    def _on_cuda(
        self, holder: cst.Arg | cst.BaseElement | cst.BaseDictElement, context: Workspace
    ) -> Iterable[Edit]:
        """Yield the edit of an argument or a dictionary element that decides whether to pin."""
        value = holder.value
        if code(value) in OFF or id(value) in context.for_cuda or "device_type()" in code(value):
            return
        test = is_cuda(context)
        message = f"pin_memory={code(value)}: on CUDA only"
        named = isinstance(value, cst.Name | cst.Attribute) and code(value) != "True"
        if _is_on(value, context) and not named:
            yield self.edit(
                holder,
                lambda updated: updated.with_changes(value=test),
                message,
                consumes=[holder],
            )
        else:
            yield self.edit(value, lambda updated: and_on_cuda(updated, test), message)

    def _unnamed(self, args: Sequence[cst.Arg]) -> Iterable[Edit]:
        pinned = args[-1]
        if any(arg.star or arg.keyword for arg in args) or code(pinned.value) in OFF:
            return
        false = cst.Name("False")
        yield self.edit(
            pinned,
            lambda updated: updated.with_changes(value=false),
            "pin_memory → False: only CUDA uses pinned memory",
            consumes=[pinned],
        )

    def _dictionary(self, node: cst.Dict, context: Workspace) -> Iterable[Edit]:
        at = [
            index
            for index, element in enumerate(node.elements)
            if isinstance(element, cst.DictElement) and string_value(element.key) == "pin_memory"
        ]
        if not at or not (_imports_loaders(context) or _hands_on(context)):
            return
        element = node.elements[at[0]]
        if context.portable:
            yield from self._on_cuda(element, context)
            return
        if not _is_on(element.value, context):
            return

        def replace(updated: cst.Dict) -> cst.Dict:
            kept = [*updated.elements[: at[0]], *updated.elements[at[0] + 1 :]]
            if kept and at[0] == len(kept):
                kept[-1] = kept[-1].with_changes(comma=updated.elements[-1].comma)
            return updated.with_changes(elements=kept)

        message = "remove the entry 'pin_memory': only CUDA uses pinned memory"
        yield self.edit(node, replace, message, consumes=[element])


def _makes_loader(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` makes a torch DataLoader, itself or as the base of the class around it."""
    if context.qualified_name(call.func) in LOADERS:
        return True
    function = call.func
    if not isinstance(function, cst.Attribute) or function.attr.value != "__init__":
        return False
    if code(function) != "super().__init__":
        return False
    around = context.class_around(call)
    return around is not None and any(
        context.qualified_name(base.value) in LOADERS for base in around.bases
    )


def _keeps_arguments(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` keeps arguments of a loader: `dict(…)`, `kwargs.update(…)`, `partial(DataLoader, …)`."""
    if not _imports_loaders(context) and not _hands_on(context):
        return False
    if context.qualified_name(call.func) == "functools.partial":
        return bool(call.args) and context.qualified_name(call.args[0].value) in LOADERS
    updates = isinstance(call.func, cst.Attribute) and call.func.attr.value == "update"
    return updates or code(call.func) == "dict"


@lru_cache(maxsize=2)
def _imports_loaders(context: Workspace) -> bool:
    return any(
        context.qualified_name(node) in LOADERS for node in context.all_of(cst.Attribute, cst.Name)
    )


@lru_cache(maxsize=2)
def _hands_on(context: Workspace) -> bool:
    """Whether a tensor is made with arguments of a dictionary: `torch.empty(n, **options)`."""
    return any(
        _makes_tensor(call, context)
        for call in context.all_of(cst.Call)
        if any(arg.star == "**" for arg in call.args)
    )


def _stays_off(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` asks whether a device is CUDA, which it is not on XLA."""
    if isinstance(value, cst.Name):
        _, bound = context.bound_to(value)
        return isinstance(bound, cst.BaseExpression) and _stays_off(bound, context)
    parts = list(nodes(value))
    asks = any(isinstance(part, cst.Comparison) for part in parts) and any(map(names_cuda, parts))
    return asks and not any(
        isinstance(part, cst.Call) and context.qualified_name(part.func) in AVAILABLE
        for part in parts
    )


def _is_on(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is true on a GPU: a true literal, or a test for CUDA."""
    if isinstance(value, cst.Name) and value.value != "True":
        _, bound = context.bound_to(value)
        return bound is not None and not isinstance(bound, cst.Param) and _is_on(bound, context)
    if code(value) in ("True", "1"):
        return True
    if "device_type()" in code(value):
        return False  # asks whether this is CUDA
    return any(
        names_cuda(node)
        or (isinstance(node, cst.Call) and context.qualified_name(node.func) in AVAILABLE)
        for node in nodes(value)
    )


def _makes_tensor(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` creates a tensor and accepts `pin_memory`: `torch.empty(…)`, `x.new_empty(…)`."""
    if context.qualified_name(call.func) == "functools.partial":
        return bool(call.args) and _is_factory(call.args[0].value, context)
    return _is_factory(call.func, context)


def _is_factory(function: cst.BaseExpression, context: Workspace) -> bool:
    name = context.qualified_name(function)
    if name is None:
        return isinstance(function, cst.Attribute) and function.attr.value in NEW
    module, _, last = name.rpartition(".")
    return module == "torch" and (last in MADE_ON_HOST or last.endswith(("_like", "_window")))
