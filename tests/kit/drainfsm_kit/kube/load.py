"""What the adapters of many pods cost a real API server.

``KUBEBUILDER_ASSETS=… python -m drainfsm_kit.kube.load [PODS]``: the pods exist, nothing runs in
them, and each has an adapter here that watches it and its node.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
import tempfile
import time
from pathlib import Path

from drainfsm.adapter import AdapterContext
from drainfsm.testing.notice_sink import RecordingSink
from drainfsm_adapters import kubernetes
from drainfsm_kit.kube.levels import Level, level

PODS_PER_NODE = 8
REST_S = 60.0
AT_ONCE = 20


def _api_server() -> int:
    """Our own, a child of this process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if int(stat[1]) == os.getpid() and "kube-apiserver" in command:
                return int(entry.name)
    raise RuntimeError("there is no API server below this process")


def _cpu_s(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1_024 if found else 0.0


def _requests(here: Level) -> dict[str, float]:
    """Answered so far, by verb, of pods and nodes."""
    found: dict[str, float] = {}
    for line in here.kubectl_now("get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total") and re.search(
            r'resource="(pods|nodes)"', line
        ):
            verb = re.search(r'verb="(\w+)"', line)
            if verb:
                value = float(line.rpartition(" ")[2])
                found[verb[1]] = found.get(verb[1], 0.0) + value
    return found


async def _make(here: Level, count: int) -> None:
    nodes = "\n---\n".join(
        f'{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "n{i}"}}}}'
        for i in range(count // PODS_PER_NODE + 1)
    )
    pods = "\n---\n".join(
        f'{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "p{i}"}}, "spec": '
        f'{{"nodeName": "n{i // PODS_PER_NODE}", "containers": [{{"name": "c", "image": "c"}}]}}}}'
        for i in range(count)
    )
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(f"{nodes}\n---\n{pods}\n")
        file.flush()
        await here.kubectl("create", "--validate=false", "-f", file.name)


async def _measure(here: Level, pid: int, what: str) -> None:
    cpu, asked, began = _cpu_s(pid), await asyncio.to_thread(_requests, here), time.monotonic()
    await asyncio.sleep(REST_S)
    took_s = time.monotonic() - began
    now = await asyncio.to_thread(_requests, here)
    rates = {verb: round((now[verb] - asked.get(verb, 0)) / took_s, 1) for verb in sorted(now)}
    busy = {verb: rate for verb, rate in rates.items() if rate}
    used = (_cpu_s(pid) - cpu) / took_s
    print(  # noqa: T201
        f"{what}: {used:.3f} cores, {_rss_mb(pid):.0f} MB, requests a second: {busy or 'none'}",
        flush=True,
    )


async def _run(here: Level, count: int) -> None:
    pid = _api_server()
    await _make(here, count)
    await _measure(here, pid, "at rest")
    sinks = [RecordingSink() for _ in range(count)]
    turns = asyncio.Semaphore(AT_ONCE)
    tasks: list[asyncio.Task[None]] = []

    async def start(number: int) -> None:
        options = {"pod": f"p{number}", "namespace": "default", "kubeconfig": str(here.kubeconfig)}
        context = AdapterContext(
            job_id="load", node_rank=0, node_count=1, grace_ms=30_000, options=options
        )
        async with turns:
            adapter = kubernetes.adapter(context)
            tasks.append(asyncio.create_task(adapter.watch(sinks[number])))
            while adapter._node is None:
                await asyncio.sleep(0.05)

    began = time.monotonic()
    await asyncio.gather(*(start(number) for number in range(count)))
    print(f"{count} adapters watch after {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
    await _measure(here, pid, f"{count} adapters")
    await _measure(here, pid, f"{count} adapters, later")
    began = time.monotonic()
    await here.kubectl("delete", "pods", "--all", "--wait=false")
    asked_s = time.monotonic() - began
    for sink in sinks:
        await _heard(sink)
    took_s = time.monotonic() - began
    print(f"deleted in {asked_s:.1f} s, heard by all {took_s - asked_s:.1f} s later")  # noqa: T201
    unknown = sum(bool(sink.silences) for sink in sinks)
    print(f"{unknown} adapters were UNKNOWN at some time")  # noqa: T201
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _heard(sink: RecordingSink) -> None:
    await sink.until(lambda: bool(sink.notices), timeout_s=300)


def main() -> None:
    count = int(sys.argv[1]) if sys.argv[1:] else 1_000
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with (
        tempfile.TemporaryDirectory() as directory,
        level("control-plane", Path(directory)) as here,
    ):
        asyncio.run(_run(here, count))


if __name__ == "__main__":
    main()
