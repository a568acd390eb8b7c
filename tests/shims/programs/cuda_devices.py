"""Ask a CUDA machine of two devices for everything that training scripts ask for."""

import sys
import threading
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
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
    for device, shown in (
        (0, "cuda:0"),
        (1, "cuda:1"),
        ("cuda", "cuda:0"),
        ("cuda:1", "cuda:1"),
        (CUDA, "cuda:1"),
        (torch.device("cuda"), "cuda:0"),
    ):
        assert torch.equal(source.to(device), source)
        assert torch.equal(source.to(device=device, dtype=torch.float64), source.double())
        assert source.to(device, torch.float16, non_blocking=True).dtype == torch.float16
        assert torch.tensor([1], device=device).dtype == torch.int64
        assert torch.randn(2, 3, device=device, requires_grad=True).requires_grad
        for made in (
            source.to(device),
            torch.zeros(2, device=device),
            torch.zeros_like(source, device=device),
            next(nn.Linear(2, 2).to(device).parameters()),
            source.cuda(device, non_blocking=True) * 2,
            nn.Linear(2, 2, device=device).weight.detach()[0],
            nn.Linear(4, 2).cuda(device)(source.to(device)),
        ):
            assert str(made.device) == shown
            assert made.is_cuda
            assert not made.cpu().is_cuda
    assert nn.Linear(2, 2).to("cuda", torch.float64).weight.dtype == torch.float64
    assert source.to(torch.int32).dtype == torch.int32
    assert torch.equal(source.pin_memory(), source)
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
    torch.set_default_device("cuda:1")
    assert str(torch.ones(2).device) == "cuda:1"
    torch.set_default_device(None)
    assert not torch.ones(2).is_cuda


def check_copies():
    source = torch.arange(4.0)
    moved = source.cuda()
    moved += 1
    assert source.tolist() == [0, 1, 2, 3]
    assert moved.cuda() is moved or moved.cuda().data_ptr() == moved.data_ptr()
    back = moved.cpu()
    moved.zero_()
    assert back.tolist() == [1, 2, 3, 4]
    assert moved.to(torch.float64).is_cuda
    assert not moved.to("cpu", torch.float64).is_cuda
    kept = nn.Linear(2, 2)
    before = kept.weight.data
    weight = kept.weight
    kept.cuda()
    assert kept.weight is weight
    assert kept.weight.is_cuda
    assert before.data_ptr() != kept.weight.data_ptr()


def check_typed_tensors():
    assert torch.cuda.FloatTensor([1, 2]).type() == "torch.cuda.FloatTensor"
    assert torch.cuda.IntTensor(2, 3).shape == (2, 3)
    assert torch.ones(2).half().cuda().type() == "torch.cuda.HalfTensor"
    assert torch.ones(2).type() == "torch.FloatTensor"
    assert torch.ones(2).type(torch.cuda.LongTensor).dtype == torch.int64
    assert torch.ones(2).type("torch.cuda.LongTensor").is_cuda
    assert not torch.ones(2).cuda().type("torch.LongTensor").is_cuda
    assert isinstance(torch.ones(2).cuda(), torch.cuda.FloatTensor)
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)


def check_streams():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before = time.perf_counter()
    start.record()
    time.sleep(0.05)  # slow: what is measured
    end.record()
    torch.cuda.synchronize()
    assert 50 <= start.elapsed_time(end) <= 1000 * (time.perf_counter() - before)  # its own time
    raises("untimed", "enable_timing", lambda: torch.cuda.Event().elapsed_time(end))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        batch = torch.ones(3).cuda(non_blocking=True)
    batch.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    torch.cuda.nvtx.range_push("step")
    assert torch.cuda.nvtx.range_pop() == 0
    with torch.cuda.nvtx.range("step {}", 1):
        pass


def check_memory():
    before = torch.cuda.memory_allocated()
    block = torch.ones(1 << 24).cuda()
    assert torch.cuda.memory_allocated() - before > 60e6
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    del block
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() < before + 60e6
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total == torch.cuda.get_device_properties(0).total_memory
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] > 0
    raises("retries", "num_alloc_retries", lambda: torch.cuda.memory_stats()["num_alloc_retries"])


