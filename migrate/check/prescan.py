"""Decide from the bytes of a file that it holds no hazard, so that it need not be parsed."""

from __future__ import annotations

from migrate.catalogue import catalogue
from migrate.catalogue.prescan import seen_by
from migrate.model.facts import ModuleCalls

# Each hazard needs one of these names in the file: of the library, of CUDA or of NCCL, a name with a hazard
# in the catalogue, or a method that matters only in a file that also names torch.
WORDS = seen_by(
    rb"torch|cuda|CUDA|faiss|sentence_transformers|whisper|pipeline\(|nccl|nvidia|XLA_USE_BF16"
    rb"|XLA_DOWNCAST_BF16|attn_implementation|migrate: ignore",
    (entry for entry in catalogue.IMPORTS.values() if entry.code),
)


def may_hold_hazards(data: bytes) -> bool:
    """Whether a file with the bytes `data` must be parsed."""
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return utf16 or WORDS.search(data) is not None


def is_handed_hazards(calls: ModuleCalls | None) -> bool:
    """Whether a file uses names with possible hazards through other files: `comm.barrier()`."""
    if calls is None:
        return False
    names = "\n".join((*calls.reexported.values(), *calls.stars.values()))
    return may_hold_hazards(names.encode())
