"""Small torch models, each with one thing that a port has to get right."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)


class Mlp(nn.Module):
    """Two layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


def halves_turned(x):
    """The second half of the features before the first, with the other sign."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Block(nn.Module):
    """A residual block with a norm, and a function that is called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = Mlp(width, 4 * width)

    def forward(self, hidden_states, scale):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states = halves_turned(hidden_states) * scale + halves_turned(residual)
        return residual + self.mlp(hidden_states)


class Stack(nn.Module):
    """Blocks in a list, of which the first reads another name than the others."""

    def __init__(self, width: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        embedded = self.embed(ids)
        scale = torch.arange(1, ids.shape[1] + 1, device=ids.device)[:, None] / 10
        hidden_states = embedded
        for block in self.blocks:
            hidden_states = block(hidden_states, scale)
        return {"logits": self.head(hidden_states), "hidden": hidden_states}


class Pyramid(nn.Module):
    """Convolutions of several strides, norms, pools, and features flattened behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.down = nn.Conv2d(8, 5, 3, stride=2, padding=1, groups=1)
        self.head = nn.Linear(5 * 3 * 2, 7)

    def forward(self, x):
        x = self.pool(self.stem(x))
        x = F.relu(self.down(x))
        return self.head(x.flatten(1))


class Squeezed(nn.Module):
    """Channels that are weighted by what is in them, and joined with those before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.squeeze = nn.Conv2d(6, 6, 1)

    def forward(self, x):
        y = self.conv(x)
        weights = torch.sigmoid(self.squeeze(y.mean((2, 3), keepdim=True)))
        return torch.cat([x, y * weights], dim=1)


class Tagger(nn.Module):
    """A bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, ids):
        output, (hidden, _) = self.lstm(self.embed(ids))
        return self.out(output), hidden


class Encoder(nn.Module):
    """torch's own Transformer encoder."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x)


class TwoWays(nn.Module):
    """One module that is called in two ways, and one that is called twice in one."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.modes = Modes()

    def forward(self, x):
        x = self.shared(self.shared(x))
        return self.modes(x, "up") + self.modes(x, "down")


class Modes(nn.Module):
    """What it does depends on a word."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4))
        self.register_buffer("down", torch.randn(4))

    def forward(self, x, mode):
        return x * self.up if mode == "up" else x - self.down


class OwnLayer(nn.Linear):
    """A Linear with a forward of its own: its weight lies as Flax has it, and is read as torch does."""

    def forward(self, x):
        return F.linear(x, self.weight * 0.5, self.bias)


class Owner(nn.Module):
    """Reads the weight of a layer below it, and constants that its constructor computes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OwnLayer(6, 3)
        self.plain = nn.Linear(3, 3)
        frequencies = 1.0 / 10000.0 ** (torch.arange(0, 6, 2).float() / 6)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("odd", torch.tensor([3.0, 1.0, 4.0]), persistent=False)

    def forward(self, x):
        y = self.inner(x) * self.frequencies + self.odd
        return F.linear(y, self.plain.weight) + self.plain(y)


class InPlace(nn.Module):
    """Changes its tensors in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 5)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.fc(x)
        y += x
        y[:, 0] = 1.5
        return self.relu(y).mul_(2)


class Cut(nn.Module):
    """A part of a Sequential only, and a large constant that stands in no module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
        self.rows = torch.arange(100).reshape(20, 5) % 7

    def forward(self, x):
        x = self.net[2](x)
        return x * self.rows.to(x.dtype)[: x.shape[0]] + self.net[0](x)


def swapped(x):
    """Channels in front, and a factor."""
    return x.permute(0, 3, 1, 2) * 2


class Turned(nn.Module):
    """A function that turns an image, between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(swapped(x)) + swapped(x)[:, :3])


