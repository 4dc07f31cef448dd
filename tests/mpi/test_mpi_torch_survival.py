"""`python -m ringtrain.torch --elastic`: ranks of a script die, and the others, or new ones, go on."""

import json
import re
from itertools import chain

import pytest

from tests.mpi.conftest import PATIENCE_S, run
from tests.mpi.test_mpi_exact_order import EXACT, ORDER
from tests.mpi.test_mpi_torch import PROGRAMS
from tests.runs import records
from tests.says import says
from tests.tiers import thorough

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
pytestmark = pytest.mark.mpi

SCRIPT, STEPS = str(PROGRAMS / "survivor_net.py"), 12
ULFM = ("--with-ft", "ulfm")


@pytest.fixture
def planned():
    """planned(net, ranks) → the losses of runs that lose a rank by plan"""
    from tests.mpi.programs.pytorch.survivor_net import Planned  # which imports torch

    return lambda net, ranks=3: Planned(net, ranks, STEPS)


@pytest.fixture
def survives(mpirun_command, tmp_path):
    """survives(net, kills, mode, words, ranks) → (status, output, the losses of the log, the events of deaths)"""

    def start(net, *kills, mode="shrink", words=(), ranks=3, launcher=ULFM):
        options = ["-W", "ignore", "-m", "ringtrain.torch", "--elastic", mode, "--out", str(tmp_path / "run")]
        script = [SCRIPT, net, "--steps", str(STEPS), *chain(*(("--kill", kill) for kill in kills)), *words]
        command = mpirun_command(ranks, [*options, *script])
        done = run([command[0], *launcher, *command[1:]], PATIENCE_S)
        log = records(tmp_path / "run") if (tmp_path / "run" / "log.jsonl").exists() else []
        losses = [record["loss"] for record in log if record["event"] == "iteration"]
        return done.returncode, done.stdout + done.stderr, losses, [each for each in log if each["event"] == "lost"]

    return start


@pytest.mark.parametrize(
    ("net", "kill", "words"),
    [
        ("gpt", "2:5:forward", ()),
        ("resnet", "1:5:backward", ()),
        *thorough(
            ("gpt", "1:5:after", ()),  # the dead has had its sums, and the others perhaps not
            ("resnet", "2:3:after", ("--keep-gradients",)),
            ("gpt", "2:0:backward", ()),
        ),
    ],
)
def test_the_others_go_on_to_the_losses_of_a_run_that_loses_the_rank_by_plan(survives, planned, net, kill, words):
    rank, step, place = kill.split(":")
    status, output, losses, (death,) = survives(net, kill, words=words)
    assert status == 0 and "Traceback" not in output, output
    assert (death["lost"], death["ranks"], death["source"]) == ([int(rank)], 2, "memory")
    assert death["resumed_at"] in ({int(step), int(step) + 1} if place == "after" else {int(step)})
    assert losses == pytest.approx(planned(net).losses(int(rank), death["resumed_at"]), rel=1e-9)


def test_ranks_die_one_after_the_other_until_one_is_left(survives, planned):
    status, output, losses, deaths = survives("gpt", "2:4:forward", "1:8:backward", words=("--keep-gradients",))
    assert status == 0 and [death["ranks"] for death in deaths] == [2, 1], output
    assert losses[:8] == pytest.approx(planned("gpt").losses(2, 4)[:8], rel=1e-9) and len(losses) == STEPS


def test_where_rank_0_dies_the_others_save_and_the_same_command_goes_on(survives, planned, tmp_path):
    status, output, _, _ = survives("gpt", "0:6:forward")
    saved = tmp_path / "run" / "survivor_net.survivors.pt"
    assert status == 75 and re.search(says("rank 0 has died", str(saved), "goes on"), output), output
    outcome = json.loads((tmp_path / "run" / "outcome.json").read_text())
    assert (outcome["exit_code"], outcome["lost"]) == (75, [0])
    status, output, losses, _ = survives("gpt")
    assert status == 0 and not saved.exists(), output
    wanted = planned("gpt").losses(-1, 0)
    del wanted[5]  # of the last step before its death rank 0 has written no record
    assert losses == pytest.approx(wanted, rel=1e-9)


def test_where_rank_0_dies_and_the_script_has_given_no_state_all_end(survives):
    status, output, _, _ = survives("gpt", "0:6:forward", words=("--no-register",))
    assert status not in (0, 75) and re.search(says("rank 0 has died", "ringtrain.torch.register"), output), output


