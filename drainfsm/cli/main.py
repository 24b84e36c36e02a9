"""``drainfsm``: finds the command, and imports only that."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from drainfsm.errors import (
    ConfigError,
    DrainfsmError,
    NoticeRejectedError,
    OtherJobsStoreError,
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

COMMANDS = {
    "init": "set up a directory: configuration, and the lines for its loop",
    "run": "run a training job under an agent",
    "supervise": "keep a job running where no scheduler starts it again",
    "notify": "hand a notice to a running agent",
    "replay": "read a drain, an attempt or a whole job back from its log",
    "explain": "say why a drain ended as it did, with the arithmetic",
    "watch": "jobs and drains on the terminal, as they happen",
    "serve": "jobs and drains in browsers, as they happen",
    "status": "what a running job would do with a notice now",
    "plan": "size a grace window, and say what to set",
    "requirement": "what a replacement must have, and whether this machine has it",
    "adapters": "which platforms are installed, and what each adapter can do",
    "doctor": "try an environment before a job is trusted to it",
    "policy": "who may preempt whom, when a job comes back, and who evicts whom in circles",
    "report": "what a job's history costs: rates and durations over all attempts",
    "auth": "credentials and permissions for users of a NATS server",
    "stream": "make or check the stream of the log, for administrators",
    "verify": "find what was changed in a log since it was written",
    "export": "write a job's log into a file",
    "import": "bring kept records of an outage into the stream",
    "drill": "rehearse drains and restores with a real job",
    "gc": "remove generations that no restart can ask for",
    "completion": "what a shell needs to complete commands and options",
    "demo": "the whole story on this machine, in two minutes",
}

HELP = """\
usage: drainfsm [-V | --version] [-h | --help] COMMAND …

Drains distributed training jobs: a node must go away at a hard time; the job on it commits a
checkpoint that is provably complete before that time, or leaves on the last one that was.

commands (`drainfsm help COMMAND` says more):
{commands}

Every option is also an environment variable (--node-rank: DRAINFSM_NODE_RANK) and a key of
./drainfsm.toml (node_rank). The command line wins, then the environment, then the file.

exit codes:
  0    done
  1    failed; the message on stderr says why
  2    wrong option, variable, key or notice: nothing was done
  75   `drainfsm run`: the job drained and wants to be started again, or the store did not answer at
       its start (EX_TEMPFAIL)
  76   `drainfsm run`: a newer attempt has taken the job over; do not start it again
  77   `drainfsm run`: its attempts make no progress; hold the job until somebody has looked at it
  any other of `drainfsm run` is the job's own
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Errors that drainfsm raises on purpose become one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a log may hold what the terminal cannot show
    try:
        code = _dispatch(arguments)
        if sys.stdout is not None:  # it is closed
            sys.stdout.flush()
    except (ConfigError, NoticeRejectedError, OtherJobsStoreError) as error:
        return _fail(str(error), EXIT_USAGE)
    except DrainfsmError as error:
        return _fail(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (`| head`) has enough
        _give_up_stdout()
        return EXIT_PIPE
    except OSError as error:
        if not _has_directory():
            return _fail("the working directory was removed: go to another one", EXIT_FAILED)
        if error.filename is None:  # of the output, not of a file that was named
            _give_up_stdout()
            return _fail(f"cannot write the output: {error.strerror or error}", EXIT_FAILED)
        return _fail(str(error), EXIT_FAILED)
    return code


def _fail(message: str, code: int) -> int:
    from drainfsm.core.text import printable

    with contextlib.suppress(OSError):  # nobody reads stderr any more
        lines = (printable(line, chars_max=4_000) for line in message.splitlines())
        print("drainfsm:", "\n  ".join(lines), file=sys.stderr, flush=True)
    return code


def _has_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _give_up_stdout() -> None:
    """Python flushes it once more on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def module_of(command: str) -> str:
    """``import`` is no name that Python takes."""
    return f"drainfsm.cli.{'import_log' if command == 'import' else command}"


def _dispatch(arguments: list[str]) -> int:
    if len(arguments) > 1 and arguments[0] == "help":
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS)) + 2
        commands = "\n".join(f"  {name:{width}}{text}" for name, text in COMMANDS.items())
        print(HELP.format(commands=commands), end="")
        return 0 if arguments else EXIT_USAGE
    if arguments[0] in ("-V", "--version"):
        from drainfsm.version import __version__

        print(f"drainfsm {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        from drainfsm.cli.options import nearest

        hint = nearest(arguments[0], [*COMMANDS, "--version", "--help"])
        raise ConfigError(f"{arguments[0]} is not a command{hint} (see `drainfsm --help`)")
    from drainfsm.runtime.output import repair_standard_streams

    repair_standard_streams()
    module = import_module(module_of(arguments[0]))
    code: int = module.main(arguments[1:])
    return code
