"""Gemma 2 learns to translate dates; exponential moving average of the weights, eager attention."""
import copy
import datetime
import math
import random
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import Gemma2Config, Gemma2ForCausalLM

CHARS = "\0\1\2" + "0123456789-/. abcdefghijklmnopqrstuvwxyz"
PAD, BOS, EOS = 0, 1, 2


@dataclass
class Config:
    seed: int = 2024
    size: int = 160
    batch: int = 8
    epochs: int = 2
    lr: float = 2e-3
    lr_end: float = 2e-4
    warmup: int = 6
    wd: float = 0.1
    clip: float = 1.0
    ema: float = 0.95
    z_loss: float = 1e-4


class Dates(Dataset):
    def __init__(self, size, seed):
        rng = random.Random(seed)
        days = [datetime.date(1990, 1, 1) + datetime.timedelta(rng.randrange(15000)) for _ in range(size)]
        styles = [rng.choice(["%d %b %Y", "%d/%m/%y", "%d. %m. %Y"]) for _ in days]
        self.pairs = [(d.strftime(s).lower(), d.isoformat()) for d, s in zip(days, styles)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        source, target = ([CHARS.index(c) for c in text] for text in self.pairs[index])
        ids = torch.tensor([BOS, *source, BOS, *target, EOS])
        weight = torch.tensor([0.0] * (len(source) + 2) + [1.0] * (len(target) + 1))
        return ids, weight


def collate(rows):
    ids, weights = zip(*rows)
    return pad_sequence(ids, batch_first=True, padding_value=PAD), pad_sequence(weights, batch_first=True)


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for kept, new in zip(self.shadow.parameters(), model.parameters()):
            kept.lerp_(new, 1 - self.decay)


def create_model():
    return Gemma2ForCausalLM(Gemma2Config(
        vocab_size=len(CHARS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=12, max_position_embeddings=64,
        attn_logit_softcapping=50.0, final_logit_softcapping=30.0, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
        attn_implementation="eager"))


def loss_fn(model, ids, weight, z_loss):
    """Weighted mean of the tokens' losses and a penalty on the normaliser."""
    logits = model(input_ids=ids, attention_mask=(ids != PAD).long(), use_cache=False).logits[:, :-1].float()
    log_z = torch.logsumexp(logits, -1)
    nll = log_z - logits.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    w = weight[:, 1:]
    return ((nll + z_loss * log_z.square()) * w).sum() / w.sum()


def schedule(cfg, step, total):
    if step < cfg.warmup:
        return cfg.lr * step / cfg.warmup
    progress = (step - cfg.warmup) / (total - cfg.warmup)
    return cfg.lr_end + 0.5 * (cfg.lr - cfg.lr_end) * (1 + math.cos(math.pi * progress))


def train_step(model, ema, optimizer, batch, lr, cfg):
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = loss_fn(model, *batch, cfg.z_loss)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
    optimizer.step()
    ema.update(model)
    return loss.item(), norm.item()


def evaluate(model, loader, cfg):
    with torch.no_grad():
        return sum(loss_fn(model, *batch, cfg.z_loss).item() for batch in loader) / len(loader)


def run(cfg=Config()):
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    train = DataLoader(Dates(cfg.size, cfg.seed), cfg.batch, shuffle=True, collate_fn=collate,
                       generator=torch.Generator().manual_seed(cfg.seed + 1))
    test = DataLoader(Dates(32, cfg.seed + 2), cfg.batch, collate_fn=collate)
    model = create_model()
    ema = EMA(model, cfg.ema)
    embeddings = [p for n, p in model.named_parameters() if "embed" in n]
    matrices = [p for n, p in model.named_parameters() if "embed" not in n and p.ndim == 2]
    vectors = [p for n, p in model.named_parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": embeddings, "weight_decay": 0.0}, {"params": vectors, "weight_decay": 0.0},
                                   {"params": matrices, "weight_decay": cfg.wd}], lr=cfg.lr, betas=(0.9, 0.98))
    total, step = cfg.epochs * len(train), 0
    for epoch in range(cfg.epochs):
        for batch in train:
            loss, norm = train_step(model, ema, optimizer, batch, schedule(cfg, step, total), cfg)
            if step % 8 == 0:
                print(f"[{step}/{total}] loss={loss:.4f} norm={norm:.3f} lr={schedule(cfg, step, total):.2e}")
            step += 1
        print(f"epoch {epoch}: weights {evaluate(model, test, cfg):.4f}, average {evaluate(ema.shadow, test, cfg):.4f}")


if __name__ == "__main__":
    run()
