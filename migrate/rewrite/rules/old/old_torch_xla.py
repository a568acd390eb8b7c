"""Old torch_xla code, brought up to torch_xla 2.9."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from migrate.catalogue import catalogue, torch_xla
from migrate.catalogue.entry import names
from migrate.catalogue.launchers import SPAWN_PARAMETERS
from migrate.catalogue.torch_xla import GONE_TO, OLD_TO
from migrate.check.hazard import Severity
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import (
    Edit,
    Replacement,
    Rule,
    RuleFinding,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.old.portable_xla import portable_calls
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, keyword

XM = "torch_xla.core.xla_model"
SPAWN = "torch_xla.distributed.xla_multiprocessing.spawn"

GONE = names(*torch_xla.GONE)
COUNTS = "XLA822"  # the code of a number of processes
PARALLEL_LOADER = "torch_xla.distributed.parallel_loader.ParallelLoader"


class OldTorchXla(Rule):
    """Bring old torch_xla calls up to torch_xla 2.9.

    **What it does.** `xm.xla_device()` becomes `torch_xla.device()`, `xm.mark_step()` becomes
    `torch_xla.sync()`, `xm.get_ordinal()` and `xm.xrt_world_size()`, which are gone, become
    `xr.global_ordinal()` and `xr.world_size()` (without the default that they took), and
    `xmp.spawn(fn, args=…)` becomes `torch_xla.launch(fn, args=…)`.
    `pl.ParallelLoader(loader, [device]).per_device_loader(device)` becomes
    `pl.MpDeviceLoader(loader, device)`, which can be iterated over again.

    **Why.** Older guides and scripts call them. What is gone raises an AttributeError (XLA819), what is
    deprecated goes in a later release (XLA820). There are as many replicas as the host has devices:
    `torch_xla.launch` has no `nprocs`, a TypeError, and `xmp.spawn` takes only 1 or None (XLA822).

    **Reported.** `torch_xla.launch` with `nprocs=`; `xmp.spawn` with a number of processes other than None,
    which torch_xla refuses above 1, or with other options; `xm.xla_device` of one ordinal or kind; what is
    gone without a successor. `xm.save`, `xm.optimizer_step`, `xm.is_master_ordinal` and the rest of `xm` work
    as they are.

    Source: torch_xla 2.9 (measured: both old loaders and names on the CPU); pytorch/xla#8715.
    """

    name = "old-torch-xla"
    code = "XLA819"
    also = (("XLA820", "deprecated-in-torch-xla"), (COUNTS, "launch-arguments"))
    beside_frameworks = True
    nodes = (cst.Call, cst.Attribute, cst.Name, cst.SimpleStatementLine)
    words = "xla"
    of_names = True
    examples = (
        rewritten(
            """
            import torch_xla.core.xla_model as xm
            import torch_xla.distributed.parallel_loader as pl
            import torch_xla.distributed.xla_multiprocessing as xmp


            def worker(index, flags):
                device = xm.xla_device()
                print(xm.get_ordinal(), xm.xrt_world_size())
                for x, y in pl.ParallelLoader(loader, [device]).per_device_loader(device):
                    xm.optimizer_step(optimizer)
                xm.mark_step()


            if __name__ == '__main__':
                xmp.spawn(worker, args=(flags,), nprocs=None, start_method='fork')
            """,
            """
            import torch_xla.core.xla_model as xm
            import torch_xla.distributed.parallel_loader as pl
            import torch_xla
            import torch_xla.runtime as xr


            def worker(index, flags):
                device = torch_xla.device()
                print(xr.global_ordinal(), xr.world_size())
                for x, y in pl.MpDeviceLoader(loader, device):
                    xm.optimizer_step(optimizer)
                torch_xla.sync()


            if __name__ == '__main__':
                torch_xla.launch(worker, args=(flags,), start_method='fork')
            """,
        ),
        left_alone(
            """
            import torch_xla
            import torch_xla.core.xla_model as xm

            xm.save(model.state_dict(), path)
            if xm.is_master_ordinal():
                xm.master_print(torch_xla.device())
            """
        ),
        reported(
            """
            import torch_xla.distributed.xla_multiprocessing as xmp

            if __name__ == '__main__':
                xmp.spawn(worker, nprocs=8)
            """,
            "as many replicas as the TPU has devices",
        ),
        reported(
            """
            from torch_xla.amp import syncfree

            optimizer = syncfree.Adam(parameters)
            """,
            "gradient scaler",
        ),
        checked(
            """
            import torch_xla
            import torch_xla.core.xla_model as xm
            import torch_xla.distributed.xla_multiprocessing as xmp

            device = xm.xla_device()  # XLA820 info
            ordinal_of = xm.get_ordinal  # XLA819
            print(xm.get_ordinal(), xm.xrt_world_size())  # XLA819
            xm.mark_step()  # XLA820 info


            def start(worker):
                torch_xla.launch(worker, nprocs=8)  # XLA822


            def start_all(worker):
                torch_xla.launch(worker)
                xmp.spawn(worker, nprocs=None)  # XLA820 info
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one old call, or the finding at a name that is gone."""
        if isinstance(node, cst.Call):
            yield from self._count(node, context)
        if context.portable:
            yield from portable_calls(self, node, context)
            return
        if isinstance(node, cst.Call):
            yield from self._call(node, context)
            return
        above = context.parent(node)
        if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom):
            return
        name = context.qualified_name(node) or ""
        entry = catalogue.of(name)
        if entry is not None and entry.name in GONE:
            yield from self.report(node, f"{name}: {entry.says()}", subject=name)
        elif name in (*GONE_TO, *OLD_TO) and entry is not None:
            if isinstance(above, cst.Call) and above.func is node:
                return  # the call is edited
            gone = name in GONE_TO
            severity = Severity.ERROR if gone else Severity.INFO
            message = f"{name}: {entry.says()}"
            yield from self.report(
                node, message, severity, code=entry.code, subject=name, is_hint=not gone
            )

    def _count(self, call: cst.Call, context: Workspace) -> Iterator[RuleFinding]:
        """Yield the finding at a number of processes for the launcher of torch_xla."""
        count = keyword(call, "nprocs")
        if count is not None and context.qualified_name(call.func) == "torch_xla.launch":
            message = f"nprocs={code(count.value)} raises: a replica for each device, always"
            yield from self.report(call, message, code=COUNTS)

    def _call(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        name = context.qualified_name(call.func)
        if name in GONE_TO:
            module, _, function = GONE_TO[name].rpartition(".")
            successor = f"{context.imports.require(module, 'xr')}.{function}"
            yield self._renamed(call, successor, context)
        elif name == f"{XM}.mark_step":
            yield self._renamed(call, f"{context.imports.require('torch_xla')}.sync", context)
        elif name == f"{XM}.xla_device":
            if call.args:
                message = f"{code(call)}: torch_xla.device() is the replica's only device"
                yield from self.report(call, message)
            else:
                yield self._renamed(call, f"{context.imports.require('torch_xla')}.device", context)
        elif name == SPAWN:
            yield from self._spawn(call, context)
        elif name == PARALLEL_LOADER:
            yield from self._loader(call, context)

    def _renamed(self, call: cst.Call, function: str, context: Workspace) -> Edit:
        successor = cst.parse_expression(function)
        # The old ordinals took a default for a missing device; a successor takes no argument.
        ordinal = function.rsplit(".", 1)[-1] != "sync"

        def replace(updated: cst.Call) -> cst.Call:
            args = [] if ordinal else updated.args
            return updated.with_changes(func=successor, args=args)

        gone = [call.func, *call.args] if ordinal else [call.func]
        message = f"{code(call)} → {function}()"
        return self._of_name(call, replace, message, consumes=gone, context=context)

    def _of_name(
        self,
        call: cst.Call,
        replace: Callable[..., Replacement],
        message: str,
        *,
        consumes: Iterable[cst.CSTNode],
        context: Workspace,
    ) -> Edit:
        """Return the edit of a call of a catalogued name. The catalogue states the effect."""
        name = context.qualified_name(call.func) or ""
        entry = catalogue.of(name)
        if entry is None:
            return self.edit(call, replace, message, consumes=consumes)
        return self.edit(
            call,
            replace,
            message,
            consumes=consumes,
            wrong=f"{name}: {entry.says()}",
            severity=Severity.ERROR if name in GONE_TO else Severity.INFO,
            code=entry.code,
        )

    def _spawn(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        bound = bind(call, SPAWN_PARAMETERS)
        options = {} if bound is None else {n: bound[n] for n in ("join", "daemon") if n in bound}
        count = None if bound is None else bound.get("nprocs")
        if bound is None or any(
            code(arg.value) != "True" for n, arg in options.items() if n == "join"
        ):
            yield from self.report(
                call, "xmp.spawn with these arguments: torch_xla.launch(fn, args=…)"
            )
            return
        if count is not None and code(count.value) not in ("None", "1"):
            message = (
                f"{code(count.value)} processes: torch_xla refuses more than 1; there are "
                "as many replicas as the TPU has devices"
            )
            yield from self.report(call, message, code=COUNTS)
        launch = cst.parse_expression(f"{context.imports.require('torch_xla')}.launch")
        kept = [
            index
            for index, arg in enumerate(call.args)
            if not any(arg is bound.get(n) for n in ("nprocs", "join", "daemon"))
        ]
        gone = [bound[n] for n in ("nprocs", "join", "daemon") if n in bound]
        single = count is not None and code(count.value) == "1"
        yes = cst.Arg(cst.Name("True"), keyword=cst.Name("debug_single_process"), equal=_NO_SPACE)

        def replace(updated: cst.Call) -> cst.Call:
            args = [updated.args[index] for index in kept]
            if single:
                args.append(yes)
            return with_args(updated, args).with_changes(func=launch)

        message = f"{code(call.func)} → torch_xla.launch"
        yield self._of_name(call, replace, message, consumes=[call.func, *gone], context=context)

    def _loader(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        method = context.parent(call)
        outer = context.parent(method)
        bound = bind(call, ("loader", "devices")) or {}
        devices = bound["devices"].value if "devices" in bound else None
        is_single = isinstance(devices, cst.List | cst.Tuple) and len(devices.elements) == 1
        direct = isinstance(method, cst.Attribute) and method.attr.value == "per_device_loader"
        if not (direct and is_single and isinstance(outer, cst.Call) and len(outer.args) == 1):
            message = "ParallelLoader: MpDeviceLoader(loader, device) takes its place, once for all epochs"
            yield from self.report(call, message)
            return
        module = context.imports.require("torch_xla.distributed.parallel_loader", "pl")
        loader = cst.parse_expression(f"{module}.MpDeviceLoader")
        at = call.args.index(bound["loader"])

        def replace(updated: cst.Call) -> cst.Call:
            inner = cst.ensure_type(cst.ensure_type(updated.func, cst.Attribute).value, cst.Call)
            first = cst.Arg(inner.args[at].value)
            device = cst.Arg(updated.args[0].value)
            return cst.Call(loader, [first.with_changes(comma=_COMMA), device])

        gone = [call.func, bound["devices"]]
        yield self.edit(outer, replace, "ParallelLoader → MpDeviceLoader", consumes=gone)


_NO_SPACE = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
