"""Point-to-point calls that sync."""

from __future__ import annotations

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class PointToPoint(NamedHazard):
    """Point-to-point communication ends the graph at every call.

    **Why.** `send` and `recv` of the XLA backend cut the graph where they stand and wait.

    **What to do.** A collective: `all_gather`, `all_to_all_single` with equal splits,
    `xm.collective_permute`.

    Source: torch_xla 2.9, `distributed/xla_backend.py`.
    """

    code = "XLA207"
    name = "point-to-point"
    severity = Severity.WARNING
    examples = (
        example(
            """
            import torch.distributed as dist


            def pass_on(x, rank):
                dist.send(x, rank + 1)  # XLA207
            """
        ),
        example(
            """
            import socket


            def pass_on(connection: socket.socket, data):
                connection.send(data)
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist


        def pass_on(out, x, rank):
            dist.all_gather_into_tensor(out, x)
            return out[rank - 1]
        """
    )
