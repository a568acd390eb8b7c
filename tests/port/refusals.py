"""Refusals of the ports' own functions."""


def no_place(model: str, *paths: str) -> str:
    """Return how a port refuses arrays that its model has no place for, up to the remedy."""
    return f"{model} has no place for {', '.join(paths)}"
