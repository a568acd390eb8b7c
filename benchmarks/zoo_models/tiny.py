# ruff: noqa: N802, N806
"""Generic tiny-config + dummy-input builder for HF transformers v5 (no downloads)."""

import dataclasses
import inspect
import re
import sys

import torch
from transformers import PreTrainedConfig

H, INTER, HEADS, HD, VOCAB, POS, IMG, SEQ, B = 32, 64, 4, 8, 128, 64, 64, 16, 2


def R(p):
    return re.compile(p)


RULES = [
    (R(r"num_conv_layers"), None),
    (R(r"n_groups$"), lambda v: 1),
    (R(r"num_pos_feats"), lambda v: H // 2),
    (R(r"^coordinate_size$"), lambda v: 4),
    (R(r"^shape_size$"), lambda v: 8),
    (R(r"^window_size$"), lambda v: 2 if v in (7, 8) else v),
    (
        R(r"d_latents|^num_latents"),
        lambda v: min(v, 32),
    ),  # (regex on field name, fn(old)->new); first match wins; applied to ints only
    (
        R(
            r"kernel|stride|padding|dilation|bucket|sampling_rate|_period|_offset|temporal|label|bins|factor|num_channels|merge_size|loss|cost|mask_|^number_of_conv|_steps|_iters|chunk|theta|temperature|langs|^num_codebooks|scale|_levels|_points|hc_mult|compress|num_mel|ignore|_groups$|_width$|expan|expand|ratio|rel_extent|d_rel"
        ),
        None,
    ),
    (R(r"vocab"), lambda v: min(v, VOCAB)),
    (
        R(
            r"(qk_rope_head_dim|qk_nope_head_dim|v_head_dim|head_dim|^d_kv|d_head|head_size|kv_channels|rotary_dim)"
        ),
        lambda v: min(v, HD),
    ),
    (R(r"rank"), lambda v: min(v, 16)),
    (R(r"(heads|n_head|n_heads|attention_heads)$"), lambda v: min(v, HEADS)),
    (R(r"first_k_dense|num_dense_layers|moe_layer_start"), lambda v: min(v, 1)),
    (
        R(
            r"(layers|n_layer|depth|num_blocks|n_block|num_hidden_layers|layers_per_stage|num_layers|_blocks)$"
        ),
        lambda v: min(v, NL[0]),
    ),
    (R(r"(intermediate|ffn|d_ff|mlp_dim|d_inner|feedforward|mlp_hidden)"), lambda v: min(v, INTER)),
    (
        R(
            r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts|n_experts|num_moe_experts)$"
        ),
        lambda v: min(v, 4),
    ),
    (R(r"(per_tok|per_token|topk$|top_k$|experts_top)"), lambda v: min(v, 2)),
    (R(r"^n_group$|^topk_group$|num_expert_group"), lambda v: 1),
    (R(r"relative|rel_pos"), None),
    (R(r"position|n_ctx|context_length|max_seq_len|max_length"), lambda v: min(v, POS)),
    (R(r"(image_size|img_size|input_size|pretrain_image_size)$"), lambda v: IMG if v >= 64 else v),
    (R(r"patch_size$"), lambda v: min(v, 8)),
    (
        R(
            r"num_queries|query_tokens|query_num|num_latents|num_query|image_seq_length|tokens_per_image|image_token_num"
        ),
        lambda v: min(v, 16),
    ),
    (R(r"sliding_window|window"), lambda v: min(v, 8) if v > 64 else v),
    (
        R(
            r"(size|dim|dims|width|channels|units|hidden|embd|embed|features|planes|filters|d_model|n_embd|d_state|state_size|n_inner)$"
        ),
        lambda v: min(v, H),
    ),
]
TYPES = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")


def rule(name, v):
    for rx, fn in RULES:
        if rx.search(name):
            return v if fn is None else fn(v)
    return v


def names_defaults(cls):
    out = {}
    if dataclasses.is_dataclass(cls):
        for f in dataclasses.fields(cls):
            if f.default is not dataclasses.MISSING:
                out[f.name] = f.default
            elif f.default_factory is not dataclasses.MISSING:
                out[f.name] = f.default_factory()
            else:
                out[f.name] = None
    sig = cls.__init__
    try:
        for p in inspect.signature(sig).parameters.values():
            if p.name in ("self", "args", "kwargs") or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                continue
            out.setdefault(p.name, None if p.default is inspect._empty else p.default)
    except Exception:
        pass
    return out


