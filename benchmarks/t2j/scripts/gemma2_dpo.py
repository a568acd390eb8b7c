"""Robust DPO for Gemma 2: some of the labels are flipped, and the loss knows how many."""
import random

import torch
from torch.nn.functional import logsigmoid
from torch.utils.data import DataLoader, Dataset
from transformers import Gemma2Config, Gemma2ForCausalLM

seed = 8
beta, flipped = 0.1, 0.1
lr, weight_decay, epochs, batch_size = 1e-3, 0.02, 2, 8
max_lr_steps = 28


class Preferences(Dataset):
    """The answer names the larger of two numbers; one in ten judges is wrong."""

    def __init__(self, size):
        rng = random.Random(seed)
        self.data = []
        for _ in range(size):
            a, b = rng.sample(range(100), 2)
            prompt = self.encode(f"{a},{b}:")
            good, bad = self.encode(f"{max(a, b)}") + [1], self.encode(f"{min(a, b)}") + [1]
            if rng.random() < flipped:
                good, bad = bad, good
            self.data.append({"prompt": prompt, "chosen": good, "rejected": bad})

    @staticmethod
    def encode(text):
        return ["0123456789,:".index(c) + 3 for c in text]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i]


def collate_fn(rows):
    batch = {}
    for side in ("chosen", "rejected"):
        sequences = [[2] + row["prompt"] + row[side] for row in rows]
        width = max(len(s) for s in sequences)
        batch[side] = torch.tensor([s + [0] * (width - len(s)) for s in sequences])
        batch[side + "_labels"] = torch.tensor(
            [[-100] * (len(row["prompt"]) + 1) + row[side] + [-100] * (width - len(s)) for row, s in zip(rows, sequences)])
    return batch


def logp(model, input_ids, labels):
    out = model(input_ids=input_ids, attention_mask=input_ids.ne(0).long())
    logps = out.logits[:, :-1].log_softmax(-1)
    targets = labels[:, 1:]
    valid = targets.ne(-100)
    picked = logps.gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
    return torch.where(valid, picked, torch.zeros_like(picked)).sum(1)


def robust_loss(pi_w, pi_l, ref_w, ref_l):
    h = beta * ((pi_w - ref_w) - (pi_l - ref_l))
    return ((-logsigmoid(h) * (1 - flipped) + logsigmoid(-h) * flipped) / (1 - 2 * flipped)).mean()


torch.manual_seed(seed)
torch.set_num_threads(1)
config = Gemma2Config(vocab_size=15, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=6,
                      max_position_embeddings=24, pad_token_id=0, eos_token_id=1, bos_token_id=2)
model = Gemma2ForCausalLM(config)
ref_model = Gemma2ForCausalLM(config)
ref_model.load_state_dict(model.state_dict())
ref_model.eval()
for param in ref_model.parameters():
    param.requires_grad_(False)

dataset = Preferences(112)
loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, collate_fn=collate_fn)
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=max_lr_steps, pct_start=0.2)

for epoch in range(epochs):
    for i, batch in enumerate(loader):
        policy_chosen = logp(model, batch["chosen"], batch["chosen_labels"])
        policy_rejected = logp(model, batch["rejected"], batch["rejected_labels"])
        with torch.no_grad():
            ref_chosen = logp(ref_model, batch["chosen"], batch["chosen_labels"])
            ref_rejected = logp(ref_model, batch["rejected"], batch["rejected_labels"])
        loss = robust_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if i % 4 == 0:
            wins = (policy_chosen - ref_chosen > policy_rejected - ref_rejected).float().mean()
            print(f"epoch {epoch} batch {i}: loss {loss.item():.4f} wins {wins.item():.2f} lr {scheduler.get_last_lr()[0]:.1e}")
