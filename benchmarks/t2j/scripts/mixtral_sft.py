"""Mixtral, a mixture of experts, on rewriting rules: load-balancing loss, SGD, gradient accumulation."""
import random
import time

import torch
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import MixtralConfig, MixtralForCausalLM

config = {
    "vocab_size": 30, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 48,
    "router_aux_loss_coef": 0.02, "output_router_logits": True, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}


class RewriteSystem(Dataset):
    """A string over an alphabet and what a Lindenmayer system makes of it in one step."""

    rules = {4: [4, 5], 5: [6], 6: [4, 7], 7: [5, 5], 8: [9, 8], 9: [10], 10: [8]}

    def __init__(self, length, seed=0):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = random.Random(f"{self.seed}/{index}")
        word = [rng.choice(list(self.rules)) for _ in range(rng.randint(2, 8))]
        image = [s for w in word for s in self.rules[w]]
        ids = [1] + word + [3] + image + [2]
        return {"input_ids": ids, "n_prompt": len(word) + 2}


def collate(features):
    width = max(len(f["input_ids"]) for f in features)
    input_ids = torch.full((len(features), width), 0)
    labels = torch.full((len(features), width), -100)
    attention_mask = torch.zeros(len(features), width, dtype=torch.long)
    for row, f in enumerate(features):
        n = len(f["input_ids"])
        input_ids[row, :n] = torch.tensor(f["input_ids"])
        labels[row, f["n_prompt"]:n] = input_ids[row, f["n_prompt"]:n]
        attention_mask[row, :n] = 1
    return dict(input_ids=input_ids, labels=labels, attention_mask=attention_mask)


class Trainer:
    def __init__(self, model, lr=0.2, momentum=0.9, weight_decay=1e-4, accumulation=2, clip=1.0):
        self.model, self.accumulation, self.clip = model, accumulation, clip
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=8, gamma=0.5)
        self.steps = 0

    def forward_backward(self, batch):
        outputs = self.model(**batch)
        loss = outputs.loss / self.accumulation
        loss.backward()
        return loss.detach() * self.accumulation, outputs.aux_loss.detach()

    def optimizer_step(self):
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return norm

    def fit(self, train, valid, epochs):
        for epoch in range(epochs):
            self.model.train()
            began = time.time()
            for i, batch in enumerate(train):
                loss, aux = self.forward_backward(batch)
                if (i + 1) % self.accumulation == 0:
                    norm = self.optimizer_step()
                    if self.steps % 4 == 0:
                        print(f"step {self.steps}: loss {loss:.4f} aux {aux:.4f} norm {norm:.3f}")
            print(f"epoch {epoch}: validation {self.validate(valid):.4f} in {time.time() - began:.1f} s")

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        total = count = 0
        for batch in loader:
            n = (batch["labels"][:, 1:] != -100).sum().item()
            out = self.model(**batch)
            total += (out.loss - config["router_aux_loss_coef"] * out.aux_loss).item() * n
            count += n
        return total / count


if __name__ == "__main__":
    torch.manual_seed(41)
    torch.set_num_threads(1)
    data = RewriteSystem(224)
    train = DataLoader(Subset(data, range(192)), batch_size=8, shuffle=True, collate_fn=collate,
                       generator=torch.Generator().manual_seed(41))
    valid = DataLoader(Subset(data, range(192, 224)), batch_size=16, collate_fn=collate)
    Trainer(MixtralForCausalLM(MixtralConfig(**config))).fit(train, valid, epochs=2)
