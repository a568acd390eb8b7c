"""gpt-oss (experts, attention sinks) on reasoning traces: analysis and final channel weighted apart."""
import math
import random
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler
from transformers import GptOssConfig, GptOssForCausalLM

HYPERPARAMETERS = {
    "lr": 3e-3, "betas": (0.9, 0.95), "weight_decay": 0.05, "epochs": 2, "tokens_per_batch": 160,
    "analysis_weight": 0.3, "router_aux_loss_coef": 0.02, "warmup_fraction": 0.15, "clip": 1.0, "seed": 31,
}
TOKENS = ["<pad>", "<|start|>", "<|end|>", "user", "assistant", "analysis", "final", "<|return|>",
          *"0123456789", "+", "=", ";"]
INDEX = {t: i for i, t in enumerate(TOKENS)}


def encode(*pieces):
    ids = []
    for piece in pieces:
        ids += [INDEX[piece]] if piece in INDEX else [INDEX[c] for c in piece]
    return ids


class ReasoningTraces(Dataset):
    """Sums of several numbers: the running totals are the analysis, the last one is the answer."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.examples = []
        for _ in range(n):
            terms = [rng.randint(1, 9) for _ in range(rng.randint(2, 5))]
            totals = [sum(terms[:k]) for k in range(2, len(terms) + 1)]
            prompt = encode("<|start|>", "user", "+".join(map(str, terms)), "<|end|>")
            analysis = encode("<|start|>", "assistant", "analysis", ";".join(map(str, totals)), "<|end|>")
            final = encode("<|start|>", "assistant", "final", str(totals[-1]), "<|return|>")
            channel = [0] * len(prompt) + [1] * len(analysis) + [2] * len(final)
            self.examples.append((prompt + analysis + final, channel))

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return self.examples[i]


class TokenBudgetSampler(Sampler):
    """Batches of examples of similar length, none over a number of tokens."""

    def __init__(self, dataset, budget, seed):
        self.lengths = [len(ids) for ids, _ in dataset.examples]
        self.budget, self.seed, self.epoch = budget, seed, 0
        self.batches = self._make()

    def _make(self):
        batches, current = [], []
        for i in sorted(range(len(self.lengths)), key=self.lengths.__getitem__):
            if current and self.lengths[i] * (len(current) + 1) > self.budget:
                batches.append(current)
                current = []
            current.append(i)
        return batches + [current]

    def __iter__(self):
        order = list(range(len(self.batches)))
        random.Random(self.seed + self.epoch).shuffle(order)
        self.epoch += 1
        return (self.batches[i] for i in order)

    def __len__(self):
        return len(self.batches)


def collate(rows):
    n = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([x + [0] * (n - len(x)) for x, _ in rows])
    channel = torch.tensor([c + [0] * (n - len(c)) for _, c in rows])
    return ids, channel


def weighted_loss(model, ids, channel, hp):
    out = model(input_ids=ids, attention_mask=(ids != 0).long(), output_router_logits=True, use_cache=False)
    weights = torch.tensor([0.0, hp["analysis_weight"], 1.0])[channel[:, 1:]]
    nll = F.cross_entropy(out.logits[:, :-1].permute(0, 2, 1), ids[:, 1:], reduction="none")
    main = (nll * weights).sum() / weights.sum()
    return main + hp["router_aux_loss_coef"] * out.aux_loss, main.detach()


def cosine(step, total, warmup):
    if step < warmup:
        return step / max(1, warmup)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def main():
    hp = HYPERPARAMETERS
    torch.manual_seed(hp["seed"])
    torch.set_num_threads(1)
    config = GptOssConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, pad_token_id=0,
        eos_token_id=INDEX["<|return|>"], attn_implementation="eager")
    model = GptOssForCausalLM(config)
    dataset = ReasoningTraces(120, hp["seed"])
    sampler = TokenBudgetSampler(dataset, hp["tokens_per_batch"], hp["seed"])
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
    total = hp["epochs"] * len(sampler)
    warmup = int(hp["warmup_fraction"] * total)
    routers = [p for n, p in model.named_parameters() if "router" in n]
    others = [p for n, p in model.named_parameters() if "router" not in n]
    optimizer = torch.optim.AdamW([{"params": others}, {"params": routers, "lr": hp["lr"] / 10, "weight_decay": 0.0}],
                                  lr=hp["lr"], betas=hp["betas"], weight_decay=hp["weight_decay"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda s: cosine(s, total, warmup)] * 2)
    step = 0
    for epoch in range(hp["epochs"]):
        for ids, channel in loader:
            loss, main_loss = weighted_loss(model, ids, channel, hp)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), hp["clip"])
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 8 == 0:
                print(f"step {step}/{total} loss {main_loss.item():.4f} with routers {loss.item():.4f}", file=sys.stdout)


if __name__ == "__main__":
    main()
