----------------------------- MODULE Agreement -----------------------------
(* How all ranks come to hold at one optimizer step.                       *)
(*                                                                         *)
(* Ranks train in lock step: step s + 1 holds a collective, so a rank      *)
(* completes it only after every peer has entered it.  A drain sends       *)
(* "hold"; a held rank stays at its next boundary and reports the last     *)
(* step that it completed (a rank inside a step reports at once, it may    *)
(* wait in there for a held peer).  Stop step = highest report + 1; ranks  *)
(* are released to run up to it and hold there.  A drain that is called    *)
(* off before that sends "resume", and a later one may hold again.         *)
(*                                                                         *)
(* `net` keeps every message for ever: it may be delivered late, twice, in *)
(* any order or not at all.                                                *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
  Ranks,
  LastStep,      \* the job ends after this step
  Rounds,        \* drains, at most
  Crashes,       \* may ranks die, and may the coordinator run out of patience?
  Fault          \* "none", or the mutation that is checked to be caught

VARIABLES
  done,          \* rank -> last completed step
  inside,        \* rank -> is it inside step done + 1?
  alive,         \* rank -> has it not died?
  order,         \* rank -> the newest order that it has heard
  net,           \* every message sent so far
  round,         \* coordinator: number of the drain
  phase,         \* coordinator: "running" "holding" "stopping" "quiesced" "gave_up"
  stop           \* coordinator: the agreed step

vars == <<done, inside, alive, order, net, round, phase, stop>>

None == [kind |-> "none", round |-> 0, stop |-> 0]
Hold(n) == [kind |-> "hold", round |-> n, stop |-> 0]
Resume(n) == [kind |-> "resume", round |-> n, stop |-> 0]
Release(n, s) == [kind |-> "release", round |-> n, stop |-> s]
Position(n, r, s) == [kind |-> "position", round |-> n, rank |-> r, step |-> s]
Quiesced(n, r, s) == [kind |-> "quiesced", round |-> n, rank |-> r, step |-> s]

Orders == {"hold", "resume", "release"}
Supersedes(new, old) ==
  \/ new.round > old.round
  \/ new.round = old.round /\ new.kind # "hold" /\ old.kind = "hold"
  \/ Fault = "orders_without_round" /\ new.kind # old.kind

-----------------------------------------------------------------------------
Init ==
  /\ done = [r \in Ranks |-> 0]
  /\ inside = [r \in Ranks |-> FALSE]
  /\ alive = [r \in Ranks |-> TRUE]
  /\ order = [r \in Ranks |-> None]
  /\ net = {}
  /\ round = 0
  /\ phase = "running"
  /\ stop = 0

(* Ranks *)

MayEnter(r) ==
  CASE order[r].kind = "release" -> done[r] < order[r].stop
    [] order[r].kind = "hold" -> Fault = "report_without_holding"
    [] OTHER -> TRUE

Enter(r) ==
  /\ alive[r] /\ ~inside[r] /\ done[r] < LastStep
  /\ MayEnter(r)
  /\ inside' = [inside EXCEPT ![r] = TRUE]
  /\ UNCHANGED <<done, alive, order, net, round, phase, stop>>

PeersEntered(r) ==
  \/ Fault = "steps_alone"
  \/ \A p \in Ranks : done[p] > done[r] \/ (done[p] = done[r] /\ inside[p])

Complete(r) ==
  /\ alive[r] /\ inside[r]
  /\ PeersEntered(r)
  /\ done' = [done EXCEPT ![r] = @ + 1]
  /\ inside' = [inside EXCEPT ![r] = FALSE]
  /\ UNCHANGED <<alive, order, net, round, phase, stop>>

Hear(r) ==
  /\ alive[r]
  /\ \E m \in net :
       /\ m.kind \in Orders
       /\ Supersedes(m, order[r])
       /\ order' = [order EXCEPT ![r] = m]
  /\ UNCHANGED <<done, inside, alive, net, round, phase, stop>>

ReportPosition(r) ==
  /\ alive[r] /\ order[r].kind = "hold"
  /\ net' = net \cup {Position(order[r].round, r, done[r])}
  /\ UNCHANGED <<done, inside, alive, order, round, phase, stop>>

ReportQuiesced(r) ==
  /\ alive[r] /\ order[r].kind = "release"
  /\ ~inside[r]
  /\ done[r] = order[r].stop \/ Fault = "counted_at_any_step"
  /\ net' = net \cup {Quiesced(order[r].round, r, done[r])}
  /\ UNCHANGED <<done, inside, alive, order, round, phase, stop>>

Die(r) ==
  /\ Crashes /\ alive[r]
  /\ alive' = [alive EXCEPT ![r] = FALSE]
  /\ UNCHANGED <<done, inside, order, net, round, phase, stop>>

(* The coordinator *)

HoldRanks ==
  /\ phase = "running" /\ round < Rounds
  /\ round' = round + 1
  /\ phase' = "holding"
  /\ net' = net \cup {Hold(round + 1)}
  /\ UNCHANGED <<done, inside, alive, order, stop>>

Highest(positions) ==
  CHOOSE s \in {positions[r] : r \in Ranks} : \A r \in Ranks : positions[r] <= s

StopStep(positions) ==
  CASE Fault = "stop_at_highest" -> Highest(positions)
    [] Fault = "stop_after_any" -> positions[CHOOSE r \in Ranks : TRUE] + 1
    [] OTHER -> Highest(positions) + 1

Reported(r, s) ==
  IF Fault = "reports_without_round"
  THEN \E n \in 1..round : Position(n, r, s) \in net
  ELSE Position(round, r, s) \in net

StopStepAgreed ==
  /\ phase = "holding"
  /\ \E positions \in [Ranks -> 0..LastStep] :
       /\ \A r \in Ranks : Reported(r, positions[r])
       /\ stop' = StopStep(positions)
  /\ phase' = "stopping"
  /\ net' = IF Fault = "never_released" THEN net ELSE net \cup {Release(round, stop')}
  /\ UNCHANGED <<done, inside, alive, order, round>>

