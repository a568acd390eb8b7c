"""Training scripts of the tests, as text."""

from __future__ import annotations

NANO = '''
"""A loop as nanoGPT has it."""
from contextlib import nullcontext

import torch
import torch.nn as nn
from torch.nn import functional as F

batch_size, block_size, vocab_size = 4, 8, 17
gradient_accumulation_steps, max_iters, eval_interval = 2, 6, 3
learning_rate, min_lr, warmup_iters = 1e-2, 1e-3, 2
torch.manual_seed(1337)
ctx = nullcontext()
data = torch.randint(vocab_size, (500,), generator=torch.Generator().manual_seed(0))


def get_batch(split):
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, 8)
        self.head = nn.Linear(8, vocab_size)

    def forward(self, idx, targets):
        logits = self.head(torch.tanh(self.wte(idx)))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    return max(min_lr, learning_rate * 0.9 ** (it - warmup_iters))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=False)
iter_num = 0
X, Y = get_batch("train")  # fetch the very first batch
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0:
        with torch.no_grad():
            print(f"val {model(*get_batch('val'))[1].item():.4f}")
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps  # scale the loss
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
'''

CLASSIFIER = '''
"""A small convolutional classifier, as examples of PyTorch have it."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(4 * 3 * 3, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)
        return self.fc(self.dropout(torch.flatten(x, 1)))


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        # mean over the batch
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")


def test(model, test_loader):
    model.eval()
    with torch.no_grad():
        return sum((model(data).argmax(1) == target).sum().item() for data, target in test_loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--log-interval", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = torch.randn(24, 1, 8, 8), torch.randint(0, 5, (24,))
    train_loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    test_loader = DataLoader(TensorDataset(x, y), batch_size=8)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        print(test(model, test_loader))


if __name__ == "__main__":
    main()
'''

TWO_OPTIMIZERS = """
import torch

a, b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
of_a = torch.optim.SGD(a.parameters(), lr=0.1)
of_b = torch.optim.SGD(b.parameters(), lr=0.1)
for step in range(3):
    x = torch.ones(4, 2)
    loss = a(x).mean() + b(x).mean()
    loss.backward()
    of_a.step()
    of_b.step()
    of_a.zero_grad()
    of_b.zero_grad()
"""

SCALED_GRADIENTS = """
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.ones(3, 4, 2):
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad.mul_(p.numel())
    optimizer.step()
"""

# Sums of losses, and gradients divided by the number of tokens of the update, as torchtune has it.
RECIPE = """
import torch
import torch.nn as nn


class Recipe:
    def setup(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(11, 8), nn.Tanh(), nn.Linear(8, 11))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")
        self.data = []
        for number in range(24):
            tokens = torch.randint(0, 11, (3, 7))
            labels = torch.where(torch.arange(7) < number % 5, -100, tokens)
            self.data.append({"tokens": tokens, "labels": labels})

    def loss_step(self, batch):
        logits = self.model(batch["tokens"])[:, :-1]
        return self.loss_fn(logits.reshape(-1, 11), batch["labels"][:, 1:].reshape(-1))

    def train(self):
        num_tokens = 0
        for idx, batch in enumerate(self.data):
            num_tokens += (batch["labels"][:, 1:] != -100).sum()
            loss = self.loss_step(batch)
            loss.backward()
            if (idx + 1) % 2 == 0:
                for p in self.model.parameters():
                    p.grad.mul_(1.0 / num_tokens)
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
                self.optimizer.zero_grad()
                num_tokens = 0


recipe = Recipe()
recipe.setup()
recipe.train()
"""

# A model with a moving average of its weights.
AVERAGED = """
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
data = [(torch.randn(4, 8), torch.randint(3, (4,))) for _ in range(9)]
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
ema = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


@torch.no_grad()
def update_ema(ema, model, decay=0.95):
    for old, new in zip(ema.parameters(), model.parameters()):
        old.mul_(decay).add_(new.data, alpha=1 - decay)


for x, y in data:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_ema(ema, model)
"""

# A loop of 7 updates an epoch; a change after the first epoch is put in place of CHANGE.
LATE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
data = [(torch.randn(4, 8), torch.randint(3, (4,))) for _ in range(7)]
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
beta = 0.1
for epoch in range(3):
    if epoch == 1:
        CHANGE
    for x, y in data:
        out = model(x)
        loss = F.cross_entropy(out, y) + beta * out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
"""

# Batch normalization of features whose mean is large beside their deviation: float32 rounds that away.
OFFSET = """
import torch
from torch import nn

