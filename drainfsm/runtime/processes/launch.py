"""Becomes the job's command. Run as a script by the agent. Standard library only.

A launcher is started with the signals of a notice ignored, and one that would set up handlers for
them with the signals blocked, too; both are inherited over exec. A signal to the whole process
group is the agent's to act on. Ranks see to it themselves.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_EXECUTE, NOT_FOUND = 126, 127
"""What a shell returns for a command that it cannot run."""


def main(agent_pid: str, descriptors: str, ignored: str, blocked: str, *command: str) -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), limit[1]))
    for number in _numbers(ignored):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _numbers(blocked))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(agent_pid):
        return 1  # the agent died before the kernel knew whom to watch
    try:
        os.execvp(command[0], command)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(2, f"drainfsm: cannot run {command[0]}: {error.strerror}\n".encode())
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE


def _numbers(names: str) -> list[signal.Signals]:
    return [signal.Signals[name] for name in names.split(",") if name]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
