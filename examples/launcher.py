"""A launcher of your own around drainfsm's decisions: no agent, no store, no `drainfsm run`.

It starts one worker, takes a SIGTERM as a notice with 20 seconds to go, and does what the machine
asks for: holds the worker, has it save, sees it leave. Its own file says where the next start
resumes. A real one keeps the records, too: DrainMachine(append=journal.append).
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from drainfsm import machine as m

WORKER = """
import sys, threading, time
step, stop = int(sys.argv[2]) - 1, []
threading.Thread(target=lambda: stop.append(sys.stdin.readline()), daemon=True).start()
while not stop:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.05)
print("holds", step, flush=True)
for step in range(step + 1, int(sys.stdin.readline()) + 1):  # all ranks run on to one step
    print("step", step, flush=True)
print("reached", step, flush=True)
sys.stdin.readline()  # the order to save
open(sys.argv[1] + ".new", "w").write(str(step))
__import__("os").replace(sys.argv[1] + ".new", sys.argv[1])
print("saved", step, flush=True)
"""
saved = Path(sys.argv[1])
first = int(saved.read_text()) + 1 if saved.exists() else 0
worker = subprocess.Popen(
    [sys.executable, "-c", WORKER, saved, str(first)],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
)  # fmt: skip
lines = iter(worker.stdout.readline, "")
drain = m.DrainMachine(job_id="mine", world_size=1, save_bytes=10)
on = drain.on_effect


def tell(text, wanted):
    """Sends a line to the worker, prints what it says, returns the number after `wanted`."""
    print(text, file=worker.stdin, flush=True)
    for line in lines:
        print(line, end="", flush=True)
        if line.startswith(wanted):
            return int(line.split()[1])
    raise SystemExit("the worker has ended")


def hold(drain, todo):
    at = tell("hold", "holds")
    here = m.NodePosition(node=0, ranks=(0,), min_step=at, max_step=at, step_ms=50)
    drain.report(m.ReportPositions(positions=(here,)))


def release(drain, todo):
    at = tell(str(todo.stop_step), "reached")
    drain.report(m.ReportQuiesced(node=0, ranks=(0,), step=at))


def save(drain, todo):
    name = {"generation_id": todo.generation_id}
    tell("save", "saved")
    drain.report(m.ReportStaged(**name, staged_bytes=10, rank_count=1))
    drain.report(m.ReportDurable(**name, durable_bytes=10, file_count=1, rank_count=1))
    drain.report(m.ReportVerified(**name, expected_count=1, verified_count=1, verified_bytes=10))
    drain.report(m.ReportPublished(**name, manifest_digest="sha256:of-yours", slot=1))


def cordoned(drain, todo):
    drain.report(m.ReportCordon(outcome=m.CordonOutcome.SUCCESS, duration_ms=0))


on(m.CordonNodes, cordoned)
on(m.HoldRanks, hold)
on(m.ReleaseTo, release)
on(m.StartSave, save)
on(m.LeaveRanks, lambda d, todo: d.report(m.ReportExited(exit_code=worker.wait(), nodes=())))

noticed = []
signal.signal(signal.SIGTERM, lambda *_: noticed.append(time.time_ns() // 1_000_000 + 20_000))
for line in lines:
    print(line, end="", flush=True)
    if noticed:
        drain.notice(deadline_unix_ms=noticed[0], cause="maintenance")
        print(f"{drain.state}, step {drain.attempt.committed.step} is saved", flush=True)
        sys.exit(75)
sys.exit(worker.wait())
