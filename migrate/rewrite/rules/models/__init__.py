"""Models and what wraps them: DDP, FSDP, compilation, shared weights."""
