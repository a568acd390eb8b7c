"""Full fine-tuning recipe for Qwen3, after torchtune's: a config, setup() and train()."""
import logging
import sys
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM

log = logging.getLogger("recipe")

CFG = {
    "seed": 123,
    "dtype": "fp32",
    "model": dict(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=16, max_position_embeddings=64, pad_token_id=0, bos_token_id=1,
                  eos_token_id=2, tie_word_embeddings=False),
    "dataset": dict(n=144, max_len=24),
    "batch_size": 4,
    "epochs": 1,
    "gradient_accumulation_steps": 3,
    "optimizer": dict(lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=False),
    "lr_scheduler": dict(name="wsd", num_warmup_steps=2, num_decay_steps=4),
    "clip_grad_norm": 0.5,
    "log_every_n_steps": 2,
    "output_dir": None,
}


class CopyWithEdits:
    """Sequences to be copied with one token replaced: <seq> SEP old new SEP <edited seq> EOS."""

    def __init__(self, n, max_len, seed):
        gen = np.random.default_rng(seed)
        self.samples = []
        for _ in range(n):
            seq = gen.integers(4, 40, size=gen.integers(3, 8)).tolist()
            old, new = int(gen.choice(seq)), int(gen.integers(4, 40))
            prompt = [1, *seq, 3, old, new, 3]
            answer = [new if t == old else t for t in seq] + [2]
            self.samples.append({"tokens": (prompt + answer)[:max_len], "mask": ([True] * len(prompt) + [False] * len(answer))[:max_len]})

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, idx):
        s = self.samples[idx]
        return {"tokens": s["tokens"], "labels": [-100 if m else t for t, m in zip(s["tokens"], s["mask"])]}


def padded_collate_sft(batch, padding_idx=0, ignore_idx=-100):
    longest = max(len(b["tokens"]) for b in batch)
    tokens = [b["tokens"] + [padding_idx] * (longest - len(b["tokens"])) for b in batch]
    labels = [b["labels"] + [ignore_idx] * (longest - len(b["labels"])) for b in batch]
    return {"tokens": torch.tensor(tokens), "labels": torch.tensor(labels)}


def get_wsd_schedule(optimizer, num_warmup_steps, num_training_steps, num_decay_steps):
    """Warm-up, stable, decay."""
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=num_warmup_steps)
    stable = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=1)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=num_decay_steps)
    return torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warmup, stable, decay], milestones=[num_warmup_steps, num_training_steps - num_decay_steps])


class FullFinetuneRecipe:
    def __init__(self, cfg):
        self.cfg = cfg
        self._clip = cfg["clip_grad_norm"]
        self._accum = cfg["gradient_accumulation_steps"]
        self.global_step = 0
        self.epochs_run = 0

    def setup(self):
        torch.manual_seed(self.cfg["seed"])
        torch.set_num_threads(1)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = Qwen3ForCausalLM(Qwen3Config(**self.cfg["model"])).to(self._device)
        self._dataloader = DataLoader(
            CopyWithEdits(**self.cfg["dataset"], seed=self.cfg["seed"]), batch_size=self.cfg["batch_size"], shuffle=True,
            drop_last=True, collate_fn=partial(padded_collate_sft, padding_idx=0))
        self._steps_per_epoch = len(self._dataloader) // self._accum
        self._optimizer = torch.optim.AdamW(self._model.parameters(), **self.cfg["optimizer"])
        sched = self.cfg["lr_scheduler"]
        self._lr_scheduler = get_wsd_schedule(self._optimizer, sched["num_warmup_steps"],
                                              self.cfg["epochs"] * self._steps_per_epoch, sched["num_decay_steps"])
        self._loss_fn = nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")

    def _loss_step(self, batch):
        labels = batch.pop("labels")
        logits = self._model(input_ids=batch["tokens"], attention_mask=(batch["tokens"] != 0).long()).logits
        # shift the labels, not the logits: no copy of the large tensor
        filler = torch.full((labels.shape[0], 1), -100, dtype=labels.dtype, device=labels.device)
        labels = torch.hstack((labels[..., 1:], filler))
        return self._loss_fn(logits.reshape(-1, logits.size(-1)), labels.reshape(-1))

    def train(self):
        self._optimizer.zero_grad()
        running_loss, num_tokens = 0.0, 0
        for curr_epoch in range(self.epochs_run, self.cfg["epochs"]):
            for idx, batch in enumerate(self._dataloader):
                batch = {k: v.to(self._device) for k, v in batch.items()}
                current_num_tokens = (batch["labels"][:, 1:] != -100).sum()
                num_tokens += current_num_tokens
                current_loss = self._loss_step(batch)
                running_loss += current_loss.detach()
                current_loss.backward()
                if (idx + 1) % self._accum == 0:
                    # the sum over all tokens of the step: a mean over tokens, not over batches
                    for p in self._model.parameters():
                        if p.grad is not None:
                            p.grad.mul_(1.0 / num_tokens)
                    grad_norm = nn.utils.clip_grad_norm_(self._model.parameters(), max_norm=self._clip)
                    self._optimizer.step()
                    self._optimizer.zero_grad(set_to_none=True)
                    self._lr_scheduler.step()
                    self.global_step += 1
                    if self.global_step % self.cfg["log_every_n_steps"] == 0:
                        log.info("step %d|loss:%.4f|grad_norm:%.3f|lr:%.2e", self.global_step, running_loss / num_tokens,
                                 grad_norm, self._optimizer.param_groups[0]["lr"])
                    running_loss, num_tokens = 0.0, 0
            self.epochs_run += 1
            self.save_checkpoint(curr_epoch)

    def save_checkpoint(self, epoch):
        if self.cfg["output_dir"]:
            torch.save({"model": self._model.state_dict(), "epochs_run": self.epochs_run},
                       f"{self.cfg['output_dir']}/epoch_{epoch}.pt")


def recipe_main():
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    recipe = FullFinetuneRecipe(cfg=CFG)
    recipe.setup()
    recipe.train()


if __name__ == "__main__":
    sys.exit(recipe_main())
