--------------------------- MODULE AgreementTrace ---------------------------
(* Is what the code did a behaviour of `Agreement`?                        *)
(*                                                                         *)
(* `Histories` holds runs of the coordinator's, agents' and ranks' code    *)
(* (written by drainfsm_kit): a step names the action that the code took,  *)
(* and what it was left with.                                              *)
EXTENDS Agreement, Sequences, Histories

VARIABLES
  history,       \* which one
  ahead          \* what is left of it

-----------------------------------------------------------------------------
NextStep == ahead[1]

Seen(m) ==
  IF m.kind \in Orders
  THEN <<m.kind, m.round, 0, m.stop>>
  ELSE <<m.kind, m.round, m.rank, m.step>>

Taken(action, r) ==
  CASE action = "Enter" -> Enter(r)
    [] action = "Complete" -> Complete(r)
    [] action = "Hear" -> Hear(r)
    [] action = "ReportPosition" -> ReportPosition(r)
    [] action = "ReportQuiesced" -> ReportQuiesced(r)
    [] action = "HoldRanks" -> HoldRanks
    [] action = "StopStepAgreed" -> StopStepAgreed
    [] action = "RanksQuiesced" -> RanksQuiesced
    [] action = "DrainCancelled" -> DrainCancelled

AgreesNow(after) ==
  /\ \A r \in Ranks :
       /\ done'[r] = after.done[r]
       /\ inside'[r] = after.inside[r]
       /\ order'[r] = [kind |-> after.order[r][1], round |-> after.order[r][2],
                       stop |-> after.order[r][3]]
  /\ {Seen(m) : m \in net'} = after.net
  /\ round' = after.round
  /\ phase' = after.phase
  /\ stop' = after.stop

TraceInit ==
  /\ history \in DOMAIN Recorded
  /\ ahead = Recorded[history]
  /\ Init

Take ==
  /\ ahead # <<>>
  /\ Taken(NextStep.action, NextStep.rank)
  /\ AgreesNow(NextStep.after)
  /\ ahead' = Tail(ahead)
  /\ UNCHANGED history

TraceSpec == TraceInit /\ [][Take]_<<vars, history, ahead>>

Told == PrintT(<<"left", history, Len(ahead)>>)
=============================================================================
