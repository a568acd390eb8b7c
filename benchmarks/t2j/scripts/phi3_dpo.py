"""DPO of Phi-3 with adapters: the reference is the same network with its adapters switched off."""
import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Phi3Config, Phi3ForCausalLM


class Adapter(nn.Module):
    """A low-rank update of a linear layer which can be switched off."""

    enabled = True

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=1 / rank)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        y = self.linear(x)
        return y + self.up(self.down(x)) if self.enabled else y


class AdaptedPhi3(nn.Module):
    def __init__(self, config, rank=4):
        super().__init__()
        self.phi3 = Phi3ForCausalLM(config).requires_grad_(False)
        for layer in self.phi3.model.layers:
            layer.self_attn.qkv_proj = Adapter(layer.self_attn.qkv_proj, rank)
            layer.mlp.down_proj = Adapter(layer.mlp.down_proj, rank)

    @contextlib.contextmanager
    def disable_adapters(self):
        adapters = [m for m in self.modules() if isinstance(m, Adapter)]
        try:
            for a in adapters:
                a.enabled = False
            yield
        finally:
            for a in adapters:
                a.enabled = True

    def forward(self, input_ids, attention_mask):
        return self.phi3(input_ids=input_ids, attention_mask=attention_mask).logits


class Brackets(Dataset):
    """Sequences of brackets; the chosen answer closes them all in order, the rejected one does not."""

    pairs = {3: 4, 5: 6, 7: 8}

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            depth = int(torch.randint(2, 7, (1,), generator=g))
            opened = (torch.randint(0, 3, (depth,), generator=g) * 2 + 3).tolist()
            closed = [self.pairs[o] for o in reversed(opened)]
            wrong = [closed[i] for i in torch.randperm(depth, generator=g)]
            wrong = wrong[:-1] if wrong == closed else wrong
            self.rows.append((opened, closed + [2], wrong + [2]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows, max_length=18):
    ids = torch.zeros(2 * len(rows), max_length, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for i, (prompt, chosen, rejected) in enumerate(rows):
        for row, answer in ((2 * i, chosen), (2 * i + 1, rejected)):  # chosen and rejected alternate
            ids[row, :len(prompt) + 1 + len(answer)] = torch.tensor([1, *prompt, *answer])
            labels[row, len(prompt) + 1:len(prompt) + 1 + len(answer)] = torch.tensor(answer)
    return ids, labels


def logps_of(model, ids, labels):
    logits = model(ids, (ids != 0).long())[:, :-1]
    labels = labels[:, 1:]
    nll = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100, reduction="none")
    return -nll.view_as(labels).sum(-1)


def step_loss(model, ids, labels, beta, smoothing):
    with torch.no_grad(), model.disable_adapters():
        base = logps_of(model, ids, labels)
    gain = beta * (logps_of(model, ids, labels) - base)
    margin = gain[0::2] - gain[1::2]
    loss = -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)
    return loss.mean(), {"margin": margin.mean().item(), "accuracy": (margin > 0).float().mean().item()}


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--smoothing", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rank", type=int, default=4)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = AdaptedPhi3(Phi3Config(
        vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=24, pad_token_id=0, bos_token_id=1, eos_token_id=2), args.rank)
    loader = DataLoader(Brackets(96, 1), batch_size=8, shuffle=True, collate_fn=collate)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=args.momentum, nesterov=True)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8, 16], gamma=0.5)
    for epoch in range(args.epochs):
        for n, (ids, labels) in enumerate(loader):
            loss, metrics = step_loss(model, ids, labels, args.beta, args.smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if n % 4 == 3:
                print(epoch, n, f"loss {loss.item():.4f}", *(f"{k} {v:.3f}" for k, v in metrics.items()))


if __name__ == "__main__":
    main()
