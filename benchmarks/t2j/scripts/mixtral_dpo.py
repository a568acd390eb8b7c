"""DPO of Mixtral where the policy's routers stay as they are: experts and attention are trained."""
import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import MixtralConfig, MixtralForCausalLM


@dataclass
class DPOConfig:
    beta: float = 0.1
    dpop_lambda: float = 5.0
    learning_rate: float = 1e-3
    epochs: int = 2
    per_device_batch: int = 4
    accumulation: int = 3
    warmup_steps: int = 2
    seed: int = 61


def make_models():
    cfg = MixtralConfig(vocab_size=26, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=4, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=32,
                        pad_token_id=0, bos_token_id=1, eos_token_id=2)
    policy, reference = MixtralForCausalLM(cfg), MixtralForCausalLM(cfg)
    reference.load_state_dict(policy.state_dict())
    for name, param in policy.named_parameters():
        if ".gate.weight" in name:
            param.requires_grad = False
    return policy, reference.requires_grad_(False)


def majority_pairs(n, seed):
    """The answer should be the token that occurs most often in the prompt, and nothing more."""
    rng = random.Random(seed)
    pairs = []
    while len(pairs) < n:
        a, b = rng.sample(range(4, 26), 2)
        k = rng.randint(3, 5)
        prompt = [a] * k + [b] * rng.randint(1, k - 1)
        rng.shuffle(prompt)
        rejected = rng.choice([[b, 2], [a, b, 2], [a, a, a, 2]])
        pairs.append({"prompt_ids": [1] + prompt + [3], "chosen_ids": [a, 2], "rejected_ids": rejected})
    return pairs


class PairCollator:
    """Left-pads the prompts and right-pads the answers, so that all answers begin in one column."""

    def __call__(self, pairs):
        p = max(len(x["prompt_ids"]) for x in pairs)
        a = max(len(x[k]) for x in pairs for k in ("chosen_ids", "rejected_ids"))
        rows, mask = [], []
        for key in ("chosen_ids", "rejected_ids"):
            for x in pairs:
                left, right = p - len(x["prompt_ids"]), a - len(x[key])
                rows.append([0] * left + x["prompt_ids"] + x[key] + [0] * right)
                mask.append([0] * left + [1] * (len(x["prompt_ids"]) + len(x[key])) + [0] * right)
        return {"ids": torch.tensor(rows), "mask": torch.tensor(mask), "answer_start": p}


class DPOTrainer:
    def __init__(self, policy, reference, config):
        self.policy, self.reference, self.config = policy, reference, config
        trainable = [p for p in policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)

    def rate(self, step):
        return min(1.0, (step + 1) / self.config.warmup_steps) / (1 + 0.1 * step) ** 0.5

    def logps(self, model, ids, mask, answer_start):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, answer_start - 1:-1]
        answer = ids[:, answer_start:]
        picked = logits.gather(2, answer.unsqueeze(2)).squeeze(2) - torch.logsumexp(logits, dim=2)
        return (picked * mask[:, answer_start:]).sum(1)

    def compute_loss(self, batch):
        policy = self.logps(self.policy, batch["ids"], batch["mask"], batch["answer_start"])
        with torch.no_grad():
            reference = self.logps(self.reference, batch["ids"], batch["mask"], batch["answer_start"])
        chosen, rejected = (policy - reference).chunk(2)
        # DPO-positive: the chosen answer must not become less likely
        penalty = torch.clamp(-chosen, min=0)
        return -F.logsigmoid(self.config.beta * (chosen - rejected - self.config.dpop_lambda * penalty)).mean()

    def train(self, loader):
        self.policy.train()
        losses = []
        for epoch in range(self.config.epochs):
            for i, batch in enumerate(loader, start=1):
                loss = self.compute_loss(batch)
                (loss / self.config.accumulation).backward()
                losses.append(loss.item())
                if i % self.config.accumulation == 0:
                    nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad(set_to_none=True)
            print(f"epoch {epoch}: loss {sum(losses[-len(loader):]) / len(loader):.4f} lr {self.scheduler.get_last_lr()[0]:.2e}")


def main():
    config = DPOConfig()
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    policy, reference = make_models()
    loader = DataLoader(majority_pairs(96, config.seed), config.per_device_batch, shuffle=True, collate_fn=PairCollator())
    DPOTrainer(policy, reference, config).train(loader)


if __name__ == "__main__":
    main()