@pytest.mark.parametrize("net", ["gpt", *thorough("resnet")])
def test_a_new_rank_takes_the_place(survives, planned, net):
    status, output, losses, (death,) = survives(net, "1:5:backward", mode="replace")
    assert status == 0 and "Traceback" not in output, output
    assert (death["lost"], death["ranks"], death["replaced"]) == ([1], 3, 1)
    assert losses == pytest.approx(planned(net).losses(-1, 0), rel=1e-9)


def test_a_script_without_state_is_not_replaced(survives):
    status, output, _, _ = survives("gpt", mode="replace", words=("--no-register",))
    assert status == 1 and re.search(says("--elastic replace", "ringtrain.torch.register"), output), output


def test_a_launcher_that_ends_all_is_refused(survives):
    status, output, _, _ = survives("gpt", launcher=())
    assert status == 2 and re.search(says("--elastic shrink", "mpirun --with-ft ulfm"), output), output


SUMS = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ringtrain.torch import should_stop

dist.init_process_group("gloo")
rank = dist.get_rank()
net = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(8):
    if step == 4 and rank == 1: os.kill(os.getpid(), signal.SIGKILL)
    if step == 4 and "own" in sys.argv: dist.all_reduce(torch.ones(1))
    optimizer.zero_grad()
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    if step == 6 and rank == 2: os.kill(os.getpid(), signal.SIGUSR1)
    if should_stop():
        total = torch.ones(1)
        dist.all_reduce(total)
        print(f"stopped after {step} of {dist.get_world_size()}: {total.item():g}", flush=True)
        break
"""


@pytest.mark.parametrize("of_its_own", [False, True])
def test_should_stop_and_collectives_of_the_script(mpirun_command, tmp_path, of_its_own):
    """They are the survivors' after a death; a script that waits in one meanwhile ends, and says who has died."""
    (tmp_path / "sums.py").write_text(SUMS)
    words = [str(tmp_path / "sums.py"), *(["own"] if of_its_own else [])]
    command = mpirun_command(3, ["-W", "ignore", "-m", "ringtrain.torch", "--elastic", *words])
    done = run([command[0], *ULFM, *command[1:]], PATIENCE_S)
    output = done.stdout + done.stderr
    if of_its_own:
        assert done.returncode not in (0, 75) and re.search(says("rank 1", "died"), output), output
    else:
        assert done.returncode == 0 and output.count("stopped after 7 of 2: 2") == 2, output


@pytest.mark.parametrize("workers", [0, *thorough(2)])
def test_in_exact_order_the_others_take_over_the_examples_of_the_dead(mpirun_command, tmp_path, workers):
    """Of the batch under way its part is missing, and weighs nothing; from the next on all are there."""
    words = [str(PROGRAMS / "exact.py"), "plain", str(tmp_path), "run", "stop=3", "victim=1", f"workers={workers}"]
    command = mpirun_command(4, ["-W", "ignore", "-m", "ringtrain.torch", "--elastic", *EXACT, *words])
    done = run([command[0], *ULFM, *command[1:]], PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [
        [json.loads(line) for line in (tmp_path / f"run-{rank}.jsonl").read_text().splitlines()] for rank in range(4)
    ]
    assert [len(each) for each in lines] == [10, 3, 10, 10]
    net, optimizer = None, None
    for number in range(10):
        parts = [each[number] for each in lines if number < len(each)]
        epoch, start, stop = ORDER.place(number)
        wanted, got = ORDER.order(epoch)[start:stop].tolist(), [*chain(*(part for part, _ in parts))]
        if number == 3:
            assert sorted({*wanted} - {*got}) == sorted(wanted[2:4]) and len(got) == 6
        else:
            assert got == wanted
        net, optimizer, loss = reference_step(net, optimizer, got)
        assert sum(len(part) * each for part, each in parts) / len(got) == pytest.approx(loss, rel=1e-12)


def reference_step(net, optimizer, examples):
    """One process trains on these examples."""
    if net is None:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(37, 6, generator=draws, dtype=torch.float64)
    y = torch.randn(37, 3, generator=draws, dtype=torch.float64)
    loss = (net(x[examples]) - y[examples]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return net, optimizer, loss.item()
