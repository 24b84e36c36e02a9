------------------------------ MODULE Commits ------------------------------
(* The checkpoint store: who may publish, and what a replacement restores. *)
(*                                                                         *)
(* Attempts of one job run beside each other: a replacement may start      *)
(* while the old one still runs, is stopped and wakes up late, or is dead. *)
(* They share a store that offers put-if-absent, and nothing more.  A put  *)
(* is a message in flight: it may take effect at once, late (its sender    *)
(* long dead or no longer waiting) or never, and its answer may be lost.   *)
(* So a sender knows the outcome only by reading the slot back.            *)
(*                                                                         *)
(* A generation is a directory: a part of each rank and a manifest, each   *)
(* written, then durable.  A slot or a requeue record is seen before it is *)
(* durable, too; who puts one believes in it only when it is.  A power     *)
(* loss takes what is not durable.                                         *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Attempts,
  Ranks,
  Saves,         \* saves of one attempt, at most
  PowerLosses,   \* at most
  Cleans,        \* may a clean-up run?
  Fault          \* "none", or the mutation that is checked to be caught

VARIABLES
  slots,         \* commits/00000001.json ...: claims and commits in one order
  flight,        \* puts on their way
  requeue,       \* epoch -> the requeue record of that attempt, or None
  parts,         \* generation -> rank -> "no" | "written" | "durable"
  manifest,      \* generation -> "no" | "written" | "durable"
  writers,       \* generation -> who wrote into its directory (for the rules only)
  attempt,       \* attempt -> what it knows and does
  synced,        \* how many slots are durable, and which requeue records
  cleaner,       \* what a clean-up run has read so far: first the newest epoch, then the commits
  losses

vars == <<slots, flight, requeue, parts, manifest, writers, attempt, synced, cleaner, losses>>

None == <<>>
Fresh == [reads |-> 0, epoch |-> 0, commits |-> 0]    \* a clean-up that has read nothing yet
Nothing == <<0, 0>>                                  \* "no generation": a fresh job
Epochs == 1..(Cardinality(Attempts) + IF Fault = "put_replaces" THEN 2 ELSE 0)
Generations == (Epochs \cup {0}) \X (1..Saves)       \* epoch and number of the save
GenerationOf(a) ==
  <<IF Fault = "id_without_epoch" THEN 0 ELSE attempt[a].epoch, attempt[a].saves>>

Claim(a, e) == [kind |-> "claim", by |-> a, epoch |-> e, generation |-> Nothing]
Commit(a, e, g) == [kind |-> "commit", by |-> a, epoch |-> e, generation |-> g]
Put(n, entry) == [slot |-> n, entry |-> entry]

EpochAt(n) ==                                         \* newest epoch claimed in the first n slots
  IF \E i \in 1..n : slots[i].kind = "claim"
  THEN slots[CHOOSE i \in 1..n : slots[i].kind = "claim"
             /\ \A j \in (i + 1)..n : slots[j].kind # "claim"].epoch
  ELSE 0
NewestAt(n) ==                                        \* newest generation committed in them
  IF \E i \in 1..n : slots[i].kind = "commit"
  THEN slots[CHOOSE i \in 1..n : slots[i].kind = "commit"
             /\ \A j \in (i + 1)..n : slots[j].kind # "commit"].generation
  ELSE Nothing
Shorter(n, m) == IF n < m THEN n ELSE m
CommittedIn(n) == {slots[i].generation : i \in {j \in 1..n : slots[j].kind = "commit"}}
Committed == CommittedIn(Len(slots))

Complete(g) == manifest[g] = "durable" /\ \A r \in Ranks : parts[g][r] = "durable"

-----------------------------------------------------------------------------
Init ==
  /\ slots = <<>>
  /\ flight = {}
  /\ requeue = [e \in Epochs |-> None]
  /\ parts = [g \in Generations |-> [r \in Ranks |-> "no"]]
  /\ manifest = [g \in Generations |-> "no"]
  /\ writers = [g \in Generations |-> {}]
  /\ attempt = [a \in Attempts |-> [
       at |-> "new", slot |-> 0, epoch |-> 0, claimed |-> 0, saves |-> 0,
       told |-> {}, newest |-> Nothing, restored |-> None]]
  /\ synced = [slots |-> 0, requeue |-> {}]
  /\ cleaner = Fresh
  /\ losses = 0

Become(a, fields) == attempt' = [attempt EXCEPT ![a] = fields @@ @]
(* `fields @@ @`: the named fields change, the others stay. *)

(* What comes for a slot that is taken is refused, and might as well never come. *)
StillUnderWay(puts, taken) ==
  IF Fault = "put_replaces" THEN puts ELSE {m \in puts : m.slot > taken}

(* Put-if-absent: the store takes the first put of a slot and refuses the others. *)
Land ==
  /\ \E m \in flight :
       /\ slots' =
            CASE m.slot = Len(slots) + 1 -> Append(slots, m.entry)
              [] m.slot <= Len(slots) /\ Fault = "put_replaces" -> [slots EXCEPT ![m.slot] = m.entry]
              [] OTHER -> slots
       /\ flight' = StillUnderWay(flight \ {m}, Len(slots'))
  /\ UNCHANGED <<requeue, parts, manifest, writers, attempt, synced, cleaner, losses>>

SyncSlots ==                                          \* of the directory, hence of all that are there
  /\ synced.slots < Len(slots)
  /\ synced' = [synced EXCEPT !.slots = Len(slots)]
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, attempt, cleaner, losses>>

(* Whoever reads its slot back waits until it will last. *)
Settled(a) ==
  attempt[a].slot <= IF Fault = "believed_before_sync" THEN Len(slots) ELSE synced.slots

(* Claiming *)

SendClaim(a) ==                                       \* read the head, then put (or put again)
  /\ attempt[a].at \in {"new", "claiming"}
  /\ LET head == IF attempt[a].at = "new" THEN Len(slots) ELSE attempt[a].slot - 1
     IN  /\ head >= Len(slots)                        \* the slot is not taken, as far as it can see
         /\ flight' = flight \cup {Put(head + 1, Claim(a, EpochAt(head) + 1))}
         /\ Become(a, [at |-> "claiming", slot |-> head + 1])
  /\ UNCHANGED <<slots, requeue, parts, manifest, writers, synced, cleaner, losses>>

SettleClaim(a) ==                                     \* read the slot back: mine, or try the next
  /\ attempt[a].at = "claiming"
  /\ Settled(a)
  /\ LET entry == slots[attempt[a].slot]
     IN  IF entry.kind = "claim" /\ entry.by = a
         THEN Become(a, [at |-> "claimed", epoch |-> entry.epoch, claimed |-> attempt[a].slot])
         ELSE Become(a, [at |-> "new"])
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, synced, cleaner, losses>>

(* Restoring: the record of the attempt before; if it left none, one is put in its name. *)

Derive(a) ==
  /\ attempt[a].at = "claimed" /\ attempt[a].epoch > 1
  /\ requeue[attempt[a].epoch - 1] = None
  /\ IF Fault = "derived_not_recorded"
     THEN /\ Become(a, [at |-> "running", restored |-> NewestAt(attempt[a].claimed),
                        newest |-> NewestAt(attempt[a].claimed)])
          /\ UNCHANGED requeue
     ELSE /\ requeue' = [requeue EXCEPT ![attempt[a].epoch - 1] = NewestAt(attempt[a].claimed)]
          /\ UNCHANGED attempt
  /\ UNCHANGED <<slots, flight, parts, manifest, writers, synced, cleaner, losses>>

Used == {g \in Generations : \E r \in Ranks : parts[g][r] # "no"}

CheckpointRestored(a) ==
  /\ attempt[a].at = "claimed"
  /\ attempt[a].epoch > 1 => requeue[attempt[a].epoch - 1] # None
  /\ LET recorded == IF attempt[a].epoch = 1 THEN Nothing ELSE requeue[attempt[a].epoch - 1]
         chosen ==
           IF Fault = "restore_newest_directory" /\ Used # {}
           THEN CHOOSE g \in Used : \A h \in Used : h[1] < g[1] \/ (h[1] = g[1] /\ h[2] <= g[2])
           ELSE recorded
     IN  IF chosen = Nothing \/ chosen \in Committed \/ Fault = "restore_newest_directory"
         THEN Become(a, [at |-> "running", restored |-> chosen, newest |-> chosen])
         ELSE Become(a, [at |-> "refused"])
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, synced, cleaner, losses>>

(* Saving *)

SaveStarted(a) ==
  /\ attempt[a].at = "running" /\ attempt[a].saves < Saves
  /\ Become(a, [at |-> "saving", saves |-> attempt[a].saves + 1, told |-> {}])
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, synced, cleaner, losses>>

Write(a, r) ==
  /\ attempt[a].at = "saving"
  /\ parts[GenerationOf(a)][r] = "no"
  /\ parts' = [parts EXCEPT ![GenerationOf(a)][r] = "written"]
  /\ writers' = [writers EXCEPT ![GenerationOf(a)] = @ \cup {a}]
  /\ UNCHANGED <<slots, flight, requeue, manifest, attempt, synced, cleaner, losses>>

Sync(a, r) ==
  /\ attempt[a].at = "saving"
  /\ parts[GenerationOf(a)][r] = "written"
  /\ parts' = [parts EXCEPT ![GenerationOf(a)][r] = "durable"]
  /\ UNCHANGED <<slots, flight, requeue, manifest, writers, attempt, synced, cleaner, losses>>

Durable(a, r) ==                                      \* the rank's report
  /\ attempt[a].at = "saving"
  /\ r \notin attempt[a].told
  /\ parts[GenerationOf(a)][r] \in
       IF Fault = "durable_before_sync" THEN {"written", "durable"} ELSE {"durable"}
  /\ Become(a, [told |-> attempt[a].told \cup {r}])
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, synced, cleaner, losses>>

EntriesVerified(a) ==                                 \* all reported, all there: write the manifest
  /\ attempt[a].at = "saving"
  /\ attempt[a].told = Ranks \/ (Fault = "publish_unverified" /\ attempt[a].told # {})
  /\ Fault # "publish_unverified" => \A r \in Ranks : parts[GenerationOf(a)][r] # "no"
  /\ manifest[GenerationOf(a)] = "no"
  /\ manifest' = [manifest EXCEPT ![GenerationOf(a)] = "written"]
  /\ writers' = [writers EXCEPT ![GenerationOf(a)] = @ \cup {a}]
  /\ Become(a, [at |-> "verified"])
  /\ UNCHANGED <<slots, flight, requeue, parts, synced, cleaner, losses>>

SyncManifest(a) ==
  /\ attempt[a].at = "verified"
  /\ manifest[GenerationOf(a)] = "written"
  /\ manifest' = [manifest EXCEPT ![GenerationOf(a)] = "durable"]
  /\ UNCHANGED <<slots, flight, requeue, parts, writers, attempt, synced, cleaner, losses>>

(* Publishing *)

SendCommit(a) ==
  \/ /\ \/ attempt[a].at = "verified"
        \/ attempt[a].at = "fenced" /\ Fault = "publishes_when_fenced"
     /\ manifest[GenerationOf(a)] \in
          IF Fault = "manifest_not_synced" THEN {"written", "durable"} ELSE {"durable"}
     /\ IF /\ EpochAt(Len(slots)) > attempt[a].epoch
           /\ attempt[a].at = "verified" /\ Fault # "epoch_not_compared"
        THEN /\ Become(a, [at |-> "fenced"])          \* AttemptFenced
             /\ UNCHANGED flight
        ELSE /\ flight' = flight \cup
                  {Put(Len(slots) + 1, Commit(a, attempt[a].epoch, GenerationOf(a)))}
             /\ Become(a, [at |-> "publishing", slot |-> Len(slots) + 1])
     /\ UNCHANGED <<slots, requeue, parts, manifest, writers, synced, cleaner, losses>>
  \/ /\ attempt[a].at = "publishing"                  \* no answer: the same put again
     /\ attempt[a].slot > Len(slots)
     /\ flight' = flight \cup
          {Put(attempt[a].slot, Commit(a, attempt[a].epoch, GenerationOf(a)))}
     /\ UNCHANGED <<slots, requeue, parts, manifest, writers, attempt, synced, cleaner, losses>>

ManifestPublished(a) ==                               \* read the slot back: mine, or try the next
  /\ attempt[a].at = "publishing"
  /\ Settled(a)
  /\ LET entry == slots[attempt[a].slot]
     IN  IF entry = Commit(a, attempt[a].epoch, GenerationOf(a))
         THEN Become(a, [at |-> "running", newest |-> GenerationOf(a)])
         ELSE Become(a, [at |-> "verified"])
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, synced, cleaner, losses>>

Impatient(a) ==                                       \* mutation: no answer taken for a refusal
  /\ Fault = "not_read_back"
  /\ attempt[a].at = "publishing"
  /\ Become(a, [at |-> "verified"])
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, synced, cleaner, losses>>

SaveAbandoned(a) ==                                   \* too late; a put may be on its way
  /\ attempt[a].at \in {"saving", "verified", "publishing"}
  /\ Become(a, [at |-> "running"])
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, synced, cleaner, losses>>

RequeueRecorded(a) ==                                 \* put-if-absent; then the attempt has left
  /\ attempt[a].at \in {"running", "fenced"}
  /\ requeue' =
       IF requeue[attempt[a].epoch] = None
       THEN [requeue EXCEPT ![attempt[a].epoch] =
              IF Fault = "record_names_uncommitted" /\ attempt[a].saves > 0
              THEN GenerationOf(a) ELSE attempt[a].newest]
       ELSE requeue
  /\ Become(a, [at |-> IF Fault = "left_before_sync" THEN "left" ELSE "leaving"])
  /\ UNCHANGED <<slots, flight, parts, manifest, writers, synced, cleaner, losses>>

SyncRequeue(e) ==
  /\ requeue[e] # None /\ e \notin synced.requeue
  /\ synced' = [synced EXCEPT !.requeue = @ \cup {e}]
  /\ attempt' = [a \in Attempts |->
       IF attempt[a].at = "leaving" /\ attempt[a].epoch = e
       THEN [at |-> "left"] @@ attempt[a] ELSE attempt[a]]
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, cleaner, losses>>

Crash(a) ==
  /\ attempt[a].at \notin {"new", "left", "dead"}
  /\ Become(a, [at |-> "dead"])
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, synced, cleaner, losses>>

(* A power loss: the store forgets what was not durable, and whoever was there is dead. *)
PowerLoss ==
  /\ losses < PowerLosses
  /\ losses' = losses + 1
  /\ parts' = [g \in Generations |-> [r \in Ranks |->
                IF parts[g][r] = "durable" THEN "durable" ELSE "no"]]
  /\ manifest' = [g \in Generations |-> IF manifest[g] = "durable" THEN "durable" ELSE "no"]
  /\ attempt' = [a \in Attempts |->
       IF attempt[a].at \in {"new", "left"} THEN attempt[a]
       ELSE [at |-> "dead"] @@ attempt[a]]
  /\ slots' = SubSeq(slots, 1, synced.slots)
  /\ requeue' = [e \in Epochs |-> IF e \in synced.requeue THEN requeue[e] ELSE None]
  /\ UNCHANGED <<flight, writers, synced, cleaner>>

