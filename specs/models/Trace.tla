------------------------------- MODULE Trace -------------------------------
(* Is a recorded history a behaviour of `Drain`?                           *)
(*                                                                         *)
(* `Histories` holds recorded histories (written by drainfsm_kit):         *)
(* a step for each record, with the instant at which it was written, the   *)
(* kinds of its events, and the folded state after it.  A step is taken    *)
(* only if some input makes `Drain` decide exactly that.  What TLC prints  *)
(* says how many steps of each history are left at the end.                *)
EXTENDS Drain, Histories

VARIABLES
  history,       \* which one
  ahead          \* what is left of it

-----------------------------------------------------------------------------
NextStep == ahead[1]
TraceNow == NextStep.now                              \* takes the place of `Now`

Decisions ==
  {DecideNotice(drain, m, news) : m \in NextStep.notices, news \in BOOLEAN}
    \cup {DecideWithdrawal(drain, i) : i \in NextStep.withdrawn}
    \cup {DecideCordon(drain), DecideStaged(drain), DecideDurable(drain), DecidePublished(drain),
          DecideSaveFailed(drain), DecideExited(drain), DecideFenced(drain)}
    \cup {DecideRequeue(drain, unasked) : unasked \in BOOLEAN}
    \cup {DecidePositions(drain, reachable) : reachable \in BOOLEAN}
    \cup {DecideQuiesced(drain, n) : n \in Nodes}
    \cup {DecideVerified(drain, whole) : whole \in BOOLEAN}
    \cup {DecideRanksLost(drain, node) : node \in BOOLEAN}
    \cup {DecideTick(drain) : ticks \in {TRUE} \cap {Wakes(drain)}}

Agrees(s, after) == \A field \in DOMAIN after : s[field] = after[field]
ExpiredBefore(steps) == steps # <<>> /\ Head(steps).expired

TraceInit ==
  /\ history \in DOMAIN Recorded
  /\ ahead = Recorded[history]
  /\ Init

Take ==
  /\ ahead # <<>>
  /\ \E d \in Decisions :
       /\ d.out = NextStep.kinds
       /\ Agrees(d.s, NextStep.after)
       /\ drain' = d.s
  /\ ahead' = Tail(ahead)
  /\ expired' = ExpiredBefore(ahead')
  /\ UNCHANGED <<history, clock, heard, coordinator, kinds>>

TraceSpec == TraceInit /\ [][Take]_<<vars, history, ahead>>

Told == PrintT(<<"left", history, Len(ahead)>>)
=============================================================================
