"""What the acceptance on a GPU makes of its stages, without one: its limits, its files, and when it says no."""

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.acceptance.conftest import HOLD, MAIN, ROOT, take


@pytest.fixture
def main(acceptance):
    return acceptance("main")


OPTIONS = SimpleNamespace(out=Path("nowhere"), home=None, kernels=None, rehearse=False, call=1)


def stage(main, program, reading=None, seconds=30, **more):
    from readings import Reading

    command = [sys.executable, "-c", program]
    return main.Stage(
        "a", "A stage", "much", seconds, lambda folder: command, lambda folder: reading or Reading(), **more
    )


def run(main, stage, work, left=100, options=OPTIONS):
    outcome = main.Outcome(stage.name, stage.title, stage.wanted)
    main.run(stage, outcome, work, left, options)
    return outcome


END = "The end of its output: "
DONE = {"program": "pass"}


@pytest.mark.parametrize(
    ("changed", "left", "status", "said"),
    [
        (DONE, 100, "passed", ""),
        ({**DONE, "short": "too slow"}, 100, "fell short", "too slow"),
        ({"program": "print('oh'); raise SystemExit(3)"}, 100, "failed", f"exit code 3.  {END}oh"),
        ({"program": "import os; os.abort()"}, 100, "failed", f"ended by signal 6.  {END}"),
        ({"program": "import signal; signal.pause()", "seconds": 0.5}, 100, "failed", f"not done after 0 s.  {END}"),
        ({"command": "not-a-program"}, 100, "failed", f"exit code 127.  {END}not-a-program: No such file or directory"),
        ({"program": "exit('not so')", "unable": "not so"}, 100, "not done", f"exit code 1.  {END}not so"),
        (DONE, 1, "not done", "no time was left for it: name it as a stage of another call"),
    ],
)
def test_a_stage_ends_as_one_of_these(main, readings, tmp_path, changed, left, status, said):
    played = stage(main, changed.get("program"), readings.Reading(short=changed.get("short", "")))
    played = replace(played, **{key: changed[key] for key in ("seconds", "unable") if key in changed})
    if "command" in changed:
        played = replace(played, command=lambda folder: [changed["command"]])
    outcome = run(main, played, tmp_path, left)
    assert (outcome.status, outcome.said) == (status, said)


@pytest.mark.timing
def test_what_a_stage_has_started_ends_with_it(main, tmp_path):
    path = tmp_path / "held"
    program = HOLD.format(path=str(path), fifo=os.devnull)
    assert run(main, stage(main, program, seconds=1.5), tmp_path).status == "failed"
    take(path)


def test_the_exit_code_says_what_was_not_done(main, capsys):
    def outcome(name, status):
        return main.Outcome(name, "", "", status)

    assert main.conclude([outcome("a", "passed")]) == 0
    assert main.conclude([outcome("a", "passed"), outcome("b", "not done")]) == 1
    assert capsys.readouterr().err == "gpu-acceptance: not done: b\n"


def test_limits_of_a_call_add_up_and_the_document_names_the_calls(acceptance):
    """Those of the first calls add up, with the start of the machine, to twelve minutes."""
    stages = acceptance("stages")
    limits = {stage.name: stage.seconds for stage in stages.STAGES}
    seconds = [sum(limits[name] for name in call) for call in stages.CALLS]
    assert max(seconds) <= stages.SECONDS
    assert stages.START_S + sum(seconds[: stages.FIRST_CALLS]) <= stages.FIRST_S
    assert sorted(name for call in stages.CALLS for name in call) == sorted(limits)
    assert all(stage.small and stage.played for stage in stages.STAGES[:10])
    text = (ROOT / "docs" / "gpu.md").read_text()
    for number, call in enumerate(stages.CALLS, 1):
        assert number > stages.FIRST_CALLS or f"--out OUT --call {number}" in text
        assert f"| {number} | {', '.join(call)} |" in text.replace("`", "")
        assert f"{sum(limits[name] for name in call):.0f} s |" in text


# ── what the probe leaves out ─────────────────────────────────────────────────────────────────────────────────────
PRINTS = "import os; print(os.environ.get('RINGTRAIN_LEAVE_OUT'), os.environ.get('RINGTRAIN_TEST_DEVICE'))"


@pytest.mark.parametrize("place", ["out", "home", "kernels"])
def test_kinds_that_failed_in_the_probe_are_left_out_of_later_calls(main, acceptance, tmp_path, place):
    folders = {name: tmp_path / name for name in ("out", "home", "kernels", "work")}
    for folder in folders.values():
        folder.mkdir()
    probe = {"sources": acceptance("files").sources_digest(), "leave_out": ["wgmma"], "families": {}}
    (folders[place] / "probe.json").write_text(json.dumps(probe))
    options = SimpleNamespace(**{**vars(OPTIONS), **{name: folders[name] for name in ("out", "home", "kernels")}})

    def printed(**more):
        run(main, stage(main, PRINTS, **more), folders["work"], options=options)
        return (folders["work"] / "a" / "output.txt").read_text().strip()

    assert printed() == "wgmma cuda" and printed(leaves_out=False) == "None cuda"
    assert json.loads((folders["work"] / "a" / "before.json").read_text()) == probe
    (folders[place] / "probe.json").write_text(json.dumps({**probe, "sources": "others"}))
    assert printed() == "None cuda"


