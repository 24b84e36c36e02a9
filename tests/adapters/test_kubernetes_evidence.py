"""What pods and nodes say of their end; the recordings are of a real cluster (v1.36)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainfsm.core.notice import NoticeClass
from drainfsm.testing.notice_sink import RecordingSink
from drainfsm_adapters.kubernetes_evidence import NodeReader, claim_deadline, gone_of, pod_reading
from drainfsm_adapters.kubernetes_objects import instant_of, node_of, pod_of
from drainfsm_adapters.kubernetes_options import KubernetesOptions
from drainfsm_adapters.ledger import Ledger, Observed, Reading
from drainfsm_adapters.server_clock import ServerClock

HARD, SOFT = NoticeClass.HARD, NoticeClass.SOFT
RECORDED = Path(__file__).parent / "data" / "kubernetes"
NOW = 1_796_000_000_000
CORDON = "2026-11-30T00:53:20Z"
"""NOW, as the server writes it."""


def heard(recording: str, pod: str) -> RecordingSink:
    """What the adapter makes of one pod's watch, as it was recorded."""
    sink, now = RecordingSink(), 0
    ledger = Ledger(
        source="kubernetes",
        scope="pod",
        sink=sink,
        clock=ServerClock(),
        now_unix_ms=lambda: now,
    )
    for line in (RECORDED / f"{recording}.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["object"]["metadata"]["name"] != pod:
            continue
        now = round(event["t"] * 1_000)
        seen = pod_of(event["object"])
        ended = event["type"] == "DELETED"
        gone = Reading(events=(gone_of(seen, now_unix_ms=now),))
        ledger.settle("pod", gone if ended else pod_reading(seen))
    return sink


def deadlines(sink: RecordingSink) -> list[int]:
    """In seconds after the first notice, each that is new."""
    first = sink.notices[0].received_unix_ms
    stated = [notice.deadline_unix_ms for notice in sink.notices if notice.deadline_unix_ms]
    return list(dict.fromkeys(round((at - first) / 1_000) for at in stated))


@pytest.mark.parametrize(
    ("recording", "pod", "cause", "first_s"),
    [
        ("01-delete-prestop-sigterm", "p1", "pod_deleted", 29),
        ("02-sigterm-ignored", "p2", "pod_deleted", 7),
        ("03-prestop-eats-window", "p3", "pod_deleted", 6),
        ("06c-negative-and-uid", "p6c", "pod_deleted", 2),
        ("15-sidecar", "p15", "pod_deleted", 20),
        ("16-kubelet-restart", "p16", "pod_deleted", 14),
        ("18-grace-0-and-1", "p18a", "pod_deleted", 1),
        ("18-grace-0-and-1", "p18b", "pod_deleted", 2),
    ],
)
def test_a_deletion_is_one_hard_notice(recording: str, pod: str, cause: str, first_s: int) -> None:
    sink = heard(recording, pod)
    assert len(sink.identities) == 1
    assert {notice.notice_class for notice in sink.notices} == {HARD}
    assert {notice.cause for notice in sink.notices} == {cause}
    assert abs(deadlines(sink)[0] - first_s) <= 1


@pytest.mark.parametrize(
    ("recording", "pod", "cause"),
    [
        ("07-drain-pdb-429", "p7a", "eviction"),
        ("08-taint-noexecute", "p8a", "node_taint"),
        ("08-taint-noexecute", "p8b", "node_taint"),
        ("09-eviction-api", "p9", "eviction"),
        ("10-preemption", "p10low", "preemption"),
    ],
)
def test_a_disruption_hardens_with_the_deletion(recording: str, pod: str, cause: str) -> None:
    sink = heard(recording, pod)
    assert len(sink.identities) == 1, "the condition and the deletion are one notice"
    assert [notice.notice_class for notice in sink.notices][:2] == [SOFT, HARD]
    assert {notice.cause for notice in sink.notices} == {cause}
    assert not sink.withdrawals


@pytest.mark.parametrize(
    ("recording", "pod"),
    [("04-shorten-ahead", "p4"), ("05-shorten-past", "p5"), ("20-shorten-during-prestop", "p20")],
)
def test_a_shortened_deletion_is_obeyed_and_never_extended(recording: str, pod: str) -> None:
    sink = heard(recording, pod)
    assert len(sink.identities) == 1
    stated = [notice.deadline_unix_ms or 0 for notice in sink.notices]
    assert len(set(stated)) == 2, "the kubelet's last write, with grace 0, is 19 s later: no news"
    assert stated == sorted(stated, reverse=True)


def test_forced_after_a_deletion_it_is_about_to_be_killed() -> None:
    sink = heard("06b-delete-then-force", "p6b")
    assert sink.notices[0].deadline_unix_ms == sink.notices[0].received_unix_ms // 1_000 * 1_000 + (
        30_000
    )
    last = sink.notices[-1]
    assert 0 < (last.deadline_unix_ms or 0) - last.received_unix_ms <= 1_900


