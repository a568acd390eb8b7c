"""Handlers of signals that are set in the thread of a replica."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts

DOES = (
    "torch_xla.launch runs this in a thread that is not the main one, where Python sets no handler: "
    "ValueError. Set it where the file is read, which a replica does in its main thread"
)


class SignalHandlers(Hazard):
    """A handler of a signal is set in a function that `torch_xla.launch` runs.

    **Why.** `torch_xla.launch` starts a process for each device and runs the function in a thread of it, also
    where there is one device. In a thread that is not the main one `signal.signal`, `signal.set_wakeup_fd`
    and `add_signal_handler` of an event loop raise ValueError or RuntimeError: the replicas end early.
    Under torchrun the function runs in the main thread.

    `signal.alarm`, `signal.siginterrupt` and `faulthandler.register` work in any thread.

    **What to do.** Set the handler at module level, where every replica reads the file in its main thread:
    the handler runs there, and the training looks at what it has set. Or skip it where
    `threading.current_thread() is not threading.main_thread()`.

    Source: torch_xla 2.9, `torch_xla/_internal/pjrt.py` (`_run_thread_per_device`), measured.
    """

    code = "XLA841"
    name = "signal-handler"
    severity = Severity.ERROR
    nodes = (cst.Call, cst.Import, cst.ImportFrom)
    of_facts = ("handlers",)
    examples = (
        example(
            """
            import signal

            import torch_xla

            stopping = False


            def stop(number, frame):
                global stopping
                stopping = True


            def set_handlers():
                signal.signal(signal.SIGUSR2, stop)  # XLA841


            def main(index):
                set_handlers()
                print(index)


            if __name__ == "__main__":
                torch_xla.launch(main)
            """
        ),
        example(
            """
            import signal
            import threading

            import torch_xla


            def stop(number, frame):
                print("stopped")


            signal.signal(signal.SIGTERM, stop)


            def main(index):
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGUSR2, stop)
                signal.alarm(60)
                print(index)


            if __name__ == "__main__":
                signal.signal(signal.SIGINT, stop)
                torch_xla.launch(main)
            """
        ),
    )
    mended = example(
        """
        import signal

        import torch_xla


        def stop(number, frame):
            print("stopped")


        signal.signal(signal.SIGUSR2, stop)


        def main(index):
            print(index)


        if __name__ == "__main__":
            torch_xla.launch(main)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the call that sets a handler, or by which another file sets it."""
        handlers = facts.context.calls.handlers
        where = handlers.get(facts.context.place(node)) if handlers else None
        if where is None:
            return
        leads = f"leads to {where}, which sets a handler of a signal: " if where else ""
        yield self.hit(node, leads + DOES)
