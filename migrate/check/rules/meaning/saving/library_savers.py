"""Savers of libraries that call torch.save themselves."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import LIBRARY_SAVERS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts


class LibrarySavers(Hazard):
    """A saver of a library calls torch.save with tensors of the device.

    **Why.** The call of torch.save is in the library, so no edit reaches it. Where one replica alone has the
    saver, as usual, its save runs what is pending in that replica, and the others may wait for ever. The
    file keeps the device: without torch_xla, `torch.load` raises for it.

    These are `CheckpointSaver` of timm, `Checkpointer` of fvcore, detectron2 and speechbrain, and
    `save_checkpoint` of mmcv and mmengine. The handlers of ignite call `xm.save`, the `save` of Accelerate
    too: all replicas must reach them.

    **What to do.** `torch_xla.sync()` in every replica, right before the test that lets one of them save:
    then nothing is pending, and one replica reads the weights alone. Load the file with
    `map_location="cpu"`. Or derive a class whose method of saving (`_save` of timm's) moves the state to the
    CPU, or give a function of saving a state that all replicas moved there.

    Source (read): timm 1.0, fvcore 0.1.6, speechbrain 1.0, mmengine 0.10, ignite 0.5; torch_xla 2.9.
    """

    code = "XLA855"
    name = "library-savers"
    severity = Severity.WARNING
    nodes = (cst.Call, cst.ClassDef)
    words = "Saver|Checkpointer|save_checkpoint|checkpoint_saver"
    examples = (
        example(
            """
            import timm
            import torch_xla
            from timm.utils import CheckpointSaver


            def train(rank, loader, optimizer, epochs, run_epoch):
                model = timm.create_model("resnet18").to("xla")
                saver = None
                if rank == 0:
                    saver = CheckpointSaver(model, optimizer, checkpoint_dir="out")  # XLA855
                for epoch in range(epochs):
                    run_epoch(model, loader, optimizer)
                    if saver is not None:
                        saver.save_checkpoint(epoch)
            """
        ),
        example(
            """
            import torch
            from fvcore.common.checkpoint import Checkpointer
            from mmengine.runner import save_checkpoint
            from timm import utils


            class Saver(utils.CheckpointSaver):  # XLA855
                def find_recovery(self):
                    return ""


            def finish(net, optimizer):
                model = net.to("xla")
                Saver(model, optimizer)
                Checkpointer(model, "out", optimizer=optimizer).save("last")  # XLA855
                save_checkpoint({"model": model.state_dict()}, "out/last.pth")  # XLA855
            """
        ),
        example(
            """
            import torch
            from ignite.handlers import ModelCheckpoint
            from timm.utils import CheckpointSaver


            class Saver(CheckpointSaver):
                def _save(self, path, epoch, metric=None):
                    state = {name: value.cpu() for name, value in self.model.state_dict().items()}
                    torch.save(state, path)


            def finish(net, optimizer):
                model = net.to("xla")
                Saver(model, optimizer).save_checkpoint(1)
                return ModelCheckpoint("out", "last")
            """
        ),
        example(
            """
            import torch
            from timm.utils import CheckpointSaver


            def finish(model, optimizer):
                CheckpointSaver(model, optimizer).save_checkpoint(1)
            """
        ),
    )
    mended = example(
        """
        import timm
        import torch
        from timm.utils import CheckpointSaver


        class Saver(CheckpointSaver):
            def _save(self, path, epoch, metric=None):
                state = {name: value.cpu() for name, value in self.model.state_dict().items()}
                torch.save({"epoch": epoch, "state_dict": state}, path)


        def finish(optimizer):
            model = timm.create_model("resnet18").to("xla")
            Saver(model, optimizer, checkpoint_dir="out").save_checkpoint(1)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a call that makes a saver or saves, or a class of the script that derives from a saver."""
        if not facts.context.moves_to_accelerator and not facts.context.calls.run_on_accelerator:
            return
        if isinstance(node, cst.ClassDef):
            own = {part.name.value for part in node.body.body if isinstance(part, cst.FunctionDef)}
            for base in node.bases:
                name = facts.names.of(base.value)
                if name in LIBRARY_SAVERS and LIBRARY_SAVERS[name] not in own:
                    yield self.hit(node, _message(name), subject=name)
        elif isinstance(node, cst.Call):
            name = facts.names.of(node.func)
            if name in LIBRARY_SAVERS:
                yield self.hit(node, _message(name), subject=name)


def _message(name: str) -> str:
    method = LIBRARY_SAVERS[name]
    instead = (
        f"override its `{method}` with one that moves the state to the CPU"
        if method
        else "give it a state that all replicas moved to the CPU"
    )
    return (
        f"{name} calls torch.save with tensors of the device: alone in one replica it may wait for ever, and "
        "the file needs torch_xla: torch_xla.sync() in all replicas right before, and torch.load(…, "
        f'map_location="cpu"), or {instead}'
    )
