------------------------------- MODULE Chain -------------------------------
(* The commit log as it is stored: is what a start reads what was written? *)
(*                                                                         *)
(* Commits takes it that the store keeps its slots.  Here they are lost,   *)
(* garbled, copied over each other or replaced by those of another log, at *)
(* any time and also between the look and the put of an attempt that       *)
(* sleeps.  A slot names its place and the digest of the slot before it,   *)
(* and is sealed with a digest of its own; a mark names a slot and its     *)
(* digest, a requeue record the commit that an attempt has left on.  A     *)
(* start believes what agrees with all of them, or it refuses and changes  *)
(* nothing, and so does every start after it.                              *)
(*                                                                         *)
(* The digest of a slot is the slot: two that differ have other digests.   *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Attempts,
  Damages,       \* at most
  Fault          \* "none", or the mutation that is checked to be caught

VARIABLES
  stored,        \* place -> the slot that is there, or None
  marks,         \* <<place, digest>> of slots whose writer lived to mark them
  records,       \* epoch -> the commit that its attempt has left on, or None
  attempt,       \* attempt -> what it knows and does
  damages,
  broken,        \* for the rules only: what was wrong with a log that a start believed in
  refused        \* for the rules only: has a start refused?

vars == <<stored, marks, records, attempt, damages, broken, refused>>

None == <<>>
Places == 1..(2 * Cardinality(Attempts))
Epochs == 1..Cardinality(Attempts)

(* A slot says more than is modelled: its place follows from the slots before it. *)
Slot(before, what) == [before |-> before, what |-> what, sealed |-> TRUE]
Other == [kind |-> "commit", by |-> "other"]         \* of another log, or changed

-----------------------------------------------------------------------------
(* Looking *)

Count ==                                             \* of the slots that a listing finds
  IF Fault = "holes_not_seen"
  THEN CHOOSE n \in {0} \cup Places :
         /\ n = 0 \/ stored[n] # None
         /\ \A m \in Places : m > n => stored[m] = None
  ELSE Cardinality({n \in Places : stored[n] # None})

Newest == IF Count = 0 THEN None ELSE stored[Count]
Before(n) == IF n = 1 THEN None ELSE stored[n - 1]

InPlace(n) ==
  IF stored[n] = None THEN Fault = "holes_not_seen"
  ELSE /\ stored[n].sealed \/ Fault = "seal_not_compared"
       /\ \/ stored[n].before = Before(n)
          \/ Fault = "digest_not_compared"
          \/ Fault = "holes_not_seen" /\ Before(n) = None

IsMarked(mark) ==
  CASE Fault = "marks_not_read" -> TRUE
    [] Fault = "marks_without_digest" -> stored[mark[1]] # None
    [] OTHER -> stored[mark[1]] = mark[2]

IsAsWritten == (\A n \in 1..Count : InPlace(n)) /\ \A mark \in marks : IsMarked(mark)

EpochAt(n) == Cardinality({m \in 1..n : stored[m] # None /\ stored[m].what.kind = "claim"})
CommitAt(n) ==                                       \* the newest one among the first n slots
  LET commits == {m \in 1..n : stored[m] # None /\ stored[m].what.kind = "commit"}
  IN  IF commits = {} THEN None ELSE stored[CHOOSE m \in commits : \A k \in commits : k <= m]

IsCommitted(record) == record.commit = None \/ \E n \in Places : stored[n] = record.commit

(* No attempt has left that the slots do not know of, and the last to leave left on what is there. *)
AgreesWithRecords ==
  LET left == {e \in Epochs : records[e] # None}
      last == IF Fault = "record_of_the_last_epoch_alone" THEN left \cap {EpochAt(Count)}
              ELSE {e \in left : \A other \in left : other <= e}
  IN  /\ \A e \in left : e <= EpochAt(Count)
      /\ \A e \in last : IsCommitted(records[e]) \/ Fault = "records_not_read"

-----------------------------------------------------------------------------
(* What the rules ask, whatever is looked at. *)

(* The slots from the first one to this one, as its writer knew them. *)
RECURSIVE Behind(_)
Behind(slot) == IF slot = None THEN <<>> ELSE Append(Behind(slot.before), slot)

IsForged ==                                          \* no writer ever knew such a log
  \/ \E n \in 1..Count : stored[n] = None \/ ~ stored[n].sealed
  \/ Behind(Newest) # [n \in 1..Count |-> stored[n]]
IsLacking ==                                         \* what is marked or recorded is not there
  \/ \E mark \in marks : stored[mark[1]] # mark[2]
  \/ \E e \in Epochs : records[e] # None /\ ~ IsCommitted(records[e])

-----------------------------------------------------------------------------
Init ==
  /\ stored = [n \in Places |-> None]
  /\ marks = {}
  /\ records = [e \in Epochs |-> None]
  /\ attempt = [a \in Attempts |->
       [at |-> "new", epoch |-> 0, head |-> 0, newest |-> None, commit |-> None]]
  /\ damages = 0
  /\ broken = {} /\ refused = FALSE

Become(a, fields) == attempt' = [attempt EXCEPT ![a] = fields @@ @]
(* `fields @@ @`: the named fields change, the others stay. *)

Start(a) ==                                          \* all is looked at before the claim
  /\ attempt[a].at = "new"
  /\ IF IsAsWritten /\ AgreesWithRecords
     THEN /\ Become(a, [at |-> "claiming", epoch |-> EpochAt(Count) + 1, head |-> Count,
                        newest |-> Newest, commit |-> CommitAt(Count)])
          /\ broken' = broken \cup (IF IsForged THEN {"forged"} ELSE {})
               \cup (IF IsLacking THEN {"lacking"} ELSE {}) \cup (IF refused THEN {"despite"} ELSE {})
          /\ UNCHANGED refused
     ELSE /\ Become(a, [at |-> "refused"])
          /\ refused' = TRUE
          /\ UNCHANGED broken
  /\ UNCHANGED <<stored, marks, records, damages>>

(* Put-if-absent behind what was newest when it looked, whatever has become of that. *)
Put(a, what, next, again) ==
  LET place == attempt[a].head + 1
      slot == Slot(attempt[a].newest, what)
  IN  /\ place \in Places
      /\ IF stored[place] = None
         THEN /\ stored' = [stored EXCEPT ![place] = slot]
              /\ Become(a, [at |-> next, head |-> place, newest |-> slot])
         ELSE /\ Become(a, [at |-> again])
              /\ UNCHANGED stored
      /\ UNCHANGED <<marks, records, damages, broken, refused>>

PutClaim(a) ==
  attempt[a].at = "claiming" /\ Put(a, [kind |-> "claim", by |-> a], "claimed", "new")

MarkSlot(a) ==                                       \* or its writer dies before, or gets no answer
  /\ attempt[a].at \in {"claimed", "committed"}
  /\ <<attempt[a].head, attempt[a].newest>> \notin marks
  /\ marks' = marks \cup {<<attempt[a].head, attempt[a].newest>>}
  /\ UNCHANGED <<stored, records, attempt, damages, broken, refused>>

(* What the attempt before has left on, or else the newest commit behind which this one claimed. *)
Restore(a) ==
  /\ attempt[a].at = "claimed"
  /\ LET before == attempt[a].epoch - 1
     IN  IF before = 0 THEN Become(a, [at |-> "running"]) /\ UNCHANGED <<records, refused>>
         ELSE IF records[before] = None
         THEN /\ records' = [records EXCEPT ![before] = [commit |-> attempt[a].commit]]
              /\ Become(a, [at |-> "running"])
              /\ UNCHANGED refused
         ELSE /\ Become(a, [at |-> IF IsCommitted(records[before]) THEN "running" ELSE "refused"])
              /\ refused' = (refused \/ ~ IsCommitted(records[before]))
              /\ UNCHANGED records
  /\ UNCHANGED <<stored, marks, damages, broken>>

(* A running attempt looks before it commits, and before it leaves: its slot is still the newest. *)
IsNewest(a) == IsAsWritten /\ Newest = attempt[a].newest

Publish(a) ==
  /\ attempt[a].at = "running" /\ IsNewest(a)
  /\ Become(a, [at |-> "publishing"])
  /\ UNCHANGED <<stored, marks, records, damages, broken, refused>>

PutCommit(a) ==
  attempt[a].at = "publishing" /\ Put(a, [kind |-> "commit", by |-> a], "committed", "fenced")

Leave(a) ==
  /\ attempt[a].at = "committed" /\ IsNewest(a)
  /\ records' = [records EXCEPT ![attempt[a].epoch] = [commit |-> attempt[a].newest]]
  /\ Become(a, [at |-> "left"])
  /\ UNCHANGED <<stored, marks, damages, broken, refused>>

(* What becomes of the store. *)
Damage(n, slot) ==
  /\ damages < Damages /\ stored[n] # slot
  /\ damages' = damages + 1
  /\ stored' = [stored EXCEPT ![n] = slot]
  /\ UNCHANGED <<marks, records, attempt, broken, refused>>

Lose(n) == Damage(n, None)
Copy(n, m) == stored[m] # None /\ Damage(n, stored[m])
Garble(n) ==                                         \* a changed bit, say
  stored[n] # None /\ Damage(n, [stored[n] EXCEPT !.what = Other, !.sealed = FALSE])
Replace(n) ==                                        \* by one of another log: well formed
  stored[n] # None /\ Damage(n, Slot(stored[n].before, Other))

Next ==
  \/ \E a \in Attempts :
       \/ Start(a) \/ PutClaim(a) \/ MarkSlot(a) \/ Restore(a)
       \/ Publish(a) \/ PutCommit(a) \/ Leave(a)
  \/ \E n \in Places : Lose(n) \/ Garble(n) \/ Replace(n) \/ \E m \in Places : Copy(n, m)

Spec == Init /\ [][Next]_vars
Symmetric == Permutations(Attempts)

-----------------------------------------------------------------------------
(* I8: what a start believes in was written like this, and lacks nothing that it could miss. *)
ReadAsItWasWritten == "forged" \notin broken
NothingIsLostInSilence == "lacking" \notin broken
(* A refusal lasts: nothing is written behind a log that was refused, which a start would believe. *)
RefusedStaysRefused == "despite" \notin broken
=============================================================================
