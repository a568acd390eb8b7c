"""What XLA makes of the names of torch.cuda."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ignored:
    """A call that only tells CUDA something: XLA has no use for it, so the rewrite takes it out.

    Args:
        name: its qualified name.
        harmless: whether it does nothing where there is no GPU (measured, torch 2.9): the portable style
            keeps it as it stands then, and else leaves it to CUDA.
    """

    name: str
    harmless: bool = False


# These only tell the CUDA allocator something.
IGNORED = (
    Ignored("torch.cuda.empty_cache", harmless=True),
    Ignored("torch.cuda.init"),
    Ignored("torch.cuda.ipc_collect"),
    Ignored("torch.cuda.memory.empty_cache", harmless=True),
    Ignored("torch.cuda.memory.reset_peak_memory_stats"),
    Ignored("torch.cuda.reset_accumulated_memory_stats"),
    Ignored("torch.cuda.reset_max_memory_allocated"),
    Ignored("torch.cuda.reset_max_memory_cached"),
    Ignored("torch.cuda.reset_peak_memory_stats"),
    Ignored("torch.cuda.set_per_process_memory_fraction"),
)
# What does something, or answers something, and nothing where there is no GPU (measured, torch 2.9).
QUIET = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "get_rng_state_all",
        "is_initialized",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "set_rng_state_all",
        "stream",  # of None
    )
)
# Of torch.cuda, what does nothing where there is no GPU: the portable style keeps it.
HARMLESS = QUIET | {one.name for one in IGNORED if one.harmless}
