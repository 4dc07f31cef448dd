"""ReFrame's checks of a machine by ringtrain: what is there, right sums, and the rates of collectives between ranks.

reframe -C SITE.py -c ringtrain_checks.py -r -S RingtrainBench.num_tasks=8 -S RingtrainBench.num_tasks_per_node=4

A site sets the rates that it expects, as ReFrame's references of RingtrainBench: busbw in GB/s, beside_mpi as a ratio.
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, performance_function, run_before, sanity_function


class RingtrainCheck(rfm.RunOnlyRegressionTest):
    """A command of ringtrain, which the site's module or environment puts on PATH."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "ringtrain"
    num_tasks = 2
    env_vars = {"OMP_NUM_THREADS": "1"}
    tags = {"ringtrain"}


@rfm.simple_test
class RingtrainDoctor(RingtrainCheck):
    """Versions, MPI, cores, shared memory and devices, as ranks of a job see them."""

    executable_opts = ["doctor", "--quick", "--strict"]

    @sanity_function
    def passes(self):
        return sn.assert_eq(self.job.exitcode, 0)


@rfm.simple_test
class RingtrainBench(RingtrainCheck):
    """A collective from 64 KiB to 64 MiB beside the MPI's own; every element is checked."""

    collective = parameter(["all-reduce", "all-gather", "broadcast"])
    sweep = "sweep.json"

    @run_before("run")
    def set_options(self):
        self.executable_opts = [
            *("bench-allreduce", "--collective", self.collective, "--algorithm", "auto,mpi"),
            *("-b", "64K", "-e", "64M", "-f", "4", "--budget-s", "10", "--json", self.sweep),
        ]

    @sanity_function
    def is_right(self):
        rows = self.rows()
        right = [sn.assert_eq(row["wrong"], 0) for row in rows]
        return sn.all([sn.assert_eq(self.job.exitcode, 0), sn.assert_true(rows), *right])

    @performance_function("GB/s")
    def busbw(self):
        """The greatest bus bandwidth of the algorithm that ringtrain chooses."""
        return max(row["busbw_bytes_per_s"] for row in self.rows() if row["algorithm"].startswith("auto")) / 1e9

    @performance_function("x")
    def beside_mpi(self):
        """The least speed-up over the MPI's own."""
        return min(row["speedup"] for row in self.rows() if row["speedup"])

    def rows(self):
        return json.loads(Path(self.stagedir, self.sweep).read_text())["rows"]
