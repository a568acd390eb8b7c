"""Fine-tunes a small GPT-2 on arithmetic questions. One file, settings at the top, as nanoGPT does it."""

import math
import os
import random
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

# -----------------------------------------------------------------------------
out_dir = os.environ.get("OUT_DIR", "")  # no checkpoint if empty
seed = 1337
n_layer, n_head, n_embd, block_size = 2, 4, 48, 32
batch_size = 8
gradient_accumulation_steps = 2
max_epochs = 3
learning_rate, min_lr = 3e-3, 3e-4
weight_decay = 0.1
beta1, beta2 = 0.9, 0.95
grad_clip = 0.25
warmup_iters = 5
log_interval = 4
# -----------------------------------------------------------------------------
chars = "#>0123456789+-="  # '#' pads, '>' ends
stoi = {c: i for i, c in enumerate(chars)}


class Sums(Dataset):
    """Questions such as 12+7= and their answers; only the answer is learned."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            a, b = rng.randrange(100), rng.randrange(100)
            op = rng.choice("+-")
            self.items.append((f"{a}{op}{b}=", f"{a + b if op == '+' else a - b}>"))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        question, answer = self.items[i]
        ids = [stoi[c] for c in question + answer]
        labels = [-100] * len(question) + ids[len(question):]
        return torch.tensor(ids), torch.tensor(labels)


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    x = torch.zeros(len(rows), longest, dtype=torch.long)
    y = torch.full((len(rows), longest), -100)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (ids, labels) in enumerate(rows):
        x[i, : len(ids)] = ids
        y[i, : len(ids)] = labels
        mask[i, : len(ids)] = 1
    return x, y, mask


def get_loss(model, x, y, mask):
    """Dynamic fine-tuning: each token's loss times its own probability, held constant."""
    logits = model(input_ids=x, attention_mask=mask).logits
    logits, targets = logits[:, :-1], y[:, 1:]
    nll = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
    weighted = nll * torch.exp(-nll).detach()
    return weighted.sum() / (targets != -100).sum()


def configure_optimizer(model):
    params = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in params if p.dim() >= 2]
    nodecay = [p for p in params if p.dim() < 2]
    groups = [
        {"params": decay, "weight_decay": weight_decay},
        {"params": nodecay, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2))


def lr_factor(it, total):
    if it < warmup_iters:
        return (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / max(1, total - warmup_iters)
    floor = min_lr / learning_rate
    return floor + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (1.0 - floor)


@torch.no_grad()
def estimate_loss(model, loader):
    model.eval()
    losses = [get_loss(model, *batch).item() for batch in loader]
    model.train()
    return sum(losses) / len(losses)


torch.manual_seed(seed)
torch.set_num_threads(1)
train_loader = DataLoader(
    Sums(192, seed), batch_size, shuffle=True, collate_fn=collate, drop_last=True,
    generator=torch.Generator().manual_seed(seed),
)
val_loader = DataLoader(Sums(32, seed + 1), batch_size, collate_fn=collate)

model = GPT2LMHeadModel(GPT2Config(
    vocab_size=len(chars), n_positions=block_size, n_embd=n_embd, n_layer=n_layer, n_head=n_head,
    bos_token_id=1, eos_token_id=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
))
optimizer = configure_optimizer(model)
total_iters = max_epochs * len(train_loader) // gradient_accumulation_steps
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda it: lr_factor(it, total_iters))

iter_num, t0 = 0, time.time()
model.train()
for epoch in range(max_epochs):
    running = 0.0
    for micro_step, (x, y, mask) in enumerate(train_loader):
        loss = get_loss(model, x, y, mask) / gradient_accumulation_steps
        loss.backward()
        running += loss.item()
        if (micro_step + 1) % gradient_accumulation_steps != 0:
            continue
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if iter_num % log_interval == 0:
            ms = (time.time() - t0) * 1000
            print(f"iter {iter_num}: loss {running:.4f}, norm {norm:.2f}, time {ms:.0f}ms")
        running = 0.0
        iter_num += 1
    print(f"epoch {epoch}: val loss {estimate_loss(model, val_loader):.4f}")
if out_dir:
    os.makedirs(out_dir, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num},
               os.path.join(out_dir, "ckpt.pt"))
