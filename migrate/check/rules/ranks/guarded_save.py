"""Saves that only one replica runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.words import SAFETENSORS_SAVES, SAVED
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import PLACED, Kind
from migrate.reading.facts import Facts
from migrate.reading.replicas.first_alone import saves_alone
from migrate.reading.values.saved import SAVES, arguments, is_of_host, is_save
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, keyword, nodes_of


class GuardedSave(Hazard):
    """A save runs in one replica only.

    **Why.** Saving reads the weights, and reading them runs the graph that is pending: in one replica. Where
    that graph holds a collective the others never meet it, and all hang. `xm.save` runs the pending graph
    too, before it writes: in every replica that calls it.

    **What to do.** Call `xm.save(obj, path, global_master=True)` in every replica, outside of the condition:
    it writes in one. `shims.save` does so too. `xm.save` of torch_xla 2.9 does not wait for the other
    replicas: where they read the file next, `xm.rendezvous("saved")` comes after it, in every replica.

    Where the first replica alone can decide (`if accuracy > best:`), `torch_xla.sync()` right before its
    test, in every replica, leaves nothing pending. Below it `xm.save(obj, path, master_only=False)` waits for
    nobody.

    A save in a thread beside the replica's own reads the weights while the next step is traced, in every
    replica at another point. Move them to the CPU before the thread starts, on all replicas.

    What is on the host already, arrays and plain numbers, may be saved in one replica. Where it does not show
    what is saved, this is information.

    Source: torch_xla 2.9, `core/xla_model.py`; pytorch/xla#2712, #2224, #4571.
    """

    code = "XLA301"
    name = "guarded-save"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = spelled(SAVES)
    of_facts = ("saves",)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def finish(model, rank):
                if rank == 0:
                    torch.save(model.state_dict(), "model.pt")  # XLA301


            def finish_early(model):
                if dist.get_rank() != 0:
                    return
                torch.save(model.state_dict(), "model.pt")  # XLA301


            def save(state, path):
                torch.save(state, path)


            def end(model, is_main_process):
                if is_main_process():
                    save(model, "model.pt")  # XLA301


            def keep(vocabulary, rank):
                if rank == 0:
                    torch.save(vocabulary, "words.pt")  # XLA301 info


            def save_on_main(accelerator, *args, **kwargs):
                if accelerator.is_main_process:
                    torch.save(*args, **kwargs)  # XLA301


            def checkpoint(accelerator, model, path):
                state = {"model": model.state_dict()}
                save_on_main(accelerator, state, path)
            """
        ),
        example(
            """
            import json

            import numpy as np
            import torch
            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def finish(model, epoch: int, local_rank):
                xm.save(model.state_dict(), "model.pt", global_master=True)
                if epoch == 0 or local_rank == -1:
                    torch.save(model.state_dict(), "model.pt")
                if local_rank == 0:
                    torch.save({"epoch": epoch, "seed": 3}, "progress.pt")
                    torch.save(np.arange(10), "rows.pt")
                    json.dump({"epoch": epoch}, open("epoch.json", "w"))
                if dist.get_rank() == 0:
                    print("saved")
            """
        ),
        example(
            """
            import torch.distributed as dist
            import torch_xla
            import torch_xla.core.xla_model as xm


            def keep(model, accuracy, best, path):
                torch_xla.sync()
                if dist.get_rank() == 0 and accuracy > best:
                    xm.save(model.state_dict(), path, master_only=False)


            def write(model, path):
                xm.save(model.state_dict(), path, master_only=False)


            def keep_all(model, accuracy, best):
                torch_xla.sync()
                if dist.get_rank() == 0:
                    write(model, "last.pt")
                    if accuracy > best:
                        write(model, "best.pt")


            def keep_at_once(model, accuracy, best, path):
                if dist.get_rank() == 0 and accuracy > best:
                    xm.save(model.state_dict(), path, master_only=False)  # XLA301
            """
        ),
        example(
            """
            import threading

            import torch.distributed as dist
            import torch_xla.core.xla_model as xm
            import torch_xla.distributed.xla_backend


            def write(state, path):
                xm.save(state, path, global_master=True)  # XLA301


            def finish(model):
                dist.init_process_group("xla", init_method="xla://")
                threading.Thread(target=write, args=(model.state_dict(), "model.pt")).start()
            """
        ),
    )
    mended = example(
        """
        import torch_xla.core.xla_model as xm


        def finish(model):
            xm.save(model.state_dict(), "model.pt", global_master=True)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one save, or the call of a function that saves, under a condition of the rank."""
        assert isinstance(node, cst.Call)
        saved = self._saved(node, facts)
        if saved is None:
            return
        where = facts.context.calls.saves_in_threads.get(facts.context.place(node))
        if where is not None:
            message = (
                f"a thread saves ({where}), while its replica traces the next step: the weights are then "
                "part of that graph, with its collectives, and replicas that run it at other points wait "
                "for ever; move them to the CPU on all replicas, before the thread starts"
            )
            if where:
                yield self.hit(node, message)
            return
        guard = facts.guards.around(node)
        if guard is None or (isinstance(guard, cst.FunctionDef) and not guard.decorators):
            return  # if a function is called under a condition only, its calls are reported
        line = facts.context.position(guard).line
        own = is_save(node, facts.context, also_xla=True)
        about = () if own else tuple(self._inner(node, facts))
        if all(saves_alone(save, facts.context) for save in about or (node,)):
            return
        mend = "move the save out of the condition, and let all replicas call xm.save"
        if facts.names.of(node.func) in SAFETENSORS_SAVES:
            mend = "move what it saves to the CPU before the condition, on all replicas"
        message = f"only some replicas save, by the condition in {at_line(line)}: {mend}"
        kinds = {facts.values.kind(value) for value in saved}
        of_state = facts.context.place(node) in facts.context.calls.state_saves
        if kinds & PLACED or of_state or any(_has_weights(v) for v in saved):
            yield replace(self.hit(node, message), about=about)
        elif Kind.UNKNOWN in kinds:
            message = (
                f"only some replicas save, by the condition in {at_line(line)}: if these are tensors of the "
                "device, let all replicas call xm.save"
            )
            yield replace(self.hit(node, message, Severity.INFO), about=about)

    def _saved(self, call: cst.Call, facts: Facts) -> list[cst.BaseExpression] | None:
        """Return what `call` saves, directly or in a function that it runs. None if it saves nothing."""
        if is_save(call, facts.context, also_xla=True):
            if is_of_host(call, facts.context):
                return None
            saved = (arguments(call, facts.context) or {}).get("obj") or keyword(call, "data")
            return [saved.value if saved is not None else call]
        if facts.context.effects.saves(call) is not None:  # by a function of another file
            return [arg.value for arg in call.args] or [call]
        if facts.called.isdisjoint(SAVES):
            return None
        return [
            value for inner in self._inner(call, facts) for value in self._saved(inner, facts) or ()
        ] or None

    def _inner(self, call: cst.Call, facts: Facts) -> Iterator[cst.Call]:
        """Yield the saves in functions of this file that `call` runs, without those under own conditions."""
        for function in facts.context.called(call):
            for inner in facts.below(function.body, cst.Call):
                own_guard = facts.guards.around(inner)
                if is_save(inner, facts.context, also_xla=True) and (
                    own_guard is None or own_guard is function
                ):
                    yield inner


def _has_weights(saved: cst.BaseExpression) -> bool:
    """Whether the saved object is the state of a model or an optimizer, by its names."""
    named = isinstance(saved, cst.Name | cst.Attribute) and SAVED.search(code(saved)) is not None
    return named or any(
        call.func.attr.value == "state_dict"
        for call in nodes_of(saved, cst.Call)
        if isinstance(call.func, cst.Attribute)
    )
