"""Faults of the coordinator, the agents and the ranks."""

from __future__ import annotations

from fault import faults_of

WORLD = ("tests/simulation/test_world.py", "tests/simulation/test_seeds.py")
PUBLISHER = (
    "tests/unit/test_runtime_publishing.py",
    "tests/unit/test_runtime_publisher.py",
    "tests/unit/test_requeueing.py",
    *WORLD,
)
REPORTS = ("tests/unit/test_runtime_node_reports.py", *WORLD)
SAVES = ("tests/unit/test_runtime_saves.py", *REPORTS)
WATCHDOGS = ("tests/unit/test_runtime_watchdogs.py", *WORLD)
COORDINATOR = (
    "tests/unit/test_runtime_deadlines.py",
    "tests/unit/test_runtime_joining.py",
    "tests/unit/test_attempt.py",
    "tests/unit/test_status.py",
    *WORLD,
)
AGENT = (
    "tests/unit/test_runtime_deadlines.py",
    "tests/unit/test_runtime_joining.py",
    "tests/unit/test_runtime_local_ranks.py",
    "tests/unit/test_left_for.py",
    "tests/adapters/test_polling.py",
    "tests/adapters/test_run.py",
    *WORLD,
)
RANK = (
    "tests/unit/test_rank_orders.py",
    "tests/unit/test_runtime_rank.py",
    "tests/unit/test_step_times.py",
    "tests/unit/test_runtime_ipc.py",
    *WORLD,
)
PROCESSES = (
    "tests/unit/test_runtime_processes.py",
    "tests/unit/test_runtime_oom.py",
    "tests/unit/test_runtime_ipc.py",
    *WORLD,
)