class Causal(nn.Module):
    """Attention as nanoGPT writes it: turned to heads, and back before it is flattened; three at once."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        b, t, c = x.shape
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = map(  # noqa: C417 (as people write it)
            lambda one: one.view(b, t, self.heads, c // self.heads).transpose(1, 2), parts
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).contiguous().view(b, t, c)


class Grid(nn.Module):
    """Patches of an image whose sides come as numbers: positions rest on their values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.places = nn.Embedding(20, 6)

    def forward(self, x, grid):
        place = []
        for height, width in grid.tolist():
            rows = torch.arange(height).repeat_interleave(width)
            place.append(rows * width + torch.arange(width).repeat(height))
        places = torch.cat(place)
        return self.fc(x) + self.places(places[places >= 0])


class Checked(nn.Module):
    """Demands something of the values that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)

    def forward(self, ids):
        assert (ids != 0).sum().item() <= 90, "too many"
        if ids.min().item() < 0:
            raise ValueError("negative")
        return self.embed(ids)


class Chooses(nn.Module):
    """Goes one way or the other, as its values are."""

    def forward(self, x):
        return x + 1 if x.sum().item() > 0 else x - 1


class Counts(nn.Module):
    """Reads a number from a tensor and makes a size of it."""

    def forward(self, x):
        return x.new_zeros(int(x.sum()), 2) + 1


class Scaled(nn.Embedding):
    """An Embedding with a forward of its own."""

    def forward(self, ids):
        return super().forward(ids) * 3


class Lender(nn.Module):
    """Reads the weight of a layer with a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Scaled(7, 4)

    def forward(self, ids):
        return F.linear(self.table(ids), self.table.weight * 2)


class Aware(nn.Module):
    """Lets out what it needs when it is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, mask=None):
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones_like(x)
        return self.fc(x * mask[:, :1])


def exported() -> bool:
    """Whether the caller is exported."""
    return torch.compiler.is_exporting()


class Solves(nn.Module):
    """Solves a triangular system, row by row where it is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        system = torch.tanh(y @ x.mT).tril(-1)
        if not exported():
            return torch.linalg.solve_triangular(system, y, upper=False, unitriangular=True)
        rows = [y[:, 0]]
        for i in range(1, x.shape[1]):
            known = torch.stack(rows, 1)
            rows.append(y[:, i] - (system[:, i, :i, None] * known).sum(1))
        return torch.stack(rows, 1)


class Joined(nn.Module):
    """Two sequences that are put together, and taken apart where the first one ends."""

    def forward(self, first, second):
        both = torch.cat([first, second], dim=1)
        return both.cumsum(1).split_with_sizes([first.shape[1], second.shape[1]], dim=1)


class NormAct(nn.BatchNorm2d):
    """A norm with what comes after it, of which one changes its argument in place."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.drop = nn.Identity()
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class Normed(nn.Module):
    """A convolution and its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = NormAct(4)

    def forward(self, x):
        return self.bn(self.conv(x))


class Biases(nn.Module):
    """A table that only a method beside the forward reads, as timm's RelPosBias has it."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, width))

    def get_bias(self):
        return self.table.softmax(-1)

    def forward(self, x):
        return x + self.get_bias()


class Biased(nn.Module):
    """Asks a layer for what it holds, and never calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = Biases(5, 4)
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) * self.biases.get_bias()


