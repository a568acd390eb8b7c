"""Training frameworks: most of them have a switch for TPUs of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.catalogue import catalogue
from migrate.catalogue.libraries import LED_CLASSES
from migrate.catalogue.prescan import named
from migrate.catalogue.target import BOTH
from migrate.rewrite.rule import Rule, RuleFinding, Safety, Stage, checked, left_alone, reported
from migrate.rewrite.workspace import Workspace

LIGHTNING = frozenset(name.split(".")[0] for name in LED_CLASSES)
# Last parts of names that stand for one even where only a part of the name is imported.
_FRAMEWORKS = [name for name, entry in catalogue.IMPORTS.items() if entry.rule == "frameworks"]
# An import names its package, or its last part where the package is torch itself.
_WORDS = {
    name.rpartition(".")[2] if name[:6] == "torch." else name.partition(".")[0]
    for name in _FRAMEWORKS
}
_LAST_WORDS = frozenset(name.rpartition(".")[2] for name in _FRAMEWORKS if "." in name)


class Frameworks(Rule):
    """Report training frameworks, with the shortest way of each to a TPU.

    **Why.** DeepSpeed, Horovod, Lightning, Accelerate, FSDP2, DTensor and the Trainer of transformers run the
    training loop or place the parameters themselves. Some have a switch for TPUs, so that the script is best
    left alone; DeepSpeed, Horovod, FairScale, ColossalAI and Megatron own the training step and have no XLA
    backend that is kept up. Composer has one, for versions of torch before that of torch_xla 2.9. The runners
    of MMEngine and MMCV know no XLA. Plain `DistributedDataParallel` takes their place, or
    `XlaFullyShardedDataParallel` where the model does not fit.

    **Reported.** Each framework once in a script, at its first import, and the scaler and autocast of
    libraries that hide CUDA's in theirs. A `LightningModule` that a loop of the project itself trains, where
    nothing makes a Trainer, is a module of torch: its file is rewritten as any other.

    Source: the frameworks' documentation.
    """

    name = "frameworks"
    code = "XLA411"
    targets = BOTH
    on_torch_tpu = (
        "Accelerate, Lightning and the Trainer of transformers drive TPUs by torch_xla, and are "
        "not known to train on torch_tpu. FSDP2 and DTensor run on torch_tpu and are no finding."
    )
    beside_frameworks = True
    stage = Stage.FRAMEWORK
    safety = Safety.REPORT_ONLY
    nodes = (cst.Module,)
    words = named(_WORDS)
    examples = (
        left_alone(
            """
            from transformers import AutoModel
            from .lightning import strike
            """
        ),
        reported(
            """
            import pytorch_lightning as pl

            pl.Trainer(accelerator='gpu').fit(model)
            """,
            "accelerator='tpu'",
        ),
        reported(
            """
            from transformers import Trainer, TrainingArguments

            Trainer(model, TrainingArguments()).train()
            """,
            "torch_xla.launch",
        ),
        reported(
            """
            from mmengine.config import Config
            from mmengine.runner import Runner

            runner = Runner.from_cfg(Config.fromfile('a.py'))
            runner.train()
            """,
            "knows no XLA",
        ),
        reported(
            """
            import flashy
            from dora import hydra_main


            @hydra_main(config_path='config')
            def main(cfg):
                flashy.distrib.init()
            """,
            "one chip trains alone",
        ),
        checked(
            """
            import deepspeed  # XLA411
            import horovod.torch as hvd  # XLA411
            from composer import Trainer  # XLA411
            from mmengine.runner import Runner  # XLA411
            from mmcv.runner import build_runner  # XLA411
            """
        ),
        checked(
            """
            from mmengine.runner import load_checkpoint
            from mmcv.runner import CheckpointLoader
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield a finding at the first import of each framework."""
        seen: set[str] = set()
        by_hand = _is_trained_by_hand(context)
        for name, place in _imported(context):
            if by_hand and name.split(".")[0] in LIGHTNING:
                continue  # its module is one of torch
            entry = catalogue.of_import(name, context.target)
            if (
                entry is not None
                and entry.rule == self.name
                and (entry.stands_for or entry.name) not in seen
            ):
                seen.add(entry.stands_for or entry.name)
                yield from self.report(place, entry.says(), subject=entry.name, code=entry.code)


def _is_trained_by_hand(context: Workspace) -> bool:
    """Whether a loop of the project trains a module of Lightning that the script defines."""
    return context.calls.led is None and any(
        context.qualified_name(base.value) in LED_CLASSES
        for class_ in context.all_of(cst.ClassDef)
        for base in class_.bases
    )


def _imported(context: Workspace) -> Iterator[tuple[str, cst.CSTNode]]:
    """Yield the dotted names that the script imports, anywhere in it, and names used as attributes."""
    for node in context.all_of(cst.Import, cst.ImportFrom, cst.Attribute):
        if isinstance(node, cst.Import):
            for alias in node.names:
                yield alias.evaluated_name, node
        elif isinstance(node, cst.ImportFrom) and not node.relative and node.module is not None:
            module = get_full_name_for_node(node.module) or ""
            if isinstance(node.names, cst.ImportStar):
                yield module, node
            else:
                for alias in node.names:
                    yield f"{module}.{alias.evaluated_name}", node
        elif isinstance(node, cst.Attribute) and node.attr.value in _LAST_WORDS:
            name = context.qualified_name(node)
            if name is not None:
                yield name, node
