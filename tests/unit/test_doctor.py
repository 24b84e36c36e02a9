"""Faults that are planted in an environment, each found; and nothing in a right one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drainfsm.cli.main import main
from drainfsm.core.budget import Allowances
from drainfsm.doctor import storage
from drainfsm.doctor.broker import check_broker
from drainfsm.doctor.findings import Finding, Setup, Severity
from drainfsm.doctor.host import check_host
from drainfsm.doctor.job import check_command, check_nodes, check_window
from drainfsm.doctor.platforms import check_limits, check_sources
from drainfsm.doctor.storage import check_store, mount_of
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import STREAM, connect
from drainfsm.log.server import NatsServer
from drainfsm.runtime.clock import Clock
from drainfsm.store.commits import CommitLog
from drainfsm.testing.metadata import AwsMetadataServer
from drainfsm.testing.stores import MemoryStore, new_store
from drainfsm_adapters.slurm_records import SlurmLimits
from drainfsm_kit.kube.levels import level

Found = dict[str, Severity]


class ReplacingStore(MemoryStore):
    """Speaks like a store, and ignores the condition of a conditional put."""

    def put_if_absent(self, name: str, data: bytes) -> None:
        self.put(name, data)


@pytest.fixture(autouse=True)
def small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PROBE_BYTES", 1 << 20)
    for name in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def setup(tmp_path: Path, **fields: Any) -> Setup:
    right: dict[str, Any] = {
        "job": "llm",
        "command": ("true",),
        "store_url": str(tmp_path / "store"),
        "state_dir": tmp_path / "state",
        "nats": None,
        "sources": (),
        "node_count": 1,
        "node_rank": 0,
        "coordinator": "",
        "token_given": True,
        "grace_ms": 60_000,
        "allowances": Allowances(store_bytes_per_s=1),
        "save_bytes": 1_000,
        "needed_ms": 20_000,
        "adapters": {},
    }
    return Setup(**{**right, **fields})


def bad(findings: object) -> list[Finding]:
    assert isinstance(findings, list | Iterator)
    return [one for one in findings if one.severity in (Severity.WARNING, Severity.ERROR)]


def the_only(findings: object) -> Finding:
    (found,) = bad(findings)
    assert found.seen
    assert found.why
    assert found.fix
    return found


def sources(one: Setup) -> list[Finding]:
    return asyncio.run(check_sources(one, Clock().now_unix_ms))


# --- the job ------------------------------------------------------------------------------------


def test_a_window_that_is_too_short(tmp_path: Path) -> None:
    found = the_only(check_window(setup(tmp_path, grace_ms=20_000)))
    assert (found.check, found.severity) == ("window", Severity.ERROR)
    assert "--grace 21" in found.fix
    assert not bad(check_window(setup(tmp_path, grace_ms=20_001)))
    assert not bad(check_window(setup(tmp_path, needed_ms=0)))


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    found = the_only(check_command(setup(tmp_path, command=("no-such-program", "x"))))
    assert (found.check, found.severity) == ("command", Severity.ERROR)


def test_a_shell_between_the_agent_and_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun train.py\n")
    found = the_only(check_command(setup(tmp_path, command=("bash", str(script)))))
    assert (found.check, found.severity) == ("command", Severity.WARNING)
    for text in ("exec torchrun train.py\n", "trap '' TERM\ntorchrun train.py\n"):
        script.write_text(text)
        assert not bad(check_command(setup(tmp_path, command=("bash", str(script)))))
    assert not bad(check_command(setup(tmp_path, command=("bash", "-c", "exec python x.py"))))


def test_a_torchrun_that_is_told_to_act_on_signals_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "torchrun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    def found(*words: str) -> list[Finding]:
        return bad(check_command(setup(tmp_path, command=("torchrun", *words))))

    for words in (
        ("--signals-to-handle", "SIGTERM,SIGHUP", "train.py"),
        ("--nnodes", "2", "--signals_to_handle=SIGTERM", "train.py"),
    ):
        one = the_only(found(*words))
        assert (one.check, one.severity) == ("command", Severity.WARNING)
        assert one.seen == "torchrun acts on SIGTERM itself"
    assert not found("train.py", "--signals-to-handle", "SIGTERM")
    assert not found("--signals-to-handle", "SIGHUP", "train.py")


def test_no_token_for_several_nodes(tmp_path: Path, closed_port: int) -> None:
    several = setup(
        tmp_path, node_count=2, token_given=False, coordinator=f"127.0.0.1:{closed_port}"
    )
    assert "token" in {one.check for one in bad(check_nodes(several))}


def _coordinator(tmp_path: Path, where: str, *, rank: int = 0) -> list[Finding]:
    several = setup(tmp_path, node_count=2, node_rank=rank, coordinator=where)
    found = [one for one in bad(check_nodes(several)) if "hands out" not in one.seen]
    assert all(one.check == "coordinator" for one in found)
    return found


def test_where_the_agents_should_find_each_other(tmp_path: Path, closed_port: int) -> None:
    assert "cannot be resolved" in the_only(_coordinator(tmp_path, "no-such.invalid:7411")).seen
    assert not _coordinator(tmp_path, f"127.0.0.1:{closed_port}")
    assert not _coordinator(tmp_path, f"127.0.0.1:{closed_port}", rank=1)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "is taken" in the_only(_coordinator(tmp_path, f"127.0.0.1:{port}")).seen
        assert not _coordinator(tmp_path, f"127.0.0.1:{port}", rank=1)


def test_a_port_that_the_kernel_hands_out(tmp_path: Path) -> None:
    several = setup(tmp_path, node_count=2, coordinator="127.0.0.1:45000")
    assert any("hands out" in one.seen for one in bad(check_nodes(several)))


# --- the store ----------------------------------------------------------------------------------


def test_a_store_that_replaces_what_must_only_be_created(tmp_path: Path) -> None:
    found = the_only(check_store(setup(tmp_path), ReplacingStore()))
    assert (found.check, found.severity) == ("store", Severity.ERROR)
    assert "put-if-absent" in found.seen


def test_a_store_whose_file_system_is_not_mounted(tmp_path: Path) -> None:
    from drainfsm.store import open_store

    found = the_only(check_store(setup(tmp_path), open_store(str(tmp_path / "no" / "store"))))
    assert "does not exist" in found.seen
    assert not bad(check_store(setup(tmp_path), open_store(str(tmp_path / "store"))))


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    from drainfsm.store import open_store

    (tmp_path / "store").write_text("")
    found = the_only(check_store(setup(tmp_path), open_store(str(tmp_path / "store"))))
    assert (found.severity, found.seen) == (Severity.ERROR, f"{tmp_path / 'store'} is a file")


def test_a_store_of_another_job(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    CommitLog(store, job_id="other").claim(attempt_id="a1", now_unix_ms=1)
    found = the_only(check_store(setup(tmp_path), store))
    assert (found.check, found.severity) == ("commit log", Severity.ERROR)


def test_a_store_in_memory(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    for kind, options, severity in (
        ("tmpfs", "rw", Severity.ERROR),
        ("overlay", "rw", Severity.WARNING),
        ("ext4", "rw,nobarrier", Severity.WARNING),
        ("nfs4", "rw,soft,vers=4.2", Severity.WARNING),
    ):
        mounts.write_text(f"d / ext4 rw 0 0\nd {tmp_path} {kind} {options} 0 0\n")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(storage, "MOUNTS", mounts)
            found = the_only(check_store(setup(tmp_path), new_store(tmp_path / "store")))
            assert mount_of(tmp_path / "store") is not None
            assert (found.check, found.severity) == ("store", severity)


def test_a_store_without_room_or_slower_than_the_rule_reckons(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    found = the_only(check_store(setup(tmp_path, save_bytes=10**18), store))
    assert (found.check, found.severity) == ("store space", Severity.ERROR)
    fast = Allowances(store_bytes_per_s=10**15)
    found = the_only(check_store(setup(tmp_path, allowances=fast), store))
    assert (found.check, found.severity) == ("store bandwidth", Severity.WARNING)
    assert store.list("") == {}, "the doctor leaves nothing behind"


# --- the machine --------------------------------------------------------------------------------


def test_no_memory_to_stage_in(tmp_path: Path) -> None:
    found = the_only(check_host(setup(tmp_path, save_bytes=10**16)))
    assert (found.check, found.severity) == ("memory", Severity.ERROR)
    assert not bad(check_host(setup(tmp_path, save_bytes=10**16, node_count=10**12)))


def test_a_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = the_only(check_host(setup(tmp_path, state_dir=tmp_path / "file" / "state")))
    assert (found.check, found.severity) == ("state dir", Severity.ERROR)


# --- the log ------------------------------------------------------------------------------------


def broker(tmp_path: Path, url: str) -> list[Finding]:
    return asyncio.run(check_broker(setup(tmp_path, nats=NatsServer(url=url))))


def test_a_server_of_the_log_that_is_away(tmp_path: Path, closed_port: int) -> None:
    found = the_only(broker(tmp_path, f"nats://127.0.0.1:{closed_port}"))
    assert (found.check, found.severity) == ("log", Severity.WARNING)


def test_a_stream_that_forgets_and_one_without_a_second_copy(
    tmp_path: Path, own_nats_server: EmbeddedServer
) -> None:
    assert not bad(broker(tmp_path, own_nats_server.url))

    async def change(order: str, **config: object) -> None:
        connection = await connect(own_nats_server.url, timeout_s=30)
        body = {"name": STREAM, "subjects": ["drainfsm.v1.>"], **config} if config else ""
        await connection.link.client.request(
            f"$JS.API.STREAM.{order}.{STREAM}",
            json.dumps(body).encode() if body else b"",
            timeout=30,
        )
        await connection.close()

    asyncio.run(change("CREATE", storage="file", max_age=10**9))
    assert "not an append-only log: " in the_only(broker(tmp_path, own_nats_server.url)).seen
    asyncio.run(change("DELETE"))

    async def create() -> None:
        connection = await connect(own_nats_server.url, timeout_s=30)
        await connection.ensure_stream()
        await connection.close()

    asyncio.run(create())
    assert "1 replica" in the_only(broker(tmp_path, own_nats_server.url)).seen


# --- the platform -------------------------------------------------------------------------------


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AwsMetadataServer]]:
    running: list[AwsMetadataServer] = []

    def started(**options: Any) -> AwsMetadataServer:
        server = AwsMetadataServer(**options).start()
        running.append(server)
        monkeypatch.setenv(server.variable, server.endpoint)
        return server

    yield started
    for server in running:
        server.stop()


def test_a_metadata_service_that_is_away_or_one_hop_too_far(
    tmp_path: Path, aws: Callable[..., AwsMetadataServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = setup(tmp_path, sources=("aws",))
    server = aws()
    assert not bad(sources(heard))
    server.limit_hops()
    monkeypatch.setattr("drainfsm.doctor.platforms.TIMEOUT_S", 0.5)
    found = the_only(sources(heard))
    assert "hop limit" in found.seen
    assert "--http-put-response-hop-limit 2" in found.fix
    server.stop()
    found = the_only(sources(heard))
    assert (found.check, found.severity) == ("source aws", Severity.ERROR)


def test_a_clock_that_is_off(tmp_path: Path, aws: Callable[..., AwsMetadataServer]) -> None:
    aws(clock_ahead_ms=30_000)
    found = the_only(sources(setup(tmp_path, sources=("aws",))))
    assert (found.check, found.severity) == ("clock", Severity.WARNING)


def test_a_platform_that_nobody_listens_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert "--source slurm" in the_only(sources(setup(tmp_path))).fix


def test_slurm_outside_of_a_job_and_without_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = setup(
        tmp_path, sources=("slurm",), adapters={"slurm": {"scontrol": "/no/such/scontrol"}}
    )
    assert "no SLURM_JOB_ID" in the_only(sources(slurm)).seen
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert "cannot run /no/such/scontrol" in the_only(sources(slurm)).seen


def limits(*, kill_wait_s: int | None, grace_s: int = 0, mode: str = "REQUEUE") -> SlurmLimits:
    return SlurmLimits(kill_wait_s=kill_wait_s, grace_s=grace_s, preempt_mode=mode)


@pytest.mark.parametrize(
    ("given", "warning_s", "checks"),
    [
        (limits(kill_wait_s=30, grace_s=21), 21, []),
        (limits(kill_wait_s=30, mode="OFF"), 21, []),
        (limits(kill_wait_s=30, mode="OFF"), 20, ["slurm window"]),
        (limits(kill_wait_s=20, grace_s=21), 21, ["slurm KillWait"]),
        (limits(kill_wait_s=30, grace_s=20), 21, ["slurm window"]),
        (limits(kill_wait_s=30), 21, []),
        (limits(kill_wait_s=20), 21, ["slurm window", "slurm KillWait"]),
        (limits(kill_wait_s=None), 21, ["slurm window"]),
        (limits(kill_wait_s=None, grace_s=21), 21, []),
    ],
)
def test_what_slurm_leaves_for_a_save(
    given: SlurmLimits, warning_s: float, checks: list[str]
) -> None:
    """Without GraceTime, a preemption leaves KillWait."""
    found = bad(check_limits(given, warning_s=warning_s, needed_ms=20_000))
    assert [one.check for one in found] == checks
    for one in found:
        window = one.check == "slurm window"
        assert one.severity == (Severity.ERROR if window else Severity.WARNING)
        assert "a save needs 20.0 s" in one.seen
        assert "21" in one.fix
    assert not bad(check_limits(given, warning_s=warning_s, needed_ms=0))


def test_kubernetes_without_a_way_in(tmp_path: Path) -> None:
    adapters = {"kubernetes": {"kubeconfig": str(tmp_path / "none")}}
    found = bad(sources(setup(tmp_path, sources=("kubernetes",), adapters=adapters)))
    assert {one.severity for one in found} == {Severity.ERROR}
    assert "kubernetes" in {one.check for one in found}


def test_rights_that_are_missing_in_kubernetes(tmp_path: Path) -> None:
    with level("kit", tmp_path) as here:
        assert here.server is not None
        here.server.add_pod()
        adapters = {"kubernetes": {"kubeconfig": str(here.kubeconfig), "pod": "llm-0"}}
        inside = setup(tmp_path, sources=("kubernetes",), adapters=adapters)
        assert not bad(sources(inside))
        here.server.forbidden |= {("list", "nodes"), ("patch", "pods"), ("list", "events")}
        found = the_only(sources(inside))
    assert (found.check, found.severity) == ("kubernetes rights", Severity.WARNING)
    assert "not allowed: patch pods, list events, list nodes" in found.seen


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        ("--bytes", "1GB", "--nnodes", "0"),
        ("--nnodes", "2", "--coordinator", "node0"),
        ("--nnodes", "2", "--coordinator", "node0:7411", "--node-rank", "2"),
        ("--grace", "nan"),
        ("--grace", "inf"),
        ("--heartbeat", "nan"),
        ("--silence", "nan"),
        ("--attach", "nan"),
        ("--every-s", "nan"),
        ("--signal", "SIGKILL"),
        ("--metrics", "9100"),
        ("--exit-margin-ms", "-1"),
        ("--checksum", "md5"),
        ("--trial", "nan"),
    ],
)
def test_what_run_would_refuse_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--job", "llm", *wrong, "--", "true"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert wrong[-2].strip("-").replace("-", "_") in told.err.replace("-", "_")


def test_a_right_environment_has_no_finding_and_a_wrong_one_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "DRAINFSM_STORE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "store").mkdir()
    common = ["doctor", "--job", "llm", "--state-dir", str(tmp_path / "state"), "--json"]
    right = ["--store", str(tmp_path / "store"), "--bytes", "1MB", "--grace", "60"]
    assert main([*common, *right, "--store-bytes-per-s", "100000", "--", "true"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert not [one for one in told["findings"] if one["severity"] in ("warning", "error")]
    wrong = ["--store", str(tmp_path / "no" / "store"), "--bytes", "999PB", "--grace", "5"]
    assert main([*common, *wrong, "--", "no-such-program"]) == 1
    told = json.loads(capsys.readouterr().out)
    errors = [one["check"] for one in told["findings"] if one["severity"] == "error"]
    assert errors == ["window", "command", "store", "memory"]
    assert main([*common[:-1], *right[:2], "--", "sh", "-c", "x"]) == 3
    assert "warning  command: a shell (sh)" in capsys.readouterr().out