class Gathering(nn.ModuleDict):
    """A dict of modules that is called; one of its names is no identifier."""

    def __init__(self) -> None:
        super().__init__({"stem": nn.Linear(4, 4), "0": nn.Linear(4, 4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for part in self.values():
            found.append(part(found[-1]))
        return torch.cat(found[1:], -1)


class Chain(nn.ModuleList):
    """A list of modules that is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self:
            x = torch.relu(part(x))
        return x


class CalledLists(nn.Module):
    """Lists and dicts of modules with a forward are modules."""

    def __init__(self) -> None:
        super().__init__()
        self.gathering = Gathering()
        self.chain = Chain([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.chain(self.gathering(x))


class ScaledImages(nn.Module):
    """Parameters beside images whose sides are all alike: one for each channel, one for each column, one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.gamma = nn.Parameter(torch.randn(6, 1, 1))
        self.columns = nn.Parameter(torch.randn(6))
        self.scale = nn.Parameter(torch.randn(1, 1, 1, 1))
        self.last = nn.Parameter(torch.randn(2, 1, 6, 6))

    def forward(self, x):
        x = self.conv(x) * self.gamma + self.scale
        x = torch.relu(x * self.columns)
        return torch.cat([self.conv(x[:, :3]) * self.scale, self.last], dim=1)


class Keeper(nn.Module):
    """Keeps what its last block is given, as transformers' hooks keep hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def forward(self, x):
        kept: list[torch.Tensor] = []
        hook = self.blocks[-1].register_forward_pre_hook(lambda _, given: kept.append(given[0]))
        for block in self.blocks:
            x = block(x)
        hook.remove()
        return kept[-1] * 2


class Shifted(nn.Module):
    """Gives a module a view of what it has changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1, inplace=True))

    def forward(self, given):
        x = given.softmax(-1)
        x[:, :, 1:, :] += given[:, :, 1:, :]
        return self.project(x.transpose(1, 2).reshape(x.shape[0], -1, 6))


class Choosing(nn.Module):
    """The rows of the best scores."""

    def forward(self, x):
        scores = torch.relu(x).sum(-1)
        chosen = scores.topk(2, dim=-1).indices
        return x.gather(1, chosen[..., None].expand(-1, -1, x.shape[2]))


class Halves(nn.Module):
    """Cut in the middle of an axis whose number is half its side."""

    def forward(self, x):
        return x[:, :, :2] * x[:, :, 2:]


class Reader(nn.Module):
    """Calls what it is given, and its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, norm, head):
        for _ in range(2):
            x = norm(self.fc(x))
        return x, head(x)


class Giver(nn.Module):
    """Gives a module others of its own, as the decoders of DETR's family have it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.head = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), Mlp(5, 7))
        self.reader = Reader()

    def forward(self, x):
        return self.reader(self.norm(x), norm=self.norm, head=self.head)


class Commented(nn.Module):
    """Lines with comments of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.conv = nn.Conv1d(4, 4, 1)

    def forward(self, x):
        # the mean of all rows,
        # which is "taken" off
        x = x - x.mean(1, keepdim=True)
        for layer in self.fc:
            # with what it was
            x = layer(x) + x
        # torch.compile does not like this
        y = x.exp()
        # y = x.log()
        y = y.sqrt()
        # channels in front
        image = self.conv(y.transpose(1, 2))
        scale = image.relu().mean((1, 2))[:, None]  # (batch, channels, length)
        # and what comes out
        return y.sum(-1) + scale


class CommentedWithin(nn.Module):
    """Comments on lines whose values go into other lines, and on the heads of methods."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.conv = nn.Conv1d(4, 4, 1)

    def mixed(self, x):
        return self.conv(x)

    @torch.no_grad()
    def forward(self, x):  # all that is measured
        # the first half is left as it is
        left, right = x.chunk(2, dim=-1)
        # scaled once
        scaled = self.fc(x) * 2
        # and a second time
        scaled = scaled * 3
        # lies otherwise: (batch, channels, length)
        turned = x.transpose(1, 2)
        y = self.mixed(turned).mean(-1)
        # kept below a loop
        for _ in range(2):
            # all of it again
            y = y + y
        return left + right, scaled, y


class Overlapping(nn.Module):
    """Windows that overlap by half, cut by strides: of a tensor in order, and of one that is turned.

    Its buffer is a view, which torch cuts by strides itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.linspace(0, 1, 12).reshape(3, 4)[:, :2].T)

    def forward(self, x):
        batch, length, width = x.shape
        outer, step, inner = x.stride()
        size = (batch, length // 2 - 1, 4, width)
        windows = x.as_strided(size=size, stride=(outer, 2 * step, step, inner))
        turned = torch.as_strided(x.transpose(1, 2), (batch, width, 3), (outer, inner, step), step)
        return windows.sum(2) + self.places[1], turned


class Filled(nn.Module):
    """Fills a part of a new tensor by its `data`."""

    def forward(self, x):
        made = x.new_zeros(x.shape[0], x.shape[1] + 1)
        made.data[:, 1:].copy_(x)
        return made * 2


class SharedMemory(nn.Module):
    """Changes a window in place, and so what it was cut from."""

    def forward(self, x):
        x = x + 1
        x.as_strided((2, 2), (1, 1)).mul_(2)
        return x


class Neighbor(nn.Module):
    """Reads, by strides, beyond the part that it is given."""

    def forward(self, x):
        return x[:, :2].as_strided((2, 2), (3, 1), 1) * 2


class Sequences(nn.Module):
    """Sequentials of layers, activations, other functions of one tensor, and what does nothing."""

    def __init__(self, dim: int = 6, hidden: int = 10, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.ZeroPad2d((0, 1, 0, 1)),
            nn.Conv2d(3, dim, 3),
            nn.BatchNorm2d(dim),
            nn.ReLU(),
            nn.Dropout(0.0),
        )
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Sequential(nn.Linear(hidden, dim), nn.LeakyReLU(0.2)),
            nn.Identity(),
        )
        self.out = nn.ModuleList([nn.Linear(dim, dim), nn.Dropout(0.1)])
        self.head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(dim, classes))

    def forward(self, x):
        x = self.stem(x)
        x = self.mlp(x.flatten(2).transpose(1, 2))
        for layer in self.out:
            x = layer(x)
        return self.head(x.transpose(1, 2))


class Attentive(nn.Module):
    """Attentions and an LSTM that are called as most are, and an attention with a mask."""

    def __init__(self, dim: int = 6, hidden: int = 5) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(dim, 3, kdim=4, vdim=4, batch_first=True)
        self.masked = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.lstm = nn.LSTM(dim, hidden, 2, bidirectional=True, batch_first=True)

    def forward(self, x, memory):
        x = x + self.own(x, x, x)[0]
        x = x + self.cross(x, memory, memory, need_weights=False)[0]
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + self.masked(x, x, x, attn_mask=mask)[0]
        states, (h, c) = self.lstm(x)
        return states, h, c


class TwoLstms(nn.Module):
    """LSTMs of which only one is called as most are: their sources have one name."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(4, 3, batch_first=True)
        self.second = nn.LSTM(3, 3)

    def forward(self, x):
        return self.second(self.first(x)[0].transpose(0, 1))[0]


class Repeated(nn.Module):
    """A norm that is repeated to the shape of what it divides."""

    def forward(self, x):
        return nn.functional.normalize(x, dim=1) - x.mean(0, keepdim=True).expand_as(x)


class Long(nn.Module):
    """A statement that is two in the port, on two lines."""

    def forward(self, x):
        # larger ones
        large = 1 + (
            torch.log(x.abs() + 1)  # of what is at least 1
            / 3
        ).to(torch.long)
        large = torch.minimum(large, torch.full_like(large, 2))
        return large * x


@torch.library.custom_op("tpu_migrate_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    """An operator that does not say which shape it gives."""
    return x * 2


class Unknown(nn.Module):
    def forward(self, x):
        return unknown(x)


class Framed(nn.Module):
    """Pads what is left of the last frame, as EnCodec does: a size by way of fractions, rounded up."""

    def __init__(self, size: int = 4, stride: int = 3) -> None:
        super().__init__()
        self.size, self.stride = size, stride
        self.conv = nn.Conv1d(2, 5, size, stride)

    def forward(self, x):
        frames = (x.shape[-1] - self.size) / self.stride + 1
        whole = (math.ceil(frames) - 1) * self.stride + self.size
        return self.conv(nn.functional.pad(x, (0, whole - x.shape[-1])))


class Heads(nn.Module):
    """Sizes and shapes that have a name, and a buffer as large as another one."""

    def __init__(self, args: HeadsArgs) -> None:
        super().__init__()
        self.size_of_each_head = int(args.width / args.number_of_heads)
        self.size_of_all_heads = args.number_of_heads * self.size_of_each_head
        self.query = nn.Linear(args.width, self.size_of_all_heads)
        self.key = nn.Linear(args.width, self.size_of_all_heads)
        self.value = nn.Linear(args.width, self.size_of_all_heads)
        self.register_buffer("positions", torch.arange(args.length)[None], persistent=False)
        self.register_buffer("offset", torch.ones(self.positions.size()), persistent=False)

    def forward(self, x):
        head_shape = (*x.shape[:-1], -1, self.size_of_each_head)
        query = self.query(x).view(head_shape).transpose(1, 2)
        key = self.key(x).view(*head_shape).transpose(1, 2)
        value = self.value(x).view(head_shape).transpose(1, 2)
        moved = (self.positions + self.offset)[:, : x.shape[1]]
        weights = (query @ key.transpose(2, 3) + moved).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(2)


@dataclass
class HeadsArgs:
    """The sizes of `Named`, and how many of `Heads`."""

    width: int = 24
    number_of_heads: int = 4
    length: int = 17
    layers: int = 3


class Named(nn.Module):
    """Layers whose names are put together."""

    def __init__(self, args: HeadsArgs) -> None:
        super().__init__()
        self.args = args
        for index in range(args.layers):
            setattr(self, f"heads_{index}", Heads(args))
            self.add_module("fc_" + str(index), nn.Linear(args.width, args.width))

    def forward(self, x):
        for index in range(self.args.layers):
            x = x + getattr(self, f"fc_{index}")(getattr(self, f"heads_{index}")(x))
        return x


def both_ways(x):
    """Its first value is made last."""
    up = x.exp() + 1
    down = up.sqrt() - x
    return down, up


class Swapped(nn.Module):
    """A function's results in another order than it makes them, and a product of three with einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        below, above = both_ways(self.fc(x))
        return torch.einsum("bi,bj,bi->bij", below, above, x) + above.cos()[:, None]


class Refined(nn.Module):
    """Goes on from its own result, turn by turn, and gives what each turn found."""

    def __init__(self, turns: int = 5) -> None:
        super().__init__()
        self.turns = turns
        self.update = TwoOutputs()

    def forward(self, x):
        state, guess, guesses = x.tanh(), x, []
        for _ in range(self.turns):
            state, change = self.update(state, guess)
            guess = guess + change
            found = guess.sin() * 2
            guesses.append(found)
        return tuple(guesses)


class TwoOutputs(nn.Module):
    """A state and a change of something else."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, state, guess):
        state = torch.tanh(self.fc(state) + guess)
        return state, state.cos()


@dataclass
class Shift:
    """What a module gives that is no tuple."""

    shift: torch.Tensor
    scale: torch.Tensor


class Modulation(nn.Module):
    """Gives one or two objects that hold tensors."""

    def __init__(self, width: int, twice: bool) -> None:
        super().__init__()
        self.twice = twice
        self.count = 4 if twice else 2
        self.lin = nn.Linear(width, self.count * width)

    def forward(self, vec):
        out = self.lin(vec)[:, None].chunk(self.count, dim=-1)
        return Shift(*out[:2]), Shift(*out[2:]) if self.twice else None


class Modulated(nn.Module):
    """Two forms of a class that differ in how many objects they give."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.mod = Modulation(width, True)
        self.last_mod = Modulation(width, False)
        self.lin = nn.Linear(width, width)

    def forward(self, x, vec):
        one, two = self.mod(vec)
        x = self.lin((1 + one.scale) * x + one.shift)
        x = (1 + two.scale) * x.tanh() + two.shift
        mod, _ = self.last_mod(vec)
        return mod.scale * x + mod.shift


class Stored(nn.Module):
    """Made of an object that it does not keep."""

    def __init__(self, sizes) -> None:
        super().__init__()
        self.encoder = StoredPart(sizes.width, sizes)
        self.head = nn.Linear(sizes.width, sizes.classes)

    def forward(self, x):
        return self.head(self.encoder(x))


class StoredPart(nn.Module):
    """Takes one size by itself, the others with the object."""

    def __init__(self, width: int, sizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size=(sizes.features, width)))
        nn.init.normal_(self.weight)
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return self.inner(x @ self.weight)


def plain_sequence() -> nn.Module:
    """A model that is a Sequential, and holds others."""
    return nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.GELU(), nn.Linear(6, 5)), nn.Tanh())


