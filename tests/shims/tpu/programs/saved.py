"""Save what lies on CUDA, as unedited CUDA code does, and load it where there is no device."""

import sys

import torch
from torch import nn


class Named(dict):
    pass


class Holder:
    def __init__(self, weight):
        self.weight = weight


def save(path, zipped):
    weight = torch.arange(6.0, device="cuda").reshape(2, 3)
    weight.add_(1)
    row = weight[1]
    row.mul_(2)
    norm = nn.BatchNorm1d(3).cuda()
    saved = {
        "state": norm.state_dict(),
        "module": norm,
        "parameter": nn.Parameter(weight.clone(), requires_grad=False),
        "named": Named(weight=weight),
        "holder": Holder(weight),
        "weight": weight,
        "row": row,
        "turned": weight.t(),
    }
    torch.save(saved, path, _use_new_zipfile_serialization=zipped)
    # The program keeps what it has.
    assert weight.is_cuda
    assert saved["holder"].weight is weight
    assert next(norm.parameters()).is_cuda


def load(path):
    saved = torch.load(path, weights_only=False)
    want = torch.tensor([[1.0, 2.0, 3.0], [8.0, 10.0, 12.0]])
    weight = saved["weight"]
    assert saved["state"]._metadata[""]["version"] == 2
    assert type(saved["module"]) is nn.BatchNorm1d
    assert type(saved["parameter"]) is nn.Parameter
    assert not saved["parameter"].requires_grad
    assert type(saved["named"]) is Named
    assert saved["named"]["weight"] is weight
    assert type(saved["holder"]) is Holder
    assert saved["holder"].weight is weight
    assert torch.equal(weight, want)
    assert torch.equal(saved["parameter"], want)
    assert torch.equal(saved["turned"], want.t())
    assert saved["turned"].stride() == (1, 3)
    for name in ("row", "turned"):
        # A view stays a view.
        assert saved[name].untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
    tensors = [*saved["state"].values(), *saved["module"].state_dict().values()]
    tensors += [weight, saved["parameter"], saved["row"], saved["turned"]]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert torch.equal(saved["module"].running_var, torch.ones(3))


if sys.argv[1] == "load":
    load(sys.argv[2])
else:
    save(sys.argv[2], sys.argv[1] == "zip")
