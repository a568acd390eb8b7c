"""Names of torch_xla itself that are removed or deprecated in torch_xla 2.9."""

from __future__ import annotations

from migrate.catalogue.entry import CatalogueEntry, Family, OnXla

RAISES, WORKS = OnXla.RAISES, OnXla.WORKS

XM = "torch_xla.core.xla_model"
XR = "torch_xla.runtime"

SCALERS = Family("torch_xla.amp", RAISES, "XLA804", "grad-scaler")(
    "GradScaler", "remove it", does="torch_xla 2.9 no longer has it, and bfloat16 needs no scaler"
)
# Removed names, with a successor that takes no argument.
GONE_TO = {
    f"{XM}.get_ordinal": f"{XR}.global_ordinal",
    f"{XM}.get_local_ordinal": f"{XR}.local_ordinal",
    f"{XM}.xrt_world_size": f"{XR}.world_size",
}
# Deprecated names, with their successors.
OLD_TO = {
    f"{XM}.xla_device": "torch_xla.device",
    f"{XM}.mark_step": "torch_xla.sync",
    "torch_xla.distributed.xla_multiprocessing.spawn": "torch_xla.launch",
}
_gone = Family("torch_xla", RAISES, rule="old-torch-xla")
# Removed names without an equivalent successor.
GONE = (
    *_gone("experimental.pjrt", XR, does="PJRT is the only runtime"),
    *_gone("core.xla_model.parse_xla_device", "torch.device(...).index", does="is gone"),
    *_gone("amp.syncfree", "torch.optim, in bfloat16", does="skips steps for a gradient scaler"),
)
TORCH_XLA = (
    *(*SCALERS, *GONE),
    *Family("torch_xla.amp", RAISES, "XLA819", "autocast")(
        "autocast",
        'torch.autocast("xla", dtype=torch.bfloat16)',
        "shims.autocast()",
        does="raises with a device as its argument",
    ),
    *(
        CatalogueEntry(
            name, RAISES, f"{now}()", does="is gone in 2.9", code="XLA819", rule="old-torch-xla"
        )
        for name, now in GONE_TO.items()
    ),
    *(
        CatalogueEntry(name, WORKS, now, does="is deprecated", code="XLA820", rule="old-torch-xla")
        for name, now in OLD_TO.items()
    ),
)
