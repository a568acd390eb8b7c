"""Gemma 3 (text) on packed sequences: documents one after another, their boundaries in the positions."""
import itertools
import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.optimization import get_constant_schedule_with_warmup

SEQ_LEN, BATCH, STEPS = 32, 6, 24
VOCAB = 36
BOS, EOS = 1, 2


def documents(seed):
    """Endless series: counting by twos, by threads of letters, or squares modulo a prime."""
    rng = random.Random(seed)
    while True:
        kind, start, n = rng.randrange(3), rng.randrange(30), rng.randint(5, 14)
        if kind == 0:
            body = [(start + 2 * i) % 30 for i in range(n)]
        elif kind == 1:
            body = [(start + i // 2) % 30 for i in range(n)]
        else:
            body = [(start + i * i) % 29 for i in range(n)]
        yield [BOS, 3 + kind] + [6 + b for b in body] + [EOS]


class PackedDataset(IterableDataset):
    """Blocks of SEQ_LEN tokens; each rank has documents of its own."""

    def __init__(self, seed, rank):
        self.seed, self.rank = seed, rank

    def __iter__(self):
        tokens, positions = [], []
        for doc in documents(1000 * self.seed + self.rank):
            tokens += doc
            positions += range(len(doc))
            while len(tokens) > SEQ_LEN:
                yield {"input_ids": torch.tensor(tokens[:SEQ_LEN]), "labels": torch.tensor(tokens[1:SEQ_LEN + 1]),
                       "position_ids": torch.tensor(positions[:SEQ_LEN])}
                tokens, positions = tokens[SEQ_LEN:], positions[SEQ_LEN:]


def setup():
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def compute_loss(model, batch):
    logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    labels = batch["labels"].masked_fill(batch["labels"] == BOS, -100)  # nobody can know the next document
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=0.05)


def main():
    rank, world = setup()
    torch.set_num_threads(1)
    torch.manual_seed(33)
    model = Gemma3ForCausalLM(Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, max_position_embeddings=64,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], pad_token_id=0, bos_token_id=BOS,
        eos_token_id=EOS))
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-6)
    scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=4)
    loader = DataLoader(PackedDataset(seed=5, rank=rank), batch_size=BATCH)
    model.train()
    average = None
    for step, batch in enumerate(itertools.islice(loader, STEPS), start=1):
        loss = compute_loss(model, batch)
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        reduced = loss.detach().clone()
        if world > 1:
            dist.all_reduce(reduced)
            reduced /= world
        average = reduced.item() if average is None else 0.9 * average + 0.1 * reduced.item()
        if rank == 0 and step % 6 == 0:
            print(f"step {step}: loss {reduced.item():.4f} (average {average:.4f}) grad norm {grad_norm:.3f}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