class Row(nn.Module):
    """A convolution over rows."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.conv(x))


class Rows(nn.Module):
    """Blocks of which the first is given the model's input, in torch's order."""

    def __init__(self, channels: int = 4, widths: tuple[int, ...] = (5, 6)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Row(a, b) for a, b in itertools.pairwise([channels, *widths]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class OwnBias(nn.Module):
    """Attention that makes its bias itself, where it has the table and is given none."""

    def __init__(self, width: int, has_bias: bool) -> None:
        super().__init__()
        self.has_bias = has_bias
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        if has_bias:
            self.table = nn.Embedding(20, 1)

    def forward(self, hidden_states, key_states=None, bias=None):
        queries = self.q(hidden_states)
        keys = self.k(hidden_states if key_states is None else key_states)
        scores = queries @ keys.transpose(-1, -2)
        if bias is None:
            if self.has_bias:
                places = torch.arange(scores.shape[-1])
                bias = self.table(places)[:, 0][None]
            else:
                bias = torch.zeros(1, scores.shape[-1])
        scores = (scores + bias).softmax(dim=-1)
        return scores @ keys, bias


class BiasedLayer(nn.Module):
    """Attention to itself, and to others where there are any."""

    def __init__(self, width: int, first: bool, crossed: bool) -> None:
        super().__init__()
        self.attention = OwnBias(width, first)
        if crossed:
            self.cross = OwnBias(width, False)
        self.norm = nn.LayerNorm(width)

    def forward(self, hidden_states, others=None, bias=None, cross_bias=None):
        attended, bias = self.attention(hidden_states, bias=bias)
        hidden_states = hidden_states + attended
        if others is not None:
            attended, cross_bias = self.cross(hidden_states, others, bias=cross_bias)
            hidden_states = hidden_states + attended
        return self.norm(hidden_states), bias, cross_bias


class TwoTowers(nn.Module):
    """Layers of an encoder and of a decoder: the first of each makes what the others are given."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([BiasedLayer(width, index == 0, False) for index in range(3)])
        self.decoder = nn.ModuleList([BiasedLayer(width, index == 0, True) for index in range(2)])

    def forward(self, x, y):
        bias = None
        for layer in self.encoder:
            x, bias, _ = layer(x, bias=bias)
        bias = cross_bias = None
        for layer in self.decoder:
            y, bias, cross_bias = layer(y, x, bias, cross_bias)
        return y


