"""Faults of the commit log, and of what a restart consumes."""

from __future__ import annotations

from fault import faults_of

TESTS = (
    "tests/unit/test_commits.py",
    "tests/unit/test_commit_chain.py",
    "tests/unit/test_attempt.py",
    "tests/unit/test_gc.py",
    "tests/unit/test_store_generations.py",
    "tests/unit/test_requeueing.py",
    "tests/unit/test_restore_policy.py",
    "tests/unit/test_runtime_publisher.py",
    "tests/properties/test_commit_log.py",
    "tests/properties/test_gc.py",
)

FAULTS = (
    *faults_of("store/commits.py", TESTS, (
        ("an older epoch commits behind a newer claim", "if head.epoch > commit.epoch:", "if False:"),
        ("an attempt that did not claim commits", "if last is None or (last.epoch, last.attempt_id) != (commit.epoch, commit.attempt_id):", "if last is None:"),
        ("a claim takes the epoch that is there", "epoch, slot = head.epoch + 1, head.slot + 1", "epoch, slot = max(1, head.epoch), head.slot + 1"),
        ("a claim that took effect is made again", "if isinstance(head.last, Claim) and head.last.attempt_id == attempt_id:", "if False:"),
        ("a claim found again shows itself as the head before", "slot = head.slot - 1", "slot = head.slot"),
        ("a generation is committed twice", "if (slot := self._slot_of(commit, head)) is not None:", "if (slot := None) is not None:"),
        ("a generation is committed with another manifest", "if slot.manifest_digest != commit.manifest_digest:", "if False:"),
        ("a check finds no newer epoch", "if newest > epoch:", "if newest > epoch + 1:"),
        ("fallback begins at the generation itself", "            if met:\n", "            if True:\n"),
        ("a store is claimed untried", "if found is not None and found.url == store.url:", "if True:"),
    )),
    *faults_of("store/log_reader.py", TESTS, (
        ("a missing slot goes unnoticed", "if (missing := missing_slot(numbers, after=known)) is not None:", "if (missing := None) is not None:"),
        ("the head is the oldest commit", "for number in range(count, self.count, -1):", "for number in range(self.count + 1, count + 1):"),
        ("a slot of another job is read", "if placed.slot.job_id != self._job_id:", "if False:"),
        ("a garbled slot is read once", "if attempt == READS_MAX:", "if attempt >= 1:"),
        ("a log that lost its end is shorter", "wanted = max(self.count, self._created, marked)", "wanted = 0"),
        ("a list without our own slot is believed", "wanted = max(self.count, self._created, marked)", "wanted = max(self.count, marked)"),
        ("a marked slot may be another", "if known is not None and known.digest != mark.digest:", "if False:"),
        ("the newest slot may change behind a running attempt", "if known is not None and self._decode(self.count).digest != known.digest:", "if False:"),
        ("any store is the one that was claimed", "if self.identity is not None and found != self.identity:", "if False:"),
        ("a slot may be of another store", "if placed.link.store_id != self.store_id:", "if False:"),
    )),
    *faults_of("store/slots.py", TESTS, (
        ("a commit found earlier is forgotten", "return None if self.link is None else self.link.newest_commit", "return None if self.link is None else 0"),
        ("an epoch may go backwards", "if slot.epoch != expected:", "if False:"),
        ("a slot is not sealed", "if hashlib.sha256(unsealed).hexdigest() != link.seal:", "if False:"),
        ("a slot may stand anywhere", "if link.slot != number:", "if False:"),
        ("a slot follows whatever is before it", 'if link is not None and link.before != ("" if behind is None else behind.digest):', "if False:"),
        ("a slot without a link follows those that have one", "if link is None and behind is not None and behind.link is not None:", "if False:"),
        ("slots are read in the order of the listing", "return sorted(int(match[1])", "return list(int(match[1])"),
        ("any file is a slot", "_NAME.fullmatch(name)", "_NAME.match(name)"),
    )),
    *faults_of("store/settling.py", TESTS, (
        ("a slot that a rival took is ours", "return store.get(name) == data", "return True"),
        ("our own slot is a rival's", "return store.get(name) == data", "return False"),
        ("an ambiguous answer is not settled", "if attempt == PUTS_MAX:", "if attempt >= 1:"),
    )),
    *faults_of("store/requeues.py", TESTS, (
        ("a second requeue record replaces the first", "if not put_settled(store, _name(record.epoch), encode_object(record), pause=pause):", "if store.put(_name(record.epoch), encode_object(record)):  # type: ignore[func-returns-value]"),
        ("a record of a generation that nobody committed is consumed", "if found is None:", "if False:"),
        ("a record that disagrees with its commit is consumed", "if (commit.manifest_digest, commit.step) != (record.manifest_digest, record.step):", "if False:"),
        ("the record of another job is consumed", "if record.job_id != log.job_id:", "if False:"),
        ("a lost attempt starts the job afresh", "commit = claimed.head.commit", "commit = None"),
        ("the attempt that was not dead after all is overruled", "record = read_requeue(store, epoch=epoch) or record", "pass"),
        ("a record that belongs to no claim is passed over", "    if last > head.epoch:\n", "    if False:\n"),
        ("what there is to consume is not looked at before the claim", "see Chain.tla\n        _check_committed(log, record)", "see Chain.tla\n        pass"),
        ("a claim that left no record hides the record before it", "epoch=last) if last else None", "epoch=last) if last == head.epoch else None"),
        ("a record of another store is consumed", "if record.store_id and record.store_id != log.store_id:", "if False:"),
    )),
    *faults_of("store/retention.py", TESTS, (
        ("a live attempt's generation is removed", "if epoch >= newest_epoch:", "if epoch > newest_epoch:"),
        ("the newest commit is not kept", '        kept[commits[-1].generation_id] = "the newest commit"', "        pass"),
        ("what the record names is not kept", "return [*found, named]", "return found"),
    )),
    *faults_of("runtime/coordinator/publisher.py", TESTS, (
        ("a save that was overtaken is committed behind a newer one", "if written.step < self._newest_step:", "if False:"),
        ("something older than what was restored is committed", "if written.step < self._floor and not self._settings.rewind:", "if False:"),
        ("ranks that went back may not save again", "            self._newest_step = -1\n            newest", "            newest"),
    )),
)  # fmt: skip
