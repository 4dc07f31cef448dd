"""A target of training, such as "loss 1.8", and the iteration at which a run first reaches it."""

from dataclasses import dataclass

from ringtrain.errors import UsageError, nearest
from ringtrain.report.comparison.logs import Point, RunLog
from ringtrain.report.comparison.over_seeds import SCORES
from ringtrain.report.comparison.rows import METRICS
from ringtrain.report.comparison.scores import series
from ringtrain.report.screen.words import FRACTIONS
from ringtrain.show.figures import running_mean

PLAIN = ("loss", "accuracy")  # of tests, of training where a run has none
NAMES = (*PLAIN, *SCORES, *METRICS)
FALLING = ("loss", "perplexity", "rmse", "mae")  # the last word of scores that are better the lower they are


@dataclass(frozen=True, slots=True)
class Target:
    """A score, by its name in the JSON of ``ringtrain compare``, and the value that it is to reach."""

    name: str
    value: float

    @property
    def is_falling(self) -> bool:
        return self.name.rpartition("_")[2] in FALLING

    @property
    def text(self) -> str:
        return f"{self.name} {self.value:g}"

    def curve_of(self, run: RunLog) -> tuple[list[float], list[float]]:
        """Return (iterations, scores): of tests as they are, of training the running mean that pictures have."""
        kind, _, score = self.name.rpartition("_") if self.name in SCORES else ("", "", self.name)

        def value(point: Point) -> float | None:
            return getattr(point, score) if score in PLAIN else point.metrics.get(score)

        tests = series(run.test, lambda point: point.iteration, value)
        if kind == "test" or score not in PLAIN or (not kind and tests[0]):
            return tests
        iterations, scores = series(run.train, lambda point: point.iteration, value)
        return iterations, running_mean(scores)

    def reached(self, run: RunLog) -> int | None:
        """Return the iterations after which a run first has the score; None if it never has."""
        pairs, sign = zip(*self.curve_of(run), strict=True), 1 if self.is_falling else -1
        return next((int(at) for at, score in pairs if sign * score <= sign * self.value), None)

    def best(self, run: RunLog) -> float | None:
        """Return the best score of a run; None without any."""
        _, scores = self.curve_of(run)
        return (min if self.is_falling else max)(scores, default=None)


def parse_target(text: str) -> Target:
    """Parse NAME VALUE, as in "loss 1.8" or "accuracy 90%". Raises UsageError."""
    name, _, value = text.strip().partition(" ")
    name = name.replace("-", "_")
    if name not in NAMES:
        raise UsageError(f"--target {text!r}: no score of a run is called {name!r}; {nearest(name, NAMES)}")
    try:
        number = float(value.removesuffix("%").strip()) / (100 if value.endswith("%") else 1)
    except ValueError:
        number = float("nan")
    is_fraction = name.endswith("accuracy") or name in FRACTIONS
    if not abs(number) <= (1 if is_fraction else float("inf")):
        wanted = "a fraction behind it, such as 0.95 or 95%" if is_fraction else "a number behind it, such as 1.8"
        raise UsageError(f"--target {text!r}: {name} wants {wanted}")
    return Target(name, number)
