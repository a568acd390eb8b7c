"""Averages of two ranks over "tpu_dist"; integers are divided towards zero, as NCCL divides them."""

import os

import torch
import torch.distributed as dist

from shims import simulate_tpu

simulate_tpu.install()
dist.init_process_group("tpu_dist")
rank = int(os.environ["RANK"])


def on_tpu(*values, dtype):
    return torch.tensor(values, dtype=dtype, device="tpu")


total = on_tpu(-3 * rank, 3 * rank, -4, dtype=torch.int32)
dist.all_reduce(total, op=dist.ReduceOp.AVG)
assert total.tolist() == [-1, 1, -4], total
part = on_tpu(0, dtype=torch.int64)
dist.reduce_scatter_tensor(
    part, on_tpu(-3 * rank, -5 * rank, dtype=torch.int64), op=dist.ReduceOp.AVG
)
assert part.tolist() == [[-1], [-2]][rank], part
whole = on_tpu(0, 0, 0, 0, dtype=torch.int32).reshape(2, 2)
dist.all_gather_into_tensor(whole, on_tpu(rank, 7, dtype=torch.int32))
assert whole.tolist() == [[0, 7], [1, 7]], whole
os.write(1, f"rank {rank} is right\n".encode())
dist.destroy_process_group()
