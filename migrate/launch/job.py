"""Checked job: a request whose options go together."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from migrate.fit.products import Generation, Slice, UnknownProductError, product_named, products
from migrate.launch import trc
from migrate.launch.errors import JobError
from migrate.launch.framework import Framework
from migrate.launch.program import CHECKPOINTS, DATA, JobProgram, Resume
from migrate.launch.regions import is_bucket, region_of_zone, transfer_warning
from migrate.launch.request import LaunchRequest
from migrate.launch.start import ProcessStart

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_LOCATION = re.compile(r"[a-z]+-[a-z]+[0-9]+|us|eu|asia|nam4|eur[4578]|asia1", re.IGNORECASE)
# Variables that the job sets itself, or that are wrong on a TPU (`migrate doctor` says why).
_RESERVED = frozenset(
    {
        *(
            "PJRT_DEVICE",
            "XLA_USE_BF16",
            "XLA_DOWNCAST_BF16",
            "TPU_VISIBLE_CHIPS",
            "TPU_PROCESS_BOUNDS",
        ),
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", CHECKPOINTS, DATA),
    }
)

# By framework, and whether the program has no ranks: why its hosts would not train together, and what to do.
_JOINING = {
    (Framework.JAX, False): (
        "never calls jax.distributed.initialize()",
        "call it first in the program",
    ),
    **dict.fromkeys(
        [(Framework.TORCH_TPU, False), (Framework.TORCH_XLA, False)],
        (
            "starts the ranks of its own host only",
            "leave the start to torchrun: call init_process_group without mp.spawn",
        ),
    ),
    (Framework.TORCH_TPU, True): (
        "joins no process group",
        "call torch.distributed.init_process_group('tpu_dist')",
    ),
    (Framework.TORCH_XLA, True): ("starts no ranks", "start them by torch_xla.launch"),
}


@dataclass(frozen=True)
class TrainingJob:
    """A job whose parts go together.

    Attributes:
        name: name of the job in its launcher.
        request: the options.
        program: the program.
        product: the slice.
        zone: the zone.
        spot: whether the slice may be taken away at any time.
        bucket: folder in a bucket, without a slash at its end.
        warnings: lines about what costs.
        notes: further lines for the user.
    """

    name: str
    request: LaunchRequest
    program: JobProgram
    product: Slice
    zone: str
    spot: bool
    bucket: str
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def region(self) -> str:
        """Region of the slice."""
        return region_of_zone(self.zone)

    @property
    def generation(self) -> Generation:
        """Generation of the slice."""
        return self.product.generation

    @property
    def checkpoints(self) -> str:
        """Folder of the checkpoints in the bucket."""
        return f"{self.bucket}/checkpoints"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the user for the program."""
        return dict(text.split("=", 1) for text in self.request.environment)


def check_request(request: LaunchRequest, program: JobProgram) -> TrainingJob:
    """Return the job of a request.

    Raises:
        JobError: options that do not go together.
        UnknownProductError: nobody sells the slice.
    """
    product = _product(request.tpu)
    grant = trc.grant_for(product, request.zone, request.spot) if request.trc else None
    zone = _zone(request, product, grant)
    spot = request.spot or (grant is not None and grant.spot)
    _check_hosts(request, product, program)
    _check_environment(request)
    bucket = _bucket(request, program)
    _check_data(request, program)
    _check_resume(request, program, spot)
    return TrainingJob(
        _name(request),
        request,
        program,
        product,
        zone,
        spot,
        bucket.rstrip("/"),
        tuple(_far_buckets(request, bucket, zone)),
        tuple(_notes(request, program, product, grant)),
    )


def _product(name: str) -> Slice:
    if "," in name or name == "all":
        raise JobError(f"--tpu {name}: a job runs on one slice", "name one, such as --tpu v5e-16")
    try:
        return product_named(name)
    except UnknownProductError as error:
        generation, _, number = name.lower().rpartition("-")
        same = [
            product
            for product in products()
            if generation in product.generation.names and number.isdigit()
        ]
        if not same:
            raise
        size = int(number)
        near = sorted(same, key=lambda product: abs(_size(product) - size))[:4]
        names = sorted(near, key=_size)
        raise JobError(
            f"--tpu {error.what}", f"near: {', '.join(product.name for product in names)}"
        ) from None


