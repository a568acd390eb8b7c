"""Cost of runs: today on GPUs, and on each slice that the step fits on, at the bound and at a share of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from migrate.assess.errors import AssessError
from migrate.assess.prices import Price, Prices
from migrate.fit.verdict import FitVerdict

Batch = Literal["grows", "same"]
# Milliseconds in which Python, torch_xla and the runtime start a step, where nothing was measured.
ASSUMED_HOST_SECONDS = 0.002


def step_time(seconds: float) -> str:
    """A step's time, as "1.2 s" or "0.35 ms"."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


@dataclass(frozen=True)
class Host:
    """The host's part of a step: the input, tracing and starting the program.

    A TPU runs a step while the host prepares the next, so a step takes at least the longer of the two.

    Attributes:
        seconds: a step.
        source: "given" by the user; "measured" on this machine; "assumed" where neither is known.
    """

    seconds: float = ASSUMED_HOST_SECONDS
    source: Literal["given", "measured", "assumed"] = "assumed"

    @property
    def words(self) -> str:
        """Text such as "12 ms a step, measured on this machine's CPU"."""
        how = {
            "given": "as --host-step-seconds says",
            "measured": "measured on this machine's CPU",
            "assumed": "assumed, nothing was measured",
        }
        return f"{step_time(self.seconds)} a step, {how[self.source]}"


@dataclass(frozen=True)
class TrainingPlan:
    """The user's statements about the training runs.

    Attributes:
        gpu: what they are made on today, or "" if it is not said.
        gpus: how many.
        gpu_step_seconds: seconds per training step today, all GPUs together. None if not given.
        steps: steps of a run today, or None if not given.
        runs: number of planned runs, or None if not given.
        engineer_hour: dollars, or None if it is not said.
        share: assumed fraction of the step's bound that real runs reach.
        host_step_seconds: the host's part of a step (`Host`), or None if it is not said.
        batch: of all replicas together: "grows" with their number, as each takes what a GPU takes today, so
            that a run has fewer steps; or is the "same".
    """

    gpu: str = ""
    gpus: int = 1
    gpu_step_seconds: float | None = None
    steps: int | None = None
    runs: int | None = None
    engineer_hour: float | None = None
    share: float = 0.4
    batch: Batch = "grows"
    host_step_seconds: float | None = None

    def require_sense(self) -> None:
        """See that its figures can be meant.

        Raises:
            AssessError: one is zero, negative, or stands alone.
        """
        positive = {
            "--gpus": self.gpus,
            "--gpu-step-seconds": self.gpu_step_seconds,
            "--steps": self.steps,
            "--host-step-seconds": self.host_step_seconds,
            "--runs": self.runs,
        }
        for name, value in positive.items():
            if value is not None and not 0 < value < float("inf"):
                raise AssessError(
                    f"{name} {value:g}: not a valid number", "give a number above zero"
                )
        if self.engineer_hour is not None and not 0 <= self.engineer_hour < float("inf"):
            raise AssessError(
                f"--engineer-hour {self.engineer_hour:g}: not a price",
                "give dollars per hour, such as 200",
            )
        if not 0 < self.share <= 1:
            raise AssessError(
                f"--share-of-bound {self.share:g}: not a share", "give a number above 0, at most 1"
            )
        if self.gpu_step_seconds is not None and not self.gpu:
            raise AssessError("--gpu-step-seconds: the GPU is unknown", "name it with --gpu")


@dataclass(frozen=True)
class Today:
    """A run as it is made today.

    Attributes:
        price: price of a GPU.
        hours: hours of the run.
        dollars: cost of the run.
    """

    price: Price
    hours: float
    dollars: float


@dataclass(frozen=True)
class There:
    """A run on a slice.

    Attributes:
        verdict: the verdict that the step fits.
        host: the host's part of a step.
        steps_an_hour: highest number of steps in an hour.
        steps: steps of a run there, or None if the steps of a run today are unknown.
        hours_least, hours_likely: by the bound, and by the assumed share of it; never less than the host's
            part.
        price: price of a chip, or None if unknown.
        dollars_least, dollars_likely: cost on demand.
        dollars_spot: likely cost at the spot price.
    """

    verdict: FitVerdict
    host: Host
    steps_an_hour: float
    steps: float | None = None
    hours_least: float | None = None
    hours_likely: float | None = None
    price: Price | None = None
    dollars_least: float | None = None
    dollars_likely: float | None = None
    dollars_spot: float | None = None

    @property
    def cost_of_work(self) -> float:
        """Sort key of slices: dollars for a replica's work in a step, or seconds without a price."""
        product, bound = self.verdict.product, self.verdict.bound
        assert bound is not None
        hourly = self.price.on_demand * product.chips if self.price else float("inf")
        return hourly * max(bound.seconds, self.host.seconds)

    @property
    def hourly(self) -> float | None:
        """Dollars for an hour of the slice, or None if no price is known."""
        return self.price.on_demand * self.verdict.product.chips if self.price else None


def today_of(plan: TrainingPlan, prices: Prices) -> Today | None:
    """Return the cost of a run today, or None if too little is known.

    Raises:
        AssessError: no price of the GPU is known.
    """
    if not plan.gpu:
        return None
    price = prices.of_gpu(plan.gpu)
    if plan.gpu_step_seconds is None or plan.steps is None:
        return None
    hours = plan.steps * plan.gpu_step_seconds / 3600
    return Today(price, hours, hours * plan.gpus * price.on_demand)


def host_of(plan: TrainingPlan, measured: float) -> Host:
    """Return the host's part of a step: from the user, else as measured (0: not measured)."""
    if plan.host_step_seconds is not None:
        return Host(plan.host_step_seconds, "given")
    return Host(measured, "measured") if measured else Host()


def there_of(
    verdicts: Iterable[FitVerdict], plan: TrainingPlan, prices: Prices, host: Host
) -> tuple[There, ...]:
    """Return the cost of a run on each slice, the cheapest first."""
    on_slices = [_there(verdict, plan, prices, host) for verdict in verdicts]

    def order(on_slice: There) -> tuple[float, float]:
        work = on_slice.verdict.product.devices if plan.batch == "grows" else 1
        return on_slice.cost_of_work / work, 1 / on_slice.steps_an_hour

    return tuple(sorted(on_slices, key=order))


def _there(verdict: FitVerdict, plan: TrainingPlan, prices: Prices, host: Host) -> There:
    product, bound = verdict.product, verdict.bound
    assert bound is not None
    price = prices.tpu.get(product.generation.name)
    most = 3600 / max(bound.seconds, host.seconds)
    if plan.steps is None:
        return There(verdict, host, most, price=price)
    fewer = plan.gpus / product.devices if plan.batch == "grows" else 1.0
    steps = plan.steps * fewer
    least = steps / most
    likely = steps * max(bound.seconds / plan.share, host.seconds) / 3600
    hourly = product.chips * price.on_demand if price else None
    spot = product.chips * price.spot if price and price.spot is not None else None
    return There(
        verdict,
        host,
        most,
        steps,
        least,
        likely,
        price,
        least * hourly if hourly is not None else None,
        likely * hourly if hourly is not None else None,
        likely * spot if spot is not None else None,
    )
