"""Processes of a job: found wherever they hide, shielded from signals, ended, and their codes."""

from __future__ import annotations

import asyncio
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drainfsm.core.failures import Failure, cause_of
from drainfsm.errors import ConfigError
from drainfsm.runtime.processes.descriptors import allow_descriptors
from drainfsm.runtime.processes.exit_codes import describe_exit, exit_status, shell_code, watch_exit
from drainfsm.runtime.processes.job_code import JobCode
from drainfsm.runtime.processes.launchers import handles_signals, is_launcher

TEST = """
import asyncio, os, sys
from drainfsm.runtime.processes.job import Job, become_subreaper
become_subreaper()
{before}

async def main():
    job = Job(sys.argv[2:], signals=("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"))
    job.start({"DRAINFSM_SOCKET": "x"})
    {body}

asyncio.run(main())
"""

HIDING = """
import os, subprocess, sys, time
ready = sys.argv[1]
for _ in range(3):
    if os.fork() == 0:          # a child that leaves its parent, its session and its group
        os.setsid()
        if os.fork():
            os._exit(0)
        open(f"{ready}-{os.getpid()}", "w").close()
        time.sleep(1000)
for _ in range(3):
    os.wait()
open(f"{ready}-{os.getpid()}", "w").close()
time.sleep(1000)
"""


def agent(body: str, *command: str, before: str = "") -> subprocess.Popen[str]:
    text = TEST.replace("{body}", body.replace("\n", "\n    "))
    text = text.replace("{before}", before)
    return subprocess.Popen(
        [sys.executable, "-c", text, "--", *command], stdout=subprocess.PIPE, text=True
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_kill_finds_processes_that_left_their_parent_and_their_session(tmp_path: Path) -> None:
    body = f"""
while len([f for f in os.listdir({str(tmp_path)!r})]) < 4:
    await asyncio.sleep(0.01)
print(await job.kill(), job.exit_code, await job.wait_for_the_rest(timeout_s=2.0))
"""
    running = agent(body, sys.executable, "-c", HIDING, str(tmp_path / "ready"))
    output, _ = running.communicate(timeout=60)
    pids = [int(path.name.rpartition("-")[2]) for path in tmp_path.iterdir()]
    assert len(pids) == 4
    assert [pid for pid in pids if alive(pid)] == []
    assert output.split()[0] == "True"


CHILD = (
    "import os, signal, sys;"
    "names = ('SIGTERM', 'SIGINT', 'SIGUSR1', 'SIGUSR2');"
    "ignored = [signal.getsignal(getattr(signal, n)) is signal.SIG_IGN for n in names];"
    "print(*ignored, os.environ['PET_SIGNALS_TO_HANDLE'], os.environ['DRAINFSM_SOCKET'],"
    " os.environ['DRAINFSM_SIGNALS'] == ','.join(names), os.getsid(0) == os.getpid(), flush=True);"
    "sys.exit(7)"
)


@pytest.mark.parametrize("launcher", [True, False], ids=["launcher", "script"])
def test_a_launcher_ignores_the_signals_of_a_notice_and_nothing_else_does(
    tmp_path: Path, launcher: bool
) -> None:
    program = tmp_path / ("torchrun" if launcher else "train")
    program.write_text(f"#!{sys.executable}\n{CHILD}\n")
    program.chmod(0o700)
    running = agent("await job.wait(); print(job.exit_code)", str(program))
    output, _ = running.communicate(timeout=60)
    assert output.split() == [*4 * [str(launcher)], "SIGHUP", "x", "True", "True", "7"]


ALLOWED = """
import resource
from drainfsm.runtime.processes.descriptors import allow_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
allow_descriptors(200)
print(resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
"""


def test_node_0_may_open_a_file_for_each_node_and_its_job_gets_the_limit_of_before() -> None:
    child = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    running = agent("await job.wait()", sys.executable, "-c", child, before=ALLOWED)
    output, _ = running.communicate(timeout=60)
    assert output.splitlines() == ["(200, 300)", "(100, 300)"]


def test_more_nodes_than_files_that_may_be_open_are_refused() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(ConfigError, match=f"at most {hard} are granted"):
        allow_descriptors(hard + 1)


BLOCKED = """
import os, signal, sys
heard = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: heard.append(number))
    os.kill(os.getpid(), number)
print(heard, flush=True)
from drainfsm.runtime.rank.shield import pass_by
pass_by([signal.SIGTERM, signal.SIGUSR1])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGUSR1})
"""


def test_a_launcher_with_handlers_of_its_own_hears_nothing_and_its_ranks_go_on(
    tmp_path: Path,
) -> None:
    """They let the signals through when they attach."""
    program = tmp_path / "deepspeed"
    program.write_text(f"#!{sys.executable}\n{BLOCKED}\n")
    program.chmod(0o700)
    running = agent("await job.wait(); print(job.exit_code)", str(program))
    output, _ = running.communicate(timeout=60)
    assert output.split() == ["[]", "set()", "0"]


WAITS = """
import os, signal, sys, time
if "handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
if "ignores" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(1000)
"""
FORWARD = """
while not os.path.exists({up}):
    await asyncio.sleep(0.01)
print(job.forward(15), flush=True)
await asyncio.wait_for(job.wait(), {limit_s})
print(job.exit_code)
"""


@pytest.mark.parametrize(
    ("program", "does", "exit_code"),
    [
        ("torchrun", "nothing", 128 + signal.SIGKILL),
        ("torchrun", "handler", 9),
        ("mpirun", "handler", 128 + signal.SIGKILL),
        ("train", "nothing", 128 + signal.SIGTERM),
        ("train", "handler", 9),
        ("train", "ignores", None),
    ],
)
def test_a_forwarded_signal_ends_what_ignores_it_only_for_being_a_launcher(
    tmp_path: Path, program: str, does: str, exit_code: int | None
) -> None:
    path = tmp_path / program
    path.write_text(f"#!{sys.executable}\n{WAITS}\n")
    path.chmod(0o700)
    up, limit_s = str(tmp_path / "up"), "60" if exit_code else "0.5"
    body = FORWARD.replace("{up}", repr(up)).replace("{limit_s}", limit_s)
    running = agent(body, str(path), up, does)
    output, _ = running.communicate(timeout=120)
    assert output.split() == ["1", *([str(exit_code)] if exit_code else [])]


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("torchrun train.py", True),
        ("/opt/venv/bin/torchrun --nproc-per-node 8 train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("env NCCL_DEBUG=INFO nice accelerate launch train.py", True),
        ("mpirun.openmpi -n 2 python train.py", True),
        ("uv run mpiexec.hydra -n 2 python train.py", True),
        ("bash job.sh", False),
        ("bash -c torchrun\\ train.py", False),
        ("python -m train", False),
    ],
)
def test_launchers_are_known_by_name(command: str, launcher: bool) -> None:
    assert is_launcher(shlex.split(command)) is launcher


