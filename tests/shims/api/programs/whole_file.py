"""A script that works while it is read, and the calls that `migrate rewrite --style portable` writes.

    python whole_file.py OUT

Every rank writes a file of its own to OUT.
"""

import argparse
import os
import sys

import shims

assert shims.device_type() == os.environ["MIGRATE_BACKEND"]  # starts no runtime
if __name__ == "__main__" and "RANK" not in os.environ:
    shims.launch_script(__file__)
    sys.exit()

import torch  # noqa: E402 - as the rewrite leaves it
import torch.distributed as dist  # noqa: E402

folder = sys.argv[1]
shims.init_distributed()
rank, n = shims.rank(), shims.world_size()
device = shims.device()
assert device.type == shims.device_type()
assert __name__ == "__main__"
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
assert [int(os.environ[name]) for name in names] == [rank, rank, n, n]
assert shims.local_world_size() == n
assert sys.modules["__main__"].folder == folder


@shims.compile(backend="eager")
def doubled(value):
    return 2 * value


weight = torch.ones(2, device=device)
assert doubled(weight).tolist() == [2.0, 2.0]
assert shims.compile(torch.nn.Identity())(weight) is not None
with shims.autocast(torch.float32, cache_enabled=False):
    assert torch.nn.functional.linear(weight, weight.reshape(1, 2)).dtype == torch.float32
drawn = torch.randn(3, device=device, generator=shims.generator().manual_seed(1))
assert drawn.device == device
if shims.device_type() != "cuda":
    assert torch.equal(drawn.cpu(), torch.randn(3, generator=torch.Generator().manual_seed(1)))
assert shims.pin_memory(torch.ones(1)).is_pinned() == (shims.device_type() == "cuda")
assert shims.memory(missing=0).peak >= 0

total = weight.clone()
shims.all_reduce(total)
options = argparse.Namespace(epochs=3)
shims.save({"total": total, "options": options}, f"{folder}/first.pt", weights_only=False)
shims.save({"total": total, "rank": rank}, f"{folder}/rank{rank}.pt", writers="all")
shims.save({"rank": rank}, f"{folder}/local.pt", writers="local")
shims.barrier()
assert shims.load(f"{folder}/first.pt", weights_only=False)["options"].epochs == 3
assert shims.load(f"{folder}/rank{rank}.pt")["rank"] == rank
assert shims.load(f"{folder}/local.pt") == {"rank": 0}
shims.barrier()
dist.destroy_process_group()
