"""``drainfsm run -- LAUNCHER``, for every launcher that can be had: the table of docs/launchers.md.

Two ranks; a SIGTERM to every process that the job has, as some platforms send it, while there is a
minute left; then once more by ``drainfsm notify``. Each time both ranks save one step, leave, and
resume at the next. A save takes longer than the second that mpirun leaves its ranks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm_kit.running import ROOMY, RunningJob, free_port

SAVE_S = "2"
PYTHON = sys.executable
BIN = Path(PYTHON).parent
Command = tuple[str, ...]

BY_HAND = """
import multiprocessing, os, sys
from drainfsm_kit import toy_rank

def rank(number):  # a script of its own would call drainfsm.attach(rank=number, world_size=2)
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    sys.exit(toy_rank.main(sys.argv[2:]))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ranks = [context.Process(target=rank, args=(number,)) for number in range(2)]
    [one.start() for one in ranks]
    [one.join() for one in ranks]
    sys.exit(max(one.exitcode for one in ranks))
"""

BY_SUBMITIT = """
import sys
import submitit
from submitit.helpers import TorchDistributedEnvironment
from drainfsm_kit import toy_rank

def rank(*arguments):
    TorchDistributedEnvironment().export()
    return toy_rank.main(list(arguments))

if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="local")
    executor.update_parameters(tasks_per_node=2, timeout_min=60)
    sys.exit(max(executor.submit(rank, *sys.argv[2:]).results()))
"""


class Starting:
    """How a launcher is told to start two toy ranks: python, -m, the module, its options."""

    def __init__(self, job: RunningJob) -> None:
        self._directory = job.directory
        self.toy = job.toy("--save-s", SAVE_S)

    def script(self, name: str, text: str) -> str:
        path = self._directory / name
        path.write_text(text)
        return str(path)

    def torchrun(self, *options: str) -> Command:
        return (str(BIN / "torchrun"), *options, "--nproc-per-node", "2", *self.toy[1:])

    def static(self) -> Command:
        module = (PYTHON, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2")
        return (*module, "--master-port", str(free_port()), *self.toy[1:])

    def standalone(self) -> Command:
        return self.torchrun("--standalone")

    def elastic(self) -> Command:
        """One or two nodes; a second one is waited for, for a second instead of half a minute."""
        meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
        quick = ("--rdzv-conf", "last_call_timeout=1,is_host=1")
        return self.torchrun("--nnodes", "1:2", "--max-restarts", "3", *meeting, *quick)

    def openmpi(self) -> Command:
        return ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *self.toy)

    def mpich(self) -> Command:
        return ("mpiexec.hydra", "-n", "2", *self.toy)

    def multiprocessing(self, method: str) -> Command:
        return (PYTHON, self.script("by_hand.py", BY_HAND), method, *self.toy[3:])

    def spawn(self) -> Command:
        return self.multiprocessing("spawn")

    def fork(self) -> Command:
        return self.multiprocessing("fork")

    def submitit(self) -> Command:
        folder = str(self._directory / "submitit")
        return (PYTHON, self.script("submit.py", BY_SUBMITIT), folder, *self.toy[3:])

    def accelerate(self, *options: str) -> Command:
        plain = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
        launch = (PYTHON, "-m", "accelerate.commands.launch", "--num_processes", "2", *plain)
        return (*launch, *options, *self.toy[1:])

    def accelerate_torchrun(self) -> Command:
        return self.accelerate("--multi_gpu", "--main_process_port", str(free_port()))

    def accelerate_mpirun(self) -> Command:
        hosts = self.script("hosts", "localhost slots=2\n")
        return self.accelerate("--cpu", "--mpirun_hostfile", hosts)

    def deepspeed(self) -> Command:
        options = ("--num_gpus", "2", "--master_port", str(free_port()), "--no_local_rank")
        runner = (PYTHON, "-m", "deepspeed.launcher.runner")
        return (*runner, *options, "--module", *self.toy[2:])


def needs(program: str) -> pytest.MarkDecorator:
    """CI has it: `make launchers` installs it."""
    absent = shutil.which(program) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(absent, reason=f"{program} is missing: `make launchers` installs it")


def needs_package(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"pip install {name}")


def launcher(start: Callable[[Starting], Command], *marks: pytest.MarkDecorator) -> object:
    return pytest.param(start, id=start.__name__, marks=marks)


@pytest.mark.parametrize(
    "start",
    [
        launcher(Starting.static),
        launcher(Starting.standalone),
        launcher(Starting.elastic),
        launcher(Starting.openmpi, needs("mpirun")),
        launcher(Starting.mpich, needs("mpiexec.hydra")),
        launcher(Starting.spawn),
        launcher(Starting.fork),
        launcher(Starting.submitit),
        launcher(Starting.accelerate_torchrun, needs_package("accelerate")),
        launcher(Starting.accelerate_mpirun, needs_package("accelerate"), needs("mpirun")),
        launcher(Starting.deepspeed, needs_package("deepspeed")),
    ],
)
def test_two_ranks_save_one_step_and_resume_at_the_next(
    job: RunningJob, monkeypatch: pytest.MonkeyPatch, start: Callable[[Starting], Command]
) -> None:
    job.grace_s, job.allowances = 120.0, ROOMY
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    starting, begins = Starting(job), 0
    for epoch in (1, 2):
        agent = job.start(start(starting))
        job.wait_for(e.HealthyStepReached, epoch=epoch)
        if epoch == 1:
            signal_everybody(job)
        else:
            job.notify(in_s=120.0)
        assert agent.wait() == 75, agent.output()
        (saved,) = job.find(e.ManifestPublished, epoch)
        assert job.find(e.WorldFormed, epoch)[0].world_size == 2
        (left,) = job.find(e.Exited, epoch)
        assert (left.nodes[0].exit_code, left.nodes[0].killed_ranks) == (0, ()), agent.output()
        for rank in (0, 1):
            steps = job.steps(rank, epoch)
            assert (steps[0], steps[-1]) == (begins, saved.step)
        begins = saved.step + 1
    job.wait_until_gone()


def signal_everybody(job: RunningJob) -> None:
    everybody = job.processes()
    assert len(everybody) >= 4, "the agent, its launcher, and two ranks"
    for pid in everybody:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
