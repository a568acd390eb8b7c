"""`apex.parallel`: torch's DDP."""

from torch.nn.parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
