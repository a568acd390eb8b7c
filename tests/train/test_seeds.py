"""Runs of a script that does not seed torch."""

from __future__ import annotations

import torch

from migrate.train.watch.seeds import seed_torch, unseeded


def test_the_runs_of_a_script_have_one_seed_until_it_seeds_itself() -> None:
    with torch.random.fork_rng(devices=[]):
        seed_torch()
        assert unseeded()
        first = torch.rand(3)
        seed_torch()
        assert torch.equal(torch.rand(3), first)
        torch.manual_seed(3)
        assert not unseeded()