RanksQuiesced ==
  /\ phase = "stopping"
  /\ \A r \in Ranks :
       \/ Quiesced(round, r, stop) \in net
       \/ Fault = "counted_at_any_step" /\ \E s \in 0..LastStep : Quiesced(round, r, s) \in net
  /\ phase' = "quiesced"
  /\ UNCHANGED <<done, inside, alive, order, net, round, stop>>

DrainCancelled ==
  /\ phase = "holding"
  /\ phase' = "running"
  /\ net' = IF Fault = "never_resumed" THEN net ELSE net \cup {Resume(round)}
  /\ UNCHANGED <<done, inside, alive, order, round, stop>>

QuiesceTimedOut ==
  /\ Crashes /\ phase \in {"holding", "stopping"}
  /\ phase' = "gave_up"
  /\ UNCHANGED <<done, inside, alive, order, net, round, stop>>

Next ==
  \/ \E r \in Ranks :
       Enter(r) \/ Complete(r) \/ Hear(r) \/ ReportPosition(r) \/ ReportQuiesced(r) \/ Die(r)
  \/ HoldRanks \/ StopStepAgreed \/ RanksQuiesced \/ DrainCancelled \/ QuiesceTimedOut

Spec == Init /\ [][Next]_vars

(* A message that is sent again and again arrives; ranks that can run do. *)
Fair ==
  /\ \A r \in Ranks :
       /\ WF_vars(Enter(r)) /\ WF_vars(Complete(r))
       /\ WF_vars(Hear(r))
       /\ WF_vars(ReportPosition(r)) /\ WF_vars(ReportQuiesced(r))
  /\ WF_vars(StopStepAgreed) /\ WF_vars(RanksQuiesced)

LiveSpec == Spec /\ Fair
Symmetric == Permutations(Ranks)

-----------------------------------------------------------------------------
(* I6 *)
ManifestIsAtOneStep ==
  phase = "quiesced" => \A r \in Ranks : done[r] = stop /\ ~inside[r]

NobodyPassesTheStopStep ==
  phase \in {"stopping", "quiesced"} => \A r \in Ranks : done[r] <= stop

AtMostOneStepPastTheReport ==
  \A m \in net : m.kind = "position" /\ order[m.rank] = Hold(m.round)
    => done[m.rank] <= m.step + 1

LockStep == \A p, r \in Ranks : done[p] <= done[r] + 1

Finished == \A r \in Ranks : done[r] = LastStep
(* Without deaths nobody waits for ever: a hold ends, and so does training that was resumed. *)
NoDeadlock == (phase \in {"holding", "stopping"}) ~> (phase \in {"quiesced", "running"} \/ Finished)
TrainingGoesOn == (phase = "running") ~> (phase # "running" \/ Finished)
=============================================================================
