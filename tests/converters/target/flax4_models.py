"""Run in an environment with transformers 4 (`make test-flax4`): its Flax models, whose code is not ours.

    python flax4_models.py shapes FOLDER   writes NAME.json, path → shape and dtype, for each case
    python flax4_models.py run FOLDER      loads NAME.safetensors, runs it on NAME.inputs.npz, writes
                                           NAME.outputs.npz

FOLDER/cases.json is {name: {"cls": …, "config_cls": …, "config": {…}}}.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import transformers
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import load_file


def model_of(case):
    config = getattr(transformers, case["config_cls"])(**case["config"])
    return getattr(transformers, case["cls"])(config, _do_init=False, **case.get("options", {}))


def shapes(folder, name, case):
    found = flatten_dict(model_of(case).params_shape_tree, sep="/")
    text = json.dumps({path: [leaf.shape, leaf.dtype.name] for path, leaf in found.items()})
    (folder / f"{name}.json").write_text(text)


def run(folder, name, case):
    params = unflatten_dict(load_file(folder / f"{name}.safetensors"), sep="/")
    inputs = dict(np.load(folder / f"{name}.inputs.npz"))
    with jax.default_matmul_precision("highest"):
        output = model_of(case)(**inputs, params=params, train=False)
    np.savez(folder / f"{name}.outputs.npz", output=np.asarray(output[0]))


if __name__ == "__main__":
    command, place = sys.argv[1], Path(sys.argv[2])
    for name, case in json.loads((place / "cases.json").read_text()).items():
        {"shapes": shapes, "run": run}[command](place, name, case)
