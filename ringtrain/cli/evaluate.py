"""The command ``ringtrain evaluate``."""

import json
import math
import os
from pathlib import Path

import click

from ringtrain.cli.options import explicit_flags, layout_flags, plugin_option, run_flags
from ringtrain.cli.world import AVERAGED, in_world, tell_skipped
from ringtrain.errors import UsageError
from ringtrain.nn.metrics import MOST_CONFUSED
from ringtrain.report.screen.words import FRACTIONS, metric_name, metric_value
from ringtrain.show.output import echo, echo_file, echo_notes
from ringtrain.show.results import write_text
from ringtrain.show.tables import Column, json_text, make_table, plain_lines
from ringtrain.train.evaluate import Score, bad_images
from ringtrain.train.load import TrainedOnData, load, score_of
from ringtrain.transport.agree import agree, on_root, together
from ringtrain.transport.base import Transport


@click.command()
@click.argument("target")
@plugin_option
@click.option("--data", help="Data set. [that of the run]")
@click.option("--split", type=click.Choice(["train", "test"]), default="test", show_default=True)
@layout_flags
@run_flags("bad_images")
@click.option("--best", is_flag=True, help="The best checkpoint of a run folder, in place of the newest.")
@click.option("--raw", is_flag=True, help="The weights of the last update, also of a run with --ema.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Device. [as in the run]")
@click.option("--ops", help="Kernels. [those of the run]")
@click.option("--threads", type=int, help="Threads of a rank's operations. [OMP_NUM_THREADS if that is set, or 1]")
@click.option("--per-class", is_flag=True, help="Precision, recall, F1 and IoU of each class.")
@click.option("--confusion", is_flag=True, help="The confusion matrix: a row a label, a column a prediction.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write all metrics to a file, .json.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON in place of words.")
def evaluate(target, split, best, raw, per_class, confusion, output, force, as_json, **options):
    """Compute loss and metrics of TARGET, a checkpoint or a run folder; the same at any number of ranks."""

    def action(transport: Transport) -> None:
        asked = {"per-class": per_class, "confusion": confusion, "output": str(output) if output else ""}
        agree(transport, {**asked, "force": force})
        on_root(transport, lambda: _check_output(output, force))
        trained = load(transport, target, best, explicit_flags(options), split, raw)
        score = score_of(transport, trained, per_class or confusion or output is not None)
        bad = bad_images(transport, trained.split)
        together(transport, lambda: _check_classes(score, trained.loss.name, per_class, confusion))

        def report() -> None:
            tell_skipped(trained.skipped)
            echo_notes(trained.data.notes, err=True)
            echo_notes(
                [f"bad images: {len(bad):,} left out, first: {next(iter(bad.values()))}"] if bad else (), err=True
            )
            _report(trained, split, score, per_class, confusion, output, as_json)

        on_root(transport, report)

    return in_world(action)


def _check_output(path: Path | None, force: bool) -> None:
    if path is None:
        return
    if path.suffix != ".json":
        raise UsageError(f"{path}: metrics are written as .json")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path} exists: give another name, or --force")


def _check_classes(score: Score, loss: str, per_class: bool, confusion: bool) -> None:
    for flag in ("per-class",) * per_class + ("confusion",) * confusion:
        if score.classes is None:
            raise UsageError(f"--{flag} is for --loss ce and bce, and this run has --loss {loss}: leave --{flag} out")
    if confusion and score.classes is not None and score.classes.confusion is None:
        raise UsageError(
            f"--confusion wants classes that exclude one another, {MOST_CONFUSED:,} at the most, and this run has "
            f"{len(score.classes.hits):,} classes of --loss {loss}: give --per-class"
        )


def _report(
    trained: TrainedOnData,
    split: str,
    score: Score,
    per_class: bool,
    confusion: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    facts, every = _facts(trained, split, score), _by_class(score, trained)
    matrix = score.classes.confusion.tolist() if score.classes and score.classes.confusion is not None else None
    if output is not None:
        whole = facts | {"classes": every} | ({} if matrix is None else {"confusion": matrix})
        write_text(output, json_text(whole))
    if as_json:
        more = ({"classes": every} if per_class else {}) | ({"confusion": matrix} if confusion else {})
        echo_file(json.dumps(facts | more))
        return
    echo(*_words(trained, split, score))
    if per_class:
        echo(*_class_lines(every))
    if confusion and matrix is not None:
        echo(*_matrix_lines(matrix, [each["class"] for each in every]))
    if output is not None:
        echo(f"{output} has all metrics")


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _words(trained: TrainedOnData, split: str, score: Score) -> list[str]:
    figures = [] if score.accuracy is None else [("accuracy", f"{100 * score.accuracy:.2f} %")]
    for name, value in score.metrics.items():
        if name in FRACTIONS and value is not None:
            figures.append((metric_name(name), f"{100 * value:.2f} %"))
        else:
            figures.append((metric_name(name), metric_value(name, value)))
    examples = trained.split.count
    dense = trained.split.label_shape != ()
    count = (
        f"{score.examples:,} labelled elements of {examples:,} examples" if dense else f"{score.examples:,} examples"
    )
    others = "".join(f", {name} {value}" for name, value in figures)
    averaged = AVERAGED if trained.averaged else ""
    return [
        f"{trained.path} (model {trained.model.name}, iteration {trained.iteration:,})",
        f"{split} loss {score.loss:.4f}{others} of {count}{averaged}",
    ]


def _class_lines(classes: list[dict]) -> list[str]:
    def text(value) -> str:
        if isinstance(value, float):
            return f"{100 * value:.2f}%"
        return f"{value:,}" if isinstance(value, int) else str(value)

    columns = [Column(name, name, "", text, left=name == "class", none="-") for name in classes[0]]
    return ["", *plain_lines(make_table(columns, classes))]


def _matrix_lines(matrix: list[list[int]], names: list[str]) -> list[str]:
    columns = [Column(number, name, "", "{:,}") for number, name in enumerate(names, start=1)]
    rows = [[name, *counts] for name, counts in zip(names, matrix, strict=True)]
    return ["", *plain_lines(make_table([Column(0, "label \\ predicted", left=True), *columns], rows))]


# ── facts ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _facts(trained: TrainedOnData, split: str, score: Score) -> dict:
    facts = {
        "checkpoint": trained.path,
        "model": trained.model.name,
        "iteration": trained.iteration,
        "split": split,
        "loss": score.loss,
        "accuracy": score.accuracy,
        "examples": score.examples,
        "weights": "ema" if trained.averaged else "raw",
    }
    return facts | dict(score.metrics)


def _by_class(score: Score, trained: TrainedOnData) -> list[dict]:
    counts = score.classes
    if counts is None:
        return []
    columns = {name: getattr(counts, name) for name in ("precision", "recall", "f1", "iou")}
    names = trained.data.classes
    return [
        {"class": name, "labelled": int(counts.labelled[k]), "predicted": int(counts.predicted[k])}
        | {key: None if math.isnan(values[k]) else float(values[k]) for key, values in columns.items()}
        for k, name in enumerate(names if len(names) == len(counts.hits) else map(str, range(len(counts.hits))))
    ]
