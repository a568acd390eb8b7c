"""Flax modules for the torch layers that Flax does not have, or has in another form.

`converters.modules.linen` and `converters.modules.nnx` contain the same layers under torch's names;
both compute with `converters.modules.functional`. They take exactly the weights that `migrate
weights` writes, and inputs with channels last (except where torch itself has them last). They
import Flax only when they are imported.
"""
