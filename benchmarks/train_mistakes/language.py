"""A small language model: padding, shifted labels, a target without gradient, groups, clipping, warm-up."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
PAD, VOCABULARY, LENGTH = -100, 23, 12
ACCUMULATION = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.hidden = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        hidden = self.norm(torch.tanh(self.hidden(self.embedding(tokens))))
        return self.head(hidden), hidden


def make_batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        tokens = torch.randint(VOCABULARY, (4, LENGTH), generator=generator)
        lengths = torch.randint(4, LENGTH + 1, (4, 1), generator=generator)
        labels = torch.where(torch.arange(LENGTH) < lengths, tokens, PAD)
        rewards = torch.randn(4, generator=generator)
        yield tokens, labels, rewards


def rate(step):
    return min(1.0, (step + 1) / 4) * 0.98**step


model = Net()
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
    lr=3e-3,
    betas=(0.9, 0.95),
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
for number, (tokens, labels, rewards) in enumerate(make_batches(40)):
    logits, hidden = model(tokens)
    shift_logits = logits[:, :-1]
    shift_labels = labels[:, 1:]
    nll = functional.cross_entropy(
        shift_logits.reshape(-1, VOCABULARY), shift_labels.reshape(-1), ignore_index=PAD
    )
    # the hidden values must stay near where they are: the target has no gradient
    target = hidden.mean(1).detach()
    advantage = (rewards - rewards.mean()) / rewards.std()
    pull = ((hidden[:, 0] - target).pow(2).mean(1) * advantage).mean()
    loss = (nll + 0.5 * pull) / ACCUMULATION
    loss.backward()
    if (number + 1) % ACCUMULATION == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
