------------------------------ MODULE LogTrace ------------------------------
(* Is what the code did a behaviour of `Log`?                              *)
(*                                                                         *)
(* `Histories` holds runs of a journal, two shippers of it and a reader    *)
(* (written by drainfsm_kit): a step names the action that the code, the   *)
(* broker or the network took, and what each of them was left with.        *)
EXTENDS Log, Histories

VARIABLES
  history,       \* which one
  ahead          \* what is left of it

-----------------------------------------------------------------------------
NextStep == ahead[1]

Taken(action, s) ==
  CASE action = "Write" -> Write
    [] action = "Sync" -> Sync
    [] action = "Crash" -> Crash
    [] action = "Look" -> Look(s)
    [] action = "Publish" -> Publish(s)
    [] action = "Arrive" -> Arrive(s)
    [] action = "Drop" -> Drop
    [] action = "Doubt" -> Doubt(s)
    [] action = "Relapse" -> Relapse
    [] OTHER -> FALSE                                 \* an error that nobody should meet

AgreesNow(after) ==
  /\ journal' = after.journal
  /\ stream' = after.stream
  /\ Len(Applied(stream')) = after.applied
  /\ {<<m.by, m.record, m.expect>> : m \in flight'} = after.flight
  /\ \A s \in Shippers :
       <<shipper'[s].next, shipper'[s].expect>> = after.shippers[s]

TraceInit ==
  /\ history \in DOMAIN Recorded
  /\ ahead = Recorded[history]
  /\ Init

Take ==
  /\ ahead # <<>>
  /\ Taken(NextStep.action, NextStep.shipper)
  /\ AgreesNow(NextStep.after)
  /\ ahead' = Tail(ahead)
  /\ UNCHANGED history

TraceSpec == TraceInit /\ [][Take]_<<vars, history, ahead>>

Told == PrintT(<<"left", history, Len(ahead)>>)
=============================================================================
