"""Continued training and instruction tuning of Mistral: function calls in JSON, OneCycleLR, resumable."""
import json
import os
import pathlib
import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from transformers import MistralConfig, MistralForCausalLM

CKPT = pathlib.Path(os.environ["CKPT"]) if os.environ.get("CKPT") else None
torch.set_num_threads(1)


class ByteTokenizer:
    pad, bos, eos, inst, end_inst = range(5)

    def encode(self, text):
        return [b + 5 - 32 for b in text.encode("ascii")]

    @property
    def size(self):
        return 5 + 95


class FunctionCalls(Dataset):
    def __init__(self, tok, n, seed):
        rng = random.Random(seed)
        self.samples = []
        for _ in range(n):
            room, value = rng.choice(["hall", "attic", "study"]), rng.randrange(10, 30)
            if rng.random() < 0.5:
                ask, call = f"{value} C in {room}", {"f": "heat", "c": value}
            else:
                ask, call = f"lamp {room}", {"f": "lamp", "at": room}
            prompt = [tok.bos, tok.inst, *tok.encode(ask), tok.end_inst]
            answer = [*tok.encode(json.dumps(call, separators=(",", ":"))), tok.eos]
            self.samples.append((prompt, answer))
        self.samples.sort(key=lambda s: len(s[0]) + len(s[1]))  # little padding

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        prompt, answer = self.samples[i]
        return torch.tensor(prompt + answer), len(prompt)


def collate(rows):
    n = max(len(ids) for ids, _ in rows)
    ids = torch.stack([F.pad(r, (0, n - len(r))) for r, _ in rows])
    starts = torch.tensor([s for _, s in rows])
    lengths = torch.tensor([len(r) for r, _ in rows])
    return ids, starts, lengths


def batch_loss(model, ids, starts, lengths):
    """Mean over the examples of the mean over an example's tokens: long answers count no more than short ones."""
    position = torch.arange(ids.size(1))
    attention_mask = (position < lengths[:, None]).long()
    answer = (position >= starts[:, None]) & (position < lengths[:, None])
    logits = model(input_ids=ids, attention_mask=attention_mask, use_cache=False).logits
    nll = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)
    answer = answer[:, 1:].float()
    return ((nll * answer).sum(1) / answer.sum(1)).mean()


def save(model, optimizer, scheduler, step):
    CKPT.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "step": step},
               CKPT)


def load(model, optimizer, scheduler):
    state = torch.load(CKPT)
    for part, key in ((model, "model"), (optimizer, "optimizer"), (scheduler, "scheduler")):
        part.load_state_dict(state[key])
    return state["step"]


def train(epochs=2, batch_size=8, seed=70):
    torch.manual_seed(seed)
    tok = ByteTokenizer()
    data = FunctionCalls(tok, 104, seed)
    loader = DataLoader(data, batch_size=batch_size, sampler=SequentialSampler(data), collate_fn=collate)
    model = MistralForCausalLM(MistralConfig(
        vocab_size=tok.size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, sliding_window=12, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, epochs=epochs, steps_per_epoch=len(loader),
                                                    pct_start=0.15, div_factor=10, final_div_factor=100, cycle_momentum=False)
    step = load(model, optimizer, scheduler) if CKPT and CKPT.exists() else 0
    for epoch in range(step // len(loader), epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = batch_loss(model, *batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 5 == 0:
                print(json.dumps({"step": step, "loss": round(loss.item(), 4), "lr": scheduler.get_last_lr()[0]}))
        if CKPT:
            save(model, optimizer, scheduler, step)


if __name__ == "__main__":
    train()
