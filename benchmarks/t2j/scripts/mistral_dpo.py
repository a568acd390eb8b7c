"""Distributed DPO for Mistral: torchrun or one process, reference frozen, bfloat16 autocast.

    torchrun --nproc_per_node 2 mistral_dpo.py --epochs 1
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import MistralConfig, MistralForCausalLM, get_scheduler


class CodeReviews(Dataset):
    """A "function" is named; chosen keeps the naming convention of its prompt, rejected breaks it."""

    def __init__(self, n, seed, vocab):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            style = int(torch.randint(0, 2, (), generator=g))
            low, high = (4, vocab // 2) if style == 0 else (vocab // 2, vocab)
            other = (vocab // 2, vocab) if style == 0 else (4, vocab // 2)
            draw = lambda bounds, k: torch.randint(*bounds, (k,), generator=g)
            lengths = torch.randint(3, 8, (3,), generator=g).tolist()
            mixed = torch.cat([draw((low, high), 1), draw(other, lengths[2])])
            self.items.append((draw((low, high), lengths[0]), draw((low, high), lengths[1]), mixed))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        prompt, chosen, rejected = self.items[index]
        eos = torch.tensor([2])
        return {"prompt": prompt, "chosen": torch.cat([chosen, eos]), "rejected": torch.cat([rejected, eos])}


def collate(rows):
    tokens, is_answer = [], []
    for side in ("chosen", "rejected"):
        for row in rows:
            tokens.append(torch.cat([torch.tensor([1]), row["prompt"], row[side]]))
            is_answer.append(torch.cat([torch.zeros(1 + len(row["prompt"])), torch.ones(len(row[side]))]))
    pad = lambda seqs: torch.nn.utils.rnn.pad_sequence(seqs, batch_first=True)
    return {"tokens": pad(tokens), "is_answer": pad(is_answer)}


def answer_logps(model, batch, device):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(input_ids=batch["tokens"], attention_mask=(batch["tokens"] != 0).long()).logits
    logps = F.log_softmax(logits.float(), dim=-1)[:, :-1]
    picked = torch.gather(logps, -1, batch["tokens"][:, 1:].unsqueeze(-1)).squeeze(-1)
    return (picked * batch["is_answer"][:, 1:]).sum(-1).chunk(2)


def loss_and_margin(policy, reference, batch, device, beta):
    chosen, rejected = answer_logps(policy, batch, device)
    with torch.no_grad():
        ref_chosen, ref_rejected = answer_logps(reference, batch, device)
    margin = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    return -F.logsigmoid(margin).mean(), margin.detach().mean()


def run(args):
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if world > 1:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    config = MistralConfig(vocab_size=36, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=1, head_dim=8, sliding_window=8, max_position_embeddings=32, pad_token_id=0,
                           bos_token_id=1, eos_token_id=2)
    policy = MistralForCausalLM(config).to(device)
    reference = MistralForCausalLM(config).to(device)
    reference.load_state_dict(policy.state_dict())
    reference.requires_grad_(False)
    reference.eval()
    if world > 1:
        policy = DDP(policy)
    dataset = CodeReviews(96, args.seed, 36)
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, collate_fn=collate)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=args.warmup, num_training_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, batch in enumerate(loader):
            batch = {k: v.to(device) for k, v in batch.items()}
            loss, margin = loss_and_margin(policy, reference, batch, device, args.beta)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            if i % 4 == 0:
                shown = torch.stack([loss.detach(), margin])
                if world > 1:
                    dist.all_reduce(shown)
                if rank == 0:
                    print(f"epoch {epoch} step {i} loss {shown[0].item() / world:.4f} margin {shown[1].item() / world:.4f}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--beta", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--weight-decay", type=float, default=0.05)
    ap.add_argument("--warmup", type=int, default=4)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--seed", type=int, default=90)
    run(ap.parse_args())