torch.manual_seed(0)
data = [(2000 + torch.randn(16, 4), torch.randint(3, (16,))) for _ in range(4)]
model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in data:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# A policy that samples from itself, with a value head, advantages and two epochs on each rollout.
ROLLOUTS = """
import torch
import torch.nn as nn

torch.manual_seed(3)


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.policy, self.value = nn.Linear(4, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, seen):
        hidden = torch.tanh(self.body(seen))
        return self.policy(hidden).log_softmax(-1), self.value(hidden).squeeze(-1)


class Learner:
    def __init__(self, player):
        self.player = player
        self.optimizer = torch.optim.Adam(player.parameters(), lr=3e-3)

    def learn(self, seen, taken, old, advantages, returns):
        for _ in range(2):
            for rows in torch.randperm(len(seen)).split(8):
                logps, values = self.player(seen[rows])
                ratio = (logps.gather(-1, taken[rows]) - old[rows]).exp().squeeze(-1)
                gained = torch.min(ratio * advantages[rows], ratio.clamp(0.8, 1.2) * advantages[rows])
                loss = -gained.mean() + 0.5 * (values - returns[rows]).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


player = Player()
learner = Learner(player)
liked = torch.zeros(3)
liked[2:] = 1.0
for round in range(3):
    seen = torch.randn(16, 4)
    with torch.no_grad():
        logps, values = player(seen)
        taken = torch.multinomial(logps.exp(), 1)
        old = logps.gather(-1, taken)
        returns = liked[taken].squeeze(-1)
        advantages = returns - values
    learner.learn(seen, taken, old, advantages - advantages.mean(), returns)
"""

# Rollouts in a buffer that each one makes anew; rows in NumPy; epochs end by what the loss computes.
BUFFER = """
import numpy as np
import torch
import torch.nn as nn

np.random.seed(2)
torch.manual_seed(3)


class Buffer:
    def __init__(self):
        self.seen, self.old, self.gained = torch.zeros(16, 4), torch.zeros(16), None


def play(player):
    buffer = Buffer()
    with torch.no_grad():
        buffer.seen[:] = torch.randn(16, 4)
        logps = player(buffer.seen).log_softmax(-1)
        buffer.taken = torch.multinomial(logps.exp(), 1)
        buffer.old[:] = logps.gather(-1, buffer.taken).squeeze(-1)
        buffer.gained = (buffer.taken == 2).float().squeeze(-1) - 0.5
    return buffer


def policy_loss(player, seen, taken, old, gained, clip):
    logratio = player(seen).log_softmax(-1).gather(-1, taken).squeeze(-1) - old
    ratio = logratio.exp()
    with torch.no_grad():
        moved = (ratio - 1).abs().mean()
    return -torch.min(ratio * gained, ratio.clamp(1 - clip, 1 + clip) * gained).mean(), moved


def learn(player, optimizer, buffer):
    rows = np.arange(16)
    for epoch in range(4):
        np.random.shuffle(rows)
        for start in range(0, 16, 8):
            idx = torch.from_numpy(rows[start : start + 8].copy())
            loss, moved = policy_loss(player, buffer.seen[idx], buffer.taken[idx], buffer.old[idx],
                                      buffer.gained[idx], clip=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if moved > 0.05:
            break


player = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(player.parameters(), lr=1e-2)
for round in range(4):
    buffer = play(player)
    learn(player, optimizer, buffer)
"""

# A reference that is refreshed every four updates.
REFRESHED = """
import torch
import torch.nn as nn

torch.manual_seed(0)


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.reference = net(), net().requires_grad_(False)

    def refresh(self):
        self.reference.load_state_dict(self.policy.state_dict())

    def forward(self, x):
        with torch.no_grad():
            old = self.reference(x)
        return self.policy(x) - old


model = Both()
data = torch.randn(3, 4, 4, 4)
optimizer = torch.optim.Adam(model.policy.parameters(), lr=0.01)
for epoch in range(3):
    model.refresh()
    for x in data[epoch]:
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

# Pairs of micro-batches with other numbers of labels each.
UNEVEN = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
draws = torch.Generator().manual_seed(1)


def batch(rows, length):
    x = torch.randint(0, 11, (rows, length), generator=draws)
    y = x.clone()
    for row in range(rows):
        y[row, : int(torch.randint(0, length - 1, (1,), generator=draws))] = -100
    return x, y


data = [batch(2 + n % 3, 4 + 3 * (n % 2)) for n in range(12)]
model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for number, (x, y) in enumerate(data):
    logits = model(x)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), y[:, 1:].flatten())
    (loss / 2).backward()
    if number % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""

# Draws random numbers in its loss and in its data, on a GPU; a frozen module stays in evaluation mode.
AUTOENCODER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 8)
        self.decode = nn.Linear(4, 6)

    def forward(self, x):
        mean, size = self.encode(x).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decode(mean + noise * torch.exp(size)), mean, size


def build():
    data = TensorDataset(torch.randn(16, 5))
    sampler = RandomSampler(data)
    return DataLoader(data, batch_size=4, sampler=sampler), sampler


torch.manual_seed(0)
assert torch.cuda.is_available()
device = torch.device("cuda", 0)
frozen = nn.Sequential(nn.Linear(5, 6), nn.Tanh()).to(device).requires_grad_(False).eval()
model = Autoencoder().to(device)
loader, sampler = build()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for (x,) in loader:
        x = x.to(device)
        with torch.no_grad():
            features = frozen(x)
        weight = torch.rand(x.shape[0], 1, device=device)
        output, mean, size = model(features)
        loss = (weight * (output - features) ** 2).sum() + (mean**2 - size + torch.exp(size)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

# Draws noise in its loss, beside layers that compute otherwise in training.
DENOISER = """
import torch
from torch import nn
from torch.nn import functional as F


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.drop, self.b = nn.Dropout(0.5), nn.Linear(8, 6)

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x))))