def test_a_rehearsal_says_of_each_stage_what_it_played(main, tmp_path):
    options = SimpleNamespace(**{**vars(OPTIONS), "out": tmp_path, "rehearse": True, "call": 2})
    program = "from ringtrain.ops.cuda.cupy_runtime import visible_devices; assert visible_devices() == 1"
    command = [sys.executable, "-c", program]
    played = stage(main, "", small=lambda folder: command, played="a part", needs=())
    outcome = run(main, played, tmp_path, options=options)
    assert (outcome.status, outcome.played) == ("passed", "a part")
    main.write(options, tmp_path, {}, [outcome])
    assert "| A stage | much | passed | a part |" in (tmp_path / "report-2.md").read_text()


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_report(main, readings, tmp_path):
    rows = [{"kernel": "add", "ms": 1.25}, {"kernel": "a|b", "launches": 12345.6}]
    work = tmp_path / "work"
    work.mkdir()
    outcome = run(main, stage(main, "print(7)", readings.Reading(rows, figures={"speed": 2.0})), work)
    main.judge(outcome, {})
    main.write(options_of(tmp_path), work, {"gpu": "Some GPU", "driver": "1.2", "mpi": None}, [outcome])
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Acceptance on Some GPU\n\n- gpu: Some GPU\n- driver: 1.2\n\n| stage | wanted | outcome |")
    assert "| kernel | ms | launches |\n| --- | --- | --- |\n| add | 1.25 | – |\n| a\\|b | – | 12,346 |" in text
    assert "| speed | 2 | no bar yet: measured |" in text
    assert json.loads((tmp_path / "report.json").read_text())["stages"][0]["rows"] == rows
    assert json.loads((tmp_path / "bars.json").read_text())["Some GPU"] == {"a": {"speed": 2.0}}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bars.json", "report.json", "report.md", "report.tar", "work"
    ]  # fmt: skip


def test_figures_of_a_stage_that_did_not_end_are_no_bar(main, tmp_path):
    (tmp_path / "work").mkdir()
    for status, kept in (("failed", False), ("not done", False), ("fell short", True)):
        outcome = main.Outcome("a", "", "", status, figures={"speed": 2.0})
        main.write(options_of(tmp_path), tmp_path / "work", {"gpu": "Some GPU"}, [outcome])
        assert ("Some GPU" in json.loads((tmp_path / "bars.json").read_text())) == kept


def options_of(folder):
    return SimpleNamespace(**{**vars(OPTIONS), "out": folder})


