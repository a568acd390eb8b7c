"""A framework that starts, shards or reduces by itself is imported."""

from __future__ import annotations

from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example
from migrate.check.work import Work


class Frameworks(ImportHazard):
    """A framework that starts, shards or reduces by itself is imported.

    **Why.** DeepSpeed, Horovod, FairScale, ColossalAI and Megatron own the training step, and have no
    XLA backend that is kept up. Composer has one, for versions of torch before that of torch_xla 2.9.
    The runners of MMEngine and MMCV know no XLA.
    (Lightning, Accelerate and the Hugging Face Trainer have a switch for TPUs of their own.)

    **What to do.** Plain `DistributedDataParallel`, or `XlaFullyShardedDataParallel` where the model
    does not fit.
    """

    code = "XLA411"
    name = "framework"
    severity = Severity.INFO
    other_work = Work.FRAMEWORK
    examples = (
        example(
            """
            import deepspeed  # XLA411
            import horovod.torch as hvd  # XLA411
            from composer import Trainer  # XLA411
            from mmengine.runner import Runner  # XLA411
            from mmcv.runner import build_runner  # XLA411
            """
        ),
        example(
            """
            import torch
            import accelerate
            import lightning
            from mmengine.runner import load_checkpoint
            from mmcv.runner import CheckpointLoader
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def wrap(model):
            return DistributedDataParallel(model, gradient_as_bucket_view=True)
        """
    )
