"""``drainfsm run --source CLOUD``: from what the metadata server says to the resumed step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm.core.notice import NoticeClass
from drainfsm.core.state import Phase
from drainfsm.testing.metadata import AwsMetadataServer, AzureMetadataServer
from drainfsm.testing.metadata.server import Request, Response
from drainfsm.views.sources import sources_of
from drainfsm_kit.running import RunningJob, running_job

AWS = {"source": ["aws"], "adapters": {"aws": {"poll_s": "1"}}}
EVENT = "instance-event-0aaaabbbbccccdddd"
HOUR_MS = 3_600_000


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    with running_job(tmp_path) as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RunningJob]:
    with running_job(tmp_path, nnodes=2) as running:
        yield running


@pytest.fixture
def aws() -> Iterator[AwsMetadataServer]:
    """Its clock is ahead of this machine's."""
    with AwsMetadataServer(clock_ahead_ms=7_300) as server:
        yield server


def pointed(server: AwsMetadataServer | AzureMetadataServer) -> dict[str, str]:
    return {server.variable: server.endpoint}


def test_an_interruption_of_spot_capacity_is_saved_and_resumed(
    job: RunningJob, aws: AwsMetadataServer
) -> None:
    agent = job.start(job.toy(), variables=pointed(aws), settings=AWS)
    job.wait_for(e.HealthyStepReached)
    goes_unix_ms = aws.interrupt(in_ms=60_000)
    assert agent.wait() == 75

    received = job.find(e.NoticeReceived)[0]
    assert received.notice.source == "aws"
    assert received.notice.notice_class is NoticeClass.HARD
    assert abs(received.deadline_unix_ms - goes_unix_ms) <= received.notice.clock_skew_ms
    published = job.find(e.ManifestPublished)[0]
    requeue = job.find(e.RequeueRecorded)[0].record
    assert (requeue.cause, requeue.step) == ("spot_interruption", published.step)
    assert job.find(e.Exited)[0].remaining_ms > 0

    with AwsMetadataServer() as another:  # the replacement is another machine
        again = job.start(
            job.toy("--steps", str(published.step + 5)), variables=pointed(another), settings=AWS
        )
        assert again.wait() == 0
    assert job.steps(0, epoch=2)[0] == published.step + 1


def test_every_node_of_a_job_may_be_interrupted_in_the_same_second(pair: RunningJob) -> None:
    with AwsMetadataServer() as first, AwsMetadataServer() as second:
        second.put("instance-id", "i-0fedcba9876543210")
        servers = (first, second)
        for node, server in enumerate(servers):
            pair.start(
                pair.toy(),
                node_rank=node,
                variables=pointed(server) | {"RANK": str(node), "WORLD_SIZE": "2"},
                settings=AWS,
            )
        pair.wait_for(e.HealthyStepReached)
        for server in servers:
            server.interrupt(in_ms=60_000)
        assert [agent.wait() for agent in pair.agents] == [75, 75]
    state = pair.state()
    assert state.phase is Phase.EXITED
    assert state.drain_count == 1
    assert {identity.split("/")[1] for identity in state.current.notices} <= {
        "i-0123456789abcdef0",
        "i-0fedcba9876543210",
    }
    assert pair.find(e.ManifestPublished)[0].world_size == 2


def test_a_scheduled_event_that_moves_and_is_cancelled_leaves_the_job_alone(
    job: RunningJob, aws: AwsMetadataServer
) -> None:
    """A later time is another drain; the deadline of the first one never moved."""
    agent = job.start(job.toy(), variables=pointed(aws), settings=AWS)
    job.wait_for(e.HealthyStepReached)
    aws.schedule(EVENT, in_ms=HOUR_MS)
    first = job.wait_for(e.NoticeReceived)
    assert first.notice.notice_class is NoticeClass.SOFT
    aws.schedule(EVENT, in_ms=2 * HOUR_MS)
    job.wait_for(e.DrainCancelled)
    second = job.wait_for(e.NoticeReceived, count=2)
    assert second.drain_id != first.drain_id
    assert second.effective_deadline_unix_ms > first.effective_deadline_unix_ms
    aws.settle(EVENT, "canceled")
    job.wait_for(e.DrainCancelled, count=2)
    assert job.find(e.StopStepAgreed) == []
    before = len(job.steps(0))
    job.wait(lambda: len(job.steps(0)) > before + 5 or None, what="step after the cancellation")
    agent.signal()
    assert agent.wait() == 75