@pytest.mark.parametrize(
    ("command", "handles"),
    [
        ("torchrun train.py", False),
        ("python -m deepspeed.launcher.runner train.py", True),
        ("accelerate launch train.py", False),
        ("accelerate launch --mpirun_hostfile hosts train.py", True),
        ("python train.py --mpirun", False),
    ],
)
def test_launchers_that_would_set_up_handlers_are_known(command: str, handles: bool) -> None:
    assert handles_signals(shlex.split(command)) is handles


ADOPTS = """
other = await asyncio.create_subprocess_exec("sleep", "1000")  # in our session: not the job's
before = len(job.names())
job.adopt(other.pid)
job.adopt(other.pid)
job.adopt(os.getpid())
job.adopt(0)
print(before, len(job.names()), await job.kill(), (await other.wait()))
job.adopt(other.pid)
print(len(job.names()))
"""


def test_a_rank_that_a_daemon_has_started_is_the_jobs_once_it_has_attached() -> None:
    """As srun's slurmstepd, an orted or Ray start them: no descendant of the agent."""
    running = agent(ADOPTS, "sleep", "1000")
    output, _ = running.communicate(timeout=60)
    assert output.split() == ["1", "2", "True", "-9", "0"]


def test_the_command_dies_with_an_agent_that_is_killed() -> None:
    body = "print(job.pid, flush=True)\nawait job.wait()"
    running = agent(body, "sleep", "1000")
    assert running.stdout is not None
    pid = int(running.stdout.readline())
    assert alive(pid)
    pidfd = os.pidfd_open(pid)
    running.kill()
    running.wait()
    running.stdout.close()
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
    asyncio.run(ended(pidfd))
    assert not alive(pid)


async def ended(pidfd: int) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, done.set)
    async with asyncio.timeout(60):
        await done.wait()
    loop.remove_reader(pidfd)
    os.close(pidfd)


GRANDCHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys, os; os.kill(os.getpid(), 9) if {kill}"
                          " else (sys.stdin.read(), sys.exit(85))"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.readline()