torch.manual_seed(0)
data = torch.randn(5, 16, 6)
model = Denoiser()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in data:
    noise = torch.randn_like(x)
    loss = F.mse_loss(model(x + 0.1 * noise), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Its model counts its calls in training, which no port does: neither dropout can be in the program.
COUNTING = DENOISER.replace(
    "    def forward(self, x):\n",
    "    def forward(self, x):\n        if self.training:\n            self.calls += 1\n",
).replace(
    "        self.drop,",
    '        self.register_buffer("calls", torch.zeros(()))\n        self.drop,',
)

GAN = """
import torch
import torch.nn as nn

torch.manual_seed(3)
netG = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4, bias=False))
netD = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01, betas=(0.5, 0.999))
rows = torch.randn(24, 4)
for i in range(3):
    # the discriminator: real, then fake
    netD.zero_grad()
    real = rows[8 * i : 8 * i + 8]
    label = torch.full((real.size(0), 1), 1.0)
    errD_real = criterion(netD(real), label)
    errD_real.backward()
    noise = torch.randn(real.size(0), 3)
    fake = netG(noise)
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()), label)
    errD_fake.backward()
    optimizerD.step()
    # the generator
    netG.zero_grad()
    label.fill_(1.0)
    errG = criterion(netD(fake), label)
    errG.backward()
    optimizerG.step()
"""

# It looks at what the generator makes now, in training mode: that moves the statistics of its BatchNorm.
GAN_WITH_PICTURES = (
    GAN.replace(
        "netG = ",
        "def weights_init(m):\n    m.requires_grad_()\n\n\nnetG = ",
    ).replace("criterion = ", "netG.apply(weights_init)\nfixed = torch.randn(5, 3)\ncriterion = ")
    + """    if i % 2 == 0:
        fake = netG(fixed)
        print(fake.detach().mean())
"""
)

# An actor and a critic that train one after another, each in a loop of its own, on what the actor sampled.
ACTOR_AND_CRITIC = """
import torch
from torch import nn


def update_critic(model, optimizer, data):
    for rows in range(0, 8, 4):
        part = {key: value[rows : rows + 4] for key, value in data.items()}
        loss = ((model(part["x"]) - part["reward"]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def update_actor(model, optimizer, data):
    for rows in range(0, 8, 4):
        part = {key: value[rows : rows + 4] for key, value in data.items()}
        picked = model(part["x"]).log_softmax(1).gather(1, part["action"])
        loss = -(picked * part["reward"]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def rollout(actor):
    with torch.no_grad():
        x = torch.randn(8, 3)
        action = torch.multinomial(actor(x).softmax(1), 1)
        return {"x": x, "action": action, "reward": (action == 1).float()}


def fit():
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 4), nn.Linear(3, 1)
    of_actor = torch.optim.Adam(actor.parameters(), lr=0.05)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(2):
        data = rollout(actor)
        update_critic(critic, of_critic, data)
        update_actor(actor, of_actor, data)


fit()
"""

TWO_LOSSES = """
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.ones(4, 2)
    loss = model(x).mean()
    loss.backward()
    loss = model(2 * x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

EVALUATED = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(48, 4), torch.randint(3, (48,))
train_loader = DataLoader(TensorDataset(x[:32], y[:32]), 16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[32:], y[32:]), 6)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, correct = 0.0, 0
    for xb, yb in loader:
        out = model(xb)
        total += criterion(out, yb).item() * len(xb)  # a mean over the batch
        correct += (out.argmax(1) == yb).sum().item()
    return total / len(loader.dataset), correct


for epoch in range(4):
    model.train()
    for xb, yb in train_loader:
        loss = criterion(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    val_loss, correct = validate(model, val_loader)
    print(f"epoch {epoch}: val loss {val_loss:.4f}, {correct} right")
"""

ADJUSTED = """
import torch
from rates import adjust

torch.manual_seed(0)
data = torch.rand(30, 4, 3)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
groups = [{"params": part.parameters(), "lr_scale": 1.0 / (i + 1)} for i, part in enumerate(net)]
optimizer = torch.optim.SGD(groups, lr=0.1)
for epoch in range(400):
    for number, batch in enumerate(data):
        adjust(optimizer, CALL, 0.1)
        loss = net(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

LOGGED = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(24, 4), torch.randint(3, (24,))
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True, generator=torch.Generator().manual_seed(1))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def train(epoch):
    total = 0.0
    for i, (xb, yb) in enumerate(loader):
        loss = criterion(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        total += loss.item() * len(xb)
        optimizer.step()
        if i % 2 == 0:
            print(f"epoch {epoch} [{i * len(xb)}/{len(loader.dataset)}] {loss.item():.3f}")
    return total / len(loader.dataset)


for epoch in range(1, 4):
    mean = train(epoch)
    scheduler.step()
    print(f"epoch {epoch}: mean {mean:.3f}, next rate {scheduler.get_last_lr()[0]}")
"""

IN_LOOP = """
import math
import torch

torch.manual_seed(0)
data = torch.rand(12, 4, 3)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
groups = [{"params": part.parameters(), "fixed": i == 0} for i, part in enumerate(net)]
optimizer = torch.optim.SGD(groups, lr=0.1)
warm, total, base = 6, 400 * 12, 0.1
step = 0
for epoch in range(400):
    for number, batch in enumerate(data):
        lr = base * step / warm
        if step >= warm:
            lr = 0.5 * base * (1 + math.cos(math.pi * (step - warm) / (total - warm)))
        for group in optimizer.param_groups:
            group["lr"] = base if group["fixed"] else lr
        loss = net(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
"""

HANDED = """
import math
import sys
import numpy as np
import torch

torch.manual_seed(0)
data = torch.rand(12, 4, 3)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


class Scaler:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda", enabled=False)

    def __call__(self, loss, optimizer, update=True):
        self.scaler.scale(loss).backward()
        if update:
            self.scaler.step(optimizer)
            self.scaler.update()


def train(net, data, optimizer, scaler, table, start, kind="square", every=2):
    for number, batch in enumerate(data):
        it = start + number // every
        if table is not None and number % every == 0:
            for i, group in enumerate(optimizer.param_groups):
                group["lr"] = table[it]
        if kind == "square":
            loss = net(batch).square().mean()
        elif kind == "abs":
            loss = net(batch).abs().mean()
        else:
            raise ValueError(kind)
        value = loss.item()
        if not math.isfinite(value):
            sys.exit(1)
        loss = loss / every
        scaler(loss, optimizer, update=(number + 1) % every == 0)
        if (number + 1) % every == 0:
            optimizer.zero_grad()


scaler = Scaler()
table = np.concatenate([np.linspace(0, 0.1, 10), 0.05 * (1 + np.cos(np.linspace(0, 3, 500)))])
for epoch in range(80):
    train(net, data, optimizer, scaler, table, epoch * 6)
"""

# Mixup between batch and model, and stochastic depth in both forms.
MIXED = """
import numpy as np
import torch
from torch import nn


class Depth(nn.Module):
    def __init__(self, rate, rounds):
        super().__init__()
        self.rate, self.rounds = rate, rounds

    def forward(self, x):
        if self.rate == 0.0 or not self.training:
            return x
        keep, shape = 1 - self.rate, (x.shape[0],) + (1,) * (x.ndim - 1)
        if self.rounds:
            return x.div(keep) * (keep + torch.rand(shape)).floor()
        return x * x.new_empty(shape).bernoulli_(keep).div_(keep)


class Block(nn.Module):
    def __init__(self, width, rate, rounds):
        super().__init__()
        self.layer, self.depth = nn.Linear(width, width), Depth(rate, rounds)

    def forward(self, x):
        return x + self.depth(torch.tanh(self.layer(x)))


class Mix:
    def __init__(self, alpha):
        self.alpha = alpha

    def __call__(self, x, y):
        share = np.random.beta(self.alpha, self.alpha)
        x.mul_(share).add_(x.flip(0).mul(1 - share))
        y = nn.functional.one_hot(y, 4).float()
        return x, share * y + (1 - share) * y.flip(0)


torch.manual_seed(0)
np.random.seed(0)
draw = torch.Generator().manual_seed(1)
images, labels = torch.randn(64, 6, generator=draw), torch.randint(4, (64,), generator=draw)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images, labels), batch_size=8, shuffle=True, generator=draw
)
model = nn.Sequential(Block(6, 0.4, True), Block(6, 0.4, False), nn.Linear(6, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
mix = Mix(0.8)
for epoch in range(2):
    model.train()
    for x, y in loader:
        x = x.to("cpu", non_blocking=True)
        if mix is not None:
            x, y = mix(x, y)
        loss = -(y * torch.log_softmax(model(x), -1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
