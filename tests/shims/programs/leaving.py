"""Two replicas that leave by `sys.exit()`, and still have a file to write in the folder of the argument."""

import multiprocessing.util
import sys
import time
from pathlib import Path

import torch_xla


def main(rank, folder):
    def write():
        time.sleep(0.5)  # slow: what ends the process must wait for this
        (folder / f"replica{rank}").touch()

    multiprocessing.util.Finalize(None, write, exitpriority=100)
    sys.exit()


if __name__ == "__main__":
    torch_xla.launch(main, args=(Path(sys.argv[1]),))
