-------------------------------- MODULE Log --------------------------------
(* One attempt's history: journal first, then the stream, then readers.    *)
(*                                                                         *)
(* The coordinator appends a record to its journal; once it is synced its  *)
(* effects run, never before.  Shippers (the attempt's own, and the one of *)
(* the next attempt, which finds the same journal) publish the records one *)
(* by one.  Each message expects the number of messages that its sender    *)
(* knows to be in the subject; the broker refuses another, except that a   *)
(* few stale ones leak through, since the check is the leader's own.  A    *)
(* message may arrive late, twice or never, and its answer may be lost:    *)
(* then the shipper looks at what the stream has.                          *)
(*                                                                         *)
(* A reader folds the stream: a record counts only where it stands right   *)
(* after as many counted records as its writer had read (`follows`).       *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Records,       \* records of the attempt, at most
  Shippers,
  Leaks,         \* stale messages that the broker lets through, at most
  Relapses,      \* times that the broker comes back with less than it had, at most
  Fault          \* "none", or the mutation that is checked to be caught

VARIABLES
  journal,       \* number of synced records; record k follows k - 1
  tail,          \* a record that is written and not yet synced?
  ran,           \* number of records whose effects ran
  up,            \* is the coordinator alive?
  shipper,       \* shipper -> what it believes, or None while it must look
  flight,        \* messages on their way
  stream,        \* the subject: record numbers, in the order of the broker
  leaked,
  relapsed,
  calm           \* the network has become reliable, for good

vars == <<journal, tail, ran, up, shipper, flight, stream, leaked, relapsed, calm>>
None == [next |-> 0, expect |-> 0]

(* The fold. `Counted(s)`: how many records count after reading all of s. *)
RECURSIVE Counted(_)
Counted(s) ==
  IF s = <<>> THEN 0
  ELSE LET front == SubSeq(s, 1, Len(s) - 1)
           stands == IF Fault = "skipped_records_count" THEN Len(front) ELSE Counted(front)
       IN  IF s[Len(s)] = stands + 1 THEN stands + 1 ELSE Counted(front)
(* What a reader has applied, in order; with the fence it is 1, 2, 3 ... *)
Applied(s) ==
  IF Fault = "no_fence" THEN s ELSE [k \in 1..Counted(s) |-> k]

-----------------------------------------------------------------------------
Init ==
  /\ journal = 0
  /\ tail = FALSE
  /\ ran = 0
  /\ up = TRUE
  /\ shipper = [s \in Shippers |-> None]
  /\ flight = {}
  /\ stream = <<>>
  /\ leaked = 0
  /\ relapsed = 0
  /\ calm = FALSE

(* The coordinator *)

Write ==
  /\ up /\ ~tail /\ journal < Records
  /\ tail' = TRUE
  /\ UNCHANGED <<journal, ran, up, shipper, flight, stream, leaked, relapsed, calm>>

Sync ==
  /\ up /\ tail
  /\ tail' = FALSE
  /\ journal' = journal + 1
  /\ UNCHANGED <<ran, up, shipper, flight, stream, leaked, relapsed, calm>>

RunEffects ==
  /\ up
  /\ ran < IF Fault = "effects_before_sync" /\ tail THEN journal + 1 ELSE journal
  /\ ran' = ran + 1
  /\ UNCHANGED <<journal, tail, up, shipper, flight, stream, leaked, relapsed, calm>>

Crash ==                                              \* what is not synced is gone
  /\ up
  /\ up' = FALSE
  /\ tail' = FALSE
  /\ UNCHANGED <<journal, ran, shipper, flight, stream, leaked, relapsed, calm>>

(* Shippers *)

Look(s) ==
  /\ shipper[s] = None
  /\ shipper' = [shipper EXCEPT ![s] =
       IF \/ Fault = "believes_the_last_message" /\ stream # <<>>
          \/ Fault = "believes_its_last_record" /\ stream # <<>> /\ stream[Len(stream)] = journal
       THEN [next |-> stream[Len(stream)] + 1, expect |-> Len(stream)]
       ELSE [next |-> Counted(stream) + 1, expect |-> Len(stream)]]
  /\ UNCHANGED <<journal, tail, ran, up, flight, stream, leaked, relapsed, calm>>

Publish(s) ==
  /\ shipper[s] # None
  /\ shipper[s].next <= IF Fault = "ships_before_sync" /\ tail THEN journal + 1 ELSE journal
  /\ flight' = flight \cup {[by |-> s, record |-> shipper[s].next, expect |-> shipper[s].expect]}
  /\ UNCHANGED <<journal, tail, ran, up, shipper, stream, leaked, relapsed, calm>>

Answer(m, accepted) ==                                \* heard by the shipper that still waits for it
  LET belief == shipper[m.by]
      waits == belief # None /\ belief.next = m.record /\ belief.expect = m.expect
  IN  \/ (~calm \/ ~waits) /\ UNCHANGED shipper        \* the answer is lost
      \/ /\ waits
         /\ shipper' = [shipper EXCEPT ![m.by] =
              IF accepted THEN [next |-> m.record + 1, expect |-> Len(stream')] ELSE None]

Arrive(s) ==                                          \* one of that shipper's messages
  /\ \E m \in {sent \in flight : sent.by = s} :
     LET fits == m.expect = Len(stream)
         leaks == ~fits /\ leaked < Leaks /\ ~calm
     IN  \/ /\ fits \/ leaks
            /\ stream' = Append(stream, m.record)
            /\ leaked' = IF fits THEN leaked ELSE leaked + 1
            /\ flight' = flight \ {m} \/ (~calm /\ flight' = flight)   \* it may arrive once more
            /\ Answer(m, TRUE)
         \/ /\ ~fits
            /\ UNCHANGED <<stream, leaked>>
            /\ flight' = flight \ {m}
            /\ Answer(m, FALSE)
  /\ UNCHANGED <<journal, tail, ran, up, relapsed, calm>>

Drop ==
  /\ ~calm
  /\ \E m \in flight : flight' = flight \ {m}
  /\ UNCHANGED <<journal, tail, ran, up, shipper, stream, leaked, relapsed, calm>>

Doubt(s) ==                                           \* time-out, reconnect, restart
  /\ ~calm /\ shipper[s] # None
  /\ shipper' = [shipper EXCEPT ![s] = None]
  /\ UNCHANGED <<journal, tail, ran, up, flight, stream, leaked, relapsed, calm>>

BecomeCalm ==
  /\ ~calm
  /\ calm' = TRUE
  /\ UNCHANGED <<journal, tail, ran, up, shipper, flight, stream, leaked, relapsed>>

Relapse ==                                            \* it lost the newest; everybody reconnects
  /\ ~calm /\ relapsed < Relapses /\ stream # <<>>
  /\ relapsed' = relapsed + 1
  /\ \E kept \in 0..(Len(stream) - 1) : stream' = SubSeq(stream, 1, kept)
  /\ shipper' = [s \in Shippers |-> None]
  /\ UNCHANGED <<journal, tail, ran, up, flight, leaked, calm>>

Next ==
  \/ BecomeCalm \/ Relapse
  \/ Write \/ Sync \/ Crash \/ RunEffects
  \/ \E s \in Shippers : Look(s) \/ Publish(s) \/ Arrive(s) \/ Doubt(s)
  \/ Drop

Spec == Init /\ [][Next]_vars

(* Outages end; a shipper goes on; what it sends then arrives. *)
Fair ==
  /\ WF_vars(BecomeCalm)
  /\ \A s \in Shippers :
       WF_vars(Look(s)) /\ WF_vars(Publish(s)) /\ WF_vars(Arrive(s))
LiveSpec == Spec /\ Fair
Symmetric == Permutations(Shippers)

-----------------------------------------------------------------------------
(* I10: a reader has applied a prefix of the journal, whatever the broker did. *)
ReplayIsAPrefix ==
  LET applied == Applied(stream)
  IN  Len(applied) <= journal /\ \A k \in DOMAIN applied : applied[k] = k
StreamHoldsFactsOnly == \A k \in DOMAIN stream : stream[k] <= journal
EffectsOfFactsOnly == ran <= journal

(* ... and after the last record it comes to the whole of it. *)
NothingIsLost == \A k \in 1..Records : (journal >= k) ~> (calm /\ Len(Applied(stream)) >= k)
=============================================================================
