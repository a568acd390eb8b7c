"""Training frameworks: most of them have a switch for TPUs of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace

# The longest dotted prefix that fits what a script imports.
FRAMEWORKS = {
    "accelerate": (
        "Accelerate runs on TPUs by itself: `accelerate launch --tpu script.py`, mixed_precision='bf16'; "
        "leave the script as it is"
    ),
    "colossalai": "ColossalAI has no TPU backend: XlaFullyShardedDataParallel of torch_xla shards a model",
    "deepspeed": (
        "DeepSpeed has no TPU backend: torch_xla.distributed.fsdp.XlaFullyShardedDataParallel shards "
        "as ZeRO-3 does, torch_xla.distributed.zero_redundancy_optimizer as ZeRO-1"
    ),
    "fairscale": "FairScale has no TPU backend: torch_xla.distributed.fsdp was made from it",
    "horovod.torch": (
        "Horovod has no TPU backend: wrap the model in DistributedDataParallel on the 'xla' process "
        "group; hvd.rank() is torch_xla.runtime.global_ordinal(), hvd.size() world_size()"
    ),
    "lightning": (
        "Lightning runs on TPUs by itself: Trainer(accelerator='tpu', devices='auto', "
        "precision='bf16-true'); leave the script as it is"
    ),
    "megatron": "Megatron-LM has no TPU backend: MaxText and torchprime train such models on TPUs",
    "pytorch_lightning": (
        "Lightning runs on TPUs by itself: Trainer(accelerator='tpu', devices='auto', "
        "precision='bf16-true'); leave the script as it is"
    ),
    "ultralytics.utils.torch_utils.autocast": (
        "this autocast is for CUDA and runs in float32 on XLA: torch.autocast('xla', dtype=torch.bfloat16)"
    ),
    "timm.utils.ApexScaler": "apex needs CUDA: NativeScaler, disabled, as below",
    "timm.utils.NativeScaler": (
        "timm's NativeScaler makes an enabled GradScaler, which reads a value in every step: after "
        "making it, `loss_scaler._scaler = torch.amp.GradScaler('xla', enabled=False)`"
    ),
    "torch.distributed.fsdp.fully_shard": (
        "FSDP2 does not run on XLA tensors: torch_xla.distributed.fsdp.XlaFullyShardedDataParallel, "
        "or SPMD with torch_xla.distributed.spmd"
    ),
    "torch.distributed._composable.fsdp": (
        "FSDP2 does not run on XLA tensors: torch_xla.distributed.fsdp.XlaFullyShardedDataParallel, "
        "or SPMD with torch_xla.distributed.spmd"
    ),
    "torch.distributed.pipelining": "pipeline parallelism of torch has no equivalent on XLA",
    "torch.distributed.tensor": "DTensor on XLA is SPMD: torch_xla.distributed.spmd.mark_sharding",
    "transformers.Seq2SeqTrainer": (
        "the Trainer finds a TPU by itself: call this script's main in torch_xla.launch, bf16=True in "
        "place of fp16=True; leave the rest as it is"
    ),
    "transformers.Trainer": (
        "the Trainer finds a TPU by itself: call this script's main in torch_xla.launch, bf16=True in "
        "place of fp16=True; leave the rest as it is"
    ),
}


class Frameworks(Rule):
    """Report training frameworks, with the shortest way of each to a TPU.

    **Why.** DeepSpeed, Horovod, Lightning, Accelerate, FSDP2, DTensor and the Trainer of transformers run
    the training loop or place the parameters themselves. Some have a switch for TPUs, so that the script
    is best left alone; some have no TPU backend.

    **Reported.** Each framework once in a script, at its first import, and the scaler and autocast of
    libraries that hide CUDA's in theirs.

    Source: the frameworks' documentation.
    """

    name = "frameworks"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Module,)
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
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Finding]:
        """Yield a finding at the first import of each framework."""
        seen: set[str] = set()
        for name, place in _imported(context):
            parts = name.split(".")
            prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            known = next((prefix for prefix in prefixes if prefix in FRAMEWORKS), None)
            if known is not None and FRAMEWORKS[known] not in seen:
                seen.add(FRAMEWORKS[known])
                yield from self.report(place, FRAMEWORKS[known])


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


_LAST_WORDS = frozenset(name.rsplit(".", 1)[-1] for name in FRAMEWORKS if "." in name)
