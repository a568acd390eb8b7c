"""Functions and classes that replace those of torch_xla: source text, with names of modules in braces."""

from __future__ import annotations

LOADER = '''\
class DeviceLoader:
    """Batches of a loader, each moved to the device."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        return map(self.moved, self.loader)

    def moved(self, batch):
        if hasattr(batch, "to"):
            return batch.to(self.device)
        if isinstance(batch, {abc}.Mapping):
            return type(batch)({key: self.moved(value) for key, value in batch.items()})
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(self.moved, batch))
        if isinstance(batch, (list, tuple)):
            return type(batch)(map(self.moved, batch))
        return batch
'''
RATE = '''\
class RateTracker:
    """Items per second: smoothed since the last question, and since the start."""

    def __init__(self, smooth_factor=0.4):
        self.smooth_factor = smooth_factor
        self.start = self.last = {time}.time()
        self.before = self.count = 0
        self.smoothed = None

    def add(self, count):
        self.count += count

    def rate(self):
        now = {time}.time()
        if now <= self.last:
            return 0.0
        rate = self.count / (now - self.last)
        if self.smoothed is not None:
            rate += self.smooth_factor * (self.smoothed - rate)
        self.before, self.count = self.before + self.count, 0
        self.last, self.smoothed = now, rate
        return rate

    def global_rate(self):
        return (self.before + self.count) / max({time}.time() - self.start, 1e-9)
'''
SAMPLES = '''\
class SampleGenerator:
    """The same batch, so many times."""

    def __init__(self, data, sample_count):
        self.data, self.sample_count = data, sample_count

    def __len__(self):
        return self.sample_count

    def __iter__(self):
        for _ in range(self.sample_count):
            yield self.data
'''
AVERAGE = '''\
def average_gradients(optimizer):
    """Give each gradient of the optimizer its average over the ranks."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                {dist}.all_reduce(parameter.grad)
                parameter.grad.div_({dist}.get_world_size())
'''
BROADCAST = '''\
def broadcast_weights(model):
    """Give all ranks the parameters and buffers of the first rank."""
    for tensor in [*model.parameters(), *model.buffers()]:
        {dist}.broadcast(tensor.data, 0)
'''
GROUP = '''\
@{functools}.cache
def gloo_group():
    """Return the group that carries Python objects."""
    return {dist}.new_group(backend="gloo")
'''
MESH_REDUCE = '''\
def mesh_reduce(data, function):
    """Return what a function makes of the list of all ranks' data."""
    values = [None] * {dist}.get_world_size()
    data = data.cpu() if isinstance(data, {torch}.Tensor) else data
    {dist}.all_gather_object(values, data, group={gloo_group}())
    return function(values)
'''
ALL_REDUCE = '''\
def all_reduce(kind, inputs, scale=1.0):
    """Reduce tensors over the ranks: a list in place, one tensor into a new one."""
    alone = isinstance(inputs, {torch}.Tensor)
    reduced = [inputs.detach().clone()] if alone else inputs
    for tensor in reduced:
        {dist}.all_reduce(tensor, kind)
        if scale != 1.0:
            tensor.mul_(scale)
    return reduced[0] if alone else None
'''