child.stdin.close()
{wait}
print("waited", flush=True)
sys.stdin.readline()
"""


def start_grandchild(*, kill: bool, wait: bool) -> subprocess.Popen[str]:
    text = GRANDCHILD.replace("{kill}", str(kill)).replace("{wait}", "child.wait()" if wait else "")
    return subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_the_exit_code_of_a_process_that_is_not_our_child_is_seen() -> None:
    parent = start_grandchild(kill=False, wait=False)
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())

    async def watch() -> int | None:
        code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        assert watch_exit(pid, code.set_result)
        assert parent.stdin is not None
        parent.stdin.write("go\n")
        parent.stdin.flush()
        async with asyncio.timeout(60):
            return await code

    assert asyncio.run(watch()) == 85
    parent.communicate("\n")


def test_the_exit_code_is_seen_in_proc_before_it_is_waited_for() -> None:
    """On any kernel: the launcher polls, we are woken."""
    parent = start_grandchild(kill=False, wait=False)
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    pidfd = os.pidfd_open(pid)
    parent.stdin.write("go\n")
    parent.stdin.flush()
    asyncio.run(ended(os.dup(pidfd)))
    assert exit_status(pid, pidfd) == 85 << 8
    os.close(pidfd)
    parent.communicate("\n")


def test_a_process_that_cannot_be_seen_is_not_watched() -> None:
    async def watch() -> bool:
        return watch_exit(0, lambda code: None)

    assert asyncio.run(watch()) is False


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (None, "ended"),
        (3, "ended with exit code 3"),
        (shell_code(-9), "was ended by SIGKILL"),
        (250, "ended with exit code 250"),
    ],
)
def test_how_a_process_ended_is_said_plainly(code: int | None, text: str) -> None:
    assert describe_exit(code) == text


def test_the_first_rank_that_failed_tells_why() -> None:
    code = JobCode()
    code.rank_began(0, "0")
    code.rank_began(1, "0")
    code.rank_ended(1, "0", 85, now_unix_ms=5)
    code.rank_ended(0, "0", 1, now_unix_ms=6)
    assert (code.of(1), code.of(0), code.failed_unix_ms) == (85, 0, 5)
    assert code.all_ended(2)
    code.rank_began(0, "1")
    assert (code.of(1), code.failed_unix_ms) == (1, None)
    code.rank_ended(1, "0", 7, now_unix_ms=8)
    assert code.of(1) == 1, "a straggler of the earlier start tells nothing"
    assert not code.all_ended(1)


def test_one_is_the_code_of_those_who_were_left_alone_and_not_the_cause() -> None:
    cause = cause_of([Failure(1_000, 1), Failure(1_003, 85), Failure(1_004, 1)])
    assert cause == Failure(1_003, 85)
    assert cause_of([Failure(1_000, 1), Failure(9_000, 137)]) == Failure(1_000, 1)
    assert cause_of([Failure(1_001, 3), Failure(1_000, 1), Failure(1_002, 4)]) == (1_001, 3)
    assert cause_of([Failure(1_000, 1), Failure(1_100, 143)]) == Failure(1_000, 1), "torchrun's"
    assert cause_of([Failure(1_000, 143), Failure(1_100, 1)]) == Failure(1_000, 143)
    assert cause_of([]) is None


SHIELDED = """
import multiprocessing, os, signal, sys, time
import drainfsm
from drainfsm.runtime.rank.shield import notice_signals, pass_by

def work(pipe):
    pipe.send(os.getpid())
    time.sleep(1000)

if __name__ == "__main__":
    pass_by(notice_signals(os.environ))
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,), daemon=True)
    process.start()
    print(ours.recv(), flush=True)
    sys.stdin.readline()
    print(process.is_alive(), flush=True)
    process.terminate()
    process.join()
    print(process.exitcode, flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_survives_everybodys_signal_and_obeys_its_parents(
    tmp_path: Path, method: str
) -> None:
    script = tmp_path / "training.py"
    script.write_text(SHIELDED)
    rank = subprocess.Popen(
        [sys.executable, str(script), method],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "DRAINFSM_SOCKET": "an agent's",
            "DRAINFSM_SIGNALS": "SIGTERM,SIGUSR1",
        },
    )
    assert rank.stdout is not None
    worker = int(rank.stdout.readline())
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
        os.kill(worker, number)
        until_taken(worker)
    output, _ = rank.communicate("\n", timeout=60)
    assert output.split() == ["True", str(-signal.SIGTERM)]


def until_taken(pid: int) -> None:
    """None is pending: two of a kind at once are one, and the kernel keeps the first sender."""
    status = Path(f"/proc/{pid}/status")
    while (text := status.read_text()) and "\nState:\tZ" not in text:
        pending = [line for line in text.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
        if not any(int(line.split()[1], 16) for line in pending):
            return
        time.sleep(0.001)


PASSED_BY = """
import os, signal
from drainfsm.runtime.rank.shield import pass_by, pass_by_still
signals = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
pass_by_still()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "it was not asked to"
signal.signal(signal.SIGUSR1, lambda number, frame: None)
pass_by(signals)
pass_by(signals)
signal.signal(signal.SIGTERM, lambda number, frame: None)
signal.signal(signal.SIGINT, signal.SIG_DFL)
pass_by_still()
os.kill(os.getpid(), signal.SIGINT)
if not os.fork():
    print(*(signal.getsignal(number) is signal.SIG_DFL for number in signals[:2]))
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
    os._exit(0)
os.wait()
"""


def test_handlers_that_are_replaced_are_named_and_a_forked_child_has_the_defaults() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PASSED_BY], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["True True", "True"]
    assert [line.split()[3] for line in ran.stderr.splitlines()] == ["SIGUSR1", "SIGTERM"]


def test_orphans_are_looked_for_only_once_a_child_has_ended() -> None:
    body = """
from drainfsm.runtime.processes.proc import a_child_has_ended
print(a_child_has_ended())
if not os.fork():
    os._exit(3)
while not a_child_has_ended():
    await asyncio.sleep(0.01)
print(a_child_has_ended(), os.wait()[1] >> 8, a_child_has_ended())
await job.kill()
"""
    running = agent(body, "sleep", "1000")
    output, _ = running.communicate(timeout=60)
    assert output.split() == ["False", "True", "3", "False"]
