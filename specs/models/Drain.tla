------------------------------- MODULE Drain -------------------------------
(* One attempt and its drains, as the coordinator decides them.            *)
(*                                                                         *)
(* `drain` is what folding the log gives.  An input (a notice, a report,   *)
(* a tick) is decided in one step: `Add` folds each event of the decision  *)
(* as the lifecycle table allows it.  Inputs come at any time, in any      *)
(* order, any number of times, or never; ranks, store and nodes may be     *)
(* stuck for ever; the coordinator may die.                                *)
(*                                                                         *)
(* Time is a clock of a few instants.  Each says for each deadline (1, 2   *)
(* ..., the earlier the smaller) which stages of a drain still fit before  *)
(* it: the arithmetic is done outside.                                     *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Nodes,
  Messages,      \* notices that may come: <<id, class, deadline, revision>>
  Drains,        \* drains of the attempt, at most
  Instants,      \* what the clock shows, in order: [level |-> <<...>>, due |-> {...}]
  Crashes,       \* may the coordinator die?
  KeepKinds,     \* keep the kinds of the last record in the state (for the exported graph)
  Fault          \* "none", or the mutation that is checked to be caught

VARIABLES
  drain,         \* the folded record
  clock,         \* index of the present instant
  expired,       \* the wait for the ranks has used up its allowance
  heard,         \* notices delivered into the present drain (for the rules only)
  whole,         \* did the last verification find every entry? (for the rules only)
  coordinator,   \* "up", "down", "found" (the next attempt recorded the loss)
  kinds          \* of the last record

vars == <<drain, clock, expired, heard, whole, coordinator, kinds>>

None == 0                                             \* no deadline
SOFT == "soft"
HARD == "hard"
Nobody == [said |-> [class |-> "none", deadline |-> None], earliest |-> None, latest |-> None,
           revision |-> 0, withdrawn |-> FALSE]       \* no notice of this id
Ids == {m[1] : m \in Messages}
Revisions == {m[4] : m \in Messages}
Earlier(d, e) == IF d < e THEN d ELSE e
Later(d, e) == IF d > e THEN d ELSE e
Earliest(S) == CHOOSE d \in S : \A e \in S : d <= e
Latest(S) == CHOOSE d \in S : \A e \in S : d >= e

-----------------------------------------------------------------------------
(* Time.  Level 0: all fits.  From level 1 on a whole drain no longer      *)
(* fits, from 2 a save, from 3 the rest of a save, from 4 the commit; at 5 *)
(* the deadline less the clock skew has come, at 6 the deadline itself.  A *)
(* soft notice is due from its latest safe start on.                       *)

Now == Instants[clock]
Level(d) == Now.level[d]
Limit == [notice |-> 1, quiesced |-> 2, saving |-> 3, durable |-> 4]
Fits(d, stage) == Level(d) < Limit[stage]
Due(d) == d \in Now.due

ACTIVE == {"scheduled", "noticed", "quiescing", "quiesced", "saving", "staged", "durable",
           "published", "leaving"}
SAVE_UNDER_WAY == {"saving", "staged", "durable"}
OPENABLE == {"idle", "cancelled"}
RUNNING == ACTIVE \cup OPENABLE
OVER == {"exited", "cancelled", "lost"}
ANY == RUNNING \cup OVER
Active(s) == s.phase \in ACTIVE

Stage(s) ==
  CASE s.phase \in {"quiescing", "quiesced"} -> "quiesced"
    [] s.phase \in {"saving", "staged"} -> "saving"
    [] s.phase \in {"durable", "published", "leaving"} -> "durable"
    [] s.phase = "noticed" /\ s.held -> "quiesced"
    [] OTHER -> "notice"
FitsNow(s) == Fits(s.deadline, Stage(s))

-----------------------------------------------------------------------------
(* The lifecycle table: which event is allowed in which phase. *)

Table == [
  NoticeReceived |-> RUNNING, NoticeWithdrawn |-> ACTIVE, DeadlineShortened |-> ACTIVE,
  DrainDue |-> {"scheduled"}, DrainCancelled |-> {"scheduled", "noticed"},
  NodeCordoned |-> {"noticed", "leaving"}, StopStepAgreed |-> {"noticed"},
  RankQuiesced |-> {"quiescing"}, RanksQuiesced |-> {"quiescing"},
  QuiesceTimedOut |-> {"noticed", "quiescing"},
  SaveDecided |-> {"quiesced"}, SaveStarted |-> {"quiesced"}, BytesStaged |-> {"saving"},
  Durable |-> {"staged"}, EntriesVerified |-> {"durable"}, ManifestPublished |-> {"durable"},
  SaveAbandoned |-> SAVE_UNDER_WAY, SaveSkipped |-> {"noticed", "quiescing", "quiesced"},
  RequeueRecorded |-> ANY, Exited |-> ACTIVE, AttemptFenced |-> ANY, AttemptLost |-> RUNNING,
  AttemptFinished |-> OPENABLE, CheckpointCommitted |-> RUNNING]
Kinds == DOMAIN Table

Destination == [
  DrainDue |-> "noticed", DrainCancelled |-> "cancelled", StopStepAgreed |-> "quiescing",
  RanksQuiesced |-> "quiesced", SaveStarted |-> "saving", BytesStaged |-> "staged",
  Durable |-> "durable", ManifestPublished |-> "published", SaveAbandoned |-> "leaving",
  SaveSkipped |-> "leaving", Exited |-> "exited", AttemptLost |-> "lost"]

Guard(s, e) ==
  CASE e.kind = "DeadlineShortened" -> e.to < s.deadline
    [] e.kind = "RanksQuiesced" -> s.quiesced = Nodes \/ Fault = "first_node_is_enough"
    [] e.kind \in {"SaveDecided", "SaveStarted"} -> e.fits
    [] e.kind = "ManifestPublished" -> s.verified \/ Fault = "publishes_unverified"
    [] OTHER -> TRUE

Allowed(s, e) ==
  \/ s.phase \in Table[e.kind] /\ Guard(s, e)
  \/ Fault = "saves_again_after_a_shrink" /\ e.kind = "SaveStarted" /\ s.phase = "saving"

(* Evolve *)

Said(class, d) == [class |-> class, deadline |-> d]
Precedes(a, b) ==                                     \* HARD before SOFT, then the earlier
  IF a.class # b.class THEN a.class = HARD ELSE a.deadline <= b.deadline
(* What was taken back up to a revision stands again only by a newer one, or by a HARD one. *)
Marked(held, gone) ==
  [held EXCEPT !.withdrawn = /\ held.said.class = SOFT \/ Fault = "hard_notice_withdrawn"
                             /\ IF Fault = "withdrawn_for_good" THEN gone > 0
                                ELSE held.revision <= gone]
Unmarked(m) ==
  [said |-> Said(m[2], m[3]), earliest |-> m[3], latest |-> m[3], revision |-> m[4],
   withdrawn |-> FALSE]
Merge(held, m, gone) ==
  IF held = Nobody \/ Fault = "last_notice_wins" THEN Marked(Unmarked(m), gone)
  ELSE LET both == [said |-> IF Precedes(held.said, Said(m[2], m[3])) THEN held.said
                             ELSE Said(m[2], m[3]),
                    earliest |-> Earlier(held.earliest, m[3]),
                    latest |-> Later(held.latest, m[3]),
                    revision |-> Later(held.revision, m[4]), withdrawn |-> FALSE]
       IN  IF Fault = "repeat_revives" THEN both ELSE Marked(both, gone)

Opened(s, m) ==
  [s EXCEPT !.phase = IF m[2] = HARD \/ Due(m[3]) THEN "noticed" ELSE "scheduled",
            !.drains = @ + 1,
            !.notices = [[i \in Ids |-> Nobody] EXCEPT ![m[1]] = Merge(Nobody, m, s.withdrawn[m[1]])],
            !.deadline = m[3], !.cordoned = FALSE,
            !.held = Fault = "holds_before_the_cordon" /\ m[2] = HARD,
            !.stop = FALSE, !.quiesced = {}, !.saves = 0]

Effect(s, e) ==
  CASE e.kind = "NoticeReceived" ->
         IF Active(s)
         THEN [s EXCEPT !.notices[e.message[1]] = Merge(@, e.message, s.withdrawn[e.message[1]]),
                        !.deadline = IF Fault = "later_deadline_adopted" THEN e.message[3] ELSE @]
         ELSE Opened(s, e.message)
    [] e.kind = "NoticeWithdrawn" ->
         LET gone == Later(s.withdrawn[e.id], e.revision)
         IN  [s EXCEPT !.notices[e.id] = Marked(@, gone), !.withdrawn[e.id] = gone]
    [] e.kind = "DeadlineShortened" -> [s EXCEPT !.deadline = e.to]
    [] e.kind = "NodeCordoned" ->
         [s EXCEPT !.cordoned = TRUE, !.held = s.phase = "noticed"]
    [] e.kind = "StopStepAgreed" -> [s EXCEPT !.stop = TRUE]
    [] e.kind = "RankQuiesced" -> [s EXCEPT !.quiesced = @ \cup {e.node}]
    [] e.kind = "SaveStarted" -> [s EXCEPT !.saves = @ + 1, !.verified = FALSE]
    [] e.kind = "EntriesVerified" -> [s EXCEPT !.verified = TRUE]
    [] e.kind \in {"ManifestPublished", "CheckpointCommitted"} -> [s EXCEPT !.committed = TRUE]
    [] e.kind = "RequeueRecorded" -> [s EXCEPT !.requeue = TRUE]
    [] e.kind \in {"Exited", "AttemptFinished"} -> [s EXCEPT !.ended = TRUE]
    [] e.kind = "AttemptFenced" -> [s EXCEPT !.fenced = TRUE]
    [] OTHER -> s

Moved(s, e) ==
  IF e.kind \in DOMAIN Destination THEN [s EXCEPT !.phase = Destination[e.kind]] ELSE s
Evolve(s, e) == Moved(Effect(s, e), e)

-----------------------------------------------------------------------------
(* A decision: the state after its events so far, and their kinds. *)

Draft(s) == [s |-> s, out |-> <<>>]
Add(d, e) ==
  IF Allowed(d.s, e)
  THEN [s |-> Evolve(d.s, e), out |-> Append(d.out, e.kind)]
  ELSE [s |-> [d.s EXCEPT !.refused = TRUE], out |-> Append(d.out, e.kind)]
Plain(kind) == [kind |-> kind]

GiveUp(d) ==
  CASE d.s.phase \in {"noticed", "quiescing", "quiesced"} -> Add(d, Plain("SaveSkipped"))
    [] d.s.phase \in SAVE_UNDER_WAY -> Add(d, Plain("SaveAbandoned"))
    [] OTHER -> d

Recheck(d) ==
  IF \/ d.s.phase = "noticed" /\ d.s.held
     \/ d.s.phase \in {"quiescing", "quiesced"} \cup SAVE_UNDER_WAY
  THEN IF FitsNow(d.s) THEN d ELSE GiveUp(d)
  ELSE d

DecideSave(d) ==
  LET fits == Fits(d.s.deadline, "quiesced") \/ Fault = "fits_not_checked_again"
  IN  IF (d.s.fenced /\ Fault # "fence_ignored") \/ ~fits
      THEN Add(d, Plain("SaveSkipped"))
      ELSE Add(Add(d, [kind |-> "SaveDecided", fits |-> fits]),
               [kind |-> "SaveStarted", fits |-> fits])

DueNow(d) ==
  IF d.s.phase = "scheduled"
     /\ (Due(d.s.deadline) \/ \E i \in Ids : d.s.notices[i] # Nobody /\ d.s.notices[i].said.class = HARD)
  THEN Add(d, Plain("DrainDue"))
  ELSE d

Shorten(d, m, before) ==
  IF before # None /\ m[3] < before
  THEN LET shorter == Add(d, [kind |-> "DeadlineShortened", to |-> m[3]])
       IN  IF Fault = "saves_again_after_a_shrink" /\ d.s.phase = "saving"
           THEN Add(shorter, [kind |-> "SaveStarted", fits |-> TRUE])
           ELSE shorter
  ELSE d

RejectsNotice(m) == m[2] = SOFT /\ Level(m[3]) = 6
AddsNothing(s, m) ==
  Active(s) /\ s.notices[m[1]] # Nobody
    /\ Merge(s.notices[m[1]], m, s.withdrawn[m[1]]) = s.notices[m[1]]
WasTakenBack(s, m) ==                                 \* a late repeat, in a drain that is over
  /\ m[2] = SOFT /\ m[4] <= s.withdrawn[m[1]] /\ Fault # "repeat_opens"
  /\ ~Active(s) \/ s.notices[m[1]] = Nobody

(* `news`: it says more than this model knows, so it is recorded even if nothing else is new. *)
DecideNotice(s, m, news) ==
  IF \/ s.ended \/ s.phase \in {"exited", "lost"} \/ RejectsNotice(m) \/ WasTakenBack(s, m)
     \/ AddsNothing(s, m) /\ ~news
  THEN Draft(s)
  ELSE LET before == IF Active(s) THEN s.deadline ELSE None
           accepted == Shorten(Add(Draft(s), [kind |-> "NoticeReceived", message |-> m]), m, before)
       IN  IF accepted.s.phase = "scheduled" THEN DueNow(accepted) ELSE Recheck(accepted)

DecideWithdrawal(s, i, r) ==
  IF ~Active(s) \/ s.notices[i] = Nobody \/ r <= s.withdrawn[i]
  THEN Draft(s)
  ELSE IF s.notices[i].said.class = HARD /\ Fault # "hard_notice_withdrawn"
  THEN Draft(s)
  ELSE LET withdrawn == Add(Draft(s), [kind |-> "NoticeWithdrawn", id |-> i, revision |-> r])
           all == \A j \in Ids : withdrawn.s.notices[j] # Nobody => withdrawn.s.notices[j].withdrawn
           early == s.phase \in IF Fault = "called_off_after_the_stop"
                                THEN {"scheduled", "noticed", "quiescing"}
                                ELSE {"scheduled", "noticed"}
       IN  IF ~all \/ ~early THEN withdrawn
           ELSE IF s.phase = "quiescing"
           THEN [withdrawn EXCEPT !.s.phase = "cancelled"]
           ELSE Add(withdrawn, Plain("DrainCancelled"))

DecideCordon(s) ==
  IF s.phase \notin {"noticed", "leaving"} \/ s.cordoned
  THEN Draft(s)
  ELSE LET done == Add(Draft(s), Plain("NodeCordoned"))
       IN  IF s.phase = "noticed" /\ ~FitsNow(s) THEN Add(done, Plain("SaveSkipped")) ELSE done

DecidePositions(s, reachable) ==
  IF s.phase # "noticed" \/ ~s.held
  THEN Draft(s)
  ELSE IF reachable /\ ~expired /\ FitsNow(s)
  THEN Add(Draft(s), Plain("StopStepAgreed"))
  ELSE Add(Draft(s), Plain("SaveSkipped"))

DecideQuiesced(s, n) ==
  IF s.phase # "quiescing" \/ n \in s.quiesced
  THEN Draft(s)
  ELSE LET one == Add(Draft(s), [kind |-> "RankQuiesced", node |-> n])
       IN  IF one.s.quiesced = Nodes \/ Fault = "first_node_is_enough"
           THEN DecideSave(Add(one, Plain("RanksQuiesced")))
           ELSE one

DecideStaged(s) ==
  IF s.phase = "saving" THEN Recheck(Add(Draft(s), Plain("BytesStaged"))) ELSE Draft(s)

DecideDurable(s) ==
  IF s.phase = "saving" /\ Fault = "durable_before_staged"
  THEN Add(Draft(s), Plain("Durable"))
  ELSE IF s.phase # "staged"
  THEN Draft(s)
  ELSE LET checked == Recheck(Draft(s))
       IN  IF checked.s.phase = "staged" THEN Add(checked, Plain("Durable")) ELSE checked

DecideVerified(s, all) ==
  IF s.phase # "durable" \/ s.verified
  THEN Draft(s)
  ELSE IF all \/ Fault = "incomplete_accepted"
  THEN Recheck(Add(Draft(s), Plain("EntriesVerified")))
  ELSE GiveUp(Draft(s))

(* The commit record exists: only if the manifest was ordered, that is after the verification. *)
DecidePublished(s) ==
  IF s.saves = 0 \/ (~s.verified /\ Fault # "publishes_unverified")
  THEN Draft(s)
  ELSE CASE s.phase = "durable" -> Add(Draft(s), Plain("ManifestPublished"))
         [] s.phase = "leaving" /\ ~s.committed -> Add(Draft(s), Plain("CheckpointCommitted"))
         [] OTHER -> Draft(s)

DecideSaveFailed(s) ==
  IF s.phase \in SAVE_UNDER_WAY THEN GiveUp(Draft(s)) ELSE Draft(s)

DecideRequeue(s, unasked) ==
  IF ~s.requeue /\ (unasked \/ s.phase \in {"published", "leaving", "exited", "lost"} \/ s.ended)
  THEN Add(Draft(s), Plain("RequeueRecorded"))
  ELSE Draft(s)

DecideExited(s) ==
  IF s.ended \/ s.phase \in {"exited", "lost"}
  THEN Draft(s)
  ELSE IF Active(s)
  THEN Add(GiveUp(Draft(s)), Plain("Exited"))
  ELSE Add(Draft(s), Plain("AttemptFinished"))

DecideRanksLost(s, node) ==
  CASE s.phase \in {"noticed", "quiescing"} -> GiveUp(Add(Draft(s), Plain("QuiesceTimedOut")))
    [] s.phase \in {"quiesced", "saving", "staged"} -> GiveUp(Draft(s))
    [] s.phase \in {"idle", "cancelled", "scheduled"} /\ node /\ ~s.ended ->
         Add(Draft(s), Plain("AttemptLost"))
    [] OTHER -> Draft(s)

DecideFenced(s) ==
  IF s.fenced
  THEN Draft(s)
  ELSE LET told == Add(Draft(s), Plain("AttemptFenced"))
       IN  IF Fault = "fence_ignored" THEN told
           ELSE IF s.phase \in {"idle", "cancelled", "scheduled"}
           THEN IF s.ended /\ Fault # "finished_and_lost" THEN told ELSE Add(told, Plain("AttemptLost"))
           ELSE IF Fault = "fenced_goes_on" THEN told
           ELSE GiveUp(told)

WaitIsOver(s) ==
  IF s.held THEN expired \/ Level(s.deadline) >= 2 ELSE Level(s.deadline) >= 4

Expire(d) ==
  IF d.s.phase \in {"noticed", "quiescing"} /\ WaitIsOver(d.s) /\ Fault # "waits_for_stuck_ranks"
  THEN GiveUp(IF d.s.held THEN Add(d, Plain("QuiesceTimedOut")) ELSE d)
  ELSE d

DecideTick(s) ==
  IF ~Active(s)
  THEN Draft(s)
  ELSE LET due == IF s.phase = "scheduled" /\ Due(s.deadline) THEN Add(Draft(s), Plain("DrainDue"))
                  ELSE Draft(s)
           checked == Recheck(Expire(due))
       IN  IF Active(checked.s) /\ Level(s.deadline) >= 5 /\ Fault # "waits_for_stuck_ranks"
           THEN Add(GiveUp(checked), Plain("Exited"))
           ELSE checked

(* When the shell ticks: as the core asked for. *)
Wakes(s) ==
  CASE s.phase = "scheduled" -> Due(s.deadline)
    [] s.phase = "noticed" /\ ~s.held -> Level(s.deadline) >= 4
    [] s.phase \in {"noticed", "quiescing"} -> expired \/ Level(s.deadline) >= 2
    [] s.phase \in {"saving", "staged"} -> Level(s.deadline) >= 3
    [] s.phase \in {"quiesced", "durable"} -> Level(s.deadline) >= 4
    [] s.phase \in {"published", "leaving"} ->
         Level(s.deadline) >= 5 /\ Fault # "no_wake_while_leaving"
    [] OTHER -> FALSE

-----------------------------------------------------------------------------
Init ==
  /\ drain = [phase |-> "idle", drains |-> 0, notices |-> [i \in Ids |-> Nobody],
              deadline |-> None, cordoned |-> FALSE, held |-> FALSE, stop |-> FALSE,
              quiesced |-> {}, saves |-> 0, verified |-> FALSE, committed |-> FALSE,
              requeue |-> FALSE, withdrawn |-> [i \in Ids |-> 0], fenced |-> FALSE, ended |-> FALSE, refused |-> FALSE]
  /\ clock = 1
  /\ expired = FALSE
  /\ heard = {}
  /\ whole = FALSE
  /\ coordinator = "up"
  /\ kinds = <<>>

Waiting(s) == s.held /\ s.phase \in {"noticed", "quiescing"}

Up == coordinator = "up"
Record(d) ==                                          \* the decision is in the journal
  /\ d.out # <<>>
  /\ d.s.drains <= Drains
  /\ drain' = d.s
  /\ expired' = (expired /\ Waiting(d.s))
  /\ kinds' = IF KeepKinds THEN d.out ELSE <<>>
  /\ UNCHANGED <<clock, coordinator>>

Input(d) == Record(d) /\ UNCHANGED <<heard, whole>>

ReceiveNotice(m) ==
  LET d == DecideNotice(drain, m, FALSE)
      known == IF Active(drain) THEN heard ELSE {}
      counts == Active(d.s) /\ ~RejectsNotice(m) /\ ~WasTakenBack(drain, m)
  IN  \/ /\ Up /\ Record(d) /\ UNCHANGED whole
         /\ heard' = IF counts THEN known \cup {m} ELSE heard
      \/ /\ d.out = <<>> /\ counts /\ m \notin heard /\ Up
         /\ heard' = heard \cup {m}                   \* it added nothing, and has been heard
         /\ kinds' = <<>>
         /\ UNCHANGED <<drain, clock, expired, whole, coordinator>>

WithdrawNotice(i, r) == Up /\ Input(DecideWithdrawal(drain, i, r))
ReportCordon == Up /\ Input(DecideCordon(drain))
ReportPositions(reachable) == Up /\ Input(DecidePositions(drain, reachable))
ReportQuiesced(n) == Up /\ Input(DecideQuiesced(drain, n))
ReportStaged == Up /\ Input(DecideStaged(drain))
ReportDurable == Up /\ Input(DecideDurable(drain))
ReportVerified(all) ==
  Up /\ Record(DecideVerified(drain, all)) /\ whole' = all /\ UNCHANGED heard
ReportPublished == Up /\ Input(DecidePublished(drain))
ReportSaveFailed == Up /\ Input(DecideSaveFailed(drain))
ReportRequeueRecorded == Up /\ Input(DecideRequeue(drain, FALSE))
ReportExited == Up /\ Input(DecideExited(drain))
ReportRanksLost(node) == Up /\ Input(DecideRanksLost(drain, node))
ReportFenced == Up /\ Input(DecideFenced(drain))
Tick == Up /\ Wakes(drain) /\ Input(DecideTick(drain))

(* A record of somebody who is wrong about the state: the fold refuses what the table does not allow. *)
Foreign(kind) ==
  /\ drain.phase \notin Table[kind]
  /\ IF Fault = "table_not_checked" /\ kind \in DOMAIN Destination
     THEN /\ drain' = Moved(drain, Plain(kind))
          /\ kinds' = IF KeepKinds THEN <<kind>> ELSE <<>>
          /\ UNCHANGED <<clock, expired, heard, whole, coordinator>>
     ELSE UNCHANGED vars

(* The world *)

(* The tick that ends a drain at its deadline less the skew comes before the deadline itself. *)
EndIsDue == Up /\ Active(drain) /\ Level(drain.deadline) = 5 /\ Wakes(drain)

Advance ==
  /\ clock < Len(Instants)
  /\ ~EndIsDue
  /\ clock' = clock + 1
  /\ expired' = Waiting(drain)
  /\ kinds' = <<>>
  /\ UNCHANGED <<drain, heard, whole, coordinator>>

Wait ==                                               \* the allowance passes, the instant stays
  /\ Waiting(drain) /\ ~expired
  /\ expired' = TRUE
  /\ kinds' = <<>>
  /\ UNCHANGED <<drain, clock, heard, whole, coordinator>>

Crash ==
  /\ Crashes /\ Up
  /\ coordinator' = "down"
  /\ kinds' = <<>>
  /\ UNCHANGED <<drain, clock, expired, heard, whole>>

FindLost ==                                           \* by the next attempt, in its own log
  /\ coordinator = "down"
  /\ coordinator' = "found"
  /\ kinds' = <<>>
  /\ UNCHANGED <<drain, clock, expired, heard, whole>>

Next ==
  \/ \E m \in Messages : ReceiveNotice(m)
  \/ \E i \in Ids, r \in Revisions : WithdrawNotice(i, r)
  \/ ReportCordon
  \/ \E reachable \in BOOLEAN : ReportPositions(reachable)
  \/ \E n \in Nodes : ReportQuiesced(n)
  \/ ReportStaged \/ ReportDurable \/ (\E all \in BOOLEAN : ReportVerified(all))
  \/ ReportPublished \/ ReportSaveFailed \/ ReportRequeueRecorded \/ ReportExited
  \/ (\E node \in BOOLEAN : ReportRanksLost(node)) \/ ReportFenced
  \/ Tick
  \/ \E kind \in Kinds : Foreign(kind)
  \/ Advance \/ Wait \/ Crash \/ FindLost

Spec == Init /\ [][Next]_vars
Fair == WF_vars(Tick) /\ WF_vars(Advance) /\ WF_vars(FindLost)
LiveSpec == Spec /\ Fair
Symmetric == Permutations(Nodes)

-----------------------------------------------------------------------------
(* I1: whatever order and number, the same notices give the same entry and deadline. *)
HeardOf(i) == {m \in heard : m[1] = i}
NoticesAreMerged ==
  Active(drain) =>
    /\ drain.deadline = Earliest({m[3] : m \in heard})
    /\ \A i \in Ids :
         IF HeardOf(i) = {} THEN drain.notices[i] = Nobody
         ELSE /\ drain.notices[i].earliest = Earliest({m[3] : m \in HeardOf(i)})
              /\ drain.notices[i].latest = Latest({m[3] : m \in HeardOf(i)})
              /\ \A m \in HeardOf(i) : Precedes(drain.notices[i].said, Said(m[2], m[3]))

(* ... and whatever order its withdrawals come in: what stands is what was not taken back. *)
TakenBackIsGone ==
  Active(drain) => \A i \in Ids : HeardOf(i) # {} =>
    drain.notices[i].withdrawn =
      (/\ \A m \in HeardOf(i) : m[2] = SOFT
       /\ \A m \in HeardOf(i) : m[4] <= drain.withdrawn[i])
SomethingStands ==
  drain.phase \in {"scheduled", "noticed"} =>
    \E i \in Ids : drain.notices[i] # Nobody /\ ~drain.notices[i].withdrawn
(* I2 *)
DeadlineNeverIncreases ==
  [][drain.deadline # None /\ drain'.drains = drain.drains
       => drain'.deadline <= drain.deadline]_vars
(* I3, first half *)
AtMostOneSave == drain.saves <= 1
(* I4 *)
SavesOnlyIfItFits ==
  [][drain'.saves > drain.saves /\ drain'.drains = drain.drains
       => Fits(drain'.deadline, "quiesced")]_vars
(* I5 *)
CommittedIsVerified == drain.committed => drain.verified
VerifiedIsWhole == drain.verified => whole
(* I6 *)
SavedAtTheStopStep == drain.saves > 0 => drain.stop /\ drain.quiesced = Nodes
(* I7 *)
FencedSavesNothing == [][drain'.saves > drain.saves => ~drain.fenced]_vars
FencedPublishesNothing ==                             \* nor does it order what leads to it
  [][/\ drain.fenced /\ drain.phase \in SAVE_UNDER_WAY \cup {"quiesced"}
     => drain'.phase \notin {"saving", "staged", "durable", "published"}]_vars
(* I9 *)
EveryDrainEnds == Active(drain) ~> (~Active(drain) \/ coordinator = "found")
AtTheDeadlineATickEnds ==
  Active(drain) /\ Level(drain.deadline) >= 5 =>
    Wakes(drain) /\ DecideTick(drain).s.phase \in OVER
EndsByTheDeadline ==                                  \* a deadline that had passed when heard of apart
  [][Active(drain) /\ Active(drain') /\ Up /\ Level(drain.deadline) < 6
       => Instants[clock'].level[drain.deadline] < 6]_vars
(* I11 *)
CordonBeforeHold == drain.held => drain.cordoned
(* I12 *)
NothingIsRefused == ~drain.refused
PhaseIsOfTheTable ==
  /\ drain.phase \in {"quiescing", "quiesced"} \cup SAVE_UNDER_WAY \cup {"published"} =>
       drain.held /\ drain.stop
  /\ drain.phase \in SAVE_UNDER_WAY \cup {"published"} => drain.saves > 0

HardNoticeIsNotCalledOff ==
  drain.phase = "cancelled" => \A i \in Ids : drain.notices[i] # Nobody => drain.notices[i].said.class = SOFT
CalledOffBeforeTheStop == drain.phase = "cancelled" => ~drain.stop
TheEndIsTheEnd ==
  [][drain.ended \/ drain.phase = "lost" => drain'.phase = drain.phase]_vars

-----------------------------------------------------------------------------
(* Bounds to check with: two deadlines. *)
Near == 1
Far == 2
TwoNotices == {<<"a", SOFT, Far, 1>>, <<"b", HARD, Near, 1>>}
ThreeNotices == TwoNotices \cup {<<"a", SOFT, Near, 2>>}
OneNotice == {<<"a", SOFT, Far, 1>>, <<"a", SOFT, Near, 2>>}
FiveNotices == ThreeNotices \cup {<<"a", HARD, Far, 1>>, <<"b", SOFT, Far, 1>>}
At(near, far, due) == [level |-> <<near, far>>, due |-> due]
AllInstants == <<At(0, 0, {Near}), At(1, 0, {Near}), At(2, 0, {Near}), At(3, 0, {Near}),
                 At(4, 0, {Near}), At(5, 0, {Near}), At(6, 0, {Near}), At(6, 0, {Near, Far}),
                 At(6, 5, {Near, Far}), At(6, 6, {Near, Far})>>
FewInstants == <<At(0, 0, {Near}), At(2, 0, {Near}), At(4, 0, {Near}), At(6, 0, {Near}),
                 At(6, 0, {Near, Far}), At(6, 6, {Near, Far})>>
TwoInstants == <<At(0, 0, {Near}), At(6, 0, {Near}), At(6, 6, {Near, Far})>>
=============================================================================
