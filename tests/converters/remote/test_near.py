"""Models of a hub or a bucket, for programs that read files only; and the commands that take them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from converters.errors import CheckpointNotFoundError, RemoteError
from converters.remote.near import local_copy
from migrate.cli import commands
from tests.converters.conftest import Refused
from tests.converters.remote.test_sources import contents, put
from tests.servers import BucketProxy, HubServer

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A small transformers model in a folder."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=30, num_hidden_layers=1, **sizes)
    folder = tmp_path / "bert"
    transformers.BertModel(config).eval().save_pretrained(folder)
    return folder


def test_what_the_hub_has_comes_into_its_cache(bert: Path, hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import constants

    commit = hub.commit("org/bert", {**contents(bert), "pytorch_model.bin": b"the same again"})
    folder = local_copy("org/bert", tmp_path / "none")
    assert folder.name == commit
    assert constants.HF_HUB_CACHE in str(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(contents(bert))
    assert not (tmp_path / "none").exists()


def test_what_a_bucket_has_is_copied(bert: Path, gs: BucketProxy, tmp_path: Path) -> None:
    put(contents(bert), "bkt/run/bert")
    assert contents(local_copy("gs://bkt/run/bert", tmp_path / "here")) == contents(bert)
    weights = local_copy("gs://bkt/run/bert/model.safetensors", tmp_path / "here")
    assert weights.read_bytes() == (bert / "model.safetensors").read_bytes()


def test_what_is_not_there(hub: HubServer, tmp_path: Path, refused: Refused) -> None:
    with refused(RemoteError, "org/nothing is not on the Hugging Face hub"):
        local_copy("org/nothing", tmp_path)


def test_a_bucket_that_is_not_there(gs: BucketProxy, tmp_path: Path, refused: Refused) -> None:
    with refused(CheckpointNotFoundError, "the bucket of gs://none/bert does not exist"):
        local_copy("gs://none/bert", tmp_path)


def ran(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(commands, words)
    return done.exit_code, done.output


def test_weights_of_a_repository(bert: Path, hub: HubServer, tmp_path: Path) -> None:
    commit = hub.commit("org/bert", contents(bert))
    code, output = ran("weights", "org/bert@main", "--dry-run", "--json")
    assert code == 0, output
    told = json.loads(output[output.index("{") :])
    assert told["counts"]["mapped"] > 10
    assert commit in " ".join(told["notes"])


def test_which_file_of_a_repository(bert: Path, hub: HubServer) -> None:
    data = (bert / "model.safetensors").read_bytes()
    files = dict.fromkeys(("a/one.safetensors", "a/two.safetensors"), data)
    hub.commit("org/several", files | {"config.json": (bert / "config.json").read_bytes()})
    code, output = ran("weights", "org/several", "--file", "a/*", "--dry-run")
    assert code == 2
    assert "several files match a/*: one.safetensors, two.safetensors" in output
    for pattern, there in (("b/*", ""), ("a/c*", "; it has one.safetensors, two.safetensors")):
        code, output = ran("weights", "org/several", "--file", pattern, "--dry-run")
        assert code == 2
        assert f"no file matches {pattern}{there}; name one with --file" in output
    code, output = ran("weights", "org/several", "--file", "a/o*", "--dry-run")
    assert "its file a/one.safetensors" in output


def test_one_line_for_what_the_hub_refuses(hub: HubServer, bert: Path) -> None:
    hub.commit("org/secret", contents(bert), token="hf_12345")
    for words in (("weights", "org/secret"), ("port", "org/secret", "-o", "x")):
        code, output = ran(*words)
        assert code == 2
        assert "org/secret is not on the Hugging Face hub, or private" in output
        assert "Traceback" not in output
    code, output = ran("weights", "org/secret", "--to", "torch", "-o", "gs://bkt/x")
    assert code == 2


@pytest.mark.parametrize("words", [("parity", f"{__file__}:Net"), ("port", "-o", "x")])
def test_weights_alone_are_no_model(words: tuple[str, ...], bert: Path, gs: BucketProxy) -> None:
    put(contents(bert), "bkt/run/bert")
    gs.requests.clear()
    code, output = ran(*words, "gs://bkt/run/bert/model.safetensors")
    assert code == 2
    assert "gs://bkt/run/bert/model.safetensors is a file, and no model; name the folder" in output
    assert not any("alt=media" in path for _, path, _ in gs.requests)  # found before it is copied


@pytest.mark.long
def test_parity_of_a_repository_with_a_bucket(bert: Path, hub: HubServer, gs: BucketProxy) -> None:
    hub.commit("org/bert", contents(bert))
    put(contents(bert), "bkt/run/bert")
    inputs = "input_ids=int64[2,5]<30"
    code, output = ran("parity", "org/bert", "gs://bkt/run/bert", "--inputs", inputs)
    assert code == 0, output
    assert "org/bert" in output
