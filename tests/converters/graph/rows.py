"""Mixtures of experts that give each expert the rows that chose it, and modules that cannot be told so."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu, one_hot


class Expert(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 5), nn.Linear(5, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gelu(self.up(x)))


class Mixture(nn.Module):
    def __init__(self, dim: int = 6, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(Expert(dim) for _ in range(experts))

    def chosen(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, indices = torch.topk(self.gate(x).softmax(-1), 2)
        return weights, indices


class ByMask(Mixture):
    """By a mask of rows, if it has any."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(-1)
        _, indices = scores.topk(2, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mask = (indices == i).any(dim=-1)
            if mask.any():
                out[mask] += expert(x[mask]) * scores[mask, i].unsqueeze(-1)
        return out


class ByPlaces(Mixture):
    """By the places of one-hot numbers, added up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, indices = self.chosen(x)
        out = torch.zeros_like(x)
        mask = one_hot(indices, num_classes=len(self.experts)).permute(2, 1, 0)
        for i in range(len(self.experts)):
            nth, rows = torch.where(mask[i])
            state = x[None, rows].reshape(-1, x.shape[-1])
            out.index_add_(0, rows, self.experts[i](state) * weights[rows, nth, None])
        return out


class ByRows(Mixture):
    """By places again, put back one by one; none is skipped."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, indices = self.chosen(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, nth = torch.where(indices == i)
            if rows.numel() == 0:
                continue
            out[rows] += weights[rows, nth, None] * expert(x[rows])
        return out


class ByName(Mixture):
    """By the names of the experts that are hit; a mask is left out where the model is exported."""

    def __init__(self, dim: int = 6, experts: int = 3) -> None:
        super().__init__(dim, experts)
        self.named = nn.ModuleDict({f"at_{i}": one for i, one in enumerate(self.experts)})

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(x.shape[0])
        x = x * mask[:, None]
        weights, indices = self.chosen(x)
        chosen = one_hot(indices, num_classes=len(self.experts)).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for each in torch.greater(chosen.sum(dim=(-1, -2)), 0).nonzero():
            nth, rows = torch.where(chosen[each].squeeze(0))
            state = self.named[f"at_{each[0]}"](x[None, rows].reshape(-1, x.shape[-1]))
            out.index_add_(0, rows, state * weights[rows, nth, None])
        return out


class ByHits(Mixture):
    """A loop over the experts that some row chose."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        hit = one_hot(first, num_classes=len(self.experts)).sum(0).nonzero()
        for each in hit:
            rows = (first == each).nonzero().squeeze(-1)
            out[rows] = self.experts[int(each[0])](x[rows])
        return out


class ByFirst(Mixture):
    """Each expert's rows, put where they were."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (first == i).nonzero().squeeze(-1)
            if len(rows) > 0:
                out[rows] = expert(x[rows])
        return out


class BySplit(Mixture):
    """Rows sorted by expert, split by how many each has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, indices = self.chosen(x)
        counts = one_hot(indices, num_classes=len(self.experts)).sum((0, 1)).tolist()
        order = indices.flatten().argsort(stable=True)
        rows = order // 2
        pieces = x[rows].split(counts, dim=0)
        each = [expert(piece) for expert, piece in zip(self.experts, pieces, strict=True)]
        y = torch.cat(each, dim=0) * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, rows, y)


class BySlices(Mixture):
    """The same by slices; experts without a row are skipped."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, indices = self.chosen(x)
        order = indices.flatten().argsort(stable=True)
        counts = one_hot(indices, num_classes=len(self.experts)).sum((0, 1)).numpy()
        sorted_rows, start, outputs = x[order // 2], 0, []
        for i, count in enumerate(counts):
            stop = start + count
            if count == 0:
                continue
            outputs.append(self.experts[i](sorted_rows[start:stop]))
            start = stop
        y = torch.zeros_like(sorted_rows)
        y[order] = torch.cat(outputs, dim=0)
        return (y.view(*indices.shape, -1) * weights.unsqueeze(-1)).sum(1)


class Averaged(Mixture):
    """Pieces that are divided by how many rows they have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.gate(x).argmax(-1)
        counts = one_hot(first, num_classes=len(self.experts)).sum(0).tolist()
        pieces = x[first.argsort(stable=True)].split(counts, dim=0)
        each = zip(self.experts, pieces, counts, strict=True)
        return torch.cat([expert(piece) / (count + 1) for expert, piece, count in each], dim=0)


class Centered(nn.Module):
    """Chosen rows that look at each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.sum(-1) > 0
        out = x.clone()
        out[mask] = x[mask] - x[mask].mean(0)
        return out


class Shared(nn.Module):
    """Divides by how many are chosen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.sum(-1) > 0
        out = x.clone()
        out[mask] = x[mask] / x[mask].shape[0]
        return out


class Counted(nn.Module):
    """Does more than to leave rows out where there are none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.sum(-1) > 0
        out, factor = x.clone(), 1
        if mask.any():
            factor = 2
            out[mask] = torch.sin(x[mask])
        return out * factor


class Many(nn.Module):
    """Asks for more than any."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.sum(-1) > 0
        out = x.clone()
        if mask.sum() > 4:
            out[mask] = torch.sin(x[mask])
        return out
