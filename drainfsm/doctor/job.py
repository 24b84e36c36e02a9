"""The window, the command, and what the agents of several nodes need to find each other."""

from __future__ import annotations

import errno
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path, PurePath

from drainfsm.core.text import span
from drainfsm.doctor.findings import Finding, Setup, error, note, right, warning
from drainfsm.runtime.processes.job import TORCHRUN
from drainfsm.runtime.processes.launchers import is_launcher

HANDLED = "--signals-to-handle"
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
REACH_S = 3.0
SCRIPT_BYTES = 64 * 1024


def check_window(setup: Setup) -> Iterator[Finding]:
    if not setup.needed_ms:
        yield note(
            "window",
            "the size of a checkpoint is not known, so neither is the window that it needs",
            fix="drainfsm doctor --bytes 420GB …, or a store in which one is committed",
        )
        return
    needed, grace = span(setup.needed_ms), span(setup.grace_ms)
    if setup.grace_ms <= setup.needed_ms:
        needed_s = setup.needed_ms // 1_000 + 1
        yield error(
            "window",
            f"--grace is {grace}, and a save needs {needed}",
            why="every notice that states no deadline would be left without a save",
            fix=f"drainfsm run --grace {needed_s} …, where the platform gives it: "
            f"terminationGracePeriodSeconds: {needed_s}, #SBATCH --signal=B:USR1@{needed_s}",
        )
    else:
        yield right("window", f"a save needs {needed} of the {grace} of --grace")


def check_command(setup: Setup) -> Iterator[Finding]:
    command = setup.command
    if not command:
        yield note("command", "not given", fix="drainfsm doctor … -- CMD")
        return
    program = shutil.which(command[0])
    if program is None:
        yield error(
            "command",
            f"{command[0]} cannot be started here",
            why="the job would end with 127",
            fix=f"which {command[0]}; in a container, install it into the image",
        )
        return
    if PurePath(program).name in SHELLS and not is_launcher(command) and not _execs(command):
        yield warning(
            "command",
            f"a shell ({command[0]}) stands between the agent and the ranks",
            why="a signal to the process group ends it, and torchrun with it, before the save",
            fix="trap '' TERM HUP USR1 USR2, or `exec` the last command of the script",
        )
    elif is_launcher(command) and (handled := _handled_by_torchrun(command)):
        yield warning(
            "command",
            f"torchrun acts on {handled} itself",
            why="after one of them it kills its workers within 30 s, whatever the window is",
            fix="leave out --signals-to-handle: `drainfsm run` sets it",
        )
    else:
        yield right("command", program)


def _handled_by_torchrun(command: tuple[str, ...]) -> str:
    """The signals that its command line names, which overrides what the agent sets; empty: none."""
    for index, word in enumerate(command):
        flag, equals, value = word.replace("_", "-").partition("=")
        if flag.endswith(".py"):  # what follows is the script's
            return ""
        if flag == HANDLED:
            named = value if equals else "".join(command[index + 1 : index + 2])
            own = TORCHRUN["PET_SIGNALS_TO_HANDLE"]
            return ", ".join(one for one in named.split(",") if one not in ("", own))
    return ""


def _execs(command: tuple[str, ...]) -> bool:
    """The shell becomes what it starts, or ignores the signals."""
    text = " ".join(command[1:])
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    try:
        with open(script, "rb") as file:
            text += "\n" + file.read(SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError:
        pass
    return "exec " in text or "trap ''" in text


def check_nodes(setup: Setup) -> Iterator[Finding]:
    if setup.node_count == 1:
        return
    if not setup.token_given:
        yield warning(
            "token",
            "several nodes, and DRAINFSM_TOKEN is not set: a random one is kept in the store",
            why="whoever can read the store can join the job",
            fix="export DRAINFSM_TOKEN=$(openssl rand -hex 32)   # the same on every node",
        )
    host, _, port_text = setup.coordinator.rpartition(":")
    yield from _check_port(setup, host, int(port_text))


def _check_port(setup: Setup, host: str, port: int) -> Iterator[Finding]:
    low, high = _ephemeral()
    if low <= port <= high:
        yield warning(
            "coordinator",
            f"port {port} lies in {low}-{high}, which the kernel hands out to connections",
            why="now and then it is taken when the job starts",
            fix=f"drainfsm run --coordinator {host}:7411 …",
        )
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as problem:
        yield error(
            "coordinator",
            f"{host} cannot be resolved here: {problem.strerror or problem}",
            why="this node could not join the job",
            fix=f"getent hosts {host}; name node 0 by a name or address that every node knows",
        )
        return
    yield from _listen(host, port) if setup.node_rank == 0 else _reach(host, port, address[4])


def _listen(host: str, port: int) -> Iterator[Finding]:
    """On node 0."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            yield error(
                "coordinator",
                f"port {port} is taken on this node",
                why="node 0 could not let the other nodes in",
                fix=f"ss -ltnp 'sport = :{port}'; an agent of this job that runs is all right",
            )
        else:
            yield warning(
                "coordinator",
                f"port {port} cannot be listened on: {problem.strerror}",
                why="node 0 could not let the other nodes in",
                fix=f"drainfsm run --coordinator {host}:7411 …",
            )
        return
    yield right("coordinator", f"port {port} is free on this node")


def _reach(host: str, port: int, address: object) -> Iterator[Finding]:
    """On the others: node 0 may not listen yet, but its machine must answer."""
    try:
        with socket.create_connection((host, port), timeout=REACH_S):
            yield right("coordinator", f"{host}:{port} answers")
    except ConnectionRefusedError:
        yield right("coordinator", f"{host} is reached; nobody listens on {port} yet")
    except OSError as problem:
        yield error(
            "coordinator",
            f"{host}:{port} ({address}) is not reached: {problem.strerror or problem}",
            why="this node could not join the job",
            fix=f"nc -vz {host} {port}; open the port between the nodes (security group, "
            "NetworkPolicy, firewall)",
        )


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = EPHEMERAL.read_text().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)