(* Clean-up, from anywhere: reads the newest epoch, then the commits, deletes piece by piece, later. *)

ReadEpoch ==
  /\ Cleans /\ cleaner.reads = IF Fault = "reads_swapped" THEN 1 ELSE 0
  /\ cleaner' = [cleaner EXCEPT !.reads = @ + 1, !.epoch = EpochAt(Len(slots))]
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, attempt, synced, losses>>

ReadCommits ==
  /\ Cleans /\ cleaner.reads = IF Fault = "reads_swapped" THEN 0 ELSE 1
  /\ cleaner' = [cleaner EXCEPT !.reads = @ + 1, !.commits = Len(slots)]
  /\ UNCHANGED <<slots, flight, requeue, parts, manifest, writers, attempt, synced, losses>>

MayGo(g) ==
  /\ cleaner.reads = 2
  /\ g \notin CommittedIn(Shorter(cleaner.commits, Len(slots)))
  /\ Fault # "clean_live_epoch" => g[1] < cleaner.epoch

DeletePart(g, r) ==
  /\ MayGo(g) /\ parts[g][r] # "no"
  /\ parts' = [parts EXCEPT ![g][r] = "no"]
  /\ UNCHANGED <<slots, flight, requeue, manifest, writers, attempt, synced, cleaner, losses>>

