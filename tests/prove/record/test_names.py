"""The models of a running program, found among all of its modules."""

from __future__ import annotations

import torch

from migrate.prove.record.names import parameter_names, roots


class Outer(torch.nn.Module):
    def __init__(self, *inside: torch.nn.Module) -> None:
        super().__init__()
        for number, module in enumerate(inside):
            self.add_module(f"part{number}", module)


class Unsized(Outer):
    """A module without a truth value, as torch.compile makes them from torch 2.13 on."""

    def __len__(self) -> int:
        raise TypeError("Linear does not support len()")


def test_a_module_without_a_truth_value_is_a_child_as_others() -> None:
    layer, empty = torch.nn.Linear(2, 2), torch.nn.ModuleList()
    inside = Unsized(layer)
    outer = Outer(inside, empty)
    models = roots(dict(enumerate((layer, empty, inside, outer))))
    assert models == {"": outer}
    assert set(parameter_names(models).values()) == {"part0.part0.weight", "part0.part0.bias"}
