"""Settings of the original's generation, and those of them that `generate.py` lacks."""

from __future__ import annotations

from typing import Any

from migrate.port.generation.text import Ends

# Settings that change which tokens greedy search gives, and their value that changes nothing.
_PLAIN = {
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "forced_decoder_ids": None,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "guidance_scale": 1.0,
    "penalty_alpha": 0.0,
    "diversity_penalty": 0.0,
    "typical_p": 1.0,
    "min_p": 0.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "return_timestamps": False,
}
# Settings of sampling, which `generate` takes as arguments.
_SAMPLING = ("do_sample", "temperature", "top_k", "top_p")


def ends_of(model: Any, encoder: bool) -> tuple[Ends, list[str]]:
    """The defaults of the original's generation, and notes on its other settings."""
    config = model.generation_config
    eos = config.eos_token_id
    ids = () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)
    pad = config.pad_token_id
    start = None
    if encoder:
        start = config.decoder_start_token_id
        start = config.bos_token_id if start is None else start
    ends = Ends(
        ids,
        (ids[0] if ids else 0) if pad is None else int(pad),
        start,
        tuple(getattr(config, "suppress_tokens", None) or ()),
        tuple(getattr(config, "begin_suppress_tokens", None) or ()),
    )
    left = {
        name: value
        for name, plain in _PLAIN.items()
        if (value := getattr(config, name, None)) not in (None, plain) and value is not False
    }
    notes = [
        f"generate.py lacks a setting of the original's generation: {name}={value!r}"
        for name, value in left.items()
    ]
    sampling = {
        name: value for name in _SAMPLING if (value := getattr(config, name, None)) is not None
    }
    if sampling.get("do_sample"):
        said = ", ".join(f"{name}={value!r}" for name, value in sampling.items())
        notes.append(
            f"the original samples by default ({said}): pass these and a key to generate()"
        )
    return ends, notes
