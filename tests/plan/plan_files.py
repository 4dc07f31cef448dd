"""Files of measured layers and of a sweep, made by formulas, so that what has to be predicted is known."""

import json

from ringtrain.bench.measure.links import BETWEEN, INSIDE, Calibration, LinkClass
from ringtrain.bench.model.fit import fit_sweep
from ringtrain.collectives.topology import topology_from_nodes
from ringtrain.nn import spec

FORWARD_S, BACKWARD_S, UPDATE_S, BESIDE_S = 1e-5, 2e-5, 3e-3, 5e-4  # of an image; of an image; once; once
CALIBRATION = Calibration(
    {INSIDE: LinkClass(1e-6, 1e10, 1e10, 1e10), BETWEEN: LinkClass(1e-5, 1e9, 1e9, 1e9)},
    gamma_s_per_byte=1e-10,
    sharing=1,
)


def layers_file(folder, batch=64, ranks=1, model="mlp", factor=1.0, cores=4, **header):
    """Every layer takes the same: FORWARD_S and BACKWARD_S of an image."""
    images = batch / ranks
    times = {"forward_s": factor * images * FORWARD_S, "backward_s": factor * images * BACKWARD_S}
    rows = [{"layer": node.name, "kind": "x", **times} for node in spec.load_model(model).graph().plan]
    apart = (("input", BESIDE_S / 2), ("loss", BESIDE_S / 2), ("update", UPDATE_S), ("between layers", 0.0))
    rows += [{"layer": name, "kind": "", "forward_s": None, "backward_s": seconds} for name, seconds in apart]
    held_bytes = 3 * 4 * spans_count(model)
    facts = {"model": model, "batch": batch, "dtype": "float32", "ranks": ranks, "host_by_rank": ["n1"] * ranks}
    facts |= {"host_cores": cores, "held_bytes": held_bytes, "peak_bytes": held_bytes + (1 << 20)}
    path = folder / f"layers-{batch}-{ranks}.json"
    whole = sum((row["forward_s"] or 0.0) + row["backward_s"] for row in rows)
    path.write_text(json.dumps({"header": facts | header, "rows": rows, "totals": {"iteration_s": whole}}))
    return str(path)


def spans_count(model):
    from ringtrain.memory.arena import lay_out

    return lay_out(spec.load_model(model).graph().parameters())[-1].stop


def sweep_file(folder, hosts=("n1", "n1"), seconds=None, algorithms=("ring", "star", "sliced"), **calibration):
    """``seconds``: (algorithm, bytes) → its time; by default 1 ms and a second for each GB. ``calibration``:
    its figures; a link between nodes carries a GB a second."""
    seconds = seconds or (lambda name, nbytes: 1e-3 + 1e-9 * nbytes)
    names = list(dict.fromkeys(hosts))
    topology = topology_from_nodes([names.index(host) for host in hosts])
    rows = [
        {
            "algorithm": name,
            "ranks": len(hosts),
            "nodes": len(names),
            "bytes": nbytes,
            "dtype": "float32",
            "wire_dtype": "float32",
            "device": "cpu",
            "way": "",
            "op": "sum",
            "placement": "in",
            "status": "ok",
            "median_s": seconds(name, nbytes),
            "samples_s": [seconds(name, nbytes)],
        }
        for name in algorithms
        for nbytes in (1 << k for k in range(10, 28, 3))
    ]
    fits = fit_sweep(rows, CALIBRATION, topology)
    header = {"host_by_rank": list(hosts), "finished": True, "fits": fits}
    header["calibration"] = {"links": {BETWEEN: {"busy_bytes_per_s": 1e9}}, **calibration}
    path = folder / "sweep.json"
    path.write_text(json.dumps({"header": header, "rows": rows}))
    return str(path)
