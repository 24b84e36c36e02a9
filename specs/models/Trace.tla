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
    \cup {DecideWithdrawal(drain, w[1], w[2]) : w \in NextStep.withdrawn}
    \cup {DecideCordon(drain), DecideStaged(drain), DecideDurable(drain), DecidePublished(drain),
          DecideSaveFailed(drain), DecideExited(drain), DecideFenced(drain)}
    \cup {DecideRequeue(drain, unasked) : unasked \in BOOLEAN}
    \cup {DecidePositions(drain, reachable) : reachable \in BOOLEAN}
    \cup {DecideQuiesced(drain, n) : n \in Nodes}
    \cup {DecideVerified(drain, all) : all \in BOOLEAN}
    \cup {DecideRanksLost(drain, node) : node \in BOOLEAN}
    \cup {DecideTick(drain) : ticks \in {TRUE} \cap {Wakes(drain)}}

(* Notices as the core merges them, but for what it makes of one that states no deadline. *)
Standing(s) ==
  {<<i, s.notices[i].said.class, s.notices[i].earliest, s.notices[i].revision,
     s.notices[i].withdrawn>> : i \in {j \in Ids : s.notices[j] # Nobody}}
TakenBack(s) == {<<i, s.withdrawn[i]>> : i \in {j \in Ids : s.withdrawn[j] > 0}}

Agrees(s, after) ==
  /\ \A field \in DOMAIN after \ {"notices", "withdrawn"} : s[field] = after[field]
  /\ Standing(s) = after.notices
  /\ TakenBack(s) = after.withdrawn
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
  /\ UNCHANGED <<history, clock, heard, whole, coordinator, kinds>>

TraceSpec == TraceInit /\ [][Take]_<<vars, history, ahead>>

Told == PrintT(<<"left", history, Len(ahead)>>)
=============================================================================