def test_an_endpoint_that_dies_is_on_record_and_the_job_goes_on(
    job: RunningJob, aws: AwsMetadataServer
) -> None:
    settings = {"source": ["aws"], "adapters": {"aws": {"poll_s": "1", "unknown_s": "2"}}}
    agent = job.start(job.toy(), variables=pointed(aws), settings=settings)
    job.wait_for(e.HealthyStepReached)
    aws.stop()
    unknown = job.wait_for(e.SourceUnknown)
    assert unknown.source.startswith("aws/")
    assert unknown.detail
    place = (unknown.source, 0)
    assert sources_of(job.records()).health[place].unknown_since_unix_ms is not None
    aws.start()
    job.wait_for(e.SourceRecovered, count=len(job.find(e.SourceUnknown)))
    job.wait(
        lambda: sources_of(job.records()).health[place].unknown_since_unix_ms is None or None,
        what="recovery",
    )
    aws.interrupt(in_ms=60_000)
    assert agent.wait() == 75
    assert job.find(e.ManifestPublished) != []


class WatchedAzure(AzureMetadataServer):
    """Counts the ranks that are alive when an event is let begin."""

    def __init__(self, alive: Callable[[], int]) -> None:
        super().__init__()
        self._alive = alive
        self.alive_at_approval: list[int] = []

    def answer(self, request: Request) -> Response:
        if request.method == "POST":
            self.alive_at_approval.append(self._alive())
        return super().answer(request)


def test_azure_may_begin_when_the_whole_job_has_left_and_one_agent_says_so(
    pair: RunningJob,
) -> None:
    with WatchedAzure(lambda: ranks_of(pair)) as azure:
        for node in (0, 1):
            options = {"vm_name": f"gpu-{node}", "job_vms": "gpu-0,gpu-1"}
            pair.start(
                pair.toy(),
                node_rank=node,
                variables=pointed(azure) | {"RANK": str(node), "WORLD_SIZE": "2"},
                settings={"source": ["azure"], "adapters": {"azure": options}},
            )
        pair.wait_for(e.HealthyStepReached)
        assert ranks_of(pair) == 2
        event_id, _ = azure.schedule("Preempt", in_ms=60_000, resources=("gpu-1", "gpu-0"))
        assert [agent.wait() for agent in pair.agents] == [75, 75]
        assert azure.approved == [event_id]
        assert azure.alive_at_approval == [0]
    assert pair.find(e.ManifestPublished)[0].world_size == 2


def ranks_of(job: RunningJob) -> int:
    """Toy ranks of this job that are alive."""
    mark, count = str(job.trace).encode(), 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        count += mark in words and b"drainfsm_kit.toy_rank" in words
    return count


def test_nothing_there_does_not_keep_a_job_from_running(job: RunningJob) -> None:
    with AwsMetadataServer() as gone:
        pass
    agent = job.start(job.toy("--steps", "20"), variables=pointed(gone), settings=AWS)
    assert agent.wait() == 0


@pytest.mark.parametrize("policy", ["record", "leave"])
def test_a_rebalance_recommendation_that_stands_for_ever_costs_at_most_one_drain(
    job: RunningJob, aws: AwsMetadataServer, policy: str
) -> None:
    """``drainfsm supervise`` gave up after ten restarts on a healthy machine."""
    aws.recommend_rebalance()
    settings = {"source": ["aws"], "adapters": {"aws": {"rebalance": policy, "rebalance_s": "20"}}}
    codes: list[int] = []
    while not codes or codes[-1] == 75:
        agent = job.start(job.toy("--steps", "40"), variables=pointed(aws), settings=settings)
        codes.append(agent.wait())
        assert len(codes) <= 2
    assert codes == ([0] if policy == "record" else [75, 0])
    (noted,) = job.find(e.NoticeNoted, len(codes))
    assert noted.notice.cause == "rebalance_recommendation"
    assert job.steps(0, epoch=len(codes))[-1] == 39


def test_an_event_that_stood_while_a_job_finished_is_not_acknowledged(job: RunningJob) -> None:
    """Something else may run on that VM, and has ten minutes."""
    with AzureMetadataServer() as azure:
        azure.schedule("Redeploy", in_ms=600_000)
        agent = job.start(
            job.toy("--steps", "40"), variables=pointed(azure), settings={"source": ["azure"]}
        )
        job.wait_for(e.NoticeReceived)
        assert agent.wait() == 0
        assert azure.approved == []


def test_an_event_is_not_acknowledged_by_a_job_that_left_for_something_else(
    job: RunningJob,
) -> None:
    with AzureMetadataServer() as azure:
        azure.schedule("Redeploy", in_ms=600_000)
        agent = job.start(job.toy(), variables=pointed(azure), settings={"source": ["azure"]})
        job.wait_for(e.NoticeReceived)
        job.wait_for(e.HealthyStepReached)
        agent.signal()
        assert agent.wait() == 75
        assert azure.approved == []
