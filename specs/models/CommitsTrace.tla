---------------------------- MODULE CommitsTrace ----------------------------
(* Is what the code did a behaviour of `Commits`?                          *)
(*                                                                         *)
(* `Histories` holds runs of attempts and a clean-up at one store (written *)
(* by drainfsm_kit): a step names the action that the code took, and says  *)
(* what the store holds then, and what the attempts and the clean-up know. *)
EXTENDS Commits, Histories

VARIABLES
  history,       \* which one
  ahead          \* what is left of it

-----------------------------------------------------------------------------
NextStep == ahead[1]

Taken(action, a, r, g) ==
  CASE action = "Land" -> Land
    [] action = "SyncSlots" -> SyncSlots
    [] action = "SendClaim" -> SendClaim(a)
    [] action = "SettleClaim" -> SettleClaim(a)
    [] action = "Derive" -> Derive(a)
    [] action = "CheckpointRestored" -> CheckpointRestored(a)
    [] action = "SaveStarted" -> SaveStarted(a)
    [] action = "Write" -> Write(a, r)
    [] action = "Sync" -> Sync(a, r)
    [] action = "Durable" -> Durable(a, r)
    [] action = "EntriesVerified" -> EntriesVerified(a)
    [] action = "SyncManifest" -> SyncManifest(a)
    [] action = "SendCommit" -> SendCommit(a)
    [] action = "ManifestPublished" -> ManifestPublished(a)
    [] action = "RequeueRecorded" -> RequeueRecorded(a)
    [] action = "SyncRequeue" -> SyncRequeue(g[1])
    [] action = "Crash" -> Crash(a)
    [] action = "ReadEpoch" -> ReadEpoch
    [] action = "ReadCommits" -> ReadCommits
    [] action = "Surveyed" -> UNCHANGED vars          \* what the clean-up makes of what it read
    [] action = "DeletePart" -> DeletePart(g, r)
    [] action = "DeleteManifest" -> DeleteManifest(g)
    [] OTHER -> FALSE                                 \* an error that no attempt should meet

AgreesNow(after) ==
  /\ [i \in DOMAIN slots' |->
       <<slots'[i].kind, slots'[i].by, slots'[i].epoch, slots'[i].generation>>] = after.slots
  /\ {<<g[1], g[2], r>> : g \in Generations, r \in Ranks} \cap after.parts = after.parts
  /\ \A g \in Generations :
       /\ \A r \in Ranks : parts'[g][r] # "no" <=> <<g[1], g[2], r>> \in after.parts
       /\ manifest'[g] # "no" <=> g \in after.manifests
  /\ {<<e, requeue'[e]>> : e \in {e \in Epochs : requeue'[e] # None}} = after.requeue
  /\ \A a \in Attempts :
       /\ attempt'[a].epoch = after.epochs[a]
       /\ attempt'[a].newest = after.newest[a]
  /\ (after.surveyed.epoch > 0) =>
       /\ cleaner'.epoch = after.surveyed.epoch
       /\ CommittedIn(cleaner'.commits) = after.surveyed.committed

TraceInit ==
  /\ history \in DOMAIN Recorded
  /\ ahead = Recorded[history]
  /\ Init

Take ==
  /\ ahead # <<>>
  /\ Taken(NextStep.action, NextStep.attempt, NextStep.rank, NextStep.generation)
  /\ AgreesNow(NextStep.after)
  /\ ahead' = Tail(ahead)
  /\ UNCHANGED history

TraceSpec == TraceInit /\ [][Take]_<<vars, history, ahead>>

Told == PrintT(<<"left", history, Len(ahead)>>)
=============================================================================
