"""DPO of Gemma 3 with the log-probabilities of the reference computed once, before training."""
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler
from transformers import Gemma3ForCausalLM, Gemma3TextConfig


class Pair(NamedTuple):
    prompt: list
    chosen: list
    rejected: list


@dataclass
class Hyper:
    n_pairs: int = 96
    batch_size: int = 8
    epochs: int = 2
    lr: float = 1.5e-3
    beta: float = 0.15
    sft_coef: float = 0.1
    grad_clip: float = 1.0
    seed: int = 77


def make_pairs(h):
    """A palindrome is finished properly, or with one token wrong."""
    rng = np.random.default_rng(h.seed)
    pairs = []
    for _ in range(h.n_pairs):
        half = rng.integers(4, 24, rng.integers(2, 6)).tolist()
        good = half[::-1] + [1]
        bad = list(good)
        bad[rng.integers(len(half))] = int(rng.integers(4, 24))
        pairs.append(Pair([2] + half + [3], good, bad))
    return pairs


def pad(rows, value=0):
    n = max(len(r) for r in rows)
    return torch.tensor([r + [value] * (n - len(r)) for r in rows])


class PreferenceData(Dataset):
    def __init__(self, pairs, ref_logps=None):
        self.pairs, self.ref_logps = pairs, ref_logps

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        reference = (0.0, 0.0) if self.ref_logps is None else self.ref_logps[i]
        return self.pairs[i], reference


def collate(rows):
    pairs = [pair for pair, _ in rows]
    sides = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    prompts = [pair.prompt for pair in pairs] * 2
    reference = torch.tensor([r for _, r in rows]).T.reshape(-1)
    return {
        "ids": pad([p + a for p, a in zip(prompts, sides)]),
        "answer": pad([[0] * len(p) + [1] * len(a) for p, a in zip(prompts, sides)]),
        "reference_logps": reference,
    }


def answer_logps(model, ids, answer):
    logits = model(input_ids=ids, attention_mask=(ids > 0).long()).logits
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return -(nll * answer[:, 1:]).sum(dim=1)


def precompute(model, pairs, batch_size):
    chosen, rejected = [], []
    with torch.no_grad():
        for batch in DataLoader(PreferenceData(pairs), batch_size, collate_fn=collate):
            c, r = answer_logps(model, batch["ids"], batch["answer"]).chunk(2)
            chosen += c.tolist()
            rejected += r.tolist()
    return list(zip(chosen, rejected))


class DPOObjective:
    """The loss of DPO with a little of the likelihood of the chosen answer (RPO)."""

    def __init__(self, beta, sft_coef):
        self.beta, self.sft_coef = beta, sft_coef

    def __call__(self, model, batch):
        logps = answer_logps(model, batch["ids"], batch["answer"])
        rewards = self.beta * (logps - batch["reference_logps"])
        win, lose = rewards.chunk(2)
        n_tokens = batch["answer"].chunk(2)[0].sum()
        nll = -logps.chunk(2)[0].sum() / n_tokens
        return F.softplus(lose - win).mean() + self.sft_coef * nll, (win > lose).float().mean().item()


def fit(h: Hyper):
    torch.manual_seed(h.seed)
    torch.set_num_threads(1)
    model = Gemma3ForCausalLM(Gemma3TextConfig(
        vocab_size=24, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=16, sliding_window=6, max_position_embeddings=32,
        layer_types=["sliding_attention", "full_attention"], pad_token_id=0, bos_token_id=2, eos_token_id=1))
    pairs = make_pairs(h)
    data = PreferenceData(pairs, precompute(model, pairs, h.batch_size))
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(h.seed))
    loader = DataLoader(data, h.batch_size, sampler=sampler, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), h.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=h.epochs * len(loader), eta_min=h.lr / 10)
    objective = DPOObjective(h.beta, h.sft_coef)
    for epoch in range(h.epochs):
        seen = []
        for batch in loader:
            optimizer.zero_grad(set_to_none=True)
            loss, accuracy = objective(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), h.grad_clip)
            optimizer.step()
            scheduler.step()
            seen.append((loss.item(), accuracy))
        means = np.mean(seen, axis=0)
        print(f"epoch {epoch}: loss {means[0]:.4f}, accuracy {means[1]:.3f}")
    return model


if __name__ == "__main__":
    fit(Hyper())
