"""LoRA fine-tuning of Phi-3, the adapters written by hand: only they are trained and saved."""
import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Phi3Config, Phi3ForCausalLM, get_cosine_with_min_lr_schedule_with_warmup

RANK, ALPHA = 4, 8
TARGETS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int, alpha: float, dropout: float = 0.0):
        super().__init__()
        self.base = base
        self.base.weight.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, r))
        self.dropout = nn.Dropout(dropout)
        self.scaling = alpha / r
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + (self.dropout(x) @ self.lora_a.T @ self.lora_b.T) * self.scaling


def apply_lora(model):
    for name, module in list(model.named_modules()):
        if name.endswith(TARGETS) and isinstance(module, nn.Linear):
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], LoRALinear(module, RANK, ALPHA))
    for name, param in model.named_parameters():
        param.requires_grad_("lora_" in name or "norm" in name)
    return model


class JsonExtraction(Dataset):
    """`bo buys 3 figs` becomes {"who":"bo","n":3,"what":"figs"}."""

    names, things = ["bo", "al", "kim", "ada"], ["figs", "nuts", "pens", "eggs"]

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            who, k, what = rng.choice(self.names), rng.randrange(2, 10), rng.choice(self.things)
            text = rng.choice([f"{who} buys {k} {what}", f"{k} {what} for {who}", f"{who} has {k} {what}"])
            self.rows.append((f"<|user|>{text}<|end|>", '{"who":"%s","n":%d,"what":"%s"}<|end|>' % (who, k, what)))

    def __getitem__(self, i):
        return self.rows[i]

    def __len__(self):
        return len(self.rows)


class Tokenizer:
    special = ["<pad>", "<|user|>", "<|end|>", "<|assistant|>"]

    def __init__(self):
        self.itos = self.special + sorted(set("abcdefghijklmnopqrstuvwxyz0123456789 {}\":,"))
        self.stoi = {s: i for i, s in enumerate(self.itos)}

    def __call__(self, text):
        ids = []
        while text:
            piece = next((s for s in self.special if text.startswith(s)), text[0])
            ids.append(self.stoi[piece])
            text = text[len(piece):]
        return ids


class Collator:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, rows):
        prompts = [self.tokenizer(p) + [self.tokenizer.stoi["<|assistant|>"]] for p, _ in rows]
        answers = [self.tokenizer(a) for _, a in rows]
        # padded to a multiple of eight
        width = -(-max(len(p) + len(a) for p, a in zip(prompts, answers)) // 8) * 8
        input_ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full_like(input_ids, -100)
        for i, (p, a) in enumerate(zip(prompts, answers)):
            input_ids[i, :len(p) + len(a)] = torch.tensor(p + a)
            labels[i, len(p):len(p) + len(a)] = torch.tensor(a)
        return {"input_ids": input_ids, "attention_mask": input_ids.ne(0).long(), "labels": labels}


def lora_state_dict(model):
    return {k: v for k, v in model.state_dict().items() if "lora_" in k or "norm" in k}


def train(model, loader, optimizer, scheduler, accumulate=2, epochs=2):
    for epoch in range(epochs):
        window = []
        for i, batch in enumerate(loader, 1):
            loss = model(**batch).loss
            (loss / accumulate).backward()
            window.append(loss.item())
            if i % accumulate == 0:
                nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 0.3)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: first {window[0]:.4f} last {window[-1]:.4f} mean {sum(window) / len(window):.4f}")


def main():
    random.seed(99)
    torch.manual_seed(99)
    torch.set_num_threads(1)
    tokenizer = Tokenizer()
    model = Phi3ForCausalLM(Phi3Config(
        vocab_size=len(tokenizer.itos), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=96, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        embd_pdrop=0.0, resid_pdrop=0.0))
    model = apply_lora(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"trainable: {sum(p.numel() for p in trainable)} of {sum(p.numel() for p in model.parameters())}")
    loader = DataLoader(JsonExtraction(96, 99), batch_size=6, shuffle=True, collate_fn=Collator(tokenizer), drop_last=True)
    optimizer = torch.optim.AdamW(trainable, lr=1e-2, weight_decay=0.0)
    scheduler = get_cosine_with_min_lr_schedule_with_warmup(optimizer, 2, len(loader), min_lr_rate=0.1)
    train(model, loader, optimizer, scheduler)


if __name__ == "__main__":
    main()