DeleteManifest(g) ==
  /\ MayGo(g) /\ manifest[g] # "no"
  /\ manifest' = [manifest EXCEPT ![g] = "no"]
  /\ UNCHANGED <<slots, flight, requeue, parts, writers, attempt, synced, cleaner, losses>>

Next ==
  \/ Land \/ SyncSlots \/ (\E e \in Epochs : SyncRequeue(e))
  \/ \E a \in Attempts :
       \/ SendClaim(a) \/ SettleClaim(a) \/ Derive(a) \/ CheckpointRestored(a)
       \/ SaveStarted(a) \/ EntriesVerified(a) \/ SyncManifest(a)
       \/ SendCommit(a) \/ ManifestPublished(a) \/ Impatient(a)
       \/ SaveAbandoned(a) \/ RequeueRecorded(a) \/ Crash(a)
       \/ \E r \in Ranks : Write(a, r) \/ Sync(a, r) \/ Durable(a, r)
  \/ PowerLoss
  \/ ReadEpoch \/ ReadCommits
  \/ \E g \in Generations : DeleteManifest(g) \/ \E r \in Ranks : DeletePart(g, r)

Spec == Init /\ [][Next]_vars
Symmetric == Permutations(Attempts) \cup Permutations(Ranks)
OneUnderWay == Cardinality(flight) <= 1               \* a bound, for more attempts

