"""Hand-made faults of the core and of the commit log, each with the tests that must notice it."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """Replace ``old`` by ``new`` in ``file``: ``name`` says what is then wrong."""

    name: str
    file: str
    old: str
    new: str

    @property
    def tests(self) -> tuple[str, ...]:
        return CORE_TESTS if self.file.startswith("drainfsm/core/") else STORE_TESTS


CORE_TESTS = (
    "tests/unit/test_decider.py",
    "tests/unit/test_decider_refusals.py",
    "tests/unit/test_budget.py",
    "tests/unit/test_codec.py",
    "tests/unit/test_machine.py",
    "tests/unit/test_fold.py",
    "tests/unit/test_manifest.py",
    "tests/properties/test_notices.py",
    "tests/properties/test_budget.py",
    "tests/properties/test_exit_plan.py",
    "tests/properties/test_drain_machine.py",
)

STORE_TESTS = (
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

BUDGET = "drainfsm/core/budget.py"
QUANTILES = "drainfsm/core/quantiles.py"
DEADLINE = "drainfsm/core/deadline.py"
EXIT_PLAN = "drainfsm/core/exit_plan.py"
FOLD = "drainfsm/core/fold.py"
HANDLERS = "drainfsm/core/handlers.py"
TABLE = "drainfsm/core/lifecycle.py"
STOP = "drainfsm/core/decide_stop.py"
SAVE = "drainfsm/core/decide_save.py"
DECIDER = "drainfsm/core/decider.py"
EFFECTS = "drainfsm/core/effects.py"
MANIFEST = "drainfsm/core/manifest.py"
CODEC = "drainfsm/core/codec.py"
STATE = "drainfsm/core/state.py"
COMMITS = "drainfsm/store/commits.py"
SETTLING = "drainfsm/store/settling.py"
SLOTS = "drainfsm/store/slots.py"
READER = "drainfsm/store/log_reader.py"
REQUEUES = "drainfsm/store/requeues.py"
RETENTION = "drainfsm/store/retention.py"
PUBLISHER = "drainfsm/runtime/coordinator/publisher.py"

FAULTS = (
    # The rule
    Fault("a save that needs exactly what remains is started", BUDGET, "fits=left > needed", "fits=left >= needed"),
    Fault("the clock skew is not subtracted", BUDGET, "deadline_unix_ms - clock_skew_ms - now_unix_ms)", "deadline_unix_ms - now_unix_ms)"),
    Fault("the exit margin is forgotten", BUDGET, "needed = terms + allowances.exit_margin_ms", "needed = terms"),
    Fault("quiesce is never a term", BUDGET, "if stage is Stage.NOTICE:", "if False:"),
    Fault("commit drops out too early", BUDGET, "if stage is not Stage.DURABLE:", "if stage in (Stage.NOTICE, Stage.QUIESCED):"),
    Fault("samples of another world size count", BUDGET, "if s.world_size == load.world_size\n        and s.store", "if s.store"),
    Fault("samples of another store count", BUDGET, "and s.store == load.store\n        and load.save_bytes", "and load.save_bytes"),
    Fault("a much smaller save is evidence", BUDGET, "and load.save_bytes <= s.save_bytes * COMPARABLE_BYTES_RATIO\n", ""),
    Fault("the smaller of maximum and estimate counts", BUDGET, "value_ms=max(observed, floor_ms)", "value_ms=min(observed, floor_ms)"),
    Fault("the fixed cost of a save is forgotten", BUDGET, "return max(estimates, default=assumed) + allowances.barrier_ms", "return max(estimates, default=assumed)"),
    Fault("the fastest bandwidth counts", BUDGET, "max(estimates, default=assumed)", "min(estimates, default=assumed)"),
    Fault("the handler's time is not reserved", BUDGET, "        allowances.handler_ms\n        + allowances.quiesce_ms", "        allowances.quiesce_ms"),
    Fault("the median stands for a high quantile", QUANTILES, "sorted(samples)[_order(count, quantile, confidence) - 1]", "sorted(samples)[count // 2]"),
    Fault("the bound is one order statistic too low", QUANTILES, "_order(count, quantile, confidence) - 1]", "_order(count, quantile, confidence) - 2]"),
    Fault("a bound is given for too few samples", QUANTILES, "return math.ceil(", "return math.floor("),
    # Deadlines
    Fault("a later deadline is adopted", STOP, "else min(before, deadline_unix_ms)", "else deadline_unix_ms"),
    Fault("an earlier deadline is ignored", STOP, "if before is not None and deadline_unix_ms < before:", "if False:"),
    Fault("a deadline may rise in the table", TABLE, "event.to_unix_ms < state.drain.deadline_unix_ms", "event.to_unix_ms != state.drain.deadline_unix_ms"),
    Fault("years ahead are accepted", DEADLINE, "if ahead_ms > AHEAD_MAX_MS:", "if False:"),
    Fault("a SOFT notice of the past is accepted", DEADLINE, "or (notice.revocable and ahead_ms <= 0)", ""),
    Fault("the skew of a notice is not kept", HANDLERS, "clock_skew_ms=_larger(drain.clock_skew_ms, notice.clock_skew_ms)", "clock_skew_ms=drain.clock_skew_ms"),
    Fault("the wait for ranks ignores the deadline", DEADLINE, "return min(budget.now_unix_ms + quiesce_ms, last_quiesce_unix_ms(budget))", "return budget.now_unix_ms + quiesce_ms"),
    Fault("a shrink does not shorten the wait", HANDLERS, "hold=_no_longer_than(latest, drain.hold)", "hold=drain.hold"),
    Fault("a scheduled drain never becomes due", DECIDER, "now >= draft.drain.act_at_unix_ms", "False"),
    Fault("a HARD notice does not wake a scheduled drain", STOP, "if draft.drain.has_hard_notice:", "if False:"),
    Fault("the drain outlives its deadline", DECIDER, "now >= draft.drain.usable_deadline_unix_ms", "now >= draft.drain.usable_deadline_unix_ms + 10_000"),
    Fault("ranks are killed when the agents end", EXIT_PLAN, "kill_by = usable_deadline_unix_ms - exit_margin_ms // 2", "kill_by = usable_deadline_unix_ms - exit_margin_ms // 8"),
    Fault("an early order to leave gives no time", EXIT_PLAN, "min(kill_by, asked_unix_ms + exit_margin_ms)", "min(kill_by, asked_unix_ms)"),
    # Notices
    Fault("repeats are recorded again", STOP, "if held is not None and _adds_nothing(", "if False and _adds_nothing("),
    Fault("the latest statement wins in place of the precedence", STATE, "notice=min(held.notice, notice, key=_precedence)", "notice=notice"),
    Fault("a HARD notice can be withdrawn", STOP, "if not held.notice.revocable:", "if False:"),
    Fault("one withdrawal cancels all", STATE, "all(n.withdrawn for n in self.notices.values())", "any(n.withdrawn for n in self.notices.values())"),
    Fault("a withdrawal cancels after the stop step was agreed", STOP, "and state.phase in (Phase.SCHEDULED, Phase.NOTICED):\n        draft.add(e.DrainCancelled", "and state.phase in (Phase.SCHEDULED, Phase.NOTICED, Phase.QUIESCING):\n        draft.add(e.DrainCancelled"),
    # Stopping
    Fault("the stop step is the highest reported", STOP, "for position in given.positions) + 1", "for position in given.positions)"),
    Fault("the stop step is that of the slowest", STOP, "stop_step = max(position.max_step", "stop_step = min(position.max_step"),
    Fault("ranks are asked before the cordon", STOP, "if hold is None:\n        raise reject", "hold = hold or HoldPeriod(from_unix_ms=0, quiesce_by_unix_ms=2**50)\n    if False:\n        raise reject"),
    Fault("positions of a part of the world are enough", STOP, "if ranks != list(range(world_size)) or not ranks:", "if not ranks:"),
    Fault("a long phase is waited for", STOP, "position.busy_for_ms > left_ms", "False"),
    Fault("an unreachable step is agreed", STOP, "if to_run * position.step_ms > left_ms:", "if False:"),
    Fault("a node at another step counts as quiesced", STOP, "if given.step != stop.step:", "if False:"),
    Fault("the save begins before the last node holds", STOP, "if known(draft.state.stop).waiting:\n        return", "pass"),
    Fault("the table lets ranks quiesce incomplete", TABLE, "event.step == stop.step and not stop.waiting", "event.step == stop.step"),
    Fault("ranks are waited for without end", STOP, "if now < wait_until_unix_ms(state):\n        return", "return"),
    Fault("the rule is not evaluated after the cordon", STOP, "        return\n    if not budget.fits:\n        saving.skip(draft, saving.does_not_fit(budget), budget=budget)\n    elif", "        return\n    if"),
    # Saving
    Fault("the rule is not evaluated after quiesce", SAVE, "    if not budget.fits:\n        skip(draft, does_not_fit(budget), budget=budget)\n        return\n", ""),
    Fault("the table lets a save start that does not fit", TABLE, "return event.budget.fits", "return True"),
    Fault("a fenced drain goes on", DECIDER, "        saving.give_up(draft, reason)\n    elif state.attempt.exit_code", "        pass\n    elif state.attempt.exit_code"),
    Fault("the rule is not evaluated while saving", SAVE, "Phase.QUIESCED, *SAVE_UNDER_WAY):\n        budget = budget_of", "Phase.QUIESCED):\n        budget = budget_of"),
    Fault("durable too late goes on", SAVE, "    recheck(draft)\n    if draft.state.phase is not Phase.STAGED:\n        return\n", ""),
    Fault("durable before staged is taken", SAVE, 'if state.phase is Phase.SAVING:\n        raise reject(state, given, "the bytes were not reported staged")', "pass"),
    Fault("a save of some of the ranks is complete", SAVE, "if rank_count != state.attempt.world_size:", "if False:"),
    Fault("a report of another save is taken", SAVE, "if given.generation_id != save.generation_id:", "if False:"),
    Fault("verification of fewer files is enough", SAVE, "if counts != (written.file_count, written.file_count, written.total_bytes):", "if False:"),
    Fault("published before verified (decider)", SAVE, "    if save.written is None or not save.verified:\n        raise", "    if save.written is None:\n        raise"),
    Fault("a late cordon of a drain that was called off is taken for this one's", STOP, 'if not _of_this_drain(state, given.drain_id):\n        return\n    if state.phase.over', "if state.phase.over"),
    Fault("late positions of a drain that was called off are taken for this one's", STOP, 'if not _of_this_drain(state, given.drain_id):\n        return\n    if state.phase is', "if state.phase is"),
    Fault("a finished attempt is lost", DECIDER, "elif state.attempt.exit_code is None:\n        draft.add(e.AttemptLost", "else:\n        draft.add(e.AttemptLost"),
    Fault("published before verified (table)", TABLE, "return save is not None and save.verified and event.generation_id == save.generation_id", "return True"),
    Fault("an incomplete verification is allowed by the table", TABLE, "return event.verified_count == event.expected_count == save.written.file_count", "return True"),
    Fault("a failed save is not given up", SAVE, "if _save_of(draft, given) is not None and draft.state.phase in SAVE_UNDER_WAY:\n        give_up", "if False:\n        give_up"),
    Fault("the commit that was overtaken is forgotten", SAVE, "elif state.phase is Phase.LEAVING and not _committed(state, given.generation_id):", "elif False:"),
    Fault("two drains write one generation", SAVE, 'saver = f"d{draft.drain.number}"', 'saver = "p"'),
    Fault("ranks that die after durable abort the save", DECIDER, "case Phase.QUIESCED | Phase.SAVING | Phase.STAGED:", "case Phase.QUIESCED | Phase.SAVING | Phase.STAGED | Phase.DURABLE:"),
    Fault("a fenced idle attempt lives on", DECIDER, "draft.add(e.AttemptLost(epoch=state.attempt.epoch, reason=reason))", "pass"),
    # The fold and its fence
    Fault("a record that stands elsewhere is read", FOLD, "record.follows != position\n                    or record.epoch", "record.epoch"),
    Fault("a record of another epoch is read", FOLD, "or record.epoch != epoch\n", ""),
    Fault("a repeated record is read", FOLD, "or record.id in seen\n", ""),
    Fault("skipped records count as read", FOLD, "self.skipped += 1\n", "self.skipped += 1\n                    position += 1\n"),
    Fault("a refused record leaves half of its events", FOLD, "after = handler(after.attempt, after.drain, event, dest)", "state = after = handler(after.attempt, after.drain, event, dest)"),
    Fault("guards of the table are not asked", FOLD, "if guard is None or guard(state, event):\n        return handler(state.attempt, state.drain, event, dest)\n    return", "if True:\n        return handler(state.attempt, state.drain, event, dest)\n    return"),
    Fault("guards of the table are not asked of a log", FOLD, "if guard is None or guard(after, event):", "if True:"),
    Fault("only the first row of the table counts", FOLD, "    for dest, guard, handler in rows:\n", "    for dest, guard, handler in ():\n"),
    Fault("a new drain inherits the cordon of the last", HANDLERS, "            step_ms=event.step_ms,\n        )\n    return", "            step_ms=event.step_ms,\n            cordon=drain and drain.cordon,\n        )\n    return"),
    Fault("a new drain inherits the deadline of the last", HANDLERS, "            deadline_unix_ms=deadline,\n            clock_skew_ms", "            deadline_unix_ms=drain.deadline_unix_ms if drain else deadline,\n            clock_skew_ms"),
    Fault("samples are not remembered", HANDLERS, "return (*attempt.samples[-(SAMPLES_MAX - 1) :], sample)", "return attempt.samples"),
    # Effects
    Fault("ranks are held though the save was skipped", EFFECTS, "case e.NodeCordoned() if state.phase is Phase.NOTICED:", "case e.NodeCordoned():"),
    Fault("nobody leaves after a skip", EFFECTS, "case e.SaveSkipped():\n            return _leave(", "case e.SaveSkipped() if False:\n            return _leave("),
    Fault("held ranks are not released by a cancellation", EFFECTS, "return (ResumeTraining(),)", "return ()"),
    Fault("a second notice cordons again", EFFECTS, "and len(state.current.notices) == 1:", ":"),
    # Manifest and codec
    Fault("a missing rank is not noticed", MANIFEST, "if missing := sorted(expected - reported):", "if missing := []:"),
    Fault("a file that was reported twice is taken", MANIFEST, "if entry.name in names:", "if False:"),
    Fault("a name may leave the generation", MANIFEST, 'if entry.name.startswith("/") or', "if False and"),
    Fault("a file of another size is taken", MANIFEST, "if stored_bytes[name] != size:", "if False:"),
    Fault("an extra file is taken", MANIFEST, "if extra := sorted(set(stored_bytes) - set(wanted)):", "if extra := []:"),
    Fault("a record of a newer schema is read", CODEC, "    if wire.v > SCHEMA_VERSION:\n        raise _newer(wire.v)\n", ""),
    Fault("an unknown kind is dropped", CODEC, "events.append(UnknownFact(kind=kind, body=msgspec.Raw(body)))", "pass"),
    Fault("a stored object of a newer format is read", CODEC, "if version > newest_version:", "if False:"),
    # The commit log, and what a restart consumes
    Fault("an older epoch commits behind a newer claim", COMMITS, "if head.epoch > commit.epoch:", "if False:"),
    Fault("an attempt that did not claim commits", COMMITS, "if last is None or (last.epoch, last.attempt_id) != (commit.epoch, commit.attempt_id):", "if last is None:"),
    Fault("a claim takes the epoch that is there", COMMITS, "epoch, slot = head.epoch + 1, head.slot + 1", "epoch, slot = max(1, head.epoch), head.slot + 1"),
    Fault("a claim that took effect is made again", COMMITS, "if isinstance(head.last, Claim) and head.last.attempt_id == attempt_id:", "if False:"),
    Fault("a claim found again shows itself as the head before", COMMITS, "slot = head.slot - 1", "slot = head.slot"),
    Fault("a generation is committed twice", COMMITS, "if (slot := self._slot_of(commit, head)) is not None:", "if (slot := None) is not None:"),
    Fault("a generation is committed with another manifest", COMMITS, "if slot.manifest_digest != commit.manifest_digest:", "if False:"),
    Fault("a missing slot goes unnoticed", READER, "if (missing := missing_slot(numbers, after=known)) is not None:", "if (missing := None) is not None:"),
    Fault("the head is the oldest commit", READER, "for number in range(count, self.count, -1):", "for number in range(self.count + 1, count + 1):"),
    Fault("a commit found earlier is forgotten", SLOTS, "return None if self.link is None else self.link.newest_commit", "return None if self.link is None else 0"),
    Fault("an epoch may go backwards", SLOTS, "if slot.epoch != expected:", "if False:"),
    Fault("a slot of another job is read", READER, "if placed.slot.job_id != self._job_id:", "if False:"),
    Fault("a garbled slot is read once", READER, "if attempt == READS_MAX:", "if attempt >= 1:"),
    Fault("a check finds no newer epoch", COMMITS, "if newest > epoch:", "if newest > epoch + 1:"),
    Fault("fallback begins at the generation itself", COMMITS, "            if met:\n", "            if True:\n"),
    Fault("a slot is not sealed", SLOTS, "if hashlib.sha256(unsealed).hexdigest() != link.seal:", "if False:"),
    Fault("a slot may stand anywhere", SLOTS, "if link.slot != number:", "if False:"),
    Fault("a slot follows whatever is before it", SLOTS, 'if link is not None and link.before != ("" if behind is None else behind.digest):', "if False:"),
    Fault("a slot without a link follows those that have one", SLOTS, "if link is None and behind is not None and behind.link is not None:", "if False:"),
    Fault("a log that lost its end is shorter", READER, "wanted = max(self.count, self._created, marked)", "wanted = 0"),
    Fault("a marked slot may be another", READER, "if known is not None and known.digest != mark.digest:", "if False:"),
    Fault("the newest slot may change behind a running attempt", READER, "if known is not None and self._decode(self.count).digest != known.digest:", "if False:"),
    Fault("any store is the one that was claimed", READER, "if self.identity is not None and found != self.identity:", "if False:"),
    Fault("a slot may be of another store", READER, "if placed.link.store_id != self.store_id:", "if False:"),
    Fault("a store is claimed untried", COMMITS, "if found is not None and found.url == store.url:", "if True:"),
    Fault("a slot that a rival took is ours", SETTLING, "return store.get(name) == data", "return True"),
    Fault("our own slot is a rival's", SETTLING, "return store.get(name) == data", "return False"),
    Fault("an ambiguous answer is not settled", SETTLING, "if attempt == PUTS_MAX:", "if attempt >= 1:"),
    Fault("slots are read in the order of the listing", SLOTS, "return sorted(int(match[1])", "return list(int(match[1])"),
    Fault("any file is a slot", SLOTS, "_NAME.fullmatch(name)", "_NAME.match(name)"),
    Fault("a second requeue record replaces the first", REQUEUES, "if not put_settled(store, _name(record.epoch), encode_object(record), pause=pause):", "if store.put(_name(record.epoch), encode_object(record)):  # type: ignore[func-returns-value]"),
    Fault("a record of a generation that nobody committed is consumed", REQUEUES, "if found is None:", "if False:"),
    Fault("a record that disagrees with its commit is consumed", REQUEUES, "if (commit.manifest_digest, commit.step) != (record.manifest_digest, record.step):", "if False:"),
    Fault("the record of another job is consumed", REQUEUES, "if record.job_id != log.job_id:", "if False:"),
    Fault("a lost attempt starts the job afresh", REQUEUES, "commit = claimed.head.commit", "commit = None"),
    Fault("the attempt that was not dead after all is overruled", REQUEUES, "record = read_requeue(store, epoch=epoch) or record", "pass"),
    Fault("a live attempt's generation is removed", RETENTION, "if epoch >= newest_epoch:", "if epoch > newest_epoch:"),
    Fault("the newest commit is not kept", RETENTION, '        kept[commits[-1].generation_id] = "the newest commit"', "        pass"),
    Fault("what the record names is not kept", RETENTION, "return [*found, named]", "return found"),
    Fault("a save that was overtaken is committed behind a newer one", PUBLISHER, "if written.step < self._newest_step:", "if False:"),
    Fault("something older than what was restored is committed", PUBLISHER, "if written.step < self._floor and not self._settings.rewind:", "if False:"),
    Fault("a record that belongs to no claim is passed over", REQUEUES, "    if last > head.epoch:\n", "    if False:\n"),
    Fault("what there is to consume is not looked at before the claim", REQUEUES, "see Chain.tla\n        _check_committed(log, record)", "see Chain.tla\n        pass"),
    Fault("a claim that left no record hides the record before it", REQUEUES, "epoch=last) if last else None", "epoch=last) if last == head.epoch else None"),
    Fault("a record of another store is consumed", REQUEUES, "if record.store_id and record.store_id != log.store_id:", "if False:"),
    Fault("ranks that went back may not save again", PUBLISHER, "            self._newest_step = -1\n            newest", "            newest"),
)  # fmt: skip