BASE = {
    "id2label",
    "label2id",
    "num_labels",
    "architectures",
    "dtype",
    "return_dict",
    "output_hidden_states",
    "transformers_version",
    "chunk_size_feed_forward",
    "problem_type",
    "model_type",
    "is_encoder_decoder",
    "tie_word_embeddings",
}
MAX_LEVEL = 2
NL = [2]
NONE_FILL = {
    "vocab_size": 128,
    "prediction_length": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
}
OVERRIDE = {  # the few that no naming rule can know
    "mamba2": {"num_heads": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    # with fewer, all of a key's scores are often 0: a choice among equal ones
    "mistral_large4_text": {"index_n_heads": 16},
    "esm": {"pad_token_id": 0, "mask_token_id": 100},
    "gemma3_text+bidir": {"use_bidirectional_attention": True},
    "reformer": {
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 8],
        "lsh_attn_chunk_length": 8,
        "local_attn_chunk_length": 8,
    },
}


def tiny(cls, level=0, init=None, ctr=None):
    ctr = ctr if ctr is not None else [100]
    init = dict(init or {})
    c0 = cls(**init)
    defs = names_defaults(cls)
    specs = getattr(cls, "sub_configs_defaults", None) or {}
    kw = dict(init)
    # one layer of each kind, so that hybrids keep all of their block kinds
    NL[0] = (
        2
        if any(
            re.search("period|step|freq|every|interval|first_k|num_dense|pattern|no_rope|sparse", k)
            for k in defs
        )
        else 1
    )
    L = NL[0]
    tl = {}
    for t in TYPES:
        v = getattr(c0, t, None)
        if isinstance(v, (list, tuple)) and v and isinstance(v[0], str):
            tl[t] = list(dict.fromkeys(v))
            L = max(L, len(tl[t]))
    heads0 = getattr(c0, "num_attention_heads", None)
    for n, d in defs.items():
        if n in BASE or n.startswith("_"):
            continue
        try:
            v = getattr(c0, n)
        except Exception:
            continue
        if isinstance(v, PreTrainedConfig):
            sp = specs.get(n)
            if (
                type(v).__name__ == "TimmBackboneConfig"
            ):  # timm is absent: a ResNet backbone stands in
                from transformers import ResNetConfig

                kw[n] = ResNetConfig(
                    embedding_size=H,
                    hidden_sizes=[H] * 4,
                    depths=[1] * 4,
                    out_features=["stage2", "stage3", "stage4"]
                    if "deformable" in str(cls) or "grounding" in str(cls)
                    else ["stage4"],
                )
                continue
            keep = NL[0]
            kw[n] = tiny(type(v), level, getattr(sp, "init_kwargs", None) if sp else None, ctr)
            NL[0] = keep
            continue
        if n in tl:
            kw[n] = (tl[n] * L)[:L]
            continue
        if n in ("out_indices", "out_features"):
            continue
        if v is None and n in NONE_FILL:
            kw[n] = NONE_FILL[n]
            continue
        if isinstance(v, bool) or v is None:
            continue
        if (
            re.search(r"token_(id|index)$|_(token|index)$|tok_id$", n)
            and "ignore" not in n
            and n not in ("eval_index",)
        ):
            if isinstance(v, (int, list)) and not isinstance(v, bool):
                if n.startswith("pad"):
                    kw[n] = 0
                elif n.startswith("bos"):
                    kw[n] = 1
                elif n.startswith(("eos", "decoder_start", "forced")):
                    kw[n] = 2
                elif isinstance(v, int) and v >= 0:
                    kw[n] = ctr[0]
                    ctr[0] += 1
            continue
        if isinstance(v, int):
            if d is None:
                continue  # derived in __post_init__: let it be recomputed
            if re.search(r"(key_value_heads|kv_heads|num_kv)", n):
                nv = 4 if (heads0 == v or (isinstance(heads0, int) and v >= heads0)) else min(v, 2)
            else:
                nv = rule(n, v)
            if n in ("num_hidden_layers",) and v > 1:
                nv = min(v, L) if not tl else L
            if nv != v:
                kw[n] = nv
        elif (
            isinstance(v, (list, tuple))
            and d is not None
            and v
            and all(isinstance(x, int) and not isinstance(x, bool) for x in v)
        ):
            if re.search(
                r"depths|num_blocks|repeats|layers$|^depth$|block_sizes|num_hidden_layers", n
            ) and not re.search("encode_proj|lqe|extract", n):
                nv = [min(x, 1) for x in v]
            elif re.search(r"heads", n):
                nv = [1 << (min(x, 4).bit_length() - 1) for x in v]
            elif re.search(
                r"hidden_sizes|conv_dim|embed_dim|hidden_size|tdnn_dim|_channels$|_dims$|encoder_in|decoder_in|out_features|feature_dims|channel_list",
                n,
            ):
                nv = [min(x, H) for x in v]
            elif re.search(r"image_size|img_size", n):
                nv = [min(x, IMG) for x in v]
            elif re.search(r"patch_size$", n):
                nv = [min(x, 8) for x in v]
            elif re.search(r"layer_idx|_indexes|_indices|hook_ids|deepstack", n):
                nv = [min(x, 1) for x in v][:1] if level == 0 else [min(x, 1) for x in v]
            elif re.search(r"no_rope_layers", n):
                continue
            else:
                nv = list(v)
            if list(nv) != list(v):
                kw[n] = type(v)(nv)
        elif (
            isinstance(v, dict)
            and n == "rope_parameters"
            and d is not None
            and "mrope_section" in v
        ) or (isinstance(v, dict) and n == "rope_parameters" and "mrope_section" in v):
            kw[n] = {**v, "mrope_section": msec(c0)}
    # mrope sections must sum to head_dim/2
    if "rope_parameters" in defs and "rope_parameters" not in kw:
        mod = sys.modules.get(cls.__module__.replace("configuration_", "modeling_"))
        try:
            import importlib

            mod = importlib.import_module(cls.__module__.replace("configuration_", "modeling_"))
            src = inspect.getsource(mod)
        except Exception:
            src = ""
        if "mrope_section" in src:
            rp = getattr(c0, "rope_parameters", None)
            rp = (
                dict(rp)
                if isinstance(rp, dict) and "rope_type" in rp
                else {"rope_type": "default", "rope_theta": 10000.0}
            )
            kw["rope_parameters"] = {**rp, "mrope_section": msec(c0)}
    kw.update(OVERRIDE.get(getattr(cls, "model_type", ""), {}))
    if "use_cache" in defs:
        kw["use_cache"] = False
    if level >= 1:  # safer: drop layer-type lists and index lists
        for k in list(kw):
            if (
                level >= 2
                and not re.search(
                    r"hidden_size|layers|heads|intermediate|vocab|token_id|config|image_size|experts",
                    k,
                )
            ) or (level == 1 and k in TYPES):
                kw.pop(k)
    return cls(**kw)


