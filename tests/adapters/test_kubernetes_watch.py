"""The watch through everything that API servers, and what stands before them, do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from drainfsm.core.notice import NoticeClass
from drainfsm.testing.adapter_contract import check_adapter, context_for
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters import kubernetes, kubernetes_watch
from drainfsm_kit.kube.objects import Key, read
from drainfsm_kit.kube.server import TOKEN, KubeServer
from drainfsm_kit.kube.tls import stranger

POD = Key("pods", "default", "llm-0")
Story = Callable[[KubeServer, RecordingSink], Awaitable[None]]


@pytest.fixture
def server() -> Iterator[KubeServer]:
    """One node with one pod; its clock is 7.3 seconds ahead."""
    with KubeServer(ahead_s=7.3) as made:
        made.add_node()
        made.add_pod()
        yield made


@pytest.fixture
def kubeconfig(server: KubeServer, tmp_path: Path) -> str:
    return str(server.kubeconfig(tmp_path / "kubeconfig"))


def play(server: KubeServer, kubeconfig: str, story: Story, **options: str) -> RecordingSink:
    given = {"pod": "llm-0", "kubeconfig": kubeconfig, "unknown_s": "0.5", **options}

    async def run() -> RecordingSink:
        async with watching(kubernetes.adapter(context_for(given))) as sink:
            await story(server, sink)
            return sink

    return asyncio.run(run())


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.02)


async def watched(server: KubeServer, *, count: int = 2) -> None:
    """Until so many watches are open."""
    await until(lambda: server.watch_count >= count)


def count(server: KubeServer, *, watch: bool, what: str = "/pods") -> int:
    paths = [path for _, path in server.requests if what in path]
    return sum(("watch=1" in path) is watch for path in paths)


async def more(server: KubeServer, act: Callable[[], None]) -> None:
    """Until the pod is watched once more after the act."""
    before = count(server, watch=True)
    act()
    await until(lambda: count(server, watch=True) > before)


async def listed_again(server: KubeServer, garbage: bytes) -> None:
    before = count(server, watch=False, what="")
    server.garbage = garbage
    await until(lambda: count(server, watch=False, what="") > before)


def deleted(sink: RecordingSink) -> bool:
    return any(notice.notice_class is NoticeClass.HARD for notice in sink.notices)


async def still_hears(server: KubeServer, sink: RecordingSink) -> None:
    """The proof that the watch is alive: a deletion is heard, once, with the right deadline."""
    marked = server.pods.delete(POD)
    await sink.until(lambda: deleted(sink))
    stated = round((read(marked["metadata"]["deletionTimestamp"]) - server.objects.ahead_s) * 1_000)
    notice = next(n for n in sink.notices if n.notice_class is NoticeClass.HARD)
    assert notice.deadline_unix_ms is not None
    assert abs(notice.deadline_unix_ms - stated) <= max(notice.clock_skew_ms, 600)
    assert len(sink.identities) == 1


def test_a_clean_close_goes_on_from_the_last_version(server: KubeServer, kubeconfig: str) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await watched(server)
        lists = count(server, watch=False)
        for _ in range(3):
            await more(server, server.close_watches)
        assert count(server, watch=False) == lists, "nothing was missed: no list"
        await still_hears(server, sink)

    assert not play(server, kubeconfig, story).silences


def test_what_happens_between_two_watches_is_seen(server: KubeServer, kubeconfig: str) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await watched(server)
        server.close_watches()
        await still_hears(server, sink)

    play(server, kubeconfig, story)


@pytest.mark.parametrize("as_status", [False, True])
def test_a_compacted_history_is_listed_again(
    server: KubeServer, kubeconfig: str, *, as_status: bool
) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        server.expired_as_status = as_status
        await watched(server)
        lists = count(server, watch=False)
        server.reset()
        server.add_node("node-b")
        server.objects.compact()
        server.close_watches()
        await until(lambda: count(server, watch=False) > lists)
        await watched(server)
        await still_hears(server, sink)

    play(server, kubeconfig, story)


def test_resets_are_survived_without_a_hot_loop(server: KubeServer, kubeconfig: str) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        for _ in range(5):
            await watched(server)
            server.reset()
        await watched(server)
        await still_hears(server, sink)

    play(server, kubeconfig, story)
    assert len(server.requests) < 60


def test_a_server_that_ends_every_watch_at_once_is_not_hammered(
    server: KubeServer, kubeconfig: str
) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        server.closes_after_s = 0.0
        await until(lambda: count(server, watch=True) >= 3)
        server.closes_after_s = None
        await watched(server)
        await still_hears(server, sink)

    play(server, kubeconfig, story)
    assert len(server.requests) < 40


def test_a_half_open_connection_is_given_up(
    server: KubeServer, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent for good, and never closed: what a load balancer leaves behind."""
    monkeypatch.setattr(kubernetes_watch, "PAUSE_S_MAX", 1.0)

    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await watched(server)
        server.muted = True
        await sink.until(lambda: "kubernetes/pod" in sink.unknown_now)
        server.muted = False
        await sink.until(lambda: not sink.unknown_now)
        await still_hears(server, sink)

    sink = play(server, kubeconfig, story, watch_s="5", timeout_s="1")
    said = next(s.detail for s in sink.silences if s.source == "kubernetes/pod")
    assert "said nothing" in said