class Stage(nn.Module):
    """A stage that shifts by what its number says, and may end in a layer of its own."""

    def __init__(self, width: int, shift: int, down: bool) -> None:
        super().__init__()
        self.shift = shift
        self.dense = nn.Linear(width, width)
        self.down = nn.Linear(width, width) if down else None

    def forward(self, x):
        if self.shift > 0:
            x = torch.roll(x, self.shift, 1)
        x = torch.tanh(self.dense(x))
        if self.down is not None:
            x = self.down(x)
        return x


class Stages(nn.Module):
    """Stages of all four forms."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        kinds = [(0, True), (2, True), (0, False), (2, False)]
        self.stages = nn.ModuleList([Stage(width, *kind) for kind in kinds])

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x


class Scanned(nn.Module):
    """A loop over data that goes on from turn to turn, as a state space model has it."""

    def __init__(self, width: int = 6, state: int = 4) -> None:
        super().__init__()
        self.width, self.state = width, state
        self.inp = nn.Linear(width, width + 2 * state)
        self.rates = nn.Parameter(torch.rand(width, state))

    def forward(self, x):
        delta, reads, writes = self.inp(x).split([self.width, self.state, self.state], dim=-1)
        return self.selective_scan(x, delta.sigmoid(), self.rates, reads, writes)

    def selective_scan(self, u, delta, rates, reads, writes):
        decay = torch.exp(-torch.einsum("bld,dn->bldn", delta, rates))
        scaled = torch.einsum("bld,bln,bld->bldn", delta, reads, u)
        x = torch.zeros((u.shape[0], u.shape[2], rates.shape[1]))
        ys = []
        for i in range(u.shape[1]):
            x = decay[:, i] * x + scaled[:, i]
            y = torch.einsum("bdn,bn->bd", x, writes[:, i, :])
            ys.append(y)
        return torch.stack(ys, dim=1) + u


class WideState(Scanned):
    """A loop whose state starts in the dtype of the data, and is float32 after the first turn, as Mamba's."""

    def selective_scan(self, u, delta, rates, reads, writes):
        decay = torch.exp(-rates * delta[..., None])
        scaled = delta[..., None] * reads[:, :, None].float() * u[..., None].float()
        x = torch.zeros((u.shape[0], u.shape[2], rates.shape[1]), dtype=u.dtype)
        ys = []
        for i in range(u.shape[1]):
            x = decay[:, i] * x + scaled[:, i]
            y = torch.matmul(x.to(u.dtype), writes[:, i].unsqueeze(-1))
            ys.append(y[:, :, 0])
        return torch.stack(ys, dim=1) + u


