"""Every exception that drainfsm raises on purpose.

DrainfsmError
├── ConfigError               an option, environment variable or toml key is wrong: says which one
├── NoticeRejectedError       the notice states something that cannot be acted on
├── ScriptRefusedError        a training script cannot be read, or changed by rule: says why
├── InputRejectedError        the input makes no sense in the present state; nothing changed
├── EventRefusedError         the lifecycle table does not allow the event; nothing changed
├── LogError
│   ├── JournalCorruptError   bytes before the tail of a journal fail their checksum
│   ├── JournalLockedError    another process writes the journal
│   ├── JournalUnusableError  the journal cannot be opened: rights, a full disk, a wrong path
│   ├── RecordUnreadableError bytes in a log are not a record of a known schema version
│   ├── StaleWriterError      somebody else appended to the subject
│   └── BrokerError           the NATS server cannot be used: away, no JetStream, wrong stream
│       └── RecordRefusedError the stream refused a record: it is full, or the record is too large
├── StoreError
│   ├── SlotTakenError        a put-if-absent found the object there already
│   ├── StoreUnreachableError the store does not answer, or refuses access
│   ├── CommitLogError        the commit log is not readable as one total order
│   │   └── OtherJobsStoreError it belongs to another job
│   └── FencedError           a newer epoch has claimed the job: stop, for ever
├── CheckpointError
│   ├── ManifestMismatchError a generation is not what its manifest or record says
│   │   └── FormatUnknownError it was written by a newer drainfsm
│   ├── NotRestoredError      the training loop did not resume after the checkpoint
│   ├── RestoreRefusedError   the recorded generation cannot be restored here
│   │   └── GenerationPrunedError it was committed, and the retention policy removed it
│   └── SaveFailedError       a rank could not write its part of a generation
│       └── NoRoomError       it would not fit into the free memory of a host
└── RuntimeFailure
    ├── AgentUnreachableError no running agent answers for the job
    ├── AuthenticationError   wrong job token
    ├── NodeRankTakenError    two agents claim the same node rank
    ├── StartRefusedError     a node has refused to start the attempt, or has not come
    ├── CoordinatorLostError  the coordinator went away: the attempt is lost
    └── ProtocolError         a peer sent an invalid frame

What goes wrong in the world (a rank lost, a save that no longer fits) is an event in the log, not
an exception. A broken invariant is a bug, and an AssertionError.
"""

from __future__ import annotations


class DrainfsmError(Exception):
    """Base class: catch it to catch everything that drainfsm raises on purpose."""


class ConfigError(DrainfsmError):
    """An option, environment variable or toml key is wrong; the message names it."""


class NoticeRejectedError(DrainfsmError):
    """The notice states something that cannot be acted on (a deadline years ahead, say)."""


class ScriptRefusedError(DrainfsmError):
    """`drainfsm init` cannot read a training script, or has no rule for its form; says where."""


class InputRejectedError(DrainfsmError):
    """The input makes no sense in the present state. Nothing was recorded."""

    def __init__(self, kind: str, *, phase: str, reason: str) -> None:
        super().__init__(f"{kind} rejected while {phase}: {reason}")
        self.kind = kind
        self.phase = phase
        self.reason = reason


class EventRefusedError(DrainfsmError):
    """The lifecycle table does not allow the event in this state. Nothing changed."""

    def __init__(self, kind: str, *, phase: str, reason: str = "") -> None:
        why = f": {reason}" if reason else ""
        super().__init__(f"event {kind} is not allowed in state {phase}{why}")
        self.kind = kind
        self.phase = phase
        self.reason = reason


class LogError(DrainfsmError):
    """Something is wrong with the event log."""


class JournalCorruptError(LogError):
    """A journal frame before the tail fails its checksum: the file was changed after the fact."""


class JournalLockedError(LogError):
    """Another process has the journal open for writing."""


class JournalUnusableError(LogError):
    """The journal cannot be created or opened; the message says why and what to do."""


class RecordUnreadableError(LogError):
    """Bytes in a log are not a record of a known schema version."""


class StaleWriterError(LogError):
    """Somebody else appended to the subject since the writer read it."""

    def __init__(self, subject: str, *, expected_count: int, actual_count: int | None) -> None:
        found = "another count" if actual_count is None else str(actual_count)
        super().__init__(f"{subject} holds {found} records, not {expected_count}")
        self.subject = subject
        self.expected_count = expected_count
        self.actual_count = actual_count


class BrokerError(LogError):
    """The NATS server cannot be used; the message says why and what to do."""


class RecordRefusedError(BrokerError):
    """The stream refused a record, which was not stored."""


class StoreError(DrainfsmError):
    """Something is wrong with the checkpoint store."""


class SlotTakenError(StoreError):
    """A put-if-absent found the object there already: read it, then decide again."""


class StoreUnreachableError(StoreError):
    """The store does not answer, or refuses access."""


class CommitLogError(StoreError):
    """The commit log cannot be read as one total order: a slot is missing or garbled."""


class OtherJobsStoreError(CommitLogError):
    """The commit log belongs to another job: every job has a store of its own."""


class FencedError(StoreError):
    """A newer epoch has claimed the job: this attempt can never publish again."""

    def __init__(self, job_id: str, *, own_epoch: int, newest_epoch: int) -> None:
        super().__init__(f"job {job_id}: epoch {own_epoch} is fenced by epoch {newest_epoch}")
        self.job_id = job_id
        self.own_epoch = own_epoch
        self.newest_epoch = newest_epoch


class CheckpointError(DrainfsmError):
    """Something is wrong with the content of a generation."""


class ManifestMismatchError(CheckpointError):
    """A generation is not what its manifest or its record says."""


class FormatUnknownError(ManifestMismatchError):
    """A manifest, slot or record has a format version that is not known here: update drainfsm."""


class NotRestoredError(CheckpointError):
    """There is a checkpoint, but the training loop did not resume after it."""


class RestoreRefusedError(CheckpointError):
    """The recorded generation cannot be restored into this job; the message says why."""


class GenerationPrunedError(RestoreRefusedError):
    """The generation was committed, and clean-up has removed it since, by the retention policy."""


class SaveFailedError(CheckpointError):
    """A rank could not write its part of a generation (disk full, say)."""


class NoRoomError(SaveFailedError):
    """Staging would not fit into the free memory of a host. Nothing was staged."""

    def __init__(
        self, reason: str, *, host: str = "", needed_bytes: int = 0, free_bytes: int = 0
    ) -> None:
        super().__init__(reason)
        self.host = host
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class RuntimeFailure(DrainfsmError):  # noqa: N818 - a family, not one error
    """Agents, coordinator and ranks could not work together."""


class AgentUnreachableError(RuntimeFailure):
    """No running agent answers for the job on this machine."""


class AuthenticationError(RuntimeFailure):
    """The peer does not know the job token."""


class NodeRankTakenError(RuntimeFailure):
    """Two agents claim the same node rank."""


class StartRefusedError(RuntimeFailure):
    """Some node cannot run its part, or has not come: the attempt is not started on any."""

    def __init__(self, reason: str, *, exit_code: int) -> None:
        super().__init__(f"node 0 does not start the attempt: {reason}")
        self.reason = reason
        self.exit_code = exit_code
        """The exit code of the nodes."""


class CoordinatorLostError(RuntimeFailure):
    """The coordinator went away. One coordinator per attempt, for life: the attempt is lost."""


class ProtocolError(RuntimeFailure):
    """A peer sent an invalid frame."""