CUT = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import main
from pathlib import Path
from readings import Reading
program = "import signal; print('held', flush=True); signal.pause()"
command, reading = [sys.executable, "-c", program], Reading([{"n": 7}])
waits = main.Stage("a", "A stage", "much", 60, lambda _: command, lambda _: reading, live=True)
main.signal.signal(main.signal.SIGTERM, lambda *_: sys.exit(1))
options = {"out": Path(sys.argv[2]), "home": None, "kernels": None, "rehearse": False, "call": 1, "seconds": 60}
main.run_all([waits], SimpleNamespace(**options))
"""


def test_a_call_that_is_cut_leaves_what_it_had(tmp_path):
    command = [sys.executable, "-c", CUT, MAIN.parent, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as call:
        assert call.stdout.readline() == "held\n"
        call.terminate()
        assert call.wait(60) == 1
    (text,) = json.loads((tmp_path / "report.json").read_text())["stages"]
    assert (text["status"], text["rows"]) == ("not done", [{"n": 7}])


def test_the_report_is_written_while_a_stage_goes_on(main, monkeypatch, tmp_path):
    processes, beats = sys.modules["processes"], []
    monkeypatch.setattr(processes, "BEAT_S", 0.01)
    assert processes.ended([sys.executable, "-c", "pass"], 60, beat=lambda: beats.append(1)) == 0
    assert beats


def test_the_archive_has_logs_and_no_weights(main, tmp_path):
    deep = tmp_path / "work" / "a" / "run" / "checkpoints"
    deep.mkdir(parents=True)
    for name in ("log.jsonl", "weights.h5"):
        (deep / name).write_text("x")
    main.write(options_of(tmp_path), tmp_path / "work", {}, [])
    with tarfile.open(tmp_path / "report.tar") as archive:
        assert archive.getnames() == ["a/run/checkpoints/log.jsonl"]


# ── bars ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_figure_is_judged_by_what_this_gpu_did_before(acceptance):
    bars = acceptance("report")
    assert bars.judged({"a": 0.91, "b": 5.0}, {"a": 1.0})[1] == ""
    rows, short = bars.judged({"a": 0.89, "b": float("nan")}, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert short == "a is 0.89, and was 1; b is nan, and was 1; c was measured before, and is not now"
    assert rows[0] == {"figure": "a", "measured": 0.89, "bar": 0.9}
    # without an earlier run there is no bar
    assert bars.judged({"a": 0.1}, {}) == (
        [{"figure": "a", "measured": 0.1, "bar": "no bar yet: measured"}], ""
    )  # fmt: skip


def test_a_stage_below_its_bar_falls_short(main):
    for before, said, figures, after in (
        ("passed", "", {"speed": 1.0}, ("fell short", "speed is 1, and was 2")),
        ("failed", "exit code 1", {}, ("failed", "exit code 1")),
    ):
        outcome = main.Outcome("a", "", "", before, said=said, figures=figures)
        main.judge(outcome, {"speed": 2.0})
        assert (outcome.status, outcome.said) == after


# ── readings ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_losses_that_are_apart_fall_short(readings, tmp_path):
    rows = [
        {"what": what, "ranks": 2, "apart": apart, "allowed": 1e-4}
        for what, apart in (("near", 9e-5), ("far", 2e-4), ("none", float("nan")))
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert readings.losses(tmp_path).short == "further apart than allowed: far at 2 ranks, none at 2 ranks"


def test_speeds_beside_pytorch_are_figures(readings, tmp_path):
    about = {"batch": 8, "precision": "tf32", "gradient_apart": 1e-4, "worst_parameter_apart": 1e-3}
    about |= {"worst_share_off": 1e-5, "left_out": "cuDNN is left out 3×: no engine"}
    row = {"model": "a", **about, "images_per_s": {"ringtrain": 2.0, "eager": 1.0}, "ratio": {"eager": 2.0}}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    reading = readings.ratios(tmp_path)
    assert reading.figures == {"a tf32 batch 8, × eager": 2.0} and reading.rows[0]["ringtrain, images/s"] == 2.0
    assert reading.rows[0]["left out"] == "cuDNN is left out 3×: no engine"
    (tmp_path / "rows.json").unlink()
    (tmp_path / readings.EXACT).write_text(json.dumps([{**about, "model": "a"}]))
    assert readings.ratios(tmp_path).short == "nothing was timed"
    assert readings.exact(tmp_path).rows[0]["gradient_apart"] == 1e-4


def test_kernels_that_had_to_be_compiled_fall_short(readings, tmp_path):
    for missing, short in ((0, ""), (3, "3 of 9 were missing")):
        (tmp_path / "rows.json").write_text(json.dumps({"kernels": 9, "missing": missing}))
        assert readings.warm(tmp_path).short == short


def test_an_all_reduce_is_held_against_the_host_and_a_copy(readings, tmp_path):
    large = 1 << 28

    def row(algorithm, seconds, nbytes=large, wrong=0):
        return {
            "ranks": 2, "algorithm": algorithm, "bytes": nbytes, "status": "ok", "median_s": seconds, "wrong": wrong
        }  # fmt: skip

    rows = [row("mpi", 6.0), row("mapped", 1.0), row("ring", 2.0, wrong=3), row("mapped", 1.0, 1 << 20)]
    (tmp_path / "2-ranks.json").write_text(json.dumps({"rows": rows}))
    refused = {"ranks": 4, "algorithm": "mapped", "bytes": large, "status": "refused", "reason": "not here"}
    (tmp_path / "4-ranks.json").write_text(json.dumps({"rows": [refused]}))
    (tmp_path / "ceilings.json").write_text(json.dumps({"copy, TB/s": 4 * large / 1e12}))
    reading = readings.allreduce(tmp_path)
    assert reading.short == "mapped was not measured at 4 ranks; wrong sums: ring at 2 ranks"
    assert reading.figures == {
        "mapped, 256 MiB, 2 ranks, × host": 6.0,
        "mapped, 256 MiB, 2 ranks, share of a copy": pytest.approx(1.0),
    }
    assert reading.rows[-1]["reason"] == "not here"


# ── kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_bytes_that_are_only_touched_are_no_floor(acceptance):
    """Of x a kernel that finishes moments reads a line a group."""
    kernels = acceptance("kernels")
    arrays_by_kernel = {}

    class Profile:
        def timed(self, name, stream, arrays, work):
            arrays_by_kernel[name] = arrays

    for function in ("finish_moments", "normalise"):
        kernel = kernels.ProfiledKernel("norm.cu", function, SimpleNamespace(launch=None), Profile())
        kernel.launch(1, 1, None, ["x", None, "mean"], 0)
    assert arrays_by_kernel == {"norm.cu: finish_moments": ["mean"], "norm.cu: normalise": ["x", "mean"]}


def test_a_stage_that_is_not_there():
    done = subprocess.run([sys.executable, MAIN, "speed"], capture_output=True, text=True)
    assert done.returncode == 2 and "no stage is called speed: warm, probe, doctor, first" in done.stderr
