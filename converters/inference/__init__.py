"""Which layer each key belongs to, without a module: from names, shapes and companions.

    inference = infer(checkpoint.infos, parse_assumptions(["tok.*=Embedding", "heads=8"]))
    plan = make_plan(checkpoint.source, checkpoint.infos, inference.slots)

Each guess has its evidence and its confidence. What is ambiguous is refused until the user decides it.
"""

from converters.inference.assume import Assumptions, parse_assumptions
from converters.inference.guess import Confidence, GroupGuess, Guess
from converters.inference.infer import Inference, infer

__all__ = [
    "Assumptions",
    "Confidence",
    "GroupGuess",
    "Guess",
    "Inference",
    "infer",
    "parse_assumptions",
]
