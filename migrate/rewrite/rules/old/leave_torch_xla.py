"""Calls of torch_xla in scripts that move to torch_tpu."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.launchers import STARTS, XLA_LAUNCHES
from migrate.catalogue.target import GENERATOR, TPU, TPU_ONLY
from migrate.catalogue.torch_other import CPU_SEEDS
from migrate.catalogue.words import RANKS
from migrate.reading.facts import facts_of
from migrate.reading.replicas.launch import INIT, is_guard
from migrate.reading.values.collectives import called
from migrate.reading.values.environment import environment_name, is_read
from migrate.rewrite.edits.branch import unwrapped
from migrate.rewrite.edits.imports import FOR_EFFECT
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.nccl_backend import (
    BACKEND,
    comparison_of,
    is_of_the_group,
    is_option,
    kept_as,
)
from migrate.rewrite.rules.launch.launch_from_xla import is_launched, joins_group
from migrate.rewrite.styles.vocabulary import Word
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, last_part, string_value

XM, XR = "torch_xla.core.xla_model", "torch_xla.runtime"
STEP = frozenset({"torch_xla.step"})
SYNCS = frozenset({"torch_xla.sync", f"{XM}.mark_step"})
SAVE = f"{XM}.save"
MEMORY = f"{XM}.get_memory_info"
SHARDS = "torch_xla.distributed.spmd"
# Calls without arguments that count, by the word of torch_tpu.
WORDS: dict[str, Word] = {
    f"{XR}.global_ordinal": "rank",
    f"{XM}.get_ordinal": "rank",
    f"{XR}.local_ordinal": "local rank",
    f"{XM}.get_local_ordinal": "local rank",
    f"{XR}.world_size": "world size",
    f"{XM}.xrt_world_size": "world size",
}
OF_WORD: dict[Word, str] = {
    "rank": "RANK",
    "local rank": "LOCAL_RANK",
    "world size": "WORLD_SIZE",
}
LOCAL_SIZE = f"{XR}.local_device_count"
OWN_DEVICES = f"{XR}.addressable_device_count"
DEVICES = frozenset({"torch_xla.device", f"{XM}.xla_device"})
CHECKPOINT = "torch_xla.utils.checkpoint.checkpoint"
FIGURES = {
    "bytes_used": "torch.accelerator.memory_allocated()",
    "peak_bytes_used": "torch.accelerator.max_memory_allocated()",
    "bytes_limit": "torch.accelerator.get_memory_info()[1]",
}
SEEDS = names(*CPU_SEEDS)
INDEXED = re.compile(r"xla(:\d+)?")
# Calls whose last argument is what a name stands for without a value.
DEFAULTED = frozenset({"get", "getenv", "getattr", "pop", "setdefault"})
OF_BACKENDS = frozenset({"torch.distributed.Backend", "torch.distributed.is_backend_available"})
SYNC_PARAMETERS = ("wait", "reset_scope")
SAVE_PARAMETERS = ("data", "file_or_path", "master_only", "global_master")


class LeaveTorchXla(Rule):
    """Move a script of torch_xla to torch_tpu.

    **What it does.** `with torch_xla.step():` becomes its body, `torch_xla.sync()` and `xm.mark_step()` go,
    and `torch_xla.sync(wait=True)` is `torch.accelerator.synchronize()`: torch_tpu runs op by op. The queries
    of the runtime are torch.distributed's (`xr.global_ordinal()` is `dist.get_rank()`), `"xla"` is `"tpu"`,
    `xm.save(x, path)` is `torch.save` on the first rank, `xm.rendezvous(tag)` is `dist.barrier()`.
    `torch_xla.manual_seed(s)` goes beside `torch.manual_seed(s)`, which seeds the TPU too; elsewhere it is
    `torch.tpu.manual_seed(s)`. The launch is for [launch-from-xla](launch-from-xla.md).

    The rest of its functions are for [xla-library](xla-library.md).

    **Reported.** Everything else of torch_xla (XLA894), as `mark_sharding` of SPMD, whose counterpart is
    DTensor with `init_device_mesh("tpu", …)`.

    **One process.** A script that starts no ranks and joins no group saves and steps itself. Where ranks save
    and the script loads a file, they wait for each other after the save, as in `xm.save`.

    Source: torch_xla 2.9 and torch_tpu 0.2.0 (measured on XLA:CPU).
    """

    name = "leave-torch-xla"
    code = "XLA894"
    targets = TPU_ONLY
    nodes = (
        cst.Assign,
        cst.Call,
        cst.Expr,
        cst.FormattedString,
        cst.Import,
        cst.ImportFrom,
        cst.SimpleString,
        cst.Subscript,
        cst.With,
    )
    words = "xla"
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist
            import torch_xla
            import torch_xla.core.xla_model as xm
            import torch_xla.runtime as xr


            def train(model, optimizer, loader, path):
                dist.init_process_group("xla", init_method="xla://")
                torch.manual_seed(0)
                torch_xla.manual_seed(0)
                model.to("xla")
                for x, y in loader:
                    with torch_xla.step():
                        # one step
                        loss = (model(x.to("xla")) - y.to("xla")).square().mean()
                        loss.backward()
                        optimizer.step()
                torch_xla.sync()
                print(xr.global_ordinal(), xr.world_size(), loss.item())
                xm.rendezvous("trained")
                xm.save(model.state_dict(), path)
                torch_xla.sync(wait=True)
            """,
            """
            import torch
            import torch.distributed as dist


            def train(model, optimizer, loader, path):
                dist.init_process_group("tpu_dist")
                torch.manual_seed(0)
                model.to("tpu")
                for x, y in loader:
                    # one step
                    loss = (model(x.to("tpu")) - y.to("tpu")).square().mean()
                    loss.backward()
                    optimizer.step()
                print(dist.get_rank(), dist.get_world_size(), loss.item())
                dist.barrier()
                if dist.get_node_local_rank() == 0:
                    torch.save(model.state_dict(), path)
                torch.accelerator.synchronize()
            """,
            target=TPU,
        ),
        left_alone(
            """
            import torch

            from steps import step

            with step():
                torch.ones(1, device="tpu")
            """,
            target=TPU,
        ),
        reported(
            """
            import torch_xla.distributed.spmd as xs


            def shard(x, mesh):
                xs.mark_sharding(x, mesh, ("data", None))
            """,
            "DTensor takes the place",
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one use of torch_xla, or the finding."""
        if isinstance(node, cst.With):
            yield from unwrapped(self, node, STEP, "torch_tpu has no steps", context)
        elif isinstance(node, cst.Import | cst.ImportFrom):
            yield from self._import(node, context)
        elif isinstance(node, cst.Assign):
            if _sets_rank(node, context):
                message = f"remove {code(node)}: the launch sets it"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
        elif isinstance(node, cst.SimpleString):
            yield from self._name(node, context)
        elif isinstance(node, cst.FormattedString):
            head = node.parts[0] if len(node.parts) == 2 else None
            if isinstance(head, cst.FormattedStringText) and head.value == "xla:":
                here = context.string(f"{context.vocabulary.device_name}:0")
                message = f"{code(node)} → {code(here)}"
                yield self.edit(node, lambda _: here, message, consumes=[node])
        elif isinstance(node, cst.Subscript):
            yield from self._figure(node, context)
        elif isinstance(node, cst.Expr):
            if isinstance(node.value, cst.Call):
                yield from self._statement(node, node.value, context)
        elif isinstance(node, cst.Call):
            yield from self._query(node, context)

    def _name(self, node: cst.SimpleString, context: Workspace) -> Iterator[Edit]:
        """Yield the edit of `"xla"`, or of a device with an index, which every rank's chip has as 0."""
        name = INDEXED.fullmatch(string_value(node) or "")
        if name is None or _is_joined(node, context):
            return
        words = context.vocabulary
        if name[1]:
            new = f"{words.device_name}:0"
        elif _is_backend(node, context):
            new = words.group_backend
        else:
            new = words.device_name
        tpu = context.string(new, like=node)
        yield self.edit(node, lambda _: tpu, f"{code(node)} → {code(tpu)}", consumes=[node])

    def _import(self, node: cst.Import | cst.ImportFrom, context: Workspace) -> Iterator[Edit]:
        """Yield the edit of an import of torch_xla that only registers something, or that nothing uses."""
        aliases = [] if isinstance(node.names, cst.ImportStar) else list(node.names)
        imported = facts_of(context).imported(node) if aliases else []
        gone = [
            index
            for index, name in enumerate(imported)
            if (isinstance(node, cst.Import) and name in FOR_EFFECT)
            or (name.partition(".")[0] == "torch_xla" and not _uses(aliases[index], context))
        ]
        if not gone:
            return
        kept = [index for index in range(len(aliases)) if index not in gone]

        def replace(
            updated: cst.Import | cst.ImportFrom,
        ) -> cst.Import | cst.ImportFrom | cst.RemovalSentinel:
            assert not isinstance(updated.names, cst.ImportStar)
            names = [updated.names[index] for index in kept]
            if not names:
                return cst.RemoveFromParent()
            names[-1] = names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return updated.with_changes(names=names)

        message = f"remove `{code(node)}`: torch loads torch_tpu itself"
        yield self.edit(node, replace, message, consumes=[aliases[index] for index in gone])

    def _statement(
        self, node: cst.Expr, call: cst.Call, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of a statement that is a call of torch_xla."""
        name = context.qualified_name(call.func)
        torch = context.imports.require("torch") if name is not None else ""
        if name in SYNCS:
            bound = bind(call, SYNC_PARAMETERS)
            wait = bound.get("wait") if bound is not None else None
            if bound is not None and (wait is None or code(wait.value) == "False"):
                message = f"remove {code(call)}: torch_tpu runs op by op"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
            else:
                yield self._replaced(call, f"{torch}.accelerator.synchronize()")
        elif name == "torch_xla.manual_seed":
            yield from self._seed(node, call, context)
        elif name == f"{XM}.rendezvous":
            if joins_group(context):
                yield self._replaced(call, context.vocabulary.write("barrier"))
            elif is_single(call, context):
                message = f"remove {code(call)}: one process trains"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
            else:
                message = (
                    f"{code(call)}: join the process group in the worker, "
                    'torch.distributed.init_process_group("tpu_dist"), then torch.distributed.barrier()'
                )
                yield from self.report(call, message)
        elif name == SAVE:
            yield from self._save(node, call, context)

    def _seed(
        self, node: cst.Expr, call: cst.Call, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of a seed of the device, which leaves the host's generator as it is."""
        bound = bind(call, ("seed", "device"))
        if bound is None or "seed" not in bound:
            yield from self.report(call, f"{code(call)}: torch.tpu.manual_seed(seed)")
            return
        seed = code(bound["seed"].value)
        if self._is_seeded_beside(node, seed, context):
            message = f"remove {code(call)}: torch.manual_seed seeds the TPU too"
            yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
            return
        yield self._seeded(call, call.args.index(bound["seed"]), "manual_seed", context)
        function = context.function_around(node)
        calls = list(context.all_of(cst.Call))
        for later in calls[calls.index(call) + 1 :]:
            if (
                context.qualified_name(later.func) in SEEDS
                and context.function_around(later) is function
            ):
                message = (
                    f"{code(later)} seeds the TPU too, after {code(call)}: put it above, or seed the host by "
                    "torch.default_generator.manual_seed"
                )
                yield from self.report(later, message)

    def _seeded(self, call: cst.Call, seed: int, name: str, context: Workspace) -> Edit:
        """Return the edit that hands argument number `seed` to a function of torch.tpu."""
        torch = context.imports.require("torch")
        function = cst.parse_expression(f"{torch}.tpu.{name}")

        def replace(updated: cst.Call) -> cst.Call:
            return cst.Call(function, [cst.Arg(updated.args[seed].value)])

        gone = [call.func, *(arg for i, arg in enumerate(call.args) if i != seed)]
        message = f"{code(call.func)} → torch.tpu.{name}"
        return self.edit(call, replace, message, consumes=gone)

    def _is_seeded_beside(self, node: cst.Expr, seed: str, context: Workspace) -> bool:
        """Whether torch gets the same seed in a line beside, with nothing but seeds between them."""
        line = context.parent(node)
        block = None if line is None else context.parent(line)
        body = list(block.body) if isinstance(block, cst.IndentedBlock | cst.Module) else []
        if not isinstance(line, cst.SimpleStatementLine) or line not in body:
            return False
        place = body.index(line)
        for others in (reversed(body[:place]), body[place + 1 :]):
            for other in others:
                match other:
                    case cst.SimpleStatementLine(body=[cst.Expr(value=cst.Call() as call)]):
                        pass
                    case _:
                        break
                if "seed" not in last_part(call.func):
                    break
                args = call.args[:1]
                if (
                    context.qualified_name(call.func) in SEEDS
                    and args
                    and code(args[0].value) == seed
                ):
                    return True
        return False

    def _save(
        self, node: cst.Expr, call: cst.Call, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of a save, which the first rank makes."""
        bound = bind(call, SAVE_PARAMETERS)
        line = context.parent(node)
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        loads = any(
            context.qualified_name(c.func) == "torch.load" for c in context.all_of(cst.Call)
        )
        single = is_single(call, context)
        waits = loads and not single  # xm.save ends when the file is there for all ranks
        if waits and not joins_group(context):
            message = (
                f"{code(call)}: torch.save on the first rank, then torch.distributed.barrier(), as the "
                "script loads a file: join the process group in the worker"
            )
            yield from self.report(call, message)
            return
        if bound is None and any(
            arg.star == "*" for arg in call.args
        ):  # a function that passes all on
            named = {arg.keyword.value: arg for arg in call.args if arg.keyword is not None}
            bound = {name: named[name] for name in SAVE_PARAMETERS[2:] if name in named}
            kept = [
                i for i, arg in enumerate(call.args) if all(arg is not a for a in bound.values())
            ]
            shown = len(named) == len(bound)
        elif bound is not None:
            kept = [call.args.index(bound[n]) for n in SAVE_PARAMETERS[:2] if n in bound]
            shown = len(kept) == 2
        else:
            kept, shown = [], False
        options = {} if bound is None else {n: code(bound[n].value) for n in bound}
        known = {"True", "False"}
        ranks = {options[name] for name in SAVE_PARAMETERS[2:] if name in options}
        if not shown or not alone or ranks - known:
            message = f"{code(call)}: torch.save on the first rank, below a test of dist.get_rank()"
            yield from self.report(call, message)
            return
        torch = context.imports.require("torch")
        word: Word = "rank" if options.get("global_master") == "True" else "local rank"
        test = cst.parse_expression("True" if single else f"{rank_query(word, call, context)} == 0")
        function = cst.parse_expression(f"{torch}.save")
        everybody = options.get("master_only") == "False"
        barrier = context.vocabulary.write("barrier") if waits else ""

        def replace(
            updated: cst.SimpleStatementLine,
        ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
            old = cst.ensure_type(cst.ensure_type(updated.body[0], cst.Expr).value, cst.Call)
            plain = dict.fromkeys(("comma", "equal"), cst.MaybeSentinel.DEFAULT)
            args = [old.args[index].with_changes(keyword=None, **plain) for index in kept]
            new = cst.Call(function, args)
            saved = updated.with_changes(body=[cst.Expr(new)])
            after = [cst.parse_statement(barrier)] if waits else []
            if everybody or single:
                return cst.FlattenSentinel([saved, *after])
            body = cst.IndentedBlock(body=[saved.with_changes(leading_lines=[])])
            under = cst.If(test=test, body=body, leading_lines=updated.leading_lines)
            return cst.FlattenSentinel([under, *after])

        message = f"{code(call.func)} → torch.save" + (
            "" if single or everybody else " on the first rank"
        )
        assert line is not None
        yield self.edit(line, replace, message, consumes=[call.func])

    def _query(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        """Yield the edit of a call whose value is used."""
        name = context.qualified_name(call.func)
        if name is None or not name.startswith("torch_xla.") or _in_removed(call, context):
            return
        worker = context.function_around(call)
        if not is_launched(context) and any(worker is w for w in context.launch.workers()):
            return  # the launch is left to the user, and the ranks are set there
        if name in WORDS and not call.args:
            yield self._replaced(call, rank_query(WORDS[name], call, context))
        elif name == OWN_DEVICES:  # 1 in a rank
            torch = context.imports.require("torch")
            yield self._replaced(call, f"{torch}.accelerator.device_count()")
        elif name == LOCAL_SIZE:
            os, key = context.imports.require("os"), context.string("LOCAL_WORLD_SIZE").value
            yield self._replaced(call, f"int({os}.environ[{key}])")
        elif name == f"{XM}.is_master_ordinal":
            bound = bind(call, ("local",))
            local = "True" if not bound else code(bound["local"].value)
            if bound is None or local not in ("True", "False"):
                message = f"{code(call)}: the local rank where it is true, otherwise the rank, == 0"
                yield from self.report(call, message)
                return
            word: Word = "rank" if local == "False" else "local rank"
            yield self._replaced(
                call,
                f"{rank_query(word, call, context)} == 0",
                parentheses=not _is_test(call, context),
            )
        elif name in DEVICES:  # an index counts the chips of a process, which has one here
            torch = context.imports.require("torch")
            index = ", 0" if _compares_devices(context) else ""
            yield self._replaced(call, f"{torch}.device({context.string('tpu').value}{index})")
        elif name == f"{XM}.get_rng_state":
            torch = context.imports.require("torch")
            yield self._replaced(call, f"{GENERATOR.replace('torch', torch, 1)}.get_state()")
        elif name == f"{XM}.set_rng_state" and call.args:
            # torch_xla's state is a number, torch_tpu's a tensor: only what was read there can be set.
            reads = any(
                context.qualified_name(c.func) == f"{XM}.get_rng_state"
                for c in context.all_of(cst.Call)
            )
            is_number = isinstance(call.args[0].value, cst.Integer)
            to = "set_rng_state" if reads and not is_number else "manual_seed"
            yield self._seeded(call, 0, to, context)
        elif name == CHECKPOINT:
            module = context.imports.require("torch.utils.checkpoint")
            function = cst.parse_expression(f"{module}.checkpoint")
            message = f"{code(call.func)} → torch.utils.checkpoint.checkpoint"
            yield self.edit(call.func, lambda _: function, message, consumes=[call.func])
        elif name.startswith(f"{SHARDS}."):
            message = (
                f"{code(call.func)}: DTensor takes the place of SPMD: torch.distributed.tensor, with "
                'torch.distributed.init_device_mesh("tpu", …)'
            )
            yield from self.report(call, message)

    def _figure(self, node: cst.Subscript, context: Workspace) -> Iterator[Edit]:
        """Yield the edit of `xm.get_memory_info()["bytes_used"]`."""
        call, index = node.value, node.slice[0].slice
        if not isinstance(call, cst.Call) or context.qualified_name(call.func) != MEMORY:
            return
        key = string_value(index.value) if isinstance(index, cst.Index) else None
        if key in FIGURES:
            torch = context.imports.require("torch")
            expression = cst.parse_expression(FIGURES[key].replace("torch", torch, 1))
            message = f"{code(node)} → {FIGURES[key]}"
            yield self.edit(node, lambda _: expression, message, consumes=[node])

    def _replaced(self, call: cst.Call, text: str, *, parentheses: bool = False) -> Edit:
        expression = cst.parse_expression(f"({text})" if parentheses else text)
        return self.edit(call, lambda _: expression, f"{code(call)} → {text}", consumes=[call])


def rank_query(word: Word, call: cst.Call, context: Workspace) -> str:
    """Return how a rank is asked at `call`: of the group, or of the environment where none is joined yet."""
    function, here = context.function_around(call), context.position(call).line
    later = any(
        context.qualified_name(other.func) in INIT
        and context.function_around(other) is function
        and context.position(other).line > here
        for other in context.all_of(cst.Call)
    )
    workers = context.launch.workers()
    alone = _is_started(call, context) and not _starts_ranks(context)
    in_group = joins_group(context) and not later and not alone
    if in_group and all(function is not worker for worker in workers):
        return context.vocabulary.write(word)
    os, key = context.imports.require("os"), context.string(OF_WORD[word]).value
    if alone:
        default = context.string("1" if word == "world size" else "0").value
        return f"int({os}.environ.get({key}, {default}))"
    return f"int({os}.environ[{key}])"


def _compares_devices(context: Workspace) -> bool:
    """Whether the script compares devices of tensors: theirs have an index, which the device has to have."""
    sides = (
        side
        for comparison in context.all_of(cst.Comparison)
        for side in (comparison.left, *(part.comparator for part in comparison.comparisons))
    )
    return any(isinstance(side, cst.Attribute) and side.attr.value == "device" for side in sides)


def is_single(call: cst.Call, context: Workspace) -> bool:
    """Whether one process trains: the file is started as a script, starts no ranks and joins no group."""
    return _is_started(call, context) and not joins_group(context) and not _starts_ranks(context)


def _is_started(call: cst.Call, context: Workspace) -> bool:
    """Whether the file is started as a script, at least also."""
    return context.function_around(call) is None or any(
        isinstance(statement, cst.If) and is_guard(statement) for statement in context.module.body
    )


def _starts_ranks(context: Workspace) -> bool:
    """Whether the script starts ranks or joins their group, also what a launch has become."""
    calls = (context.qualified_name(other.func) or "" for other in context.all_of(cst.Call))
    return any(name in STARTS or name in XLA_LAUNCHES or name in INIT for name in calls)


def _uses(alias: cst.ImportAlias, context: Workspace) -> bool:
    """Whether the script uses what `alias` binds."""
    bound = alias.evaluated_alias or alias.evaluated_name
    imports = cst.ImportAlias | cst.AsName | cst.Attribute
    return any(
        not (
            isinstance(context.parent(use), imports)
            and any(
                isinstance(above, cst.Import | cst.ImportFrom) for above in context.ancestors(use)
            )
        )
        for use in context.references(bound)
    )


def _sets_rank(node: cst.Assign, context: Workspace) -> bool:
    """Whether `node` sets a variable of the ranks to what torch_xla's runtime answers."""
    if len(node.targets) != 1 or not isinstance(node.targets[0].target, cst.Subscript):
        return False
    index = node.targets[0].target.slice[0].slice
    key = index.value if isinstance(index, cst.Index) else None
    if key is None or environment_name(key, context) not in RANKS or is_read(key, context):
        return False
    if _is_index_of_worker(node, context):
        return True  # the launch begins the worker with it
    if not is_launched(context) and any(context.launch.workers()):
        return False  # the launch is left to the user
    calls = [node.value]
    if isinstance(node.value, cst.Call):
        calls += [arg.value for arg in node.value.args]
    asked = (
        context.qualified_name(call.func) or "" for call in calls if isinstance(call, cst.Call)
    )
    return any(name.startswith("torch_xla.") for name in asked)


def _is_index_of_worker(node: cst.Assign, context: Workspace) -> bool:
    """Whether a launched worker sets a variable to its first parameter: `str(index)`."""
    worker = context.function_around(node)
    if worker is None or not any(worker is launched for launched in context.launch.workers()):
        return False
    if not is_launched(context):
        return False
    parameters = [*worker.params.posonly_params, *worker.params.params]
    return bool(parameters) and code(node.value) == f"str({parameters[0].name.value})"


def _in_removed(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` is in an assignment that goes."""
    return any(
        isinstance(above, cst.Assign) and _sets_rank(above, context)
        for above in context.ancestors(call)
    )


def _is_test(call: cst.Call, context: Workspace) -> bool:
    above = context.parent(call)
    return isinstance(above, cst.If | cst.Assign | cst.Arg | cst.Return)


def _is_backend(node: cst.SimpleString, context: Workspace) -> bool:
    """Whether `node` is kept or passed under the name of a backend, or compared with one."""
    whole: cst.BaseExpression = node
    while isinstance(
        above := context.parent(whole), cst.BooleanOperation
    ):  # `args.backend or "xla"`
        whole = above
    element = context.parent(whole)
    listed = context.parent(element) if isinstance(element, cst.Element) else None
    side = whole if listed is None else listed
    compared = comparison_of(side, context)
    if compared is not None:
        sides = (compared.left, *(part.comparator for part in compared.comparisons))
        asks = is_option(compared) or is_of_the_group(side, context)
        return asks or any(_is_key(each) for each in sides)
    target = context.parent(whole)
    if isinstance(target, cst.Assign) and any(_is_key(part.target) for part in target.targets):
        return True
    if BACKEND.fullmatch(kept_as(whole, context) or ""):
        return True
    call = context.parent(target)
    if not isinstance(target, cst.Arg) or not isinstance(call, cst.Call):
        return False
    if target.keyword is not None:
        return BACKEND.fullmatch(target.keyword.value) is not None
    if last_part(call.func) in DEFAULTED:
        return any(BACKEND.fullmatch(string_value(arg.value) or "") for arg in call.args)
    return context.qualified_name(call.func) in OF_BACKENDS


def _is_key(side: cst.BaseExpression) -> bool:
    """Whether `side` is `options["backend"]`."""
    index = side.slice[0].slice if isinstance(side, cst.Subscript) else None
    key = string_value(index.value) if isinstance(index, cst.Index) else None
    return BACKEND.fullmatch(key or "") is not None


def _is_joined(node: cst.SimpleString, context: Workspace) -> bool:
    """Whether `node` is the backend in a call that makes a process group, which other rules edit."""
    arg = context.parent(node)
    call = context.parent(arg)
    if not isinstance(arg, cst.Arg) or not isinstance(call, cst.Call):
        return False
    return called(call, context) in ("init_process_group", "new_group")
