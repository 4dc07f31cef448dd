"""Finds the prediction of a run in the plan of ``--plan``."""

from ringtrain.config.record import TrainConfig
from ringtrain.errors import UsageError
from ringtrain.report.events import PredictedSpeed
from ringtrain.train.agree import on_root
from ringtrain.transport.base import Transport

Found = tuple[PredictedSpeed | None, str | None]  # the prediction; a note if the plan has none


def find_prediction(transport: Transport, config: TrainConfig, model: str, after_death: bool = False) -> Found:
    """The prediction of a run. Collective: rank 0 reads the file. Raises UsageError for one that is no plan, unless
    ranks have died."""
    path = config.plan
    if path is None:
        return None, None
    speed, note = on_root(transport, lambda: _found(path, config, model, transport, after_death))
    return PredictedSpeed(**speed) if speed else None, note


def _found(
    path: str, config: TrainConfig, model: str, transport: Transport, after_death: bool
) -> tuple[dict | None, str | None]:
    """(the fields of the prediction or None, the note), which are JSON-able."""
    from ringtrain.plan.plan_file import SoughtRun, find_row, missing_note, read_plan  # 40 ms, with all of plan

    try:
        plans = [read_plan(path)]
    except UsageError as error:
        if not after_death:
            raise
        return None, f"without --plan from here on: {error}"
    run = SoughtRun(config, model, transport.size, transport.nodes, config.batch)
    row = find_row(plans, run)
    if row is None:
        return None, missing_note(plans, run, "this run", [run.ranks])
    return {name: getattr(row, name) for name in PredictedSpeed.__slots__}, None
