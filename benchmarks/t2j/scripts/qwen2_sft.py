"""Supervised fine-tuning of a Qwen2 chat model, with a small trainer of our own and bfloat16 autocast."""
from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, get_cosine_schedule_with_warmup

VOCAB = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "system", "user", "assistant", "\n",
         *"abcdefghijklmnopqrstuvwxyz", " ", "?", "."]
TOKEN = {t: i for i, t in enumerate(VOCAB)}
CAPITALS = {"france": "paris", "japan": "tokyo", "italy": "rome", "peru": "lima", "kenya": "nairobi",
            "norway": "oslo", "cuba": "havana", "egypt": "cairo"}


@dataclass
class TrainingArguments:
    num_epochs: int = 2
    per_device_batch_size: int = 6
    gradient_accumulation_steps: int = 2
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    max_grad_norm: float = 1.0
    bf16: bool = True
    logging_steps: int = 3
    seed: int = 11


@dataclass
class Message:
    role: str
    content: str
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self):
        text = [TOKEN[c] for c in self.content]
        self.tokens = [TOKEN["<|im_start|>"], TOKEN[self.role], TOKEN["\n"], *text, TOKEN["<|im_end|>"]]


class ChatDataset(Dataset):
    def __init__(self, size: int, seed: int):
        rng = random.Random(seed)
        self.conversations = []
        for _ in range(size):
            turns = [Message("system", "be brief.")] if rng.random() < 0.5 else []
            for _ in range(rng.randint(1, 2)):
                country = rng.choice(sorted(CAPITALS))
                turns += [Message("user", f"{country}?"), Message("assistant", CAPITALS[country])]
            self.conversations.append(turns)

    def __len__(self):
        return len(self.conversations)

    def __getitem__(self, i):
        input_ids, labels = [], []
        for turn in self.conversations[i]:
            input_ids += turn.tokens
            # the three tokens of the header are given, what the assistant says is learned
            labels += [-100] * 3 + turn.tokens[3:] if turn.role == "assistant" else [-100] * len(turn.tokens)
        return dict(input_ids=torch.tensor(input_ids), labels=torch.tensor(labels))


def pad_collate(features):
    ids = nn.utils.rnn.pad_sequence([f["input_ids"] for f in features], True, TOKEN["<|endoftext|>"])
    labels = nn.utils.rnn.pad_sequence([f["labels"] for f in features], True, -100)
    lengths = torch.tensor([len(f["input_ids"]) for f in features])
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    return dict(input_ids=ids, labels=labels, attention_mask=mask)


class SFTTrainer:
    def __init__(self, model, args: TrainingArguments, train_dataset, eval_dataset=None):
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.device = next(model.parameters()).device
        self.global_step = 0

    def get_train_dataloader(self):
        generator = torch.Generator()
        generator.manual_seed(self.args.seed)
        return DataLoader(self.train_dataset, self.args.per_device_batch_size, shuffle=True,
                          generator=generator, collate_fn=pad_collate)

    def create_optimizer_and_scheduler(self, num_training_steps):
        decayed, plain = [], []
        for module in self.model.modules():
            for name, p in module.named_parameters(recurse=False):
                is_plain = name == "bias" or "norm" in type(module).__name__.lower()
                (plain if is_plain else decayed).append(p)
        unique = {id(p): p for p in decayed}
        self.optimizer = torch.optim.AdamW(
            [{"params": list(unique.values()), "weight_decay": self.args.weight_decay},
             {"params": plain, "weight_decay": 0.0}],
            lr=self.args.learning_rate, betas=(0.9, 0.999), eps=1e-8)
        self.lr_scheduler = get_cosine_schedule_with_warmup(
            self.optimizer, int(num_training_steps * self.args.warmup_ratio), num_training_steps)

    def compute_loss(self, model, inputs):
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.args.bf16):
            outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False)
        logits = outputs.logits.float()
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = inputs["labels"][..., 1:].contiguous()
        loss_fct = nn.CrossEntropyLoss(ignore_index=-100)
        return loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))

    def training_step(self, inputs):
        self.model.train()
        inputs = {k: v.to(self.device) for k, v in inputs.items()}
        loss = self.compute_loss(self.model, inputs)
        (loss / self.args.gradient_accumulation_steps).backward()
        return loss.detach()

    def train(self):
        loader = self.get_train_dataloader()
        accumulation = self.args.gradient_accumulation_steps
        self.create_optimizer_and_scheduler(self.args.num_epochs * len(loader) // accumulation)
        total = torch.zeros(())
        for epoch in range(self.args.num_epochs):
            for i, inputs in enumerate(loader):
                total += self.training_step(inputs) / accumulation
                if (i + 1) % accumulation == 0:
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                    self.optimizer.step()
                    self.lr_scheduler.step()
                    self.optimizer.zero_grad()
                    self.global_step += 1
                    if self.global_step % self.args.logging_steps == 0:
                        rate = self.lr_scheduler.get_last_lr()[0]
                        print({"loss": round(total.item() / self.args.logging_steps, 4), "learning_rate": rate})
                        total.zero_()
            if self.eval_dataset is not None:
                print({"epoch": epoch + 1, "eval_loss": round(self.evaluate(), 4)})

    @torch.inference_mode()
    def evaluate(self):
        self.model.eval()
        loader = DataLoader(self.eval_dataset, self.args.per_device_batch_size, collate_fn=pad_collate)
        losses = [self.compute_loss(self.model, inputs).item() for inputs in loader]
        return sum(losses) / len(losses)


def main():
    args = TrainingArguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(VOCAB), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1,
        eos_token_id=2))
    trainer = SFTTrainer(model, args, ChatDataset(120, args.seed), ChatDataset(24, args.seed + 1))
    trainer.train()


if __name__ == "__main__":
    main()
