"""Checkpoints are saved by `xm.save`, called by all replicas."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Severity
from migrate.check.rules.libraries.safetensors_models import LOAD_OTHERWISE, is_on_host
from migrate.reading.facts import facts_of
from migrate.reading.values.saved import is_save
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Safety, left_alone, reported, rewritten
from migrate.rewrite.rules.saving.evaluations import evaluations
from migrate.rewrite.rules.saving.safetensors_calls import LOAD, as_load
from migrate.rewrite.rules.saving.saving import Saving
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class Save(Rule):
    """Save with `xm.save` on all replicas, outside of the test of the rank.

    **Why.** A value on the device exists once its graph has run. If only one replica asks for the value, it
    runs a graph that the others do not run, and waits forever for their part in a collective. Also, a file
    that `torch.save` writes with a tensor of the device keeps that device: where torch_xla is missing,
    `torch.load` raises for it, unless it is called with `map_location="cpu"`.

    **What it does.** `torch.save(obj, path)` becomes `xm.save(obj, path, global_master=True)`: all
    replicas run what is pending, the first one writes, tensors are moved to the CPU. If one replica of every
    host saved (`local_rank == 0`), `global_master=True` is left out. A path that contains the rank is written
    by all replicas, with `master_only=False`. A test of the rank around the save is removed if it holds
    nothing else. Otherwise the save moves out of the test, together with the assignments that compute its
    arguments. So does `if accuracy > best:` around it, if a collective has made the values equal. A call of
    a function that saves moves out too; in the function, what follows the save stays with the first replica.
    If one of its calls cannot move, that call is reported. If the function is in another file of the folder,
    both files are rewritten. A path may depend on a name that another test of the rank binds
    (`if rank == 0: folder = make_folder()`, or `self.folder`). It is computed by the first replica alone,
    also in a function that moves.

    A save that cannot move, as the first replica alone knows its condition or what it saves
    (`if accuracy > best:`), stays below the test. So does a save before which the others leave
    (`if rank != 0: return`). `torch_xla.sync()` before the test, in all replicas, leaves nothing pending, and
    `xm.save(obj, path, master_only=False)` then waits for no other replica. In a script that imports
    torch_xla already such a save is reported.

    What renames, removes or copies the file after its save (`os.replace(temporary, path)`) is left to the
    first replica, which has the file.

    A replica may save files of its own, in a loop over its share of the work
    (`for name in files[rank::world_size]:`, a range that begins at a rank, the batches of a
    DistributedSampler). Then `torch.save` stays, and what it saves is moved to the CPU. `xm.save` would write
    the files of one replica alone, or wait for replicas that have fewer files.

    `save_file` and `save_model` of safetensors become calls of functions that are added to the script: all
    replicas call them, the first one writes. `load_model` becomes a function that loads on the host.
    (safetensors' own `save_model` and `load_model` raise for a model on XLA.)

    A call of the script's own function that runs the wrapped model (`losses = estimate_loss()`) moves out of
    the test in the same way, if all replicas have what it needs: its forward communicates with the other
    replicas. The use of its result stays.

    **Left alone.** A value that is on the CPU already: `torch.save(x.cpu(), path)`, in a script that names no
    device. A dataset of torchvision, or a part of one (`xm.save` raises at the interpolation mode of a
    transform). Saves in the process that launches the workers: the runtime must not start there.

    **Reported.**

    - A save under a condition that may differ between replicas (`if accuracy > best:`), without a test of the
      rank around it, unless a collective has made the value equal.
    - A save under a test of a group's rank (`dp_rank == 0`: each of the other groups has one file), below
      the `else` of a test, or in another form of a test (`rank == 0 and torch.save(…)`, `while`, `match`, a
      decorator).
    - A save into an open file, or of a whole module (`xm.save` moves the tensors of a state dict, not those
      of a module). In a loop over a share of the work, a save of a value that may or may not be a tensor.
    - In a script that imports torch_xla already: a saved value that is computed with side effects or from a
      name that only some replicas bind, below a test of the rank.
    - A call of a function of another file that saves and does more than that.
    - A way out of a function before its save (`if path is None: return`) that only some replicas may take.
      Otherwise it stays, for all replicas.

    To check, and rewritten: a save by all replicas whose path holds a key of a mapping, where tests of the
    rank stand around other saves (each replica may have keys of its own). A save below a parameter that no
    caller fills (`if leader:`), or below a query (`if is_boss():`) or a decorator of an unknown library.
    Make sure that all replicas reach it.

    Source: pytorch/xla#2712, #2224, #4571 (saves that hang); torch_xla 2.9, `xm.save` (measured on two
    replicas).
    """

    name = "save"
    code = "XLA301"
    safety = Safety.UNSAFE
    condition = "every replica reaches the save"
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
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def keep(model, accuracy, best, path):
                if dist.get_rank() == 0 and accuracy > best:
                    torch.save(model.state_dict(), path)
            """,
            """
            import torch.distributed as dist
            import torch_xla
            import torch_xla.core.xla_model as xm


            def keep(model, accuracy, best, path):
                torch_xla.sync()
                if dist.get_rank() == 0 and accuracy > best:
                    xm.save(model.state_dict(), path, master_only=False)
            """,
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
                model.cuda()
                with open(path, "wb") as file:
                    torch.save(model.state_dict(), file)
            """,
            "an open file",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
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
                        as_load(context),
                        message,
                        consumes=[call.func],
                        wrong=f"{code(call.func)} of a model on XLA raises: {LOAD_OTHERWISE}",
                        severity=Severity.INFO if on_host else None,
                        code="XLA415",
                    )
        if calls or context.calls.saves or next(evaluations(context), None) is not None:
            yield from Saving(self, context).all(calls)
