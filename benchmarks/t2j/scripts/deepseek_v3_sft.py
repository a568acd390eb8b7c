"""DeepSeek-V3 in small (latent attention, routed and shared experts) learns long multiplication steps."""
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM


@dataclass
class OptimConfig:
    lr: float = 4e-3
    betas: tuple = (0.9, 0.95)
    weight_decay: float = 0.1
    warmup: int = 4
    stable: float = 0.6
    clip: float = 1.0


@dataclass
class RunConfig:
    seed: int = 37
    micro_batch: int = 8
    accumulate: int = 2
    epochs: int = 2
    n_train: int = 160
    optim: OptimConfig = field(default_factory=OptimConfig)
    out: str = ""


class Multiplication(Dataset):
    """23*4=12+80=92: the partial products first."""

    alphabet = "_" + "0123456789*+=$"

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.lines = []
        for _ in range(n):
            a, b = rng.randrange(2, 100), rng.randrange(2, 10)
            self.lines.append(f"{a}*{b}={a % 10 * b}+{a // 10 * b * 10}={a * b}$")

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return torch.tensor([self.alphabet.index(c) for c in self.lines[i]])


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def causal_lm_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Loss over all that follows the first equals sign."""
    equals = ids == Multiplication.alphabet.index("=")
    after = (equals.cumsum(1) - equals.long()).gt(0) & ids.ne(0)
    target = ids.masked_fill(~after, -1)[:, 1:]
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]).float(), target.reshape(-1), ignore_index=-1)


def warmup_stable_decay(cfg: OptimConfig, total: int):
    def factor(step):
        if step < cfg.warmup:
            return (step + 1) / cfg.warmup
        begin = int(cfg.stable * total)
        if step < begin:
            return 1.0
        return 1 - math.sqrt((step - begin) / max(1, total - begin)) * 0.9
    return factor


def param_groups(model, weight_decay):
    groups = {True: [], False: []}
    for name, p in model.named_parameters():
        groups[p.ndim >= 2 and "embed_tokens" not in name].append(p)
    return [{"params": groups[True], "weight_decay": weight_decay}, {"params": groups[False], "weight_decay": 0.0}]


class Run:
    def __init__(self, cfg: RunConfig):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        torch.set_num_threads(1)
        self.model = DeepseekV3ForCausalLM(DeepseekV3Config(
            vocab_size=len(Multiplication.alphabet), hidden_size=32, intermediate_size=64, moe_intermediate_size=16,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1,
            num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16,
            qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, max_position_embeddings=32, pad_token_id=0,
            bos_token_id=None, eos_token_id=14))
        self.loader = DataLoader(Multiplication(cfg.n_train, cfg.seed), cfg.micro_batch, shuffle=True, collate_fn=collate,
                                 generator=torch.Generator().manual_seed(cfg.seed))
        self.total = cfg.epochs * math.ceil(len(self.loader) / cfg.accumulate)
        self.opt = torch.optim.AdamW(param_groups(self.model, cfg.optim.weight_decay), lr=cfg.optim.lr, betas=cfg.optim.betas)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, warmup_stable_decay(cfg.optim, self.total))
        self.step = 0

    def micro_step(self, ids):
        logits = self.model(input_ids=ids, attention_mask=ids.ne(0).long(), use_cache=False).logits
        loss = causal_lm_loss(logits, ids)
        (loss / self.cfg.accumulate).backward()
        return loss.item()

    def update(self):
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.optim.clip)
        self.opt.step()
        self.sched.step()
        self.opt.zero_grad()
        self.step += 1
        return float(norm)

    def __call__(self):
        for epoch in range(self.cfg.epochs):
            for i, ids in enumerate(self.loader, 1):
                loss = self.micro_step(ids)
                if i % self.cfg.accumulate == 0 or i == len(self.loader):
                    norm = self.update()
                    if self.step % 5 == 0:
                        print(f"{self.step}/{self.total} loss {loss:.4f} norm {norm:.3f} lr {self.sched.get_last_lr()[0]:.2e}")
        if self.cfg.out:
            torch.save(self.model.state_dict(), Path(self.cfg.out) / "model.pt")


if __name__ == "__main__":
    Run(RunConfig())()
