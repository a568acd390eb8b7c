"""Checkpoints are saved by `xm.save`, called by all replicas."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Severity
from migrate.check.rules.libraries.safetensors_models import LOAD_OTHERWISE, is_on_host
from migrate.reading.facts import facts_of
from migrate.reading.values.saved import is_save
from migrate.rewrite.rule import Edit, Finding, Rule, Safety, left_alone, reported, rewritten
from migrate.rewrite.rules.saving.evaluations import evaluations
from migrate.rewrite.rules.saving.safetensors_calls import LOAD, as_load
from migrate.rewrite.rules.saving.saving import Saving
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class Save(Rule):
    """Save with `xm.save` on all replicas, outside of the test of the rank.

    **Why.** A value of the device is there when its graph has run. Where only one replica asks for it, it
    runs a graph that the others do not, and waits for their part in a collective for ever. And what
    `torch.save` writes of a tensor of the device needs torch_xla to be loaded.

    **What it does.** `torch.save(obj, path)` becomes `xm.save(obj, path, global_master=True)`: all
    replicas run what is pending, the first one writes, tensors go to the CPU. Where one replica of every
    host saved (`local_rank == 0`), `global_master=True` is left away. A path with the rank in it is written
    by all, with `master_only=False`. A test of the rank around it goes when the save is all that it holds;
    else the save moves out of it, together with the assignments that compute its arguments. So does the
    call of a function that saves, and in the function what follows the save stays with the first replica.
    Where the function stands in another file of the folder, both files are rewritten so. A path for which
    another test of the rank binds a name (`if rank == 0: folder = make_folder()`, or `self.folder`) is
    computed by the first replica alone, also in a function that moves.

    Where each replica saves files of its own, because a loop goes over its share of the work
    (`for name in files[rank::world_size]:`, a range that begins at a rank, the batches of a
    DistributedSampler), `torch.save` stays and what it saves moves to the CPU: `xm.save` would write the
    files of one replica alone, or wait for replicas that have fewer.

    `save_file` and `save_model` of safetensors become calls of functions that come into the script: all
    replicas call them, the first one writes. `load_model` becomes one that loads on the host. (safetensors'
    own `save_model` and `load_model` raise for a model on XLA.)

    A call of one's own function that runs the wrapped model (`losses = estimate_loss()`) goes out of the test
    in the same way, where all replicas have what it needs: its forward meets the other replicas. What is done
    with its result stays.

    **Left alone.** What is on the CPU already: `torch.save(x.cpu(), path)`, in a script that names no
    device; a dataset of torchvision, or a part of one (`xm.save` raises at the interpolation mode of a
    transform). What the process saves that launches the workers: the runtime must not start in it.

    **Reported.** A save under a condition that may differ between replicas (`if accuracy > best:`, whether
    or not a test of the rank is around it, unless a collective has made the value equal), under a
    test of a group's rank (`dp_rank == 0`: one file for each of the other groups), under a branch with an
    `else`, in another form of a test (`rank == 0 and torch.save(…)`, `while`, `match`, a decorator), into an
    open file, of a value in such a loop of which it is not seen whether it is a tensor,
    of a whole module (`xm.save` moves the tensors of a state dict, not those of a module); what is
    saved, where it is computed with side effects or from a name that only some replicas bind; the call of a
    function of another file that saves and does more than that. A way out of a function before its save
    (`if path is None: return`) stays with all replicas; it is reported where some may take it alone.

    To look at, and rewritten: a save below a parameter that no caller fills (`if leader:`), or below a
    question (`if is_boss():`) or a decorator of an unknown library. See that all replicas reach it.

    Source: pytorch/xla#2712, #2224, #4571 (saves that hang); torch_xla 2.9, `xm.save` (measured on two
    replicas).
    """

    name = "save"
    code = "XLA301"
    safety = Safety.UNSAFE
    nodes = (cst.Module,)
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def finish(model, optimizer, epoch, path):
                if dist.get_rank() == 0 and epoch % 10 == 0:
                    print("saving")
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    # one file an epoch
                    torch.save(state, path / f"{epoch}.pt")
                    print("saved")
                if dist.get_rank() == 0:
                    torch.save(model.state_dict(), path / "last.pt")
            """,
            """
            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def finish(model, optimizer, epoch, path):
                if epoch % 10 == 0:
                    if dist.get_rank() == 0:
                        print("saving")
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    # one file an epoch
                    xm.save(state, path / f"{epoch}.pt", global_master=True)
                    if dist.get_rank() == 0:
                        print("saved")
                xm.save(model.state_dict(), path / "last.pt", global_master=True)
            """,
        ),
        rewritten(
            """
            import shutil

            import torch


            def train(args, model, is_best):
                torch.set_num_threads(1)
                for epoch in range(args.epochs):
                    if not args.distributed or (args.distributed and args.rank == 0):
                        save_checkpoint({'model': model.state_dict()}, is_best)


            def save_checkpoint(state, is_best, filename='checkpoint.pt'):
                torch.save(state, filename)
                if is_best:
                    shutil.copyfile(filename, 'best.pt')
            """,
            """
            import shutil

            import torch
            import torch_xla.core.xla_model as xm


            def train(args, model, is_best):
                torch.set_num_threads(1)
                for epoch in range(args.epochs):
                    save_checkpoint({'model': model.state_dict()}, is_best)


            def save_checkpoint(state, is_best, filename='checkpoint.pt'):
                xm.save(state, filename, global_master=True)
                if is_best and xm.is_master_ordinal(local=False):
                    shutil.copyfile(filename, 'best.pt')
            """,
        ),
        rewritten(
            """
            import os

            import torch
            import torch.distributed as dist


            def train(model, args):
                rank = dist.get_rank()
                if rank == 0:
                    folder = f"{args.results}/{len(os.listdir(args.results))}"
                    os.makedirs(folder)
                for epoch in range(args.epochs):
                    model.train_once()
                    if rank == 0:
                        path = f"{folder}/{epoch}.pt"
                        torch.save(model.state_dict(), path)
            """,
            """
            import os

            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def train(model, args):
                rank = dist.get_rank()
                if rank == 0:
                    folder = f"{args.results}/{len(os.listdir(args.results))}"
                    os.makedirs(folder)
                for epoch in range(args.epochs):
                    model.train_once()
                    if rank == 0:
                        path = f"{folder}/{epoch}.pt"
                    xm.save(model.state_dict(), path if rank == 0 else None, global_master=True)
            """,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def extract(model, files, out):
                rank, count = dist.get_rank(), dist.get_world_size()
                for name in files[rank::count]:
                    features = model(torch.load(name, map_location="cpu").to("xla"))
                    torch.save(features, f"{out}/{name}.pt")
            """,
            """
            import torch
            import torch.distributed as dist


            def extract(model, files, out):
                rank, count = dist.get_rank(), dist.get_world_size()
                for name in files[rank::count]:
                    features = model(torch.load(name, map_location="cpu").to("xla"))
                    torch.save(features.cpu(), f"{out}/{name}.pt")
            """,
        ),
        left_alone(
            """
            import torch
            import torch.distributed as dist


            def dump(features, path):
                if dist.get_rank() == 0:
                    torch.save(features.cpu(), path)
            """
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def keep(model, accuracy, best, path):
                if dist.get_rank() == 0 and accuracy > best:
                    torch.save(model.state_dict(), path)
            """,
            "may differ between the replicas",
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def keep(model, x, best, path):
                dist.init_process_group("nccl")
                error = model(x.cuda()).abs().mean().item()
                if error < best:
                    torch.save(model.state_dict(), path)
            """,
            "decides by its own `error`",
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def keep(model, path):
                if dist.get_rank() == 0:
                    with open(path, "wb") as file:
                        torch.save(model.state_dict(), file)
            """,
            "an open file",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Finding]:
        """Yield the edits of all saves of the script, and the findings."""
        calls = [call for call in context.all_of(cst.Call) if is_save(call, context)]
        if context.moves_to_accelerator or context.calls.run_on_accelerator:
            for call in context.all_of(cst.Call):
                if context.qualified_name(call.func) == LOAD and not any(a.star for a in call.args):
                    message = "load_model raises on XLA: the file is loaded on the host"
                    facts = facts_of(context)
                    on_host = bool(call.args) and is_on_host(call.args[0].value, call, facts)
                    yield self.edit(
                        call,
                        as_load(call, context),
                        message,
                        consumes=[call.func],
                        wrong=f"{code(call.func)} of a model on XLA raises: {LOAD_OTHERWISE}",
                        severity=Severity.INFO if on_host else None,
                        code="XLA415",
                    )
        if calls or context.calls.saves or next(evaluations(context), None) is not None:
            yield from Saving(self, context).all(calls)
