"""One process with several CUDA devices: generators of a device, nn.DataParallel, torch.cuda.comm."""

import copy
import sys

import torch
from torch import nn
from torch.cuda import comm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, scale=1.0):
        return {"y": self.norm(self.fc(x)) * scale, "rows": [x.sum(), None]}


def check_generators():
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert str(generator.device) == "cuda:0"
    assert str(torch.Generator("cuda:1").device) == "cuda:1"
    assert str(torch.Generator().device) == "cpu"
    drawn = torch.randn(4, device="cuda", generator=generator)
    host = torch.Generator().manual_seed(3)
    assert torch.equal(torch.randn(4, generator=host), drawn.cpu())
    made = (
        drawn,
        torch.empty(4, device="cuda").normal_(generator=generator),
        torch.randperm(5, device="cuda", generator=generator),
        torch.multinomial(torch.ones(5).cuda(), 3, generator=generator),
        torch.bernoulli(torch.full((3,), 0.5).cuda(), generator=generator),
        torch.randint(9, (2,), device="cuda", generator=generator),
    )
    assert all(one.is_cuda for one in made)
    state = generator.get_state()
    first = torch.rand(2, device="cuda", generator=generator).cpu()
    generator.set_state(state)
    assert torch.equal(first, torch.rand(2, device="cuda", generator=generator).cpu())


def check_data_parallel():
    torch.manual_seed(0)
    net = Net()
    alone = copy.deepcopy(net)
    model = nn.DataParallel(net).cuda()
    x = torch.randn(24, 4)
    made = model(x.cuda(), scale=2.0)
    assert made["y"].is_cuda
    assert made["rows"][0].shape == (2,)
    # The square of what is normalized is a constant: its gradient is rounding and nothing else.
    made["y"].pow(3).mean().backward()
    # The second device normalizes by its own part and starts from the same statistics.
    other = copy.deepcopy(alone)
    first, second = x.chunk(2)
    wanted = torch.cat((alone(first, scale=2.0)["y"], other(second, scale=2.0)["y"]))
    assert torch.allclose(wanted, made["y"].cpu(), atol=1e-5)
    wanted.pow(3).mean().backward()
    gradient = alone.fc.weight.grad + other.fc.weight.grad
    assert torch.allclose(gradient, net.fc.weight.grad.cpu(), atol=1e-4)
    assert torch.allclose(net.norm.running_mean.cpu(), alone.norm.running_mean, atol=1e-6)
    assert int(net.norm.num_batches_tracked) == 1
    model.eval()
    assert model(x[:1].cuda())["y"].shape == (1, 4)
    assert nn.parallel.data_parallel(net, x.cuda())["y"].shape == (24, 4)
    refused(lambda: nn.parallel.replicate(net, [0, 1]), "DeviceNotAnsweredError")
    refused(lambda: nn.DataParallel(Net())(x.cuda()), "RuntimeError: module must have its param")


def refused(call, expected):
    try:
        call()
    except Exception as error:
        if f"{type(error).__name__}: {error}".startswith(expected):
            return
        raise
    raise AssertionError(expected)


def check_comm():
    x = torch.arange(4.0).cuda()
    assert [part.tolist() for part in comm.scatter(x, [0, 1])] == [[0, 1], [2, 3]]
    assert [len(part) for part in comm.scatter(x, [0, 1], [1, 3])] == [1, 3]
    assert comm.gather([x, x]).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert comm.reduce_add([x, x]).tolist() == [0, 2, 4, 6]
    assert comm.reduce_add_coalesced([[x], [x]])[0].tolist() == [0, 2, 4, 6]
    copies = comm.broadcast(x, (0, 1))
    copies[0].zero_()
    assert copies[1].tolist() == x.tolist() == [0, 1, 2, 3]
    assert [one[0].tolist() for one in comm.broadcast_coalesced([x], (0, 1))] == [[0, 1, 2, 3]] * 2


check_generators()
check_data_parallel()
check_comm()
sys.stdout.write("one process is right\n")
