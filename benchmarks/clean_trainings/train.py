"""A small training of many kinds: what `clean_trainings.py` proves; a CUDA script as people write them."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    """Two convolutions with batch normalization and a way around them."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.around = nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
        )

    def forward(self, x):
        return torch.relu(self.body(x) + self.around(x))


class Reader(nn.Module):
    """A transformer over the rows of an image."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, 32)
        self.position = nn.Parameter(torch.zeros(28, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.layers(self.embed(x.squeeze(1)) + self.position).mean(1))


def convolutions():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(7 * 7 * 32, 10)),
    )


def residual():
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(Block(8, 16, 2), Block(16, 32, 2), Block(32, 32, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def perceptron():
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU()),
        *(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)),
    )


MODELS = {
    "convolutions": convolutions,
    "residual": residual,
    "perceptron": perceptron,
    "transformer": Reader,
}


def optimizer_of(name, parameters, rate):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=rate)
    if name == "momentum":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=1e-4)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](parameters, lr=rate)


def images(count, generator):
    """Bright strokes on black, as handwritten digits have them."""
    labels = torch.arange(count) % 10
    inputs = torch.zeros(count, 1, 28, 28)
    for index, label in enumerate(labels.tolist()):
        row, column = 4 + 2 * label, 6 + label
        inputs[index, 0, row : row + 3, 4:24] = torch.rand(3, 20, generator=generator)
        inputs[index, 0, 4:24, column : column + 3] = torch.rand(20, 3, generator=generator)
    return TensorDataset(inputs, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="convolutions")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--amp", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(MODELS[args.model]().cuda(), device_ids=[local_rank])
    optimizer = optimizer_of(args.optimizer, model.parameters(), args.lr)
    scaler = torch.cuda.amp.GradScaler(enabled=args.amp)
    dataset = images(1280, torch.Generator().manual_seed(args.seed))
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler)
    for epoch in range(1):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs, labels = inputs.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            with torch.cuda.amp.autocast(enabled=args.amp):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
