from dataclasses import replace
from functools import partial

import pytest

from ringtrain.report import events
from ringtrain.report.sinks import JsonLines

RUN = events.RunStarted(
    version="0.1.0", model="digits", parameters=34_826, data="digits", train_examples=1_438, test_examples=359,
    strategy="allreduce (ring)", exact=True, ranks=2, nodes=1, device="CPU x86-64-v3, 1 thread", dtype="float32",
    batch=64, optimizer="sgd, momentum 0.9", lr=0.05, schedule="cosine", epochs=20, iterations=460,
    iterations_per_epoch=23, resumed_at=0, seed=1, folder="runs/digits-20260131-235958",
)  # fmt: skip
ITERATION = events.Iteration(
    iteration=1, epoch=1, loss=2.3, accuracy=0.125, lr=0.05, examples=64, images_per_s=12_345.6, seconds=0.5
)
EPOCH = events.EpochEnded(
    iteration=23, epoch=1, train_loss=1.5, train_accuracy=0.5, test_loss=0.75, test_accuracy=0.875, seconds=65.2
)
ENDED = events.Ended(
    iterations=460, epochs=20, ranks=2, test_accuracy=0.975, test_loss=0.1, images_per_s=12_345.6,
    weights_sha256="ab" * 32, seconds=3_725.0, exposed_share=0.031, reason="done",
)  # fmt: skip
GRADIENTS = {"what": "gradients", "algorithm": "ring"}
BUCKETS = (
    events.BucketExchanged(**GRADIENTS, spans="fc.weight to fc.bias", nbytes=3 << 20, total_s=0.5, exposed_s=0.01),
    events.BucketExchanged(**GRADIENTS, spans="conv.weight", nbytes=1 << 20, total_s=0.25, exposed_s=0.0325),
)
EXCHANGED = events.Exchanged(
    iteration=460, epoch=20, overlap="backward", bytes_sent=1 << 30, exposed_s=30.0, buckets=BUCKETS, seconds=3_724.0
)
RANKS = events.Ranks(
    images=[60, 68], updates=[2, 2], training_s=[4.0, 5.0], exposed_s=[1.0, 0.5], bytes_sent=[300, 500],
    bytes_received=[None, None], between_bytes=[0, 0], weights_bytes=[10, 10], gradient_bytes=[10, 10],
    state_bytes=[5, 7], peak_bytes=[1 << 30, 1 << 29],
)  # fmt: skip
OTHERS = [
    events.Compiled(seconds=4.25, kernels=31),
    events.Evaluated(iteration=30, epoch=2, test_loss=0.5, test_accuracy=0.9, seconds=70.0),
    events.Note(text="passed over a damaged checkpoint"),
]


def logged(path, *happened, **settings):
    """Write a log of these events. Returns its folder, which is made."""
    path.parent.mkdir(exist_ok=True)
    log = JsonLines(path, **settings)
    for event in happened:
        log.handle(event)
    log.close()
    return path.parent


def has(picture, colour):
    """Whether some pixels of the picture are of this colour, "#rrggbb"."""
    wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return (abs(picture[:, :, :3] - wanted).max(axis=2) < 0.02).sum() > 20


def like(event):
    """A maker of events like this one, with some fields changed."""
    return lambda **changed: replace(event, **changed)


run, iteration, epoch, exchanged, ended = map(like, (RUN, ITERATION, EPOCH, EXCHANGED, ENDED))


@pytest.fixture
def write(tmp_path):
    """write(events...) → the folder of a run with that log."""
    return partial(logged, tmp_path / "run" / "log.jsonl")