def sub(c, *names):
    for n in names:
        v = getattr(c, n, None)
        if v is not None:
            return v
    return None


def find(cfg, name, depth=0):
    v = getattr(cfg, name, None)
    if v is not None and not isinstance(v, PreTrainedConfig):
        return v
    if depth < 3:
        for _k, s in (vars(cfg) if hasattr(cfg, "__dict__") else {}).items():
            if isinstance(s, PreTrainedConfig):
                v = find(s, name, depth + 1)
                if v is not None:
                    return v
    return None


def msec(c):
    p = (
        getattr(c, "partial_rotary_factor", None)
        or (
            (getattr(c, "rope_parameters", None) or {}).get("partial_rotary_factor")
            if isinstance(getattr(c, "rope_parameters", None), dict)
            else None
        )
        or 1.0
    )
    h = int(HD * p) // 2
    return [h - 2 * (h // 4), h // 4, h // 4] if h >= 4 else [1, h - 1, 0]


def pair(v):
    return (v, v) if isinstance(v, int) else tuple(v)[:2]


def candidates(model, cfg):
    """Yield dummy input dicts, most likely first."""
    g = torch.Generator().manual_seed(1)
    sig = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    if isinstance(main, (list, tuple)):
        main = main[0]
    try:
        tv = cfg.get_text_config().vocab_size
    except Exception:
        tv = None
    V = tv or find(cfg, "vocab_size") or VOCAB
    if not isinstance(V, int):
        V = 100
    hi = max(8, min(V, 96))

    def ids(n=SEQ):
        return torch.randint(3 if hi > 8 else 0, min(hi, V), (B, n), generator=g)

    def rnd(*s):
        return torch.randn(*s, generator=g)

    ch = find(cfg, "num_channels") or 3
    ch = ch if isinstance(ch, int) else 3
    req = [
        k
        for k, p in sig.items()
        if p.default is inspect._empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    isz = find(getattr(cfg, "vision_config", cfg), "image_size") or IMG
    isz = pair(isz)
    nf = find(cfg, "num_frames") or 4
    mel = (
        find(cfg, "num_mel_bins")
        or find(cfg, "feature_size")
        or find(cfg, "input_feat_per_channel")
        or 80
    )
    fp = find(cfg, "feature_projection_input_dim")

    def image(video=False, size=None):
        s = size or isz
        return rnd(B, nf, ch, *s) if video else rnd(B, ch, *s)

    def audio_feat(orient=0):
        if fp:
            return rnd(B, 64, fp)
        msp = find(cfg, "max_source_positions")
        T = 2 * msp if isinstance(msp, int) and msp <= 200 else 128
        return rnd(B, mel, T) if orient == 0 else rnd(B, T, mel)

    def val(k, variant=0):
        if k in ("input_ids", "decoder_input_ids", "context_input_ids"):
            return ids()
        if k == "attention_mask" or k == "decoder_attention_mask":
            return torch.ones(B, SEQ, dtype=torch.long)
        if k == "bbox":
            return torch.zeros(B, SEQ, 4, dtype=torch.long) + torch.tensor([1, 2, 3, 4])
        if k in ("pixel_values", "image", "images", "flattened_patches"):
            return image(variant == 1)
        if k == "pixel_values_videos":
            return image(True)
        if k == "input_values":
            return rnd(B, 3200) if variant == 0 else rnd(B, 1, 3200)
        if k in ("input_features", "speech_inputs", "spectrogram"):
            return audio_feat(variant)
        if k == "pixel_mask":
            return torch.ones(B, *isz, dtype=torch.long)
        if k in ("token_type_ids", "mm_token_type_ids"):
            return torch.zeros(B, SEQ, dtype=torch.long)
        if k == "past_values":
            n = find(cfg, "num_input_channels") or find(cfg, "input_size") or 1
            T = find(cfg, "context_length") or 64
            lg = find(cfg, "lags_sequence")
            T = T + (max(lg) if isinstance(lg, (list, tuple)) and lg else 0)
            return rnd(B, T, n) if (n > 1 or hasattr(cfg, "num_input_channels")) else rnd(B, T)
        if k in ("inputs_embeds", "hidden_states"):
            return rnd(B, SEQ, find(cfg, "hidden_size") or H)
        return None

    def mk(keys, variant=0, **extra):
        d = {}
        for k in keys:
            if k in sig or any(p.kind == p.VAR_KEYWORD for p in sig.values()):
                v = val(k, variant)
                if v is not None:
                    d[k] = v
        # What the model draws where it is not given: a port takes it as an input.
        if "noise_sequence" in sig and "input_features" in d:
            d["noise_sequence"] = rnd(B, d["input_features"].shape[1], cfg.model_in_channels)
        if "noise" in sig and hasattr(cfg, "mask_ratio") and "pixel_values" in d:
            d["noise"] = rnd(B, (isz[0] // cfg.patch_size) * (isz[1] // cfg.patch_size))
        d.update(dict(extra.items()))
        return d

    encdec = "decoder_input_ids" in sig
    dec = ["decoder_input_ids"] if encdec else []
    extra_req = [k for k in req if k != main]
    modal = [
        k
        for k in ("input_ids", "pixel_values", "input_features", "input_values", "bbox")
        if k in sig
    ]
    img_id = find(cfg, "image_token_id")
    img_id = img_id if img_id is not None else find(cfg, "image_token_index")
    out = []
    # real multimodal: count the image features, then place that many image tokens
    if (
        "pixel_values" in sig
        and "input_ids" in sig
        and isinstance(img_id, int)
        and hasattr(model, "get_image_features")
    ):

        def mm():
            vc = getattr(cfg, "vision_config", cfg)
            ps, tp, ms = (
                find(vc, "patch_size"),
                find(vc, "temporal_patch_size") or 1,
                find(vc, "spatial_merge_size") or find(vc, "merge_size") or 2,
            )
            kws = {}
            if "image_grid_thw" in sig:
                gh = 2 * ms
                pv = rnd(B * gh * gh, ch * tp * ps * ps)
                kws["image_grid_thw"] = torch.tensor([[1, gh, gh]] * B)
            elif "image_sizes" in sig and "image_grid_pinpoints" in vars(cfg):
                return None
            else:
                pv = image()
                if "image_sizes" in sig:
                    kws["image_sizes"] = torch.tensor([list(isz)] * B)
            fk = {
                k: v
                for k, v in kws.items()
                if k in inspect.signature(model.get_image_features).parameters
            }
            with torch.no_grad():
                f = model.get_image_features(pv, **fk)
            f = getattr(f, "pooler_output", f)
            if isinstance(f, (list, tuple)):
                n = sum(x.shape[0] if x.dim() == 2 else x.shape[0] * x.shape[1] for x in f)
            else:
                n = f.shape[0] if f.dim() == 2 else f.shape[0] * f.shape[1]
            n //= B
            row = torch.cat([ids(4), torch.full((B, n), img_id), ids(4)], 1)
            d = {
                "input_ids": row,
                "pixel_values": pv,
                "attention_mask": torch.ones_like(row),
                **kws,
            }
            for k in ("token_type_ids", "mm_token_type_ids"):
                if k in sig:
                    d[k] = (row == img_id).long()
            return dict(d.items())

        out.append(("multimodal", mm))

    def S(name, f):
        return out.append((name, f))

    base = [main, *dec, *extra_req]
    S("main", lambda: mk(base))
    S("main+mask", lambda: mk(base + (["attention_mask"] if "attention_mask" in sig else [])))
    masks = [k for k in ("attention_mask", "decoder_attention_mask") if k in sig]
    S("main+masks", lambda: mk(base + masks))
    if len(modal) > 1:
        S("allmodal", lambda: mk(modal + dec + extra_req))
    S("v1", lambda: mk(base, 1))
    if len(modal) > 1:
        S("allmodal1", lambda: mk(modal + dec + extra_req, 1))
    if "input_ids" in sig:
        S("text", lambda: mk(["input_ids", *dec]))
    if "spatial_shapes" in sig:  # NaViT-style pre-patchified input (siglip2)

        def ss():
            ps = find(cfg, "patch_size") or 8
            n = find(cfg, "num_patches") or 64
            k = int(n**0.5)
            nm = {
                "spatial_shapes": torch.tensor([[k, k]] * B),
                (
                    "pixel_attention_mask" if "pixel_attention_mask" in sig else "attention_mask"
                ): torch.ones(B, k * k, dtype=torch.long),
                "pixel_values": rnd(B, k * k, ch * ps * ps),
            }
            if "input_ids" in sig:
                nm["input_ids"] = ids()
            return nm

        out.insert(0, ("naflex", ss))
    if "past_time_features" in sig:

        def ts():
            T = find(cfg, "context_length") + max(find(cfg, "lags_sequence"))
            F = cfg.num_time_features if cfg.num_time_features else 1
            P_ = cfg.prediction_length
            return {
                "past_values": rnd(B, T),
                "past_time_features": rnd(B, T, F),
                "past_observed_mask": torch.ones(B, T),
                "future_values": rnd(B, P_),
                "future_time_features": rnd(B, P_, F),
            }

        S("ts", ts)
    if "grid_thw" in sig:

        def gt():
            ps, tp, ms = (
                find(cfg, "patch_size"),
                find(cfg, "temporal_patch_size") or 1,
                find(cfg, "spatial_merge_size") or 2,
            )
            k = "hidden_states" if "hidden_states" in sig else main
            return {
                k: rnd(4 * ms * ms, ch * tp * ps * ps),
                "grid_thw": torch.tensor([[1, 2 * ms, 2 * ms]]),
            }

        S("grid", gt)
    if "input_values" in sig:
        S("wav_long", lambda: {"input_values": rnd(B, 1, 8000)})
    if "pixel_values" in sig:
        S("img128", lambda: {**mk(base), "pixel_values": image(size=(128, 128))})
        S("img224", lambda: {**mk(base), "pixel_values": image(size=(224, 224))})
        S("img1ch", lambda: {**mk(base), "pixel_values": rnd(B, 1, *isz)})
    return out