@pytest.mark.parametrize("pod", ["p21a", "p21b", "p21c"])
def test_the_kubelets_own_shutdown_says_nothing_on_the_pod_before_it_has_stopped(pod: str) -> None:
    notices = heard("21-graceful-node-shutdown", pod).notices
    assert all(notice.detail.startswith("grace 0 s") for notice in notices), "the clean-up alone"


def test_a_taint_that_is_withdrawn_in_time_leaves_the_pod_alone() -> None:
    sink = heard("08b-taint-withdrawn", "p8c")
    assert [notice.cause for notice in sink.notices[:1]] == ["pod_deleted"], "the trial's clean-up"


# --- nodes --------------------------------------------------------------------------------------


def node_events(
    *, pod: dict[str, Any] | None = None, claim: int | None = None, **node: Any
) -> list[Observed]:
    options = node.pop("options", {})
    item = {
        "metadata": {"name": "node-a", **node.pop("metadata", {})},
        "spec": node.pop("spec", {}),
        "status": node.pop("status", {}),
    }
    reader = NodeReader(KubernetesOptions(**options))
    seen = None if pod is None else pod_of(pod)
    return list(reader.reading(node_of(item), seen, claim_unix_ms=claim, now_unix_ms=NOW).events)


def one(events: list[Observed]) -> Observed:
    assert len(events) == 1
    return events[0]


def tainted(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, Any]:
    return {"taints": [{"key": key, "value": value, "effect": effect}]}


