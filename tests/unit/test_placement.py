"""Which rank a process is, by the variables of its launcher; and where its agent is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drainfsm.errors import ConfigError
from drainfsm.runtime import paths
from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.rank.placement import Placement, placed_outside, placement_of
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.environment import OUTSIDE_VARIABLE

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "100",
}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3", "PMI_FD": "7"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_SIZE": "1"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "9"}
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environ", "placed"),
    [
        (TORCHRUN, (5, 8, 4)),
        (OPEN_MPI, (1, 4, 2)),
        (MPICH, (2, 3, 3)),
        (MVAPICH, (0, 2, 1)),
        (SRUN, (3, 8, None)),
        ({**SRUN, **OPEN_MPI}, (1, 4, 2)),
        ({**OPEN_MPI, **TORCHRUN}, (5, 8, 4)),
        (BATCH_SCRIPT, (None, None, None)),
        ({}, (None, None, None)),
    ],
)
def test_every_launcher_says_it_by_its_own_variables(
    environ: dict[str, str], placed: tuple[int | None, ...]
) -> None:
    assert placement_of(environ) == Placement(*placed)


@pytest.mark.parametrize("outside", [OPEN_MPI, MPICH, MVAPICH, SRUN])
def test_what_the_agent_was_started_by_says_nothing_about_its_ranks(
    outside: dict[str, str],
) -> None:
    """``srun drainfsm run -- python train.py``: the variables are inherited, and mean the agent."""
    inherited = {**outside, OUTSIDE_VARIABLE: placed_outside(outside)}
    assert placement_of(inherited) == Placement()
    assert placement_of({**inherited, **TORCHRUN}) == Placement(5, 8, 4)


@pytest.mark.parametrize(
    ("outside", "inside", "placed"),
    [
        ({**SRUN, "SLURM_PROCID": "0"}, {"SLURM_STEP_ID": "1"}, (0, 8, None)),
        (OPEN_MPI, {"PMIX_NAMESPACE": "200"}, (1, 4, 2)),
        (MPICH, {"PMI_FD": "9"}, (2, 3, 3)),
    ],
)
def test_the_same_launcher_inside_the_agent_counts(
    outside: dict[str, str], inside: dict[str, str], placed: tuple[int | None, ...]
) -> None:
    """Even where its numbers are those of the agent."""
    environ = {**outside, OUTSIDE_VARIABLE: placed_outside(outside), **inside}
    assert placement_of(environ) == Placement(*placed)


def test_what_is_no_number_is_said() -> None:
    with pytest.raises(ConfigError, match="OMPI_COMM_WORLD_SIZE is 'many'"):
        placement_of({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "many"})


def test_one_agent_has_every_rank_whatever_the_launcher_takes_for_a_node() -> None:
    """Two torchruns on one machine, each a "node" of one rank."""
    ranks = LocalRanks(node=0, node_count=1, report=lambda message: None)
    for rank in (0, 1):
        attach = m.Attach(rank=rank, world_size=2, local_world_size=1, pid=0, incarnation="0")
        ranks.attach(attach, lambda message: None)
    assert (ranks.expected_count, ranks.ranks) == (2, (0, 1))


LOOKS = """
import json, os, sys
from drainfsm.runtime.rank.finding import with_agent
found = with_agent(os.environ)
assert found.get("DRAINFSM_SOCKET") == os.environ.get("DRAINFSM_SOCKET"), "its children inherit it"
print(json.dumps({name: found.get(name) for name in ("DRAINFSM_SOCKET", "DRAINFSM_SIGNALS")}))
"""


def looked(*wrapper: str, **variables: str) -> str:
    """By a process whose launcher drops the environment."""
    command = (*wrapper, "env", "-i", sys.executable, "-c", LOOKS)
    environ = {**os.environ, **variables}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_an_agent_is_found_by_a_process_above_that_has_its_variables() -> None:
    said = looked("sh", "-c", '"$@"; true', "sh", DRAINFSM_SOCKET="/a/b", DRAINFSM_SIGNALS="SIGHUP")
    assert '{"DRAINFSM_SOCKET": "/a/b", "DRAINFSM_SIGNALS": "SIGHUP"}' in said
    assert "has not passed DRAINFSM_SOCKET on" in said


def test_above_a_process_that_wants_none_nobody_looks() -> None:
    inner = ("sh", "-c", 'DRAINFSM_SOCKET= sh -c \'"$@"; true\' sh "$@"; true', "sh")
    assert '"DRAINFSM_SOCKET": null' in looked(*inner, DRAINFSM_SOCKET="/a/b")


@pytest.fixture
def own_socket(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Where an agent of a job would listen, if it were this process."""
    made = []

    def place(job: str) -> str:
        made.append(paths.agent_socket(tmp_path, job=job, node_rank=0))
        return str(made[-1])

    yield place
    for path in made:
        path.unlink()


def test_a_socket_of_another_agent_with_the_same_process_id_is_not_taken(
    own_socket: Callable[[str], str],
) -> None:
    """Containers that share /tmp all have a process 1."""
    command = [sys.executable, "-c", LISTENS, own_socket("theirs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert '"DRAINFSM_SOCKET": null' in looked()
        other.communicate()


def test_an_agent_is_found_beside_what_killed_ones_of_its_process_id_have_left(
    own_socket: Callable[[str], str],
) -> None:
    """Process ids come again, and the socket of an agent that was killed stays."""
    for number in range(16):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(own_socket(f"killed-{number}"))
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(path := own_socket("running"))
        agent.listen()
        assert f'"DRAINFSM_SOCKET": "{path}"' in looked()


LISTENS = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print(flush=True)
sys.stdin.read()
"""