def _size(product: Slice) -> int:
    return product.chips * product.generation.counted


def _zone(request: LaunchRequest, product: Slice, grant: trc.Grant | None) -> str:
    zone = request.zone or (grant.zone if grant is not None else None)
    sold = product.zones
    if zone is None:
        raise JobError(
            f"no zone for {product.name}", f"add --zone with one of: {', '.join(sold)}; or --trc"
        )
    if zone not in sold and not request.new_zone:
        what = product.name if zone in product.generation.zones else product.generation.name
        near = difflib.get_close_matches(zone, sold, len(sold), 0.0)
        here = [
            product.name.rpartition("-")[0]
            for product in products()
            if zone in product.generation.zones
        ]
        also = f"; {zone} sells {', '.join(dict.fromkeys(here))}" if here else ""
        raise JobError(
            f"--zone {zone}: no {what} is sold there{also}",
            f"nearest: {', '.join(near)}; --new-zone accepts a zone that the table does not list",
        )
    return zone


def _check_hosts(request: LaunchRequest, product: Slice, program: JobProgram) -> None:
    if request.hosts is not None and request.hosts != product.hosts:
        raise JobError(
            f"--hosts {request.hosts}: {product.name} has {product.hosts} hosts "
            f"with {product.chips_per_host} chips each",
            f"leave out --hosts, or name another slice ({_with_hosts(product, request.hosts)})",
        )
    if product.hosts > 1 and not program.style.joins_hosts:
        missing, remedy = _JOINING[program.framework, program.style.one_chip]
        raise JobError(
            f"{product.name} has {product.hosts} hosts, and {program.entry} {missing}: each host would "
            "train alone",
            f"{remedy}, or name a slice of one host",
        )
    generation = product.generation
    if program.framework is Framework.TORCH_TPU and generation.name in ("v2", "v3"):
        raise JobError(
            f"torch_tpu does not know {generation.name} ({product.name})",
            "name a slice of v4, v5e, v5p, v6e or tpu7x, or rewrite for torch_xla",
        )
    is_torchrun = program.style.start is ProcessStart.CHIP
    if program.framework is Framework.TORCH_XLA and is_torchrun and generation.name in ("v2", "v3"):
        raise JobError(
            f"a chip of {product.name} has two devices, and torchrun, which starts {program.entry}, would "
            "use one of them",
            "start the ranks by torch_xla.launch, or name a slice of v4 or newer",
        )


def _with_hosts(product: Slice, hosts: int) -> str:
    same = [other for other in products() if other.generation == product.generation]
    names = [other.name for other in same if other.hosts == hosts]
    return f"with {hosts} hosts: {', '.join(names)}" if names else f"none has {hosts} hosts"


def _check_environment(request: LaunchRequest) -> None:
    for text in request.environment:
        if not _VARIABLE.fullmatch(text):
            raise JobError(f"--env {text}: no value", "write --env NAME=VALUE")
        name = text.partition("=")[0]
        if name in _RESERVED:
            raise JobError(
                f"--env {name}: the job sets this variable itself, or it is wrong on a TPU",
                "leave it out; migrate doctor says why",
            )


def _bucket(request: LaunchRequest, program: JobProgram) -> str:
    if request.bucket is None:
        raise JobError(
            "no bucket: the hosts need a folder that all of them see, and that outlives the slice",
            "add --bucket gs://BUCKET/FOLDER",
        )
    if not is_bucket(request.bucket):
        raise JobError(
            f"--bucket {request.bucket} is not a bucket of Google Cloud Storage",
            "write gs://BUCKET/FOLDER",
        )
    if "/" not in request.bucket.removeprefix("gs://").rstrip("/"):
        raise JobError(
            f"--bucket {request.bucket}: two jobs in one bucket would share checkpoints",
            f"add a folder for this job: {request.bucket.rstrip('/')}/run-1",
        )
    for option, location in (
        ("--bucket-region", request.bucket_region),
        ("--data-region", request.data_region),
    ):
        if location is not None and not _LOCATION.fullmatch(location):
            raise JobError(
                f"{option} {location} is not the location of a bucket",
                "write a region such as us-central1 (a zone without its last letter), or us, eu, asia",
            )
    return request.bucket


