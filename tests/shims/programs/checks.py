"""How the programs of this folder say that a value is right, or a call refused."""

import sys

import torch
import torch_xla.runtime as xr


def same(name, got, want):
    want = torch.as_tensor(want)
    got = got.detach().cpu()
    if got.dtype != want.dtype or not torch.equal(got, want):
        raise AssertionError(f"{name}: {got.dtype} {got}, not {want.dtype} {want}")


def refused(name, errors, call):
    try:
        call()
    except errors as error:
        if xr.global_ordinal() == 0:
            sys.stdout.write(f"refused {name}: {type(error).__name__}: {error}\n")
        return
    raise AssertionError(f"{name} was accepted")