def test_a_cordon_is_soft_and_its_time_tells_one_from_the_next() -> None:
    fields = [{"time": CORDON, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]
    found = one(node_events(spec={"unschedulable": True}, metadata={"managedFields": fields}))
    assert (found.key, found.notice_class, found.cause) == ("cordon", SOFT, "node_drain")
    assert found.tag == CORDON
    assert found.derived_unix_ms == NOW + 300_000


def test_our_annotation_counts_only_for_our_cordon() -> None:
    """An uncordon leaves it on the node, and the next cordon may be anybody's."""
    key = "drainfsm.io/cordoned-by"
    ours: dict[str, Any] = {"f:metadata": {"f:annotations": {f"f:{key}": {}}}}
    spec: dict[str, Any] = {"f:spec": {"f:unschedulable": {}}}

    def events(*entries: Any) -> list[Observed]:
        fields = [{"time": CORDON, "fieldsV1": entry} for entry in entries]
        metadata = {"annotations": {key: "llm"}, "managedFields": fields}
        return node_events(spec={"unschedulable": True}, metadata=metadata)

    assert events({**ours, **spec}) == []
    assert one(events(ours, spec)).key == "cordon", "kubectl's, after ours was undone"
    assert events(5, "x", {}) == []


def test_our_own_cordon_and_one_older_than_the_pod_say_nothing() -> None:
    own = {"annotations": {"drainfsm.io/cordoned-by": "llm"}}
    assert node_events(spec={"unschedulable": True}, metadata=own) == []
    fields = [{"time": CORDON, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]
    pod: dict[str, Any] = {"status": {"startTime": "2026-11-30T00:53:21Z"}}
    older: dict[str, Any] = {"spec": {"unschedulable": True}, "metadata": {"managedFields": fields}}
    assert node_events(pod=pod, **older) == []
    pod["status"]["startTime"] = CORDON
    assert one(node_events(pod=pod, **older)).key == "cordon"


@pytest.mark.parametrize(
    ("key", "cause", "notice_class", "lead_ms"),
    [
        ("ToBeDeletedByClusterAutoscaler", "scale_in", SOFT, 300_000),
        ("DeletionCandidateOfClusterAutoscaler", "scale_in", SOFT, 600_000),
        ("karpenter.sh/disrupted", "scale_in", SOFT, 300_000),
        ("karpenter.sh/disruption", "scale_in", SOFT, 300_000),
        ("aws-node-termination-handler/spot-itn", "spot_interruption", HARD, 15_000),
        ("aws-node-termination-handler/scheduled-maintenance", "host_maintenance", SOFT, 300_000),
        ("aws-node-termination-handler/asg-lifecycle-termination", "scale_in", SOFT, 300_000),
        (
            "aws-node-termination-handler/rebalance-recommendation",
            "rebalance_recommendation",
            SOFT,
            300_000,
        ),
        ("cloud.google.com/impending-node-termination", "spot_interruption", HARD, 15_000),
        ("node.kubernetes.io/out-of-service", "node_lost", SOFT, 15_000),
        ("example.com/goes", "node_drain", SOFT, 300_000),
    ],
)
def test_taints_of_those_who_take_nodes_away(
    key: str, cause: str, notice_class: NoticeClass, lead_ms: int
) -> None:
    options = {"shutdown_s": 15.0, "taints": "example.com/goes"}
    found = one(node_events(spec=tainted(key, "1795953540"), options=options))
    assert (found.cause, found.notice_class) == (cause, notice_class)
    assert found.derived_unix_ms == NOW + lead_ms
    assert found.tag == "1795953540"


def test_without_a_window_what_is_about_to_happen_gets_the_jobs_grace() -> None:
    found = one(node_events(spec=tainted("cloud.google.com/impending-node-termination")))
    assert (found.stated_unix_ms, found.derived_unix_ms) == (None, None)


def test_a_nodeclaim_that_states_the_end_is_hard() -> None:
    taint, found = node_events(spec=tainted("karpenter.sh/disrupted"), claim=NOW + 1_800_000)
    assert taint.notice_class is SOFT
    assert (found.notice_class, found.stated_unix_ms) == (HARD, NOW + 1_800_000)


def test_a_nodeclaim_whose_end_has_long_passed_says_nothing() -> None:
    key = "karpenter.sh/nodeclaim-termination-timestamp"
    assert claim_deadline({key: CORDON}, now_unix_ms=NOW) == NOW
    assert claim_deadline({key: CORDON}, now_unix_ms=NOW + 3_600_000) is None
    assert claim_deadline({key: "soon"}, now_unix_ms=NOW) is None
    assert claim_deadline("none", now_unix_ms=NOW) is None


def test_a_tolerated_taint_counts_from_when_it_was_added() -> None:
    taint = {"key": "a", "effect": "NoExecute", "timeAdded": CORDON}
    pod: dict[str, Any] = {
        "spec": {
            "terminationGracePeriodSeconds": 20,
            "tolerations": [
                {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
            ],
        },
    }
    found = one(node_events(pod=pod, spec={"taints": [taint]}))
    assert (found.notice_class, found.cause) == (SOFT, "node_taint")
    assert found.stated_unix_ms == NOW + 80_000
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    assert node_events(pod=pod, spec={"taints": [taint]}) == [], "tolerated for ever"


def condition(kind: str, message: str = "", status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": "R", "message": message}]}


def test_a_condition_of_aks_states_the_instant_in_its_text() -> None:
    text = "Preempt Scheduled: Mon, 30 Nov 2026 00:53:50 GMT. EventId: 1111-2222"
    found = one(node_events(status=condition("PreemptionScheduled", text)))
    assert (found.notice_class, found.cause) == (HARD, "spot_interruption")
    assert (found.stated_unix_ms, found.tag) == (NOW + 30_000, "1111-2222")


@pytest.mark.parametrize(
    "text", ["", "soon", "Mon, 99 Nov 2026 00:53:50 GMT", "Mon, 30 Nov 2076 00:53:50 GMT"]
)
def test_a_condition_without_a_credible_instant_gets_the_jobs_grace(text: str) -> None:
    found = one(node_events(status=condition("PreemptScheduled", text)))
    assert (found.notice_class, found.stated_unix_ms, found.derived_unix_ms) == (HARD, None, None)


def test_a_condition_left_from_long_ago_is_stale() -> None:
    text = "Preempt Scheduled: Mon, 30 Nov 2026 00:03:50 GMT"
    assert node_events(status=condition("PreemptScheduled", text)) == []


def test_the_kubelets_shutdown_shows_at_ready() -> None:
    found = one(
        node_events(
            status=condition("Ready", "node is shutting down", status="False"),
            options={"shutdown_s": 12.0},
        )
    )
    assert (found.key, found.notice_class, found.derived_unix_ms) == (
        "shutdown",
        SOFT,
        NOW + 12_000,
    )


def test_an_active_deadline_is_known_from_the_start_and_so_soft() -> None:
    pod = pod_of(
        {
            "metadata": {"name": "p"},
            "spec": {"activeDeadlineSeconds": 3_600},
            "status": {"startTime": CORDON},
        }
    )
    found = one(list(pod_reading(pod).events))
    assert (found.cause, found.notice_class) == ("time_limit", SOFT)
    assert found.stated_unix_ms == NOW + 3_600_000


TEXTS = st.sampled_from(
    ["", "True", "node is shutting down", "9999-99-99T00:00:00Z", CORDON, "NoExecute"]
)
PLAIN = st.none() | st.booleans() | st.integers() | TEXTS
ANYTHING = PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(TEXTS, PLAIN, max_size=2)
FIELDS = st.sampled_from(
    [
        *("metadata", "spec", "status", "conditions", "taints", "tolerations", "annotations"),
        *("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "ownerReferences"),
        *("terminationGracePeriodSeconds", "unschedulable", "key", "type", "message", "timeAdded"),
    ]
)
OBJECTS = st.dictionaries(
    st.sampled_from(["metadata", "spec", "status"]),
    st.dictionaries(FIELDS, ANYTHING | st.lists(st.dictionaries(FIELDS, ANYTHING), max_size=3)),
)


@given(OBJECTS, OBJECTS)
def test_objects_with_any_content_are_read(pod: dict[str, Any], node: dict[str, Any]) -> None:
    seen = pod_of(pod)
    pod_reading(seen)
    gone_of(seen, now_unix_ms=NOW)
    reader = NodeReader(KubernetesOptions())
    reader.reading(node_of(node), seen, claim_unix_ms=None, now_unix_ms=NOW)


def test_a_deletion_without_a_readable_instant_is_a_deletion_all_the_same() -> None:
    pod = pod_of({"metadata": {"name": "p", "deletionTimestamp": 5}})
    found = one(list(pod_reading(pod).events))
    assert (found.notice_class, found.stated_unix_ms) == (HARD, None)


def test_instants() -> None:
    assert instant_of(CORDON) == NOW
    assert instant_of("") is None
