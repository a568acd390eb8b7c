"""What to do by hand in the portable style about a construct that no rule handles."""

from __future__ import annotations

ON_CUDA = 'does nothing or raises elsewhere: below `if shims.device_type() == "cuda":`'

# As `remaining.ADVICE`, where the words of shims take the place of those of torch_xla.
PORTABLE_ADVICE = {
    "apex": "needs CUDA: shims.autocast(), shims.ddp(model)",
    "torch.accelerator": "does not know XLA devices: shims.device(), shims.synchronize()",
    "torch.accelerator.device_count": "shims.local_world_size(), in the worker",
    "torch.amp.GradScaler": "shims.grad_scaler()",
    "torch.compile": "its default backend raises on XLA: shims.compile",
    "torch.cuda": ON_CUDA,
    "torch.cuda.amp": "shims.autocast(), shims.grad_scaler()",
    "torch.cuda.device_count": "0 on a TPU: shims.local_world_size(), in the worker",
    "torch.cuda.is_available": 'is False on a TPU: shims.device_type() != "cpu"',
    "torch.cuda.set_device": "shims.init_distributed() makes the replica's GPU the current one",
    "torch.cuda.synchronize": "shims.synchronize()",
    "torch.distributed.Backend.GLOO": "shims.backend().group_backend",
    "torch.distributed.Backend.NCCL": "shims.backend().group_backend",
    "torch.distributed.ReduceOp.AVG": 'raises on XLA: op="mean" of the collective in shims',
    "torch.distributed.all_gather_object": "raises on XLA: shims.all_gather_object",
    "torch.distributed.barrier": "does nothing on XLA: shims.barrier()",
    "torch.distributed.broadcast_object_list": "raises on XLA: shims.broadcast_object_list",
    "torch.distributed.init_process_group": "shims.init_distributed()",
    "torch.multiprocessing.Process": "replicas are started by shims.launch",
    "torch.multiprocessing.spawn": "replicas are started by shims.launch",
    "torch.nn.DataParallel": "does not parallelise on XLA: shims.ddp",
    "torch.nn.SyncBatchNorm": "shims.sync_batch_norm(model), or shims.batch_norm.SyncBatchNorm",
    "torch.nn.parallel.DataParallel": "does not parallelise on XLA: shims.ddp",
    "torch.nn.parallel.DistributedDataParallel": "shims.ddp",
    "torch.save": "shims.save(obj, path) on all ranks, outside of a rank guard",
    "torch.utils.checkpoint": "shims.checkpoint_activations",
}
BACKEND = "'nccl': the backend of the replica's device is shims.backend().group_backend"
DEVICE = "the replica's device is shims.device(), its type shims.device_type()"