class TwoStates(nn.Module):
    """A loop with two states, that begins behind the first part of its data."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.randn(width, width) / 3)

    def forward(self, x):
        h, c = x[0], x[0].cos()
        hs = []
        for i in range(1, x.shape[0]):
            c = 0.5 * c + torch.tanh(x[i] @ self.inner)
            h = torch.sigmoid(h) * c
            hs.append(h)
        return torch.stack(hs), c


class Backwards(nn.Module):
    """Loops that are no scan: from behind, and of what the turn before the last gave."""

    def forward(self, x):
        h = torch.zeros_like(x[0])
        ys = []
        for i in reversed(range(x.shape[0])):
            h = torch.tanh(h + x[i])
            ys.append(h)
        before, now = x[0], x[1]
        for i in range(2, x.shape[0]):
            before, now = now, torch.tanh(before * x[i])
            ys.append(now)
        return torch.stack(ys) + ys[1]


class Quiet(nn.Module):
    """Calls a module where autocast is off, and gives an object that holds tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mlp(4, 6)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            y = self.inner(x)
        return Shift(y, y.sin())


class Routed(nn.Module):
    """Counts tokens of each expert as floats, and marks chosen places along an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 5)

    def forward(self, x, ids):
        scores = self.gate(x)
        chosen = scores.topk(2, dim=-1)[1]
        mask = torch.zeros_like(scores).scatter_(-1, chosen, 1)
        tokens = torch.histc(ids.float(), bins=5, min=0, max=4)
        return mask * scores * tokens


class Changes(nn.Module):
    """Changes tensors in place, and reads before and after; of the last one a view, if it is to."""

    def __init__(self, viewed: bool) -> None:
        super().__init__()
        self.fc, self.viewed = nn.Linear(4, 4), viewed

    def forward(self, x):
        y = self.fc(x)
        before = y * 2
        after = torch.relu_(y)
        seen = y[:, :2] if self.viewed else y
        y += before
        return seen.sum(-1) + after.sum(-1)
