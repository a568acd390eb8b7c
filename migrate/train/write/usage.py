"""Text on checkpoints and devices for the README of a written program."""

from __future__ import annotations

CHECKPOINTS = """
## Checkpoints

    python train.py --checkpoints FOLDER --every 500

The state of the training is stored after the first update, every 500 updates and at the end. The same
command continues from the newest checkpoint, with the numbers of a run that never stopped. After SIGTERM the
current update ends, its checkpoint is stored, and the exit code is 75.

The data's position is the number of updates. `data.py` runs again, and batches of earlier updates are loaded
again but not computed. The checkpoint has a checksum of its last batch: other data are refused.
"""
DEVICES = """
## Devices

One device, several and a pod run the same `train.py`. Every device has the state, and computes its rows of
each batch. The loss is that of the whole batch. A batch whose rows cannot be divided is computed by every
device. Each host of a pod loads all of the batch and keeps its rows: set `HOST_COUNT`, `HOST_INDEX` and
`COORDINATOR_ADDRESS` on each, as `migrate launch` does. On a TPU, `HOST_COUNT` is enough.
"""