FAULTS = (
    *faults_of("runtime/coordinator/publisher.py", PUBLISHER, (
        ("a save that was given up is committed", "            if given_up.is_set() or self._closed:", "            if self._closed:"),
        ("a save is committed behind the requeue record", "            if given_up.is_set() or self._closed:", "            if given_up.is_set():"),
        ("what waits for its turn is committed behind the requeue record", "        if self._closed:\n            raise SaveFailedError(f\"{written.generation_id} came after", "        if False:\n            raise SaveFailedError(f\"{written.generation_id} came after"),
        ("the requeue record does not wait for a commit under way", "        with self._one_at_a_time:\n            pass", "        pass"),
        ("closing closes nothing", "        self._closed = True", "        self._closed = False"),
        ("a commit is there before its manifest", "            digest = write_manifest(self._store, manifest)\n", "            from drainfsm.store.generations import _digest, encode_object\n            digest = _digest(encode_object(manifest))\n"),
        ("files that no rank reported are committed", "        verify_stored(written.entries, stored)\n", ""),
        ("a rank that reported nothing is not missed", "        verify_reported(\n            written.entries, ranks=range(world_size), files_per_rank=written.file_counts\n        )\n", ""),
        ("ranks that save in two ways are committed", "        if len(written.savers) > 1:", "        if False:"),
        ("the requeue record is written though a newer attempt runs", "            self._log.check_not_fenced(self._epoch)\n            newest = self._log.head().commit\n            known", "            newest = self._log.head().commit\n            known"),
        ("a commit whose answer was lost is not named", "            if newest is not None and not known and newest.generation_id not in refused:", "            if False:"),
        ("what the ranks refused is named again", "not known and newest.generation_id not in refused:", "not known:"),
        ("a record does not say of which store it is", "record, store_id=self._log.store_id, log", "record, log"),
        ("ranks that start again get another attempt's commit", "        if newest is None or newest.epoch != self._epoch:\n            return None\n        self._floor", "        if newest is None:\n            return None\n        self._floor"),
        ("who fell back may not save what is behind it", "        self._floor = step\n", "        pass\n"),
    )),
    *faults_of("runtime/coordinator/requeue.py", PUBLISHER, (
        ("a record has the shape of the job that runs", "        return restored.saved_world_size, restored.saved_layout", "        return attempt.world_size, settings.layout"),
        ("a record forgets the shape of what it goes on naming", "        return before.world_size, before.layout", "        return attempt.world_size, settings.layout"),
        ("the requirements of before are forgotten", "    known = before.capacity if before is not None else Capacity(node_count=config.nnodes)", "    known = Capacity(node_count=config.nnodes)"),
        ("a command that was not named has no digest", "    if digests.config:\n        return digests", "    return digests"),
    )),
    *faults_of("runtime/coordinator/saves.py", REPORTS, (
        ("a save is durable when one node has", "        if len(save.durable) < self._node_count:\n            return None", "        pass"),
        ("the fastest node tells how long a save took", "            durable_ms=max(one.durable_ms for one in parts),", "            durable_ms=min(one.durable_ms for one in parts),"),
        ("a save that is over begins again", "        if generation_id not in self._over:", "        if True:"),
    )),
    *faults_of("runtime/coordinator/node_reports.py", REPORTS, (
        ("a part of the ranks is a world", "        return ranks == list(range(newest.world_size))", "        return True"),
        ("ranks of before a restart count", "        if any(one.restart != newest.restart for one in formed):\n            return False", "        pass"),
        ("a world is whole while ranks are starting", "        if self._starting or self._rank_count != newest.world_size:", "        if self._rank_count != newest.world_size:"),
        ("positions of one node are all", "        return tuple(self._held.values()) if len(self._held) == len(self._nodes) else None", "        return tuple(self._held.values())"),
        ("answers to the hold of before count", "    def begin_hold(self) -> None:\n        self._held.clear()", "    def begin_hold(self) -> None:"),
        ("the lowest step is common", "        return max((position.max_step for position in self._held.values()), default=None)", "        return min((position.max_step for position in self._held.values()), default=None)"),
        ("a refusal is told by every rank", "        if said in self._refusals or len", "        if len"),
        ("the size of the checkpoint grows with every report", "            self._save_bytes -= before.save_bytes\n", ""),
        ("who is late is not named", "            case Phase.QUIESCING if state.stop is not None:\n                waiting = state.stop.waiting", "            case Phase.QUIESCING if state.stop is not None:\n                waiting = frozenset()"),
    )),
    *faults_of("runtime/coordinator/saves.py", SAVES, (
        ("a save is staged when one node says so", "        if len(save.staged) < self._node_count:", "        if False:"),
        ("the drain's save is dropped with the others", "for one, save in self._saves.items() if one != but]", "for one, save in self._saves.items()]"),
        ("what is over is remembered for ever", "        while len(self._over) > OVER_MAX:", "        while False:"),
    )),
    *faults_of("runtime/coordinator/save_committer.py", SAVES, (
        ("the newest of the saves that wait is dropped", "            over = self._waiting.popleft()\n            self._decisions", "            over = self._waiting.pop()\n            self._decisions"),
        ("one save more may wait", "        while len(self._waiting) > WAITING_MAX:", "        while len(self._waiting) > WAITING_MAX + 1:"),
        ("ranks write on what one of them failed at", "        elif step is not None:\n            self._nodes.tell(n.AbortNode(generation_id=generation_id))\n", "        elif step is not None:\n"),
    )),
    *faults_of("runtime/coordinator/actions.py", COORDINATOR, (
        ("a job is ended at the deadline of a drain that was called off", "        elif state.phase is Phase.CANCELLED:\n            backstop = n.SetBackstop(kill_by_unix_ms=None, exit_by_unix_ms=None)\n        else:", "        else:"),
        ("agents do not hear of the deadline", "        if backstop != self._backstop:\n            self._backstop = backstop\n            self._nodes.tell(backstop)", "        pass"),
    )),
    *faults_of("runtime/coordinator/coordinator.py", COORDINATOR, (
        ("a lost node goes unnoticed", "        self._decisions.submit(i.ReportRanksLost(missing=missing, node_lost=True, reason=reason))\n", ""),
        ("who gave a notice hears nothing", "        self._nodes.tell(answer, (node,))\n\n    async def _interpreted", "        pass\n\n    async def _interpreted"),
    )),
    *faults_of("runtime/coordinator/watchdogs.py", WATCHDOGS, (
        ("a silent node is never lost", "            if node != config.node_rank and silent_ms > config.silence_s * 1_000:", "            if False:"),
        ("node 0 is lost to itself", "            if node != config.node_rank and silent_ms", "            if silent_ms"),
        ("nodes hear no heartbeat", "        nodes.tell(n.Heartbeat(now_unix_ms=clock.now_unix_ms()))\n", ""),
        ("an attempt looks once whether another has claimed", "        if by_epoch is not None:\n            submit(ReportFenced(by_epoch=by_epoch))\n            return", "        if by_epoch is not None:\n            submit(ReportFenced(by_epoch=by_epoch))\n        return"),
        ("a store that is away ends the look-out", "    with contextlib.suppress(TimeoutError, DrainfsmError, OSError):", "    with contextlib.suppress(TimeoutError):"),
        ("who has attached is named as missing", "    if missing := reports.not_formed:", "    if missing := tuple(sorted(reports._nodes)):"),
        ("every missing node is named", "missing[:MISSING_TOLD_MAX])", "missing)"),
        ("a short window is said again and again", "        fitted = budget.fits", "        fitted = True"),
        ("a short window is said once for ever", "        fitted = budget.fits", "        fitted = fitted and budget.fits"),
        ("a short window is said in the middle of a drain", "        if now.phase.active or not now.attempt", "        if not now.attempt"),
    )),
    *faults_of("runtime/agent/limits.py", AGENT, (
        ("the latest limit counts", "    return min((limit for limit in limits if limit is not None), default=None)", "    return max((limit for limit in limits if limit is not None), default=None)"),
        ("the node's own limit does not count", "_earliest(self._own, self._backstop, self._ordered)", "_earliest(self._backstop, self._ordered)"),
        ("the order to leave has no limit", "_earliest(self._own, self._backstop, self._ordered)", "_earliest(self._own, self._backstop)"),
        ("a limit that moved is kept as it was", "        self.close()\n        loop", "        loop"),
    )),
    *faults_of("runtime/agent/notices.py", AGENT, (
        ("what is heard before the coordinator is there is lost", "            self._queued.append(message)\n            return", "            return"),
        ("a node waits for a coordinator that says nothing", "        self._limits[ask] = max(\n            plan", "        max(\n            plan"),
        ("a notice that was answered still ends the job here", "        self._limits.pop(message.ask, None)\n", ""),
        ("a notice that is given again is the one taken back", "            known += 1\n", ""),
        ("a withdrawal takes back a revision that never was", "        revision = self._revisions.setdefault(identity, 1)", "        revision = self._revisions.setdefault(identity, 1) - 1"),
        ("a SOFT notice ends the job by itself", "        if notice.revocable or notice.advisory:\n            return\n", ""),
        ("an instant of a clock that is off is passed on", "            deadline_unix_ms=deadline - ahead_ms,\n", "            deadline_unix_ms=deadline,\n"),
        ("an instant is changed by a clock that is right", "        if abs(ahead_ms) <= self._allowed_off_ms:\n            return notice", "        pass"),
        ("a rejected notice is not said", "            self._warn(f\"a {what} was rejected: {message.error}\")", "            pass"),
        ("a clock that is off is told again and again", "        if bool(problem) == self._clock_is_off:\n            return", "        pass"),
    )),
    *faults_of("runtime/rank/orders.py", RANK, (
        ("a rank stops a step early", "        if step < self._stop_step:\n            return PASS", "        if step < self._stop_step - 1:\n            return PASS"),
        ("a rank that is held trains on", "        if self._stop_step is None:\n            return None", "        if self._stop_step is None:\n            return PASS"),
        ("a second hold begins anew", "            case m.Hold() if not self._held:", "            case m.Hold():"),
        ("a rank leaves before its step", "LEAVE if self._leave_step is None or step >= self._leave_step else PASS", "LEAVE"),
        ("a rank that is released stays held", "            case m.Resume():\n                self._held = False", "            case m.Resume():"),
        ("a rank quiesces again and again", "            self._quiesced = True\n", ""),
        ("a rank saves before it has quiesced", "        if not self._quiesced:\n            self._quiesced = True\n            return QUIESCE\n        return SAVE if self._saves else None", "        if self._saves:\n            return SAVE\n        if not self._quiesced:\n            self._quiesced = True\n            return QUIESCE\n        return None"),
    )),
    *faults_of("runtime/rank/session.py", RANK, (
        ("a rank looks at its orders before it counts its step", "        self.last_step = step\n        if self._attention:\n            return self._at_boundary(step)\n        return False", "        if self._attention:\n            return self._at_boundary(step)\n        self.last_step = step\n        return False"),
        ("a rank tells its step before the flag is up", "        if not isinstance(order, m.Ask):\n            self._orders.accept(order, self._raise_flag)\n        if isinstance(order, m.Hold | m.Ask):\n            self._send(self._position(order.number))", "        if isinstance(order, m.Hold | m.Ask):\n            self._send(self._position(order.number))\n        if not isinstance(order, m.Ask):\n            self._orders.accept(order, self._raise_flag)"),
        ("a save that was given up before it began is made", "        if order.generation_id in self._aborted:\n            return\n", ""),
    )),
    *faults_of("runtime/rank/progress.py", RANK, (
        ("a save counts as a step's time", "            self._paused_ms += monotonic_ms() - began_ms", "            pass"),
        ("the shortest of recent steps counts", "        return max(self._recent_ms, default=0)", "        return min(self._recent_ms, default=0)"),
        ("what was expected is not believed", "            expected_ms = max(expected_ms or 0, round(expected_s * 1_000))", "            pass"),
    )),
    *faults_of("runtime/processes/job_code.py", PROCESSES, (
        ("the last rank that failed tells why", "        if exit_code:\n            self._failures.append", "        if exit_code:\n            self._failures.clear()\n            self._failures.append"),
        ("failures of before a restart count", "            self._failures.clear()  # the launcher started the ranks again: a new chance\n", ""),
        ("ranks that ended are alive", "        self._live.discard(rank)\n", ""),
    )),
)  # fmt: skip
