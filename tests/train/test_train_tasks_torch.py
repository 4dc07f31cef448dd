"""Twenty steps of SGD with each loss in float64 are those of PyTorch. Runs where torch is installed."""

import numpy as np
import pytest
from small_runs import everywhere, iterate, means
from task_runs import TASKS, task_run

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
F = torch.nn.functional

STEPS, RATE, MOMENTUM = 20, 0.05, 0.9


def tensor(array):
    return torch.tensor(np.asarray(array, np.float64))


def forward(nodes, weights, x):
    """The net of a task, of channels last."""
    for node in nodes:
        kind, name = type(node.layer).__name__, node.name
        if kind == "Conv2D":
            weight, bias = weights[f"{name}.weight"].permute(3, 2, 0, 1), weights[f"{name}.bias"]
            x = F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=node.layer.geometry.pad).permute(0, 2, 3, 1)
        elif kind == "Linear":
            x = x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]
        else:
            x = x.relu() if kind == "ReLU" else x.flatten(1)
    return x


def mean_loss(name, y, labels):
    """PyTorch's mean; of labels of -1 none."""
    if name == "ce":
        return F.cross_entropy(y.reshape(-1, y.shape[-1]), torch.tensor(labels).long().reshape(-1), ignore_index=-1)
    y, wanted, counts = y.reshape(-1), tensor(labels).reshape(-1), torch.tensor(labels.reshape(-1) != -1)
    if name == "bce":
        return F.binary_cross_entropy_with_logits(y[counts], wanted[counts])
    return {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}[name](y, wanted)


@pytest.mark.parametrize("task", TASKS)
def test_twenty_steps_are_those_of_pytorch(task):
    def train(transport):
        run, ops = task_run(transport, task, iterations=STEPS, lr=RATE, momentum=MOMENTUM)
        start = {span.name: ops.to_host(run.arena.weight(span)).copy() for span in run.arena.spans}
        examples = []
        losses = means(iterate(run, transport, 0, STEPS, lambda batch: examples.append(batch.examples.copy())))
        return run, start, examples, losses, {s.name: ops.to_host(run.arena.weight(s)) for s in run.arena.spans}

    run, start, examples, losses, after = everywhere(1, train)[0]
    weights = {name: tensor(array).requires_grad_() for name, array in start.items()}
    optimizer = torch.optim.SGD(weights.values(), RATE, MOMENTUM)
    split, data = run.data.train, run.data
    mean, std = run.model.output.unit(run.graph.shapes[run.graph.output], data.label_moments) or (0, 1)
    for step in range(STEPS):
        x = tensor((split.images[examples[step]] - data.mean) / data.std)
        loss = mean_loss(
            TASKS[task][1], forward(run.graph.nodes, weights, x), (split.labels[examples[step]] - mean) / std
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert losses[step] == pytest.approx(float(loss.detach()), rel=1e-10)
    for name, array in after.items():
        np.testing.assert_allclose(array, weights[name].detach().numpy(), rtol=0, atol=1e-10, err_msg=name)
