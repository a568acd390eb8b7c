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
WRITER = '''\
def get_summary_writer(logdir):
    """Return a writer for TensorBoard, or None without a folder."""
    if not logdir:
        return None
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(log_dir=logdir)
    {write_to_summary}(writer, 0, {"TensorboardStartTimestamp": {time}.time()})
    return writer
'''
SUMMARY = '''\
def write_to_summary(summary_writer, global_step=None, dict_to_write={}):
    """Write numbers to TensorBoard, if there is a writer."""
    if summary_writer is not None:
        for name, value in dict_to_write.items():
            summary_writer.add_scalar(name, value, global_step)
'''
CLOSE = '''\
def close_summary_writer(summary_writer):
    """Close a writer for TensorBoard, if there is one."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()
'''
RANK = '''\
def rank_of_process():
    """Return the rank, also before there is a process group."""
    return {dist}.get_rank() if {dist}.is_initialized() else 0
'''
NOW = '''\
def now(format="%H:%M:%S"):
    """Return the time of day as text."""
    return {datetime}.datetime.now().strftime(format)
'''
TRAINING = '''\
def print_training_update(device, step, loss, rate, global_rate, epoch=None, summary_writer=None):
    """Print the loss of a step and the items per second."""
    words = [f"| Training Device={device}/{{rank_of_process}()}"]
    if epoch is not None:
        words.append(f"Epoch={epoch}")
    words.append(f"Step={step} Loss={loss:.5f} Rate={rate:.2f} GlobalRate={global_rate:.2f}")
    print(*words, f"Time={{now}()}", flush=True)
    rates = {"examples/sec": rate, "average_examples/sec": global_rate}
    {write_to_summary}(summary_writer, None, rates)
'''
TEST = '''\
def print_test_update(device, accuracy, epoch=None, step=None):
    """Print the accuracy of an evaluation."""
    words = [f"| Test Device={device}/{{rank_of_process}()}"]
    if step is not None:
        words.append(f"Step={step}")
    if epoch is not None:
        words.append(f"Epoch={epoch}")
    if accuracy is not None:
        words.append(f"Accuracy={accuracy:.2f}")
    print(*words, f"Time={{now}()}", flush=True)
'''