-----------------------------------------------------------------------------
(* I7: behind the claim of an epoch no older epoch has a commit. *)
FencedPublishNothing ==
  \A i, j \in DOMAIN slots :
    i < j /\ slots[i].kind = "claim" /\ slots[j].kind = "commit" => slots[j].epoch >= slots[i].epoch
OneOwnerPerEpoch ==
  \A a, b \in Attempts : a # b /\ attempt[a].epoch > 0 => attempt[a].epoch # attempt[b].epoch
OneCommitPerGeneration ==
  \A i, j \in DOMAIN slots :
    i # j /\ slots[i].kind = "commit" /\ slots[j].kind = "commit"
      => slots[i].generation # slots[j].generation

(* I5: what is committed was verified whole and made durable, and stays so. *)
CommittedIsComplete == \A g \in Committed : Complete(g)

(* I3, second half *)
DirectoryHasOneWriter == \A g \in Generations : Cardinality(writers[g]) <= 1

(* I8: what is restored is what the record names, and it is committed. *)
RestoredIsRecorded ==
  \A a \in Attempts :
    attempt[a].restored # None =>
      /\ attempt[a].restored = Nothing \/ attempt[a].restored \in Committed
      /\ attempt[a].epoch = 1 => attempt[a].restored = Nothing
      /\ attempt[a].epoch > 1 /\ requeue[attempt[a].epoch - 1] # None
           => attempt[a].restored = requeue[attempt[a].epoch - 1]
NeverRefused == \A a \in Attempts : attempt[a].at # "refused"

(* What an attempt knows to be committed is committed: nothing committed is ever lost. *)
CommittedStays ==
  \A a \in Attempts : attempt[a].newest # Nothing => attempt[a].newest \in Committed
(* What an attempt has left to the next one is there. *)
RecordStays ==
  \A a \in Attempts : attempt[a].at = "left" => requeue[attempt[a].epoch] # None
=============================================================================
