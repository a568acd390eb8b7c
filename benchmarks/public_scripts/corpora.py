"""Small data in the place of what public training scripts download: texts, tokenizers, puzzles.

Each function writes into a copy of the repository. HOME is a folder of it that is the home of the run.
"""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

from scripts import smaller

HOME = "home"
RANDOM_TEXT = "data set and tokenizer: random letters, one token a byte"


def nanochat(repository: Path) -> None:
    """Write random documents and a tokenizer of bytes where nanochat looks for its own."""
    base = repository / HOME / ".cache" / "nanochat"
    _documents(base / "base_data_climbmix", ("shard_00000", "shard_00001"))
    names = ["bos", "user_start", "user_end", "assistant_start", "assistant_end"]
    names += ["python_start", "python_end", "output_start", "output_end"]
    _tokenizer(base / "tokenizer", [f"<|{name}|>" for name in names])


def autoresearch(repository: Path) -> None:
    """Write the same for autoresearch, and make the sizes small that stand in its scripts."""
    smaller(
        ("prepare.py", "MAX_SEQ_LEN = 2048", "MAX_SEQ_LEN = 32"),
        ("train.py", "ASPECT_RATIO = 64", "ASPECT_RATIO = 32"),
        ("train.py", "HEAD_DIM = 128", "HEAD_DIM = 32"),
        ("train.py", "TOTAL_BATCH_SIZE = 2**19", "TOTAL_BATCH_SIZE = 2**7"),
        ("train.py", "DEPTH = 8", "DEPTH = 2"),
        ("train.py", "DEVICE_BATCH_SIZE = 128", "DEVICE_BATCH_SIZE = 2"),
    )(repository)
    base = repository / HOME / ".cache" / "autoresearch"
    _documents(base / "data", ("shard_00000", "shard_06542"))
    _tokenizer(base / "tokenizer", [f"<|reserved_{n}|>" for n in range(4)])


def puzzles(repository: Path) -> None:
    """Write random puzzles: inputs and labels of 9 cells, a puzzle for each identifier."""
    import numpy as np

    draw, count, cells, symbols = np.random.default_rng(0), 256, 9, 5
    facts = {
        "pad_id": 0,
        "ignore_label_id": 0,
        "blank_identifier_id": 0,
        "vocab_size": symbols,
        "seq_len": cells,
        "num_puzzle_identifiers": count + 1,
        "total_groups": count,
        "mean_puzzle_examples": 1.0,
        "total_puzzles": count,
        "sets": ["all"],
    }
    arrays = {
        "inputs": draw.integers(1, symbols, (count, cells)),
        "labels": draw.integers(1, symbols, (count, cells)),
        "puzzle_identifiers": np.arange(1, count + 1),
        "puzzle_indices": np.arange(count + 1),
        "group_indices": np.arange(count + 1),
    }
    for split in ("train", "test"):
        folder = repository / "puzzles" / split
        folder.mkdir(parents=True)
        (folder / "dataset.json").write_text(json.dumps(facts))
        for name, array in arrays.items():
            np.save(folder / f"all__{name}.npy", array.astype(np.int32))


def _documents(folder: Path, names: tuple[str, ...]) -> None:
    """Write files of random documents."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        draw = random.Random(number)
        texts = [
            "".join(draw.choice("abcdefgh ") for _ in range(draw.randrange(5, 60)))
            for _ in range(1200)
        ]
        parquet.write_table(pyarrow.table({"text": texts}), folder / f"{name}.parquet")


def _tokenizer(folder: Path, special: list[str]) -> None:
    """Write a tokenizer of bytes with special tokens, and the number of bytes of each token."""
    import tiktoken
    import torch

    folder.mkdir(parents=True)
    ranks = {bytes([byte]): byte for byte in range(256)}
    tokens = {name: len(ranks) + number for number, name in enumerate(special)}
    pattern = r"[^\r\n]+|[\r\n]+"
    encoding = tiktoken.Encoding(
        name="bytes", pat_str=pattern, mergeable_ranks=ranks, special_tokens=tokens
    )
    with (folder / "tokenizer.pkl").open("wb") as file:
        pickle.dump(encoding, file)
    sizes = torch.tensor([1] * len(ranks) + [0] * len(special), dtype=torch.int32)
    torch.save(sizes, folder / "token_bytes.pt")