def test_a_rotated_token_is_read_again(
    server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kubelet rotates it: in place, in the service account's folder."""
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(TOKEN)
    (account / "namespace").write_text("default")
    (account / "ca.crt").write_bytes(server.certificate)
    host, _, port = server.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr("drainfsm_adapters.kubernetes_client.SERVICE_ACCOUNT", str(account))

    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await watched(server)
        server.tokens = {"the next one"}
        (account / "token").write_text("the next one")
        server.close_watches()
        await still_hears(server, sink)

    play(server, "", story)


def test_an_expired_token_is_on_record_and_the_next_one_is_taken(
    server: KubeServer, kubeconfig: str
) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        server.tokens = set()
        await sink.until(lambda: "kubernetes/pod" in sink.unknown_now)
        server.tokens = {TOKEN}
        await sink.until(lambda: not sink.unknown_now)
        await still_hears(server, sink)

    assert "the token is expired" in play(server, kubeconfig, story).silences[0].detail


def test_another_ca_is_on_record(server: KubeServer, kubeconfig: str, tmp_path: Path) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.silences))

    server._certificate = stranger()
    wrong = str(server.kubeconfig(tmp_path / "wrong"))
    assert "not from the CA" in play(server, wrong, story).silences[0].detail


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_missing_right_is_named(server: KubeServer, kubeconfig: str, verb: str) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await sink.until(lambda: "kubernetes/pod" in sink.unknown_now)
        server.forbidden.clear()
        await sink.until(lambda: not sink.unknown_now)
        await still_hears(server, sink)

    server.forbidden.add((verb, "pods"))
    detail = play(server, kubeconfig, story).silences[0].detail
    assert "a permission is missing" in detail
    assert f'cannot {verb} resource "pods"' in detail


def test_without_the_right_to_nodes_the_pod_is_heard_all_the_same(
    server: KubeServer, kubeconfig: str
) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await sink.until(lambda: sink.unknown_now == ["kubernetes/node"])
        await still_hears(server, sink)

    server.forbidden.add(("list", "nodes"))
    play(server, kubeconfig, story)


def test_priority_and_fairness_asks_to_wait(server: KubeServer, kubeconfig: str) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        server.throttled = 4
        await watched(server)
        await still_hears(server, sink)

    play(server, kubeconfig, story)
    assert server.throttled == 0


def test_a_slow_server_is_waited_for(server: KubeServer, kubeconfig: str) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        server.slow_s = 0.7
        await watched(server)
        await still_hears(server, sink)

    play(server, kubeconfig, story, unknown_s="10")


def test_garbage_in_a_watch_is_listed_again(server: KubeServer, kubeconfig: str) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        for garbage in (b"{", b"null", b'{"type": 5}', b'{"type": "ADDED", "object": []}'):
            await watched(server)
            await listed_again(server, garbage)
        await watched(server)
        await still_hears(server, sink)

    play(server, kubeconfig, story)


def test_a_pod_deleted_while_nobody_looked_is_gone(server: KubeServer, kubeconfig: str) -> None:
    """Force-deleted during an outage: the list lacks it."""

    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await watched(server)
        server.tokens = set()
        server.reset()
        server.pods.delete(POD, {"gracePeriodSeconds": 0})
        server.tokens = {TOKEN}
        await sink.until(lambda: deleted(sink))

    sink = play(server, kubeconfig, story)
    notice = sink.notices[-1]
    assert 0 < (notice.deadline_unix_ms or 0) - notice.received_unix_ms <= 1_900


def test_a_namesake_with_another_uid_means_that_ours_is_gone(
    server: KubeServer, kubeconfig: str
) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await watched(server)
        server.tokens = set()
        server.reset()
        server.pods.delete(POD, {"gracePeriodSeconds": 0})
        server.add_pod("llm-0")
        server.tokens = {TOKEN}
        await sink.until(lambda: deleted(sink))
        await asyncio.sleep(0.3)
        assert len(sink.identities) == 1

    play(server, kubeconfig, story)


def test_a_pod_that_is_not_in_this_cluster_is_on_record(
    server: KubeServer, kubeconfig: str
) -> None:
    async def story(server: KubeServer, sink: RecordingSink) -> None:
        await sink.until(lambda: bool(sink.silences))
        assert sink.notices == []

    sink = play(server, kubeconfig, story, pod="llm-9")
    assert "there is no pod default/llm-9 in this cluster" in sink.silences[0].detail


def test_the_contract(server: KubeServer, kubeconfig: str) -> None:
    server.pods.disrupt(POD, "EvictionByEvictionAPI")
    options = {"pod": "llm-0", "kubeconfig": kubeconfig}
    asyncio.run(check_adapter(kubernetes.adapter, context_for(options), notice_count=1))
