"""``--source auto``: the cloud that answers, or a bounded "there is none"."""

from __future__ import annotations

import asyncio

import pytest

from drainfsm.errors import ConfigError
from drainfsm.runtime.clock import Clock
from drainfsm.testing.adapter_contract import context_for
from drainfsm.testing.metadata import (
    AwsMetadataServer,
    AzureMetadataServer,
    Fault,
    MetadataServer,
    TencentMetadataServer,
)
from drainfsm.testing.metadata.server import Request, Response
from drainfsm.testing.notice_sink import RecordingSink, watching
from drainfsm_adapters import auto
from drainfsm_kit.cloud_stage import STAGES, Stage

now_unix_ms = Clock().now_unix_ms


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Stage]:
    """Every cloud's endpoint points to a port of its own, on which nothing listens yet."""
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    made = {cloud: stage() for cloud, stage in STAGES.items()}
    for stage in made.values():
        with stage.server:
            pass
        monkeypatch.setenv(stage.server.variable, stage.server.endpoint)
    return made


@pytest.mark.parametrize("cloud", tuple(STAGES))
def test_the_cloud_that_answers_is_taken_and_heard(cloud: str, stages: dict[str, Stage]) -> None:
    async def run() -> RecordingSink:
        async with watching(auto.adapter(context_for())) as sink:
            await stages[cloud].interrupt(60_000)
            await sink.until(lambda: bool(sink.notices))
            return sink

    with stages[cloud].server:
        sink = asyncio.run(run())
    assert [notice.source for notice in sink.notices] == [cloud]
    assert sink.silences == []


def test_where_there_is_no_cloud_it_is_said_and_asked_again(
    stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "RETRY_S", 0.1)

    async def run() -> RecordingSink:
        async with watching(auto.adapter(context_for())) as sink:
            await sink.until(lambda: bool(sink.silences))
            server = stages["azure"].server
            with server:
                await stages["azure"].interrupt(60_000)
                await sink.until(lambda: bool(sink.notices))
            return sink

    sink = asyncio.run(run())
    first, last = sink.silences
    assert (first.source, last.since_unix_ms) == ("auto", None)
    assert all(f"{cloud}: " in first.detail for cloud in stages)


def test_endpoints_that_hang_are_asked_side_by_side(
    stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "PROBE_S", 3_600.0)  # one after the other, the second is never asked
    servers = [stage.server for stage in stages.values()]

    async def run() -> None:
        detecting = asyncio.ensure_future(auto.detect(now_unix_ms))
        async with asyncio.timeout(120):
            while not all(server.requests for server in servers):
                await asyncio.sleep(0.02)
        detecting.cancel()
        await asyncio.wait({detecting})

    for server in servers:
        server.start()
        server.fail(Fault.HANG)
    try:
        asyncio.run(run())
    finally:
        for server in servers:
            server.stop()


def test_endpoints_that_hang_are_no_cloud(stages: dict[str, Stage]) -> None:
    for stage in stages.values():
        stage.server.start()
        stage.server.fail(Fault.HANG)
    try:
        detected = asyncio.run(auto.detect(now_unix_ms))
    finally:
        for stage in stages.values():
            stage.server.stop()
    assert detected.cloud == ""


class Imitation(TencentMetadataServer):
    """What other clouds and OpenStack do: EC2's paths, without its tokens."""

    put_status = 405

    def answer(self, request: Request) -> Response:
        status = 200 if request.method == "GET" else self.put_status
        return Response(status=status, body=b"i-00000001")


class YesMan(Imitation):
    """Says 200 to everything, as some proxies do."""

    put_status = 200


@pytest.mark.parametrize("kind", [Imitation, YesMan])
def test_a_service_that_imitates_ec2_is_not_taken_for_it(
    kind: type[Imitation], stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind() as imitation:
        for cloud in ("aws", "gcp"):
            monkeypatch.setenv(stages[cloud].server.variable, imitation.endpoint)
        detected = asyncio.run(auto.detect(now_unix_ms))
    assert detected.cloud == ""
    assert f"aws: no token: answered {kind.put_status}" in detected.detail
    assert "gcp: answered 200 without Metadata-Flavor" in detected.detail


def test_a_hop_limit_on_ec2_is_told_by_name(stages: dict[str, Stage]) -> None:
    server = stages["aws"].server
    assert isinstance(server, AwsMetadataServer)
    server.limit_hops()
    with server:
        assert "HttpPutResponseHopLimit" in asyncio.run(auto.detect(now_unix_ms)).detail


def test_a_cloud_that_is_slower_than_a_try_is_found_by_a_longer_one(
    stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "PROBE_S", 0.3)
    monkeypatch.setattr(auto, "RETRY_S", 0.1)
    server = stages["gcp"].server
    server.delay_s = 0.8

    async def run() -> None:
        async with watching(auto.adapter(context_for())) as sink:
            await sink.until(lambda: bool(sink.silences) and not sink.unknown_now)

    with server:
        asyncio.run(run())


def test_ec2_that_the_environment_forbids_is_not_asked(
    stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server: MetadataServer = stages["aws"].server
    with server:
        assert asyncio.run(auto.detect(now_unix_ms)).cloud == ""
    assert server.requests == []


def test_the_options_of_the_cloud_are_handed_on(stages: dict[str, Stage]) -> None:
    server = stages["azure"].server
    assert isinstance(server, AzureMetadataServer)
    server.schedule("Preempt", in_ms=60_000, resources=("gpu-9",))

    async def run() -> RecordingSink:
        context = context_for({"azure_vm_name": "gpu-9", "aws_poll_s": "1"})
        async with watching(auto.adapter(context)) as sink:
            await sink.until(lambda: bool(sink.notices))
            return sink

    with server:
        assert asyncio.run(run()).identities[0].startswith("azure/gpu-9/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"poll_s": "1"}, "CLOUD_KEY"),
        ({"aws": "1"}, "CLOUD_KEY"),
        ({"oracle_poll_s": "1"}, "CLOUD_KEY"),
        ({"aws_poll_s": "60"}, "take 1 to 5 seconds"),
        ({"azure_vmname": "x"}, "known keys"),
    ],
)
def test_an_option_that_is_wrong_is_refused_before_anything_is_asked(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        auto.adapter(context_for(options))


def test_an_endpoint_that_is_none_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAINFSM_AZURE_METADATA_ENDPOINT", "https://169.254.169.254")
    with pytest.raises(ConfigError, match="DRAINFSM_AZURE_METADATA_ENDPOINT"):
        auto.adapter(context_for())
