"""Faults of what stands around the runtime: policy, views, frameworks, platforms, finding the agent."""

from __future__ import annotations

from fault import faults_of

POLICY = ("tests/unit/test_policy.py", "tests/properties/test_policy.py")
REQUIREMENT = ("tests/unit/test_requirement.py",)
PROJECTIONS = (
    "tests/unit/test_watch.py",
    "tests/unit/test_sources_view.py",
    "tests/contracts/test_views_library.py",
    "tests/views/test_metrics.py",
)
ENGINES = ("tests/unit/test_frameworks_engine_files.py",)
LEDGER = ("tests/adapters/test_ledger.py", "tests/adapters/test_stories.py")
POLLING = ("tests/adapters/test_polling.py", "tests/adapters/test_aws.py")
AWS = ("tests/adapters/test_aws.py",)
SLURM = ("tests/adapters/test_slurm.py", "tests/adapters/test_slurm_evidence.py")
PLACEMENT = ("tests/unit/test_placement.py",)
SHIELD = ("tests/unit/test_runtime_processes.py", "tests/unit/test_runtime_ipc.py")
INBOX = ("tests/unit/test_runtime_inbox.py", "tests/unit/test_runtime_rank.py")

FAULTS = (
    *faults_of("policy/restarts.py", POLICY, (
        ("an attempt that committed nothing new is healthy", " and attempt.progressed is not False", ""),
        ("the first preemptions cost a longer pause", "row.preemption_count - rules.free_preemptions)", "row.preemption_count)"),
        ("a job that was looked at goes on counting", "return last.row if last and last.action is RestartAction.RESTART else Row()", "return last.row if last else Row()"),
        ("the shortest pause is shortened, too", "longest_s * (1 - rules.jitter * chance) if doubled else longest_s", "longest_s * (1 - rules.jitter * chance)"),
        ("a preemption too few is forgiven", "if row.preemption_count > rules.preemptions_max:", "if row.preemption_count >= rules.preemptions_max:"),
        ("every attempt that ended is a loss", "before.failure_count + (attempt.ended is Ended.LOST)", "before.failure_count + 1"),
    )),
    *faults_of("policy/preemption.py", POLICY, (
        ("an eviction of just before the quota's time counts", "abs(now_unix_ms - at) < quota_ms]", "abs(now_unix_ms - at) <= quota_ms]"),
        ("who is not needed any more is evicted", "- job.capacity >= needed:", "- job.capacity > needed:"),
        ("a job makes room for itself", "if job.job_id == waiting.job_id:", "if False:"),
        ("the most work at risk goes first", "job.at_risk_ms, job.job_id", "-job.at_risk_ms, job.job_id"),
        ("a minimum run time protects from everybody", "if left_ms and not waiting.exemption and not rules.tier(waiting.tier).ignores_minimum:", "if left_ms:"),
        ("victims are taken though they are not enough", "if needed <= 0 or sum(job.capacity for job in eligible) < needed:", "if needed <= 0:"),
    )),
    *faults_of("policy/cascade.py", POLICY, (
        ("a chain goes on after its time", "fresh = tuple(one for one in chain if one.at_unix_ms >= since)", "fresh = chain"),
        ("the newest chain is gone on with, not the longest", " and len(fresh) >= len(before):", ":"),
        ("a longer chain is forgotten for a newer one", "len(chain) >= len(other) and ", ""),
        ("a repeated notice is another eviction", "            if eviction not in seen:", "            if True:"),
        ("what was drained in vain is no thrashing", "(self.starting_ms + self.draining_ms) / self.training_ms", "self.starting_ms / self.training_ms"),
    )),
    *faults_of("policy/requirement.py", REQUIREMENT, (
        ("a drill that failed tells how long a restore takes", "if one.outcome == DrillOutcome.VERIFIED and one.verification in RESTORED", "if one.verification in RESTORED"),
        ("the devices of a node are rounded down", "share = -(-needed.accelerator_count // nodes)", "share = needed.accelerator_count // nodes"),
    )),
    *faults_of("views/projections.py", PROJECTIONS, (
        ("a message that comes again is read again", "if sequence and sequence <= self.sequence:", "if sequence and sequence < self.sequence:"),
        ("a new drain shows the deadlines of the last", "self.marks, self.deadlines = {}, []", "self.marks = {}"),
        ("a new drain shows the milestones of the last", "self.marks, self.deadlines = {}, []", "self.deadlines = []"),
        ("the last time that a drain came to a milestone counts", "self.marks.setdefault(name, record.at_unix_ms)", "self.marks[name] = record.at_unix_ms"),
        ("the farthest deadline comes first", "return (False, drain.deadline_unix_ms, job.job_id)", "return (False, -drain.deadline_unix_ms, job.job_id)"),
        ("a drain that is over is as urgent as before", "if drain is not None and newest.state.phase.active:", "if drain is not None:"),
        ("what did not count is measured", "        if not note:\n            self.measures.read(record)", "        self.measures.read(record)"),
        ("the oldest attempts are kept", "sorted(self.attempts)[:-ATTEMPTS_KEPT]", "sorted(self.attempts)[ATTEMPTS_KEPT:]"),
    )),
    *faults_of("frameworks/_engine_files.py", ENGINES, (
        ("a file is dealt to a rank that does not see it", "return ranks[number % len(ranks)]", "return number % len(sees)"),
        ("the first rank that sees a file has all of them", "return ranks[number % len(ranks)]", "return ranks[0]"),
        ("another number of ranks loads the states of before", 'if saved.get("world_size") == self._session.world_size:', "if saved:"),
        ("other objects than were saved are loaded", 'if saved["objects"].keys() != self._objects.keys():', "if False:"),
        ("random states stay as they are", '        set_random_state(saved["random"])\n', ""),
        ("every rank writes the whole model", "return total // world_size", "return total"),
    )),
    *faults_of("drainfsm_adapters/ledger.py", LEDGER, (
        ("a deadline that slides is one that moved", "elif held.later_unix_ms != observed.stated_unix_ms:", "elif False:"),
        ("a HARD event becomes SOFT", "kept = NoticeClass.HARD if hard or hardens else NoticeClass.SOFT", "kept = observed.notice_class"),
        ("what is over and present is over", "            if key not in present:", "            if True:"),
        ("what could not be read is gone", "        if reading.complete:\n            self._read.add(signal)", "        if True:\n            self._read.add(signal)"),
        ("one identity states a later deadline", "            deadline = min(deadline, held.deadline_unix_ms)", "            pass"),
        ("the platform's clock is exact", "            skew_ms += self._clock.uncertainty_ms", "            pass"),
        ("a SOFT event that comes back is the one that was withdrawn", 'native_id = base if revision == 1 else f"{base}~{revision}"', "native_id = base"),
        ("one reading that lacks an event is enough", "held.absent_count >= confirm_count:", "held.absent_count >= 1:"),
    )),
    *faults_of("drainfsm_adapters/polling.py", POLLING, (
        ("a fault in one signal ends all", "    except Exception as error:  # a fault", "    except AssertionError as error:  # a fault"),
        ("what could not be read is read again as rarely as before", "min(signal.poll_s, UNKNOWN_POLL_S)", "signal.poll_s"),
        ("a long poll that is not held is asked without a pause", "if waits_itself and (took_s >= HELD_S or reading != before):", "if waits_itself:"),
        ("a notice has no machine's name", "            if reading.events and not ledger.named:", "            if False:"),
    )),
    *faults_of("drainfsm_adapters/aws_payloads.py", AWS, (
        ("a hibernation waits for its instant", 'at_once=action == "hibernate"', "at_once=False"),
        ("a bad entry is passed over in silence", "complete=not problems", "complete=True"),
        ("what has ended is present", "if state.lower() in ENDED:", "if False:"),
    )),
    *faults_of("drainfsm_adapters/slurm_leaving.py", SLURM, (
        ("a run that was cancelled is requeued", "        if job.ending and cause in OWN_ENDS:", "        if False:"),
        ("a job is submitted twice", "if not NOT_SENT.search(str(error)) or time.left_s <= PAUSE_S:", "if time.left_s <= PAUSE_S:"),
        ("what slurmctld refused is asked for again", "            if refused or time.left_s <= pause_s:", "            if time.left_s <= pause_s:"),
        ("a job that nobody knows of is submitted again", "        if not asked.refused:\n            raise SlurmFailedError(", "        if False:\n            raise SlurmFailedError("),
        ("a run that is held stays for its preemption", 'if not held and self._options.requeue == "stay"', 'if self._options.requeue == "stay"'),
    )),
    *faults_of("runtime/rank/placement.py", PLACEMENT, (
        ("the launcher of the agent places the ranks of its job", " and not ours.items() <= outside:", ":"),
        ("an MPI counts before torchrun", "    if TORCHRUN.rank in environ:\n        return _read(TORCHRUN, environ)\n", ""),
    )),
    *faults_of("runtime/rank/finding.py", PLACEMENT, (
        ("any process of that number is the agent", "if _listener(path) == pid)", "if _listener(path) is not None)"),
        ("what a killed agent left hides the agent", "sockets_of(pid, environ) if", "sockets_of(pid, environ)[:1] if"),
        ("an agent above one that is not wanted is found", '        if theirs.get(SOCKET_VARIABLE) == "":\n            return environ\n', ""),
        ("who was started without the variables has children without them", "            if environ is os.environ:", "            if False:"),
    )),
    *faults_of("runtime/rank/shield.py", SHIELD, (
        ("workers end by a signal to the group", "        if sender in (parent, _starter(), os.getpid()) or", "        if True or"),
        ("workers cannot be ended by their parent", "        if sender in (parent, _starter(), os.getpid()) or", "        if sender == os.getpid() or"),
        ("a forked child ignores the signal", "        if signal.getsignal(number) is _nothing:", "        if False:"),
        ("a handler that was replaced is not told", "            replaced.append(number.name)", "            pass"),
        ("what is set up after attaching ends the rank", "        if _passed:\n            pass_by(_passed)", "        pass"),
    )),
    *faults_of("runtime/rank/inbox.py", INBOX, (
        ("an agent that was taken leave of is lost", "        if not self._stopped:", "        if True:"),
        ("a step counter is never sampled", "                self._reactions.sample()\n", ""),
    )),
)  # fmt: skip
