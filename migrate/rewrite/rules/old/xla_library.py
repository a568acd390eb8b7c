"""Functions and classes of torch_xla that plain PyTorch replaces, in scripts that move to torch_tpu."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.check.rules.ranks.guarded_collective import COLLECTIVE
from migrate.rewrite.edits.nodes import spread, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.launch.launch_from_xla import joins_group
from migrate.rewrite.rules.old import xla_sources
from migrate.rewrite.rules.old.leave_torch_xla import XM, XR, is_single, rank_query
from migrate.rewrite.styles.vocabulary import Word
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, string_value

PL = "torch_xla.distributed.parallel_loader"
LOADER = f"{PL}.MpDeviceLoader"
PARALLEL = f"{PL}.ParallelLoader"
OPTIMIZER_STEP = f"{XM}.optimizer_step"
LOADER_PARAMETERS = (
    *("loader", "device", "batches_per_execution", "batchdim", "loader_prefetch_size"),
    *("device_prefetch_size", "host_to_device_transfer_threads", "input_sharding"),
)
STEP_PARAMETERS = ("optimizer", "barrier", "optimizer_args", "groups", "pin_layout")
MASTER_PRINT = f"{XM}.master_print"
CLOSURE = f"{XM}.add_step_closure"
COMPILE = "torch_xla.compile"
MESH_REDUCE = f"{XM}.mesh_reduce"
ALL_REDUCE = f"{XM}.all_reduce"
KINDS = {"sum": "SUM", "mul": "PRODUCT", "min": "MIN", "max": "MAX"}
CONSTANTS = {f"{XM}.REDUCE_{kind.upper()}": value for kind, value in KINDS.items()}
# Statements that have no work on torch_tpu, with the reason.
GONE = {
    "torch_xla.experimental.eager_mode": "torch_tpu runs op by op",
    "torch_xla.experimental.eager.eager_mode": "torch_tpu runs op by op",
    f"{XR}.initialize_cache": "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT names the folder of torch_tpu's cache",
    f"{XM}.unlazy": "torch_tpu runs op by op",
}
METRICS = "torch_xla.debug.metrics"
# Texts about graphs and their compilations, which torch_tpu has not.
REPORTS = frozenset(
    {
        f"{METRICS}.metrics_report",
        f"{METRICS}.short_metrics_report",
        "torch_xla._XLAC._xla_metrics_report",
        "torch_xla._XLAC._short_xla_metrics_report",
    }
)
NO_GRAPHS = "torch_tpu has no graphs to count, `migrate run` lists its compilations"
GONE |= dict.fromkeys((f"{METRICS}.clear_all", f"{METRICS}.clear_counters"), NO_GRAPHS)
KINDS_OF_DEVICE = frozenset({f"{XR}.device_type", f"{XM}.xla_device_hw"})
CLASSES = {
    f"{XM}.RateTracker": ("RateTracker", xla_sources.RATE),
    "torch_xla.utils.utils.SampleGenerator": ("SampleGenerator", xla_sources.SAMPLES),
}
TESTS = "torch_xla.test.test_utils"
SUMMARY = f"{TESTS}.write_to_summary"
# Functions for logs that examples of torch_xla take from its tests: plain Python, with the same arguments.
FOR_LOGS = {
    "now": xla_sources.NOW,
    "rank_of_process": xla_sources.RANK,
    "get_summary_writer": xla_sources.WRITER,
    "write_to_summary": xla_sources.SUMMARY,
    "close_summary_writer": xla_sources.CLOSE,
    "print_training_update": xla_sources.TRAINING,
    "print_test_update": xla_sources.TEST,
}
# Functions that a script gets, for calls whose only argument is what they work on.
OF_RANKS = {
    f"{XM}.reduce_gradients": ("average_gradients", xla_sources.AVERAGE, ("optimizer",)),
    f"{XM}.broadcast_master_param": ("broadcast_weights", xla_sources.BROADCAST, ("model",)),
}


class XlaLibrary(Rule):
    """Replace functions and classes of torch_xla that PyTorch has, or that a few lines have.

    **What it does.** `MpDeviceLoader` becomes a class of the script that moves each batch to the device.
    `xm.RateTracker`, `xu.SampleGenerator`, `xm.mesh_reduce`, `xm.all_reduce`, `xm.reduce_gradients` and
    `xm.broadcast_master_param` become short functions and classes of the script, with torch.distributed.
    `xm.optimizer_step` averages the gradients, then calls `optimizer.step()`, also of a model that may be in
    DistributedDataParallel: an average of equal gradients changes nothing. `xm.add_step_closure(f, args)`
    calls `f`, `xm.master_print` prints on the first rank, `xm.wait_device_ops()` is
    `torch.accelerator.synchronize()`, `torch_xla.compile(f)` is `f`. A line that only prints torch_xla's
    metrics goes. Functions for logs of `torch_xla.test.test_utils` become functions of the script, too;
    what torch_xla counts of its graphs (`write_xla_metrics=True`) is no longer written.

    **Reported.** These with options that have no counterpart: `input_sharding=` of SPMD, `groups=`,
    `optimizer_args=`. A collective of a script that joins no process group.

    Source: torch_xla 2.9 (its source) and torch_tpu 0.2.0 (measured with 2 ranks on XLA:CPU).
    """

    name = "xla-library"
    code = "XLA899"
    targets = TPU_ONLY
    nodes = (cst.Attribute, cst.Call, cst.Expr)
    words = "xla"
    examples = (
        rewritten(
            """
            import torch
            import torch_xla
            import torch_xla.core.xla_model as xm
            import torch_xla.distributed.parallel_loader as pl


            def report(step, loss):
                print(step, loss.item())


            def worker(index, model, loader):
                model.to("xla")
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for step, x in enumerate(pl.MpDeviceLoader(loader, "xla")):
                    loss = model(x).square().mean()
                    loss.backward()
                    xm.optimizer_step(optimizer)
                    xm.add_step_closure(report, args=(step, loss))
                xm.wait_device_ops()


            if __name__ == "__main__":
                torch_xla.launch(worker, args=(torch.nn.Linear(8, 8), torch.ones(4, 2, 8)))
            """,
            '''
            import collections.abc
            import os

            import torch
            import torch.distributed as dist
            import torch.multiprocessing as mp


            class DeviceLoader:
                """Batches of a loader, each moved to the device."""

                def __init__(self, loader, device):
                    self.loader, self.device = loader, device

                def __len__(self):
                    return len(self.loader)

                def __iter__(self):
                    return map(self.moved, self.loader)

                def moved(self, batch):
                    if hasattr(batch, "to"):
                        return batch.to(self.device)
                    if isinstance(batch, collections.abc.Mapping):
                        return type(batch)({key: self.moved(value) for key, value in batch.items()})
                    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
                        return type(batch)(*map(self.moved, batch))
                    if isinstance(batch, (list, tuple)):
                        return type(batch)(map(self.moved, batch))
                    return batch


            def average_gradients(optimizer):
                """Give each gradient of the optimizer its average over the ranks."""
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            dist.all_reduce(parameter.grad)
                            parameter.grad.div_(dist.get_world_size())


            def report(step, loss):
                print(step, loss.item())


            def worker(index, model, loader):
                os.environ["LOCAL_RANK"] = str(index)
                index += int(os.environ.get("NODE_RANK", "0")) * int(os.environ["LOCAL_WORLD_SIZE"])
                os.environ["RANK"] = str(index)
                dist.init_process_group("tpu_dist")
                model.to("tpu")
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for step, x in enumerate(DeviceLoader(loader, "tpu")):
                    loss = model(x).square().mean()
                    loss.backward()
                    average_gradients(optimizer)
                    optimizer.step()
                    report(step, loss)
                torch.accelerator.synchronize()


            if __name__ == "__main__":
                nprocs = torch.accelerator.device_count()
                torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=nprocs)
                os.environ.setdefault("MASTER_ADDR", "localhost")
                os.environ.setdefault("MASTER_PORT", "29500")
                os.environ["LOCAL_WORLD_SIZE"] = str(nprocs)
                os.environ["WORLD_SIZE"] = str(nprocs * int(os.environ.get("NNODES", "1")))
                mp.spawn(worker, args=(torch.nn.Linear(8, 8), torch.ones(4, 2, 8)), nprocs=nprocs)
            ''',
            target=TPU,
        ),
        rewritten(
            """
            import torch_xla.test.test_utils as test_utils

            writer = test_utils.get_summary_writer("logs")
            now = test_utils.now()
            test_utils.write_to_summary(writer, 1, {"loss": 0.5}, write_xla_metrics=True)
            print(test_utils.now, now)
            """,
            '''
            import datetime
            import time


            def get_summary_writer(logdir):
                """Return a writer for TensorBoard, or None without a folder."""
                if not logdir:
                    return None
                from tensorboardX import SummaryWriter

                writer = SummaryWriter(log_dir=logdir)
                write_to_summary(writer, 0, {"TensorboardStartTimestamp": time.time()})
                return writer


            def now_(format="%H:%M:%S"):
                """Return the time of day as text."""
                return datetime.datetime.now().strftime(format)


            def write_to_summary(summary_writer, global_step=None, dict_to_write={}):
                """Write numbers to TensorBoard, if there is a writer."""
                if summary_writer is not None:
                    for name, value in dict_to_write.items():
                        summary_writer.add_scalar(name, value, global_step)


            writer = get_summary_writer("logs")
            now = now_()
            write_to_summary(writer, 1, {"loss": 0.5})
            print(now_, now)
            ''',
            target=TPU,
        ),
        left_alone(
            """
            from loaders import MpDeviceLoader

            loader = MpDeviceLoader([], "tpu")
            """,
            target=TPU,
        ),
        reported(
            """
            import torch_xla.distributed.parallel_loader as pl
            import torch_xla.distributed.spmd as xs


            def shard(loader, mesh):
                return pl.MpDeviceLoader(loader, "xla", input_sharding=xs.ShardingSpec(mesh, ("data",)))
            """,
            "a DistributedSampler gives each rank its part",
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of one use of torch_xla, or the finding."""
        if isinstance(node, cst.Expr):
            if isinstance(node.value, cst.Call):
                yield from self._statement(node, node.value, context)
        elif isinstance(node, cst.Call):
            yield from self._call(node, context)
        elif isinstance(node, cst.Attribute):
            name = context.qualified_name(node)
            if name in CONSTANTS:
                text = _reduction(CONSTANTS[name], context)
                yield self._replaced(node, text, [node])
            elif (for_logs := _for_logs(name)) and not _is_called(node, context):
                text = _function(for_logs, FOR_LOGS[for_logs], context)
                yield self._replaced(node, text, [node])

    def _statement(
        self, node: cst.Expr, call: cst.Call, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edits of a statement that is a call."""
        name = context.qualified_name(call.func)
        if name in GONE or _prints_report(call, context):
            message = f"remove {code(call)}: {GONE.get(name or '', NO_GRAPHS)}"
            yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[call])
        elif name == f"{XM}.wait_device_ops":
            torch = context.imports.require("torch")
            yield self._replaced(call, f"{torch}.accelerator.synchronize()", [call])
        elif name == OPTIMIZER_STEP:
            yield from self._optimizer_step(node, call, context)
        elif name == MASTER_PRINT:
            yield from self._master_print(node, call, context)
        elif name == CLOSURE:
            yield from self._closure(call)
        elif name in OF_RANKS:
            function, source, parameters = OF_RANKS[name]
            bound = bind(call, (*parameters, "groups", "cctx", "pin_layout"))
            groups = bound.get("groups") if bound else None
            if bound is None or parameters[0] not in bound or groups is not None:
                message = f"{code(call)}: torch.distributed.all_reduce, with the group of the ranks"
                yield from self.report(call, message)
            elif not joins_group(context):
                yield from self._without_group(call)
            else:
                kept = [call.args.index(bound[parameters[0]])]
                yield self._renamed(call, _function(function, source, context), kept)

    def _call(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of a call whose value is used."""
        name = context.qualified_name(call.func)
        if name in KINDS_OF_DEVICE:
            yield self._replaced(call, context.string("TPU").value, [call])
        elif name in CLASSES:
            yield self._renamed(call, _function(*CLASSES[name], context))
        elif for_logs := _for_logs(name):
            yield self._log(call, for_logs, context)
        elif name == LOADER:
            yield from self._loader(call, context)
        elif name == PARALLEL:
            if not _is_per_device(context.parent(call)):
                yield from self._parallel(call, call, context)
        elif _is_per_device(call.func):
            source = cst.ensure_type(call.func, cst.Attribute).value
            if isinstance(source, cst.Call) and context.qualified_name(source.func) == PARALLEL:
                yield from self._parallel(call, source, context)
            elif any(context.qualified_name(c.func) == PARALLEL for c in context.all_of(cst.Call)):
                message = f"{code(call)} → {code(source)}"
                yield self.edit(
                    call,
                    lambda updated: updated.func.value,
                    message,
                    consumes=[call.func, *call.args],
                )
        elif name == COMPILE and not _decorates(call, context):
            bound = bind(call, ("f", "full_graph", "name", "num_different_graphs_allowed"))
            function = bound.get("f") if bound else None
            if function is not None:
                at = call.args.index(function)
                others = [arg for arg in call.args if arg is not function]
                message = f"{code(call.func)} → {code(function.value)}: torch_tpu runs op by op"
                yield self.edit(
                    call,
                    lambda updated: updated.args[at].value,
                    message,
                    consumes=[call.func, *others],
                )
        elif name == MESH_REDUCE:
            bound = bind(call, ("tag", "data", "reduce_fn"))
            if bound is None or len(bound) < 3:
                return
            kept = [call.args.index(bound["data"]), call.args.index(bound["reduce_fn"])]
            if is_single(call, context):
                yield self.edit(
                    call,
                    lambda updated: _of_one(*(updated.args[index].value for index in kept)),
                    f"{code(call.func)} → a call of its function: one process trains",
                    consumes=[call.func, bound["tag"]],
                )
            elif not joins_group(context):
                yield from self._without_group(call)
            else:
                text = _function("mesh_reduce", xla_sources.MESH_REDUCE, context)
                yield self._renamed(call, text, kept)
        elif name == ALL_REDUCE:
            yield from self._all_reduce(call, context)

    def _log(self, call: cst.Call, function: str, context: Workspace) -> Edit:
        """Return the edit of a call of a function for logs."""
        new = _function(function, FOR_LOGS[function], context)
        counted = None
        if function == "write_to_summary":
            parameters = ("summary_writer", "global_step", "dict_to_write", "write_xla_metrics")
            counted = (bind(call, parameters) or {}).get("write_xla_metrics")
        if counted is None:
            return self._renamed(call, new)
        at = call.args.index(counted)

        def replace(updated: cst.Call) -> cst.Call:
            args = [arg for index, arg in enumerate(updated.args) if index != at]
            return with_args(updated.with_changes(func=cst.Name(new)), args)

        message = f"{code(call.func)} → {new}, without {code(counted)}: {NO_GRAPHS}"
        return self.edit(call, replace, message, consumes=[call.func, counted])

    def _loader(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of MpDeviceLoader; its options say how far ahead batches are moved."""
        bound = bind(call, LOADER_PARAMETERS)
        if bound is None or not {"loader", "device"} <= bound.keys() or "input_sharding" in bound:
            message = (
                f"{code(call)}: move each batch; a DistributedSampler gives each rank its part"
            )
            yield from self.report(call, message)
            return
        kept = [call.args.index(bound[name]) for name in ("loader", "device")]
        yield self._renamed(call, _device_loader(context), kept)

    def _parallel(
        self, node: cst.Call, call: cst.Call, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of ParallelLoader, whose list of devices has one here.

        Args:
            node: `call`, or its `per_device_loader(…)`.
            call: makes the ParallelLoader.
            context: the script.
        """
        bound = bind(call, ("loader", "devices", *LOADER_PARAMETERS[2:]))
        devices = bound["devices"].value if bound and "devices" in bound else None
        if bound is None or not isinstance(devices, cst.List) or len(devices.elements) != 1:
            message = f"{code(call)}: move each batch in the loop, a rank has one device"
            yield from self.report(call, message)
            return
        first = call.args.index(bound["loader"])
        second = call.args.index(bound["devices"])
        name = cst.Name(_device_loader(context))

        def replace(updated: cst.Call) -> cst.Call:
            source = updated
            if node is not call:
                source = cst.ensure_type(
                    cst.ensure_type(source.func, cst.Attribute).value, cst.Call
                )
            listed = cst.ensure_type(source.args[second].value, cst.List)
            return cst.Call(
                name, [cst.Arg(source.args[first].value), cst.Arg(listed.elements[0].value)]
            )

        message = f"{code(call.func)} → {name.value}, a class of this script"
        gone = [call.func, *call.args[2:], *(node.args if node is not call else ())]
        yield self.edit(node, replace, message, consumes=gone)

    def _optimizer_step(
        self, node: cst.Expr, call: cst.Call, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        bound = bind(call, STEP_PARAMETERS)
        options = [name for name in ("optimizer_args", "groups") if bound and name in bound]
        line = context.parent(node)
        if bound is None or "optimizer" not in bound or options:
            message = (
                f"{code(call)}: call optimizer.step(), with the contents of optimizer_args; the ranks whose "
                "gradients are averaged are DistributedDataParallel's, process_group="
            )
            yield from self.report(call, message)
            return
        optimizer = code(bound["optimizer"].value)
        gone = [call.func, *(arg for arg in call.args if arg is not bound["optimizer"])]
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        if is_single(call, context):
            yield self._replaced(call, f"{optimizer}.step()", gone)
        elif not joins_group(context):
            yield from self._without_group(call)
        elif not isinstance(line, cst.SimpleStatementLine) or not alone:
            yield from self.report(call, f"{code(call)}: put it on a line of its own")
        else:
            average = _function("average_gradients", xla_sources.AVERAGE, context)
            first, second = (
                cst.parse_statement(text)
                for text in (f"{average}({optimizer})", f"{optimizer}.step()")
            )

            def replace(updated: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.BaseStatement]:
                above = first.with_changes(leading_lines=updated.leading_lines)
                below = cst.ensure_type(second, cst.SimpleStatementLine).with_changes(
                    trailing_whitespace=updated.trailing_whitespace
                )
                return cst.FlattenSentinel([above, below])

            message = f"{code(call)} → {average}({optimizer}), {optimizer}.step()"
            yield self.edit(line, replace, message, consumes=gone)

    def _master_print(
        self, node: cst.Expr, call: cst.Call, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of a print on the first rank."""
        line = context.parent(node)
        options = {
            arg.keyword.value: code(arg.value) for arg in call.args if arg.keyword is not None
        }
        local = options.get("local", "False")
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        shared = [part for part in context.below(call, cst.Call) if self._is_shared(part, context)]
        if shared:
            message = f"{code(shared[0])} is computed by all ranks: assign it above the print"
            yield from self.report(call, message)
            return
        if not alone or local not in ("True", "False") or options.keys() - {"fd", "local", "flush"}:
            yield from self.report(call, f"{code(call)}: print, below a test of the rank")
            return
        single = is_single(call, context)
        word: Word = "local rank" if local == "True" else "rank"
        test = "" if single else f"{rank_query(word, call, context)} == 0"

        def replace(updated: cst.SimpleStatementLine) -> cst.BaseStatement:
            old = cst.ensure_type(cst.ensure_type(updated.body[0], cst.Expr).value, cst.Call)
            args = [arg for arg in old.args if arg.keyword is None or arg.keyword.value != "local"]
            args = [
                arg.with_changes(keyword=cst.Name("file"))
                if arg.keyword is not None and arg.keyword.value == "fd"
                else arg
                for arg in args
            ]
            printed = updated.with_changes(
                body=[cst.Expr(with_args(old, args).with_changes(func=cst.Name("print")))]
            )
            if single:
                return printed
            body = cst.IndentedBlock(body=[printed.with_changes(leading_lines=[])])
            return cst.If(
                test=cst.parse_expression(test), body=body, leading_lines=updated.leading_lines
            )

        assert line is not None
        message = f"{code(call.func)} → print" + ("" if single else " on the first rank")
        yield self.edit(line, replace, message, consumes=[call.func])

    def _is_shared(self, call: cst.Call, context: Workspace) -> bool:
        """Whether all ranks have to run `call`: they meet in it."""
        name = context.qualified_name(call.func) or ""
        return name == MESH_REDUCE or name in COLLECTIVE or context.effects.meets(call)

    def _closure(self, call: cst.Call) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of a step closure, which is called at once: a read waits for its value."""
        bound = bind(call, ("closure", "args", "run_async"))
        if bound is None or "closure" not in bound:
            return

        def replace(updated: cst.Call) -> cst.Call:
            now = bind(updated, ("closure", "args", "run_async")) or bound
            args = spread(now["args"].value) if "args" in now else []
            return cst.Call(now["closure"].value, args)

        gone = [call.func, *([bound["run_async"]] if "run_async" in bound else [])]
        message = f"{code(call.func)} → a call of {code(bound['closure'].value)}: a read waits"
        yield self.edit(call, replace, message, consumes=gone)

    def _all_reduce(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of `xm.all_reduce`, whose first argument is a constant or its text."""
        bound = bind(call, ("reduce_type", "inputs", "scale", "groups", "cctx", "pin_layout"))
        if bound is None or not {"reduce_type", "inputs"} <= bound.keys() or "groups" in bound:
            return
        kind = bound["reduce_type"].value
        of_text = KINDS.get(string_value(kind) or "")
        if of_text is None and context.qualified_name(kind) not in CONSTANTS:
            return
        if is_single(call, context):
            return
        if not joins_group(context):
            yield from self._without_group(call)
            return
        reduction = of_text or CONSTANTS[context.qualified_name(kind) or ""]
        values = [_reduction(reduction, context), code(bound["inputs"].value)]
        if "scale" in bound:
            values.append(code(bound["scale"].value))
        function = _function("all_reduce", xla_sources.ALL_REDUCE, context)
        kept = [call.args.index(bound[n]) for n in ("inputs", "scale") if n in bound]
        first = cst.Arg(cst.parse_expression(values[0]))

        def replace(updated: cst.Call) -> cst.Call:
            args = [first, *(_positional(updated.args[index]) for index in kept)]
            return with_args(updated.with_changes(func=cst.Name(function)), args)

        gone = [call.func, *(arg for i, arg in enumerate(call.args) if i not in kept), kind]
        yield self.edit(
            call,
            replace,
            f"{code(call.func)} → {function}, a function of this script",
            consumes=gone,
        )

    def _without_group(self, call: cst.Call) -> Iterator[RuleFinding]:
        message = (
            f"{code(call.func)} works on all ranks: join the process group in the worker, "
            'torch.distributed.init_process_group("tpu_dist")'
        )
        yield from self.report(call, message)

    def _renamed(self, call: cst.Call, name: str, kept: list[int] | None = None) -> Edit:
        """Return the edit of a call of torch_xla into one of a function or class of the script."""
        keep = list(range(len(call.args))) if kept is None else kept

        def replace(updated: cst.Call) -> cst.Call:
            new = updated.with_changes(func=cst.Name(name))
            if kept is None:
                return new
            return with_args(new, [_positional(updated.args[index]) for index in keep])

        gone = [call.func, *(arg for index, arg in enumerate(call.args) if index not in keep)]
        message = f"{code(call.func)} → {name}, which this script has now"
        return self.edit(call, replace, message, consumes=gone)

    def _replaced(
        self, node: cst.BaseExpression, text: str, consumes: Iterable[cst.CSTNode]
    ) -> Edit:
        expression = cst.parse_expression(text)
        return self.edit(node, lambda _: expression, f"{code(node)} → {text}", consumes=consumes)


def _for_logs(name: str | None) -> str:
    """Return the name of the function for logs, or "" for another name."""
    module, _, function = (name or "").rpartition(".")
    return function if module == TESTS and function in FOR_LOGS else ""


def _is_called(node: cst.CSTNode, context: Workspace) -> bool:
    parent = context.parent(node)
    return isinstance(parent, cst.Call) and parent.func is node


def _prints_report(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` prints a report of torch_xla's metrics, and nothing else but literal text."""
    if code(call.func) != "print" and context.qualified_name(call.func) != MASTER_PRINT:
        return False
    shown = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    return any(_is_report(value, context) for value in shown) and all(
        _is_report(value, context) or isinstance(value, cst.SimpleString) for value in shown
    )


def _is_report(node: cst.BaseExpression, context: Workspace) -> bool:
    return isinstance(node, cst.Call) and context.qualified_name(node.func) in REPORTS


def _is_per_device(node: cst.CSTNode | None) -> bool:
    """Whether `node` is `loader.per_device_loader`, of any loader."""
    return isinstance(node, cst.Attribute) and node.attr.value == "per_device_loader"


def _reduction(kind: str, context: Workspace) -> str:
    """Return the constant of torch.distributed for a reduction."""
    dist = context.imports.require("torch.distributed", "dist")
    return f"{dist}.ReduceOp.{kind}"


def _function(name: str, source: str, context: Workspace) -> str:
    """Return the name of a function or class of `xla_sources` that the script gets."""
    modules = {
        "{torch}": ("torch", None),
        "{dist}": ("torch.distributed", "dist"),
        "{abc}": ("collections.abc", None),
        "{functools}": ("functools", None),
        "{time}": ("time", None),
        "{datetime}": ("datetime", None),
    }
    for place, (module, alias) in modules.items():
        if place in source:
            source = source.replace(place, context.imports.require(module, alias))
    for part, text in {"gloo_group": xla_sources.GROUP, **FOR_LOGS}.items():
        if f"{{{part}}}" in source:
            source = source.replace(f"{{{part}}}", _function(part, text, context))
    return context.definitions.require(name, source)


def _device_loader(context: Workspace) -> str:
    return _function("DeviceLoader", xla_sources.LOADER, context)


def _of_one(data: cst.BaseExpression, function: cst.BaseExpression) -> cst.Call:
    """Return the call of a reduction for what one process has."""
    if isinstance(function, cst.Lambda):
        parentheses = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
        function = function.with_changes(**parentheses)
    return cst.Call(function, [cst.Arg(cst.List([cst.Element(data)]))])


def _positional(arg: cst.Arg) -> cst.Arg:
    if arg.keyword is None:
        return arg
    return arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)


def _decorates(call: cst.Call, context: Workspace) -> bool:
    return isinstance(context.parent(call), cst.Decorator)