def check_generators():
    torch.manual_seed(3)
    first = torch.rand(4, device="cuda")
    on_host = torch.rand(4)
    torch.manual_seed(3)
    # A draw on the device leaves the host's generator alone.
    assert torch.equal(torch.rand(4), on_host)
    state = torch.cuda.get_rng_state()
    dropped = nn.functional.dropout(torch.ones(100).cuda())
    torch.cuda.set_rng_state(state)
    assert torch.equal(nn.functional.dropout(torch.ones(100).cuda()), dropped)
    torch.cuda.manual_seed_all(3)
    assert torch.equal(torch.rand(4, device="cuda"), first)
    assert torch.equal(torch.rand(4, device="cuda:1"), first)
    assert len(torch.cuda.get_rng_state_all()) == 2
    assert torch.cuda.initial_seed() == 3
    # An IndexError where torch has no driver.
    assert torch.equal(torch.cuda.default_generators[1].get_state(), torch.cuda.get_rng_state(1))
    for reentrant in (False, True):
        start = torch.ones(1000, device="cuda", requires_grad=True)
        out = checkpoint(nn.functional.dropout, start * 1, use_reentrant=reentrant)
        out.sum().backward()
        assert torch.equal(start.grad, out.detach())


def check_amp_and_optimizers():
    for fused in ({"fused": True}, {"foreach": True}, {}):
        model = nn.Linear(2, 2).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), **fused)
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.get_autocast_gpu_dtype() == torch.bfloat16
            assert torch.is_autocast_enabled()
            loss = model(torch.ones(1, 2).cuda()).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert [flag.item() for flag in scaler._found_inf_per_device(optimizer).values()] == [0]
        before = model.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert not torch.equal(model.weight, before)
        assert scaler.state_dict()["scale"] == 8.0
    # An infinite gradient: the step is left out and the scale halved.
    optimizer.zero_grad()
    before = model.weight.detach().clone()
    scaler.scale(model(torch.full((1, 2), float("inf")).cuda()).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)
    again = torch.amp.GradScaler("cuda")
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 4.0
    compiled = torch.compile(model)
    assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
    assert compiled(torch.ones(1, 2).cuda()).shape == (1, 2)
    assert torch.compile(lambda value: value + 1, mode="max-autotune")(torch.ones(1)) == 2
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True


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
    at_one = torch.load("weights.pt", map_location="cuda:1")["weight"]
    assert str(at_one.device) == "cuda:1"
    by_storage = torch.load("weights.pt", map_location=lambda storage, at: storage.cuda(1))
    assert by_storage["weight"].is_cuda
    # A moved tensor is written as it would be without the shims.
    torch.save(torch.ones(2).cuda(), "moved.pt")
    torch.save(torch.ones(2), "plain.pt")
    with open("moved.pt", "rb") as one, open("plain.pt", "rb") as other:
        assert len(one.read()) == len(other.read())


def check_autocast():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with torch.autocast(device_type="cuda"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16
        with torch.autocast("cuda", dtype=torch.float32):
            low = torch.ones(2, 2, dtype=torch.bfloat16)
            assert (low @ low).dtype == torch.float32


def check_what_stays_an_error():
    tensor = torch.ones(2)
    raises("cuda:2", "invalid device ordinal 2", lambda: tensor.to("cuda:2"))
    raises("2", "invalid device ordinal 2", lambda: torch.zeros(2, device=2))
    raises("set_device", "invalid device ordinal 2", lambda: torch.cuda.set_device(2))
    raises("cuda(2)", "invalid device ordinal 2", lambda: tensor.cuda(2))
    raises("map_location", "invalid device", lambda: torch.load("weights.pt", "cuda:5"))
    raises("graph", "without a CUDA graph", lambda: torch.cuda.graph(None))
    raises("temperature", "cuda_devices.py", torch.cuda.temperature)
    raises("clock", "L2", lambda: torch.cuda.get_device_properties(0).L2_cache_size)
    raises("pointer", "no CUDA stream", lambda: torch.cuda.Stream().cuda_stream)
    raises("another device type", "RuntimeError", lambda: tensor.to("mps"))


if __name__ == "__main__":
    check_counts()
    check_moves()
    check_copies()
    check_typed_tensors()
    check_streams()
    check_memory()
    check_generators()
    check_amp_and_optimizers()
    check_threads()
    check_loader()
    check_files()
    check_autocast()
    check_what_stays_an_error()
    sys.stdout.write("all devices answered\n")
