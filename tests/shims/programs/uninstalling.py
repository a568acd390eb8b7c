"""Install the patches, uninstall them, and compare every attribute of torch's namespaces."""

import json
import sys
import threading

import torch
import torch._dynamo
import torch.distributed as dist
import torch.utils.checkpoint
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

import shims
from shims import patches

SPACES = [
    torch,
    torch.Tensor,
    torch.UntypedStorage,
    torch.TypedStorage,
    torch.accelerator,
    torch.autograd,
    torch.amp.GradScaler,
    torch.autocast,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.nvtx,
    torch.cuda.profiler,
    torch.cuda.random,
    torch.cuda.streams,
    torch.nn.Module,
    torch.nn.SyncBatchNorm,
    torch.nn.functional,
    torch.serialization,
    torch.utils.checkpoint,
    torch.utils.data.DataLoader,
    dist,
    dist.device_mesh,
    distributed_c10d,
    DistributedDataParallel,
    threading.Thread,
]


def snapshot():
    return {
        (space.__name__, name): value for space in SPACES for name, value in vars(space).items()
    }


def difference(one, other):
    names = one.keys() | other.keys()
    return {name for name in names if one.get(name, names) is not other.get(name, names)}


before = snapshot()
assert patches.installed() == shims.patches() == ()
patches.install("cpu", devices=2)
count = len(shims.patches())
during = snapshot()
patches.install("cpu", devices=2)
twice = len(patches.installed()) == count and not difference(during, snapshot())
assert torch.ones(2, device="cuda").is_cuda
listed = {(patch.target.__name__, patch.attribute) for patch in patches.installed()}
unlisted = sorted(difference(before, during) - listed)
patches.uninstall()
patches.uninstall()
changed = sorted(difference(before, snapshot()))
assert patches.installed() == ()
assert not torch.ones(2).is_cuda
assert not torch.cuda.is_available()
# Also in threads that start from now on.
failed = []


def use_cuda():
    try:
        torch.ones(2, device="cuda")
    except Exception as error:
        failed.append(error)


thread = threading.Thread(target=use_cuda)
thread.start()
thread.join()
assert failed
json.dump({"changed": changed, "unlisted": unlisted, "twice": twice}, sys.stdout)
