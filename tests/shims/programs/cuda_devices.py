"""Ask a CUDA machine of two devices for everything that training scripts ask for."""

import sys
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CUDA = torch.device("cuda", 1)


def raises(name, expected, call):
    try:
        answer = call()
    except Exception as error:
        if expected not in f"{type(error).__name__}: {error}":
            raise
        return
    raise AssertionError(f"{name} was answered: {answer}")


def check_counts():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(1)
    assert torch.cuda.current_device() == 1
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
    assert torch.cuda.current_device() == 1
    torch.cuda.set_device("cuda:0")
    torch.cuda.synchronize()
    torch.cuda.manual_seed_all(0)


def check_moves():
    source = torch.arange(4.0)
    for device in (0, 1, "cuda", "cuda:1", CUDA, torch.device("cuda")):
        assert torch.equal(source.to(device), source)
        assert torch.equal(source.to(device=device, dtype=torch.float64), source.double())
        assert source.to(device, torch.float16, non_blocking=True).dtype == torch.float16
        assert torch.zeros(2, device=device).device.type == "cpu"
        assert torch.tensor([1], device=device).dtype == torch.int64
        assert torch.randn(2, 3, device=device, requires_grad=True).requires_grad
        assert torch.zeros_like(source, device=device).shape == (4,)
        assert next(nn.Linear(2, 2).to(device).parameters()).device.type == "cpu"
        assert source.cuda(device, non_blocking=True).device.type == "cpu"
        assert nn.Linear(2, 2, device=device).weight.device.type == "cpu"
    assert nn.Linear(2, 2).cuda(1)(torch.ones(1, 2).cuda()).shape == (1, 2)
    assert nn.Linear(2, 2).to("cuda", torch.float64).weight.dtype == torch.float64
    assert source.to(torch.int32).dtype == torch.int32
    assert torch.equal(source.pin_memory(), source)
    with torch.device("cuda"):
        assert torch.ones(2).device.type == "cpu"
    torch.set_default_device("cuda:1")
    assert torch.ones(2).device.type == "cpu"
    torch.set_default_device(None)


def check_threads():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.ones(2, device="cuda:1").sum()))
    thread.start()
    thread.join()
    assert seen == [torch.tensor(2.0)]


def check_loader():
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2, pin_memory=True)
    assert [batch[0].sum().item() for batch in loader] == [1.0, 5.0, 9.0]


def check_files():
    torch.save({"weight": torch.ones(2)}, "weights.pt")
    for place in (None, "cuda:1", "cpu", CUDA, {"cuda:0": "cuda:1"}, lambda storage, at: storage):
        assert torch.equal(torch.load("weights.pt", map_location=place)["weight"], torch.ones(2))


def check_autocast():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with torch.autocast(device_type="cuda"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16


def check_what_stays_an_error():
    tensor = torch.ones(2)
    raises("cuda:2", "invalid device ordinal 2", lambda: tensor.to("cuda:2"))
    raises("2", "invalid device ordinal 2", lambda: torch.zeros(2, device=2))
    raises("set_device", "invalid device ordinal 2", lambda: torch.cuda.set_device(2))
    raises("cuda(2)", "invalid device ordinal 2", lambda: tensor.cuda(2))
    raises("map_location", "invalid device", lambda: torch.load("weights.pt", "cuda:5"))
    raises("memory", "DeviceNotAnswered", torch.cuda.memory_allocated)
    # torch's own errors, of one kind or another depending on how it was built.
    raises("properties", "Error", lambda: torch.cuda.get_device_properties(0))
    raises("stream", "Error", torch.cuda.Stream)
    raises("rng state", "Error", torch.cuda.get_rng_state)
    raises("another device type", "RuntimeError", lambda: tensor.to("mps"))


if __name__ == "__main__":
    check_counts()
    check_moves()
    check_threads()
    check_loader()
    check_files()
    check_autocast()
    check_what_stays_an_error()
    sys.stdout.write("all devices answered\n")