def _check_data(request: LaunchRequest, program: JobProgram) -> None:
    uses = DATA in program.reads or any("{data}" in text for text in request.args)
    if request.data is None:
        if uses:
            raise JobError(
                f"{program.entry} uses the data's folder, and --data names none",
                "add --data gs://BUCKET/FOLDER",
            )
        return
    if not is_bucket(request.data):
        raise JobError(
            f"--data {request.data}: the hosts do not see this folder",
            "copy it to a bucket, and write --data gs://BUCKET/FOLDER",
        )
    if not uses and not any(request.data in text for text in (*request.args, *program.buckets)):
        raise JobError(
            f"--data {request.data}: no argument hands it to {program.entry}",
            "pass it behind --, such as: -- --data '{data}'",
        )


def _check_resume(request: LaunchRequest, program: JobProgram, spot: bool) -> None:
    if program.resume is Resume.NONE:
        if request.resumes:
            raise JobError(
                f"{program.entry} does not resume: a preemption would lose all of the training",
                "wrap the loop in shims.resume (JAX: orbax with the data's position), or accept it: "
                "--no-resume",
            )
        return
    in_args = any("{checkpoints}" in text or "gs://" in text for text in request.args)
    if not in_args and CHECKPOINTS not in program.reads and not program.buckets:
        raise JobError(
            f"{program.entry} resumes by {program.resume}, and no argument names a folder for its "
            "checkpoints in the bucket",
            "pass the folder behind --, such as: -- --checkpoint '{checkpoints}'",
        )


def _far_buckets(request: LaunchRequest, bucket: str, zone: str) -> list[str]:
    pairs = [(bucket, request.bucket_region), (request.data, request.data_region)]
    lines = [transfer_warning(url, place, zone) for url, place in pairs if url and place]
    return [line for line in lines if line]


def _notes(
    request: LaunchRequest, program: JobProgram, product: Slice, grant: trc.Grant | None
) -> list[str]:
    notes = list(program.assumed)
    if program.style.one_chip and product.chips > 1:
        notes.append(f"{program.entry} starts no ranks: it uses 1 of {product.chips} chips")
    if grant is not None:
        notes.append(f"TRC, usual grant: {grant}. Free: {trc.FREE}. Billed: {trc.NOT_FREE}")
    if program.resume is Resume.OWN:
        notes.append(
            f"{program.entry} resumes by its own checkpoints: they are copied to the bucket every minute, "
            "and migrate prove --from-checkpoint shows whether they are complete"
        )
    if program.resume is Resume.NONE:
        notes.append(f"{program.entry} does not resume: each start begins at step 0")
    return notes


def _name(request: LaunchRequest) -> str:
    stem = request.target.stem if request.target.is_file() else request.target.resolve().name
    name = request.name or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:30] or "job"
    if request.name is None and not name[0].isalpha():
        name = f"job-{name}"
    if not _NAME.fullmatch(name):
        raise JobError(
            f"--name {name}: launchers take small letters, digits and dashes, at most 40, a letter first",
            f"for example --name {re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')[:40] or 'job'}",
        )
    return name


def output_folder(request: LaunchRequest) -> Path:
    """Return the folder of the job.

    Raises:
        JobError: it exists, or would be a part of the program.
    """
    output = request.output
    if output.is_file():
        raise JobError(f"-o {output} is a file", "name a folder")
    if output.is_dir() and any(output.iterdir()):
        if not (output / "job.json").is_file():
            raise JobError(f"{output} exists and is no job", "name another folder")
        if not request.force:
            raise JobError(f"{output} exists", "name another folder, or replace it: --force")
    return output
