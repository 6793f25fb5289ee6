//! The table of mutants.

macro_rules! mutants {
    ($($layer:ident { $($variant:ident $name:literal in $workload:literal within $seeds:literal: $bug:literal;)* })*) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(feature = "enabled", derive(Debug))]
        pub enum Mutant {
            $($(#[doc = $bug] $variant,)*)*
        }

        /// The layer that a mutant is in.
        #[cfg(feature = "enabled")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Layer {
            $(#[doc = concat!("The crate or crates of the layer ", stringify!($layer), ".")] $layer,)*
        }

        #[cfg(feature = "enabled")]
        impl Mutant {
            /// All mutants.
            pub const ALL: &[Mutant] = &[$($(Mutant::$variant,)*)*];

            /// Returns the mutant's row of the table.
            pub const fn row(self) -> Row {
                match self {
                    $($(Mutant::$variant => Row {
                        layer: Layer::$layer,
                        name: $name,
                        workload: $workload,
                        seeds: $seeds,
                        bug: $bug,
                    },)*)*
                }
            }
        }
    };
}

/// A row of the table.
#[cfg(feature = "enabled")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    pub layer: Layer,
    /// The name on the command line.
    pub name: &'static str,
    /// The workload of `mitra sim` that finds the mutant.
    pub workload: &'static str,
    /// The number of seeds, from 0, within which the workload finds the mutant.
    pub seeds: u64,
    /// The wrong behaviour, which replaces the rule that the mutant breaks.
    pub bug: &'static str,
}

mutants! {
    Transport {
        FenceIgnored "fence-ignored" in "rc" within 100: "A request with FENCE does not wait for earlier READs and atomics.";
        HalfCircleOffByOne "half-circle-off-by-one" in "packets" within 100: "A PSN that is half of all PSNs before the expected one is taken for one after it.";
        GapExecuted "gap-executed" in "rc" within 100: "The responder executes the packet after a lost one.";
        DuplicateAtomicExecuted "duplicate-atomic-executed" in "rc" within 100: "A copy of an atomic is executed again.";
        DuplicateWritePlaced "duplicate-write-placed" in "rc" within 100: "A copy of a WRITE is placed again.";
        DuplicateSendDelivered "duplicate-send-delivered" in "rc" within 100: "A copy of a SEND takes another receive.";
        AtomicWithoutRoom "atomic-without-room" in "packets" within 100: "An atomic is executed although there is no room for its saved result.";
        ReadWithoutRoom "read-without-room" in "packets" within 100: "A READ beyond the agreed number of outstanding ones is answered.";
        OneResultSaved "one-result-saved" in "packets" within 100: "Only the result of the last atomic is saved.";
        ResultOfAnotherAtomic "result-of-another-atomic" in "packets" within 100: "A copy of an atomic is answered with the last saved result, whatever its PSN.";
        ForeignRequestExecuted "foreign-request-executed" in "packets" within 100: "A request from another address than the peer's is executed.";
        ForeignResponseAccepted "foreign-response-accepted" in "packets" within 100: "A response from another address than the peer's is accepted.";
        NumberUsedAgain "number-used-again" in "packets" within 100: "The number of a destroyed queue pair is used again at once.";
        ErrorStateAnswers "error-state-answers" in "packets" within 100: "A queue pair that was moved to ERR sends the answers that were due.";
        BoundsOffByOne "bounds-off-by-one" in "packets" within 100: "An access may end one byte behind its region.";
        RevokedKeyValid "revoked-key-valid" in "packets" within 100: "The key of a deregistered region stays valid.";
        DomainUnchecked "domain-unchecked" in "packets" within 100: "A key of another protection domain is accepted.";
        RightsUnchecked "rights-unchecked" in "packets" within 100: "A region is written without the right to write.";
        WriteLengthUnchecked "write-length-unchecked" in "packets" within 100: "A WRITE may be shorter than the length in its header.";
        SendBeyondReceive "send-beyond-receive" in "packets" within 100: "A SEND that is longer than its receive is not refused as too long.";
        ImmediateWithoutReceive "immediate-without-receive" in "rc" within 100: "A WRITE with immediate data is executed without a receive.";
        NakAcknowledgesItself "nak-acknowledges-itself" in "rc" within 100: "A NAK acknowledges the PSN that it refuses.";
        AckCompletesFetch "ack-completes-fetch" in "rc" within 100: "An acknowledgement completes a READ or an atomic whose response is missing.";
        ReadDataOutOfOrder "read-data-out-of-order" in "rc" within 100: "The data of a READ is accepted although earlier data is missing.";
        ReadResumedAtStart "read-resumed-at-start" in "rc" within 100: "A READ of which a part has arrived continues with the first bytes again.";
        FetchesOffByOne "fetches-off-by-one" in "rc" within 100: "The requester has one READ or atomic more outstanding than agreed.";
        FetchesKeptAtRetransmission "fetches-kept-at-retransmission" in "rc" within 100: "A retransmission still counts the READs and atomics that it sends again as outstanding.";
        RetriesNotRestored "retries-not-restored" in "rc" within 100: "Progress does not restore the number of retransmissions.";
        RnrRetriesNotRestored "rnr-retries-not-restored" in "rc" within 500: "Progress does not restore the number of RNR retries.";
        CopyUnanswered "copy-unanswered" in "packets" within 100: "A copy of a SEND or WRITE is not acknowledged.";
        LastReadUnanswered "last-read-unanswered" in "packets" within 100: "A copy of the last READ is not answered.";
        ReadCopyShortened "read-copy-shortened" in "packets" within 100: "A copy of a READ of several packets is answered with one.";
        ReadNotCounted "read-not-counted" in "packets" within 100: "A READ does not count in the message sequence number.";
        ErrorRaisesNoEvent "error-raises-no-event" in "packets" within 100: "A completion in error raises no event on a queue that is armed for solicited ones.";
        SolicitedEventLost "solicited-event-lost" in "packets" within 100: "The completion of a receive does not say that its message asks for an event.";
        LengthOfLastPacket "length-of-last-packet" in "rc" within 100: "A WRITE with immediate of several packets is received with the length of its last packet.";
        ReadChunkMoved "read-chunk-moved" in "rc" within 3000: "A READ that is resumed in the middle of a chunk asks for bytes beyond the end of the chunk.";
        RnrNakCopyCounts "rnr-nak-copy-counts" in "rc" within 15000: "A copy of an RNR NAK takes a retry.";
        EntrySkipKept "entry-skip-kept" in "failover" within 100: "A packet that begins inside a scatter entry and ends in the next one leaves out the first bytes of that one too.";
        TimerStoppedByProgress "timer-stopped-by-progress" in "rc" within 100: "Progress stops the retransmission timer although packets are unacknowledged.";
    }
    Failover {
        TornWriteFromByteZero "torn-write-from-byte-zero" in "failover" within 200: "A WRITE of which a part was executed is sent again from its first byte.";
        TornWriteSkipsOneMore "torn-write-skips-one-more" in "failover" within 100: "A WRITE of which a part was executed continues one packet too late.";
        RestWrittenAtStart "rest-written-at-start" in "failover" within 100: "The rest of a WRITE is written to the address of its first byte.";
        PerhapsFencedReadRepeated "perhaps-fenced-read-repeated" in "failover-cases" within 100: "A READ is repeated although a later request with FENCE may have begun to change memory.";
        FencedReadRepeated "fenced-read-repeated" in "failover-cases" within 100: "A READ is repeated although a later request with FENCE has changed memory.";
        DeadNicTrusted "dead-nic-trusted" in "failover-cases" within 100: "The data of a READ counts as complete although the NIC that received it has died.";
        AmbiguousWriteRepeated "ambiguous-write-repeated" in "failover-cases" within 100: "A WRITE that may have been executed is sent again.";
        AmbiguousAtomicRepeated "ambiguous-atomic-repeated" in "failover-cases" within 300: "An atomic that may have been executed is sent again.";
        ValueOfAnotherAtomic "value-of-another-atomic" in "failover" within 100: "An atomic gets the first saved result, whatever its PSN.";
        RecoveredValueNotStored "recovered-value-not-stored" in "failover" within 100: "The value of an atomic, recovered from a saved result, is not stored in local memory.";
        ExecutedBehindErrorFlushed "executed-behind-error-flushed" in "failover-cases" within 100: "A request that was executed behind one that failed ends as flushed.";
        TornBehindErrorFlushed "torn-behind-error-flushed" in "failover-cases" within 100: "A partly executed request behind one that failed ends as flushed.";
        EarlierPartForgotten "earlier-part-forgotten" in "failover-cases" within 300: "A request of which an earlier rail may have executed a part ends as flushed.";
        QueueGoesOnAfterError "queue-goes-on-after-error" in "failover" within 100: "The send queue is not halted by an error of a recovery.";
        CompletionsOfEarlierEpochKept "completions-of-earlier-epoch-kept" in "failover" within 100: "The record of completed requests is kept for the next epoch.";
        ReadCountsOnePacket "read-counts-one-packet" in "failover" within 100: "The ledger counts one PSN for a READ of several packets.";
        LastPacketMissed "last-packet-missed" in "failover" within 100: "A request counts as executed only if the packet after its last one was.";
        RecordCountsOneMore "record-counts-one-more" in "failover" within 100: "The receiver record proves one message more than it has.";
        LogEntryProvesNext "log-entry-proves-next" in "failover-cases" within 100: "An entry of the completion log proves the next request too.";
        MissingEntryIgnored "missing-entry-ignored" in "failover-cases" within 200: "A missing entry of the completion log does not bound what was executed.";
        LogOfEarlierEpochRead "log-of-earlier-epoch-read" in "failover" within 100: "Entries of earlier epochs count in the completion log.";
        SavedResultsLeftOut "saved-results-left-out" in "failover" within 100: "The evidence has no saved results.";
        PsnLeftOut "psn-left-out" in "failover" within 100: "The evidence has no PSN.";
        FenceSkipped "fence-skipped" in "failover-cases" within 100: "The rail that failed is not fenced.";
        HungNicNotReset "hung-nic-not-reset" in "failover" within 100: "A NIC that does not answer counts as fenced without a reset.";
        ReceivesOfEarlierEpochCounted "receives-of-earlier-epoch-counted" in "failover" within 100: "The receiver record goes on from one epoch to the next.";
        LengthNotAwaited "length-not-awaited" in "failover" within 100: "A WRITE with immediate is received before the peer has said how many bytes earlier rails placed.";
        ReceivesPostedLate "receives-posted-late" in "failover" within 300: "The receives are posted on the new rail after the evidence is sent.";
        EarlierBytesNotCounted "earlier-bytes-not-counted" in "failover-cases" within 200: "The length of a WRITE with immediate lacks the bytes that an earlier rail placed.";
        LocalKeysNotTranslated "local-keys-not-translated" in "failover" within 100: "Requests on another rail name local memory by the keys of rail 0.";
        RemoteKeysOfFirstRail "remote-keys-of-first-rail" in "failover" within 100: "Requests on another rail name the peer's memory by the keys of rail 0.";
        ReceiveNotConfirmed "receive-not-confirmed" in "failover-cases" within 500: "In mode durable, a message completes before the peer has seen it.";
        FirstRailDecidesDurability "first-rail-decides-durability" in "failover" within 500: "In mode durable, the NIC of rail 0 decides whether completions on any rail await the peer.";
        OneConfirmation "one-confirmation" in "rail-questions" within 1000: "A rail is condemned after one question that only another rail has answered.";
        StaleAnswerCounts "stale-answer-counts" in "rail-questions" within 20000: "An answer that arrives after the timeout confirms, too.";
        ClockCondemns "clock-condemns" in "rail-questions" within 100: "A rail without an answer is condemned after some time, although no other rail has answered.";
        StarvedEndCondemns "starved-end-condemns" in "rail-questions" within 20000: "A rail is condemned when the timeout has passed after the confirmations, although one of the ends got no processor meanwhile.";
        LagNeverDecays "lag-never-decays" in "rail-questions" within 100: "The longest round trip of a rail counts for ever.";
        ClosedVqpAnswers "closed-vqp-answers" in "rail-questions" within 100: "A closed end answers questions.";
        LowerBallotAccepted "lower-ballot-accepted" in "rail-negotiation" within 2000: "An end accepts a ballot below the one that it has promised.";
        EarlierResumeTaken "earlier-resume-taken" in "rail-negotiation" within 2000: "The Resume of an earlier ballot confirms the present move.";
        MoveBeforeConfirmation "move-before-confirmation" in "rail-negotiation" within 2000: "An end begins the next move before the peer has confirmed the last one.";
        RefusalNotRepeated "refusal-not-repeated" in "rail-negotiation" within 4000: "A refusal is not sent again when the refused proposal arrives again.";
        PacketsUnbounded "packets-unbounded" in "ledger" within 300: "The packets of the requests in flight are not bounded, so that their PSNs are ambiguous.";
        LengthOfLostResume "length-of-lost-resume" in "failover-limits" within 1000: "The evidence does not repeat the length that a lost Resume had told.";
        FenceEndsAtEmptyPoll "fence-ends-at-empty-poll" in "failover-limits" within 1000: "The fence ends at the first poll that finds no completion.";
        ClosedWithoutMarker "closed-without-marker" in "failover-cases" within 4000: "A closed vQP does not destroy a queue pair whose markers have not completed.";
        FenceAwaitsSendQueueOnly "fence-awaits-send-queue-only" in "failover-limits" within 1000: "The fence does not wait until the receive queue is flushed.";
        ResponderWithoutMarker "responder-without-marker" in "failover-limits" within 5000: "The fence of a queue pair with a shared backup does not wait until the receive queue is flushed.";
        AnotherReceiveConfirms "another-receive-confirms" in "failover-limits" within 5000: "In mode durable, one received message confirms those behind it too.";
        FirstRailDecidesPlacement "first-rail-decides-placement" in "failover-limits" within 2000: "The NIC of rail 0 decides whether a completion on any rail proves that data is in memory.";
        NewQpOfAnotherBallot "new-queue-pair-of-another-ballot" in "failover-limits" within 2000: "A new queue pair is connected to the peer's queue pair of an earlier ballot.";
        NumbersUnbounded "numbers-unbounded" in "failover-limits" within 1000: "More operations are posted than entries of the completion log can number.";
        DeregisteredKeyKept "deregistered-key-kept" in "revocation" within 2000: "The value of a recovered atomic is stored in memory that was deregistered.";
        DeregisteredOnOneRail "deregistered-on-one-rail" in "revocation" within 1000: "A region is deregistered on the first rail only.";
        InvalidatedOnOneRail "invalidated-on-one-rail" in "revocation" within 2000: "A window is invalidated on the active rail only.";
        RefusedReadFlushes "refused-read-flushes" in "revocation" within 2000: "The requests behind a READ that was refused, perhaps when it was repeated, end as flushed.";
        EndedOperationsJudged "ended-operations-judged" in "revocation" within 20000: "The peer's evidence contradicts requests that an error before them has ended, although they were executed.";
        HomeNotFenced "home-not-fenced" in "homes" within 20: "The home moves while queue pairs are bound on another rail.";
        HomeMovesBeforeMarkers "home-moves-before-markers" in "homes" within 2000: "The home moves when the other queue pairs are in ERR, before their markers complete.";
        TornFencedWriteForgotten "torn-fenced-write-forgotten" in "failover-cases" within 4000: "A READ is repeated although a part of a later WRITE with FENCE was executed.";
        EveryEntryCut "every-entry-cut" in "failover" within 100: "The rest of a WRITE of which a part was executed lacks the front of every gather entry.";
        FirstTearForgotten "first-tear-forgotten" in "failover" within 1000: "The length of a WRITE with immediate that was torn twice lacks the bytes of the first rail.";
        RestKeepsItsPackets "rest-keeps-its-packets" in "failover" within 100: "The rest of a WRITE of which a part was executed counts as many packets as the whole.";
        EvidenceSentOnce "evidence-sent-once" in "rail-negotiation" within 200: "An end that has moved does not send its evidence again.";
        LastAcknowledgementTrusted "last-acknowledgement-trusted" in "failover" within 5000: "The last acknowledged operation is not compared with the completion log of a NIC that acknowledges before placement.";
        PlacedOfEarlierEpochTaken "placed-of-earlier-epoch-taken" in "failover-cases" within 1500: "In mode durable, what the peer has seen of an earlier epoch confirms operations of the present one.";
        OneFetchTooMany "one-fetch-too-many" in "failover-cases" within 2000: "The vQP posts one READ or atomic more than the peer saves results.";
        StandbyNotReset "standby-not-reset" in "revocation" within 4000: "A standby NIC that does not answer counts as unable to grant an invalidated key without a reset.";
        RefusalConfirmsEarlier "refusal-confirms-earlier" in "ledger" within 100: "In mode durable, the refusal of a request confirms the operations before it, which the peer may not have seen.";
        MemberRefusalConfirmsEarlier "member-refusal-confirms-earlier" in "ledger" within 100: "In mode durable, the refusal of one queue pair's request on a shared backup confirms the operations of the others before it.";
        EvidenceBindsAgain "evidence-binds-again" in "homes" within 200: "Evidence that is sent again binds the queue pair of its rail at the home again.";
        HealedNicStaysDead "healed-nic-stays-dead" in "rail-negotiation" within 200: "A NIC that has recovered still counts as dead.";
    }
    Objects {
        AnnouncementIgnored "announcement-ignored" in "recoverable-cell" within 5000: "After a failure, an owner looks for its change in the word only, not in its announcement.";
        OverwriterSilent "overwriter-silent" in "recoverable-cell" within 1000: "An owner overwrites the word of another without a mark in the other's announcement.";
        LostSwapTakenAsFailed "lost-swap-taken-as-failed" in "recoverable-cell" within 200: "A compare-and-swap whose result is lost is taken for one that failed.";
        RecordUnchecked "record-unchecked" in "indirect-cell" within 40000: "A reader does not check that the word still names the record that it has read.";
        NamedRecordOverwritten "named-record-overwritten" in "indirect-cell" within 200: "An owner writes the record that the word names.";
        UnknownAddRepeated "unknown-add-repeated" in "recoverable-counter" within 200: "An add whose outcome is unknown is posted again.";
        FieldCarries "field-carries" in "recoverable-counter" within 200: "A requester's field carries into the next one.";
        LateArrivalCounted "late-arrival-counted" in "latch" within 200: "An arrival at an earlier identity of the latch counts for the present one.";
        OwnLockUnrecognized "own-lock-unrecognized" in "mutex" within 200: "A client does not recognize the lock that an earlier copy of its request took.";
        WordAssumedFresh "word-assumed-fresh" in "mutex" within 500: "A client that has not seen the word takes it for one that was never locked.";
        UnlockNotRepeated "unlock-not-repeated" in "mutex" within 200: "An unlock whose outcome is unknown is taken for done.";
        FlagWrittenFirst "flag-written-first" in "mailbox" within 200: "The flag of a message is written before its words.";
        UnreadMessageOverwritten "unread-message-overwritten" in "mailbox" within 200: "A message is written although the reader has not consumed the last one.";
    }
    Filter {
        LastRequestRepeated "last-request-repeated" in "endpoint-filter" within 200: "A copy of the last request is executed.";
        EarlierFilterTrusted "earlier-filter-trusted" in "endpoint-filter" within 200: "A grant of an earlier incarnation of the filter is accepted.";
        RequestsReordered "requests-reordered" in "endpoint-filter" within 200: "A request is executed although an earlier one has not arrived.";
        GrantsUnnumbered "grants-unnumbered" in "endpoint-filter" within 200: "All grants have the same number.";
        ReplyForgottenEarly "reply-forgotten-early" in "endpoint-filter" within 200: "The filter drops one reply more than the sender has confirmed.";
        UsedRowEvicted "used-row-evicted" in "endpoint-filter" within 200: "The row of a node is given to another one before its lease has ended.";
        UnknownCallRepeated "unknown-call-repeated" in "endpoint-filter" within 200: "A request under a lost grant is sent again under the next one.";
        EarlierOfferTaken "earlier-offer-taken" in "endpoint-filter" within 200: "A sender takes the offer for an earlier attempt.";
        ReplyTakenForAnother "reply-taken-for-another" in "endpoint-filter" within 200: "A reply ends the first outstanding request, whatever its number.";
        LeaseNotRenewed "lease-not-renewed" in "endpoint-filter" within 4000: "A request does not renew the lease of its node.";
        BitIgnored "bit-ignored" in "filter" within 200: "A one-bit filter executes every request.";
    }
    Consensus {
        PromiseBroken "promise-broken" in "paxos" within 200: "An acceptor takes part in a ballot below the one that it has promised.";
        AcceptedValueIgnored "accepted-value-ignored" in "paxos" within 200: "A proposer does not adopt the accepted value of the highest ballot.";
        SlotsNotReadAgain "slots-not-read-again" in "disk-paxos" within 200: "A process decides without reading the slots after it has written its value.";
        HigherMinimumIgnored "higher-minimum-ignored" in "protected-memory-paxos" within 4000: "A process continues although it has read a higher ballot.";
        LateValueTaken "late-value-taken" in "protected-memory-paxos" within 40000: "A process replaces a value that it has begun to write by one that it reads later.";
        MemoryValueIgnored "memory-value-ignored" in "aligned-paxos" within 200: "A leader does not adopt the values that memories have accepted.";
        FastQuorumTooSmall "fast-quorum-too-small" in "fast-paxos" within 200: "The fast ballot decides with one vote fewer.";
        LeaderNotRevoked "leader-not-revoked" in "cheap-quorum" within 200: "A process that panics leaves the leader its permission to write.";
        SecondMessageIgnored "second-message-ignored" in "non-equivocating-broadcast" within 12000: "A process becomes a witness although it has found two messages.";
        TimeoutNotRaised "timeout-not-raised" in "omega" within 200: "A process does not wait longer for a process that it wrongly suspected.";
        MinorityDecides "minority-decides" in "hbo" within 4000: "A value is decided without the votes of more than half of the processes.";
    }
    Log {
        HigherBallotInHeaderIgnored "higher-ballot-in-header-ignored" in "replicated-log" within 200: "A new leader continues although a memory's header has a higher ballot.";
        HigherBallotIgnored "higher-ballot-ignored" in "replicated-log" within 500: "A leader continues after a message from a leader of a higher ballot.";
        EarlierWritesNotAwaited "earlier-writes-not-awaited" in "replicated-log" within 1000: "A memory is taken over before it has answered the writes of an earlier term.";
        OwnBallotUsedAgain "own-ballot-used-again" in "replicated-log-restarts" within 40000: "A process that has lost its state uses its last ballot again.";
        LastReadEntryWins "last-read-entry-wins" in "replicated-log" within 1000: "A new leader takes the entry that it has read last instead of the one of the highest ballot.";
        ScansOneWindow "scans-one-window" in "replicated-log" within 500: "A new leader reads only one window of the ring.";
        HoleSkipped "hole-skipped" in "replicated-log" within 4000: "A new leader keeps the entries behind a hole.";
        TakesOverOneMemory "takes-over-one-memory" in "replicated-log" within 200: "A new leader starts when it has read one memory.";
        CommitsAtOneMemory "commits-at-one-memory" in "replicated-log" within 200: "An entry is committed when one memory has it.";
        RefusedWriteCounts "refused-write-counts" in "replicated-log" within 200: "A refused write counts as a vote.";
        RingOverrun "ring-overrun" in "replicated-log" within 5000: "A register of the ring is overwritten before a snapshot includes its entry.";
        RegisterWrittenTwice "register-written-twice" in "replicated-log" within 15000: "A register is written again while an earlier write of it is outstanding.";
        SnapshotNotAwaited "snapshot-not-awaited" in "replicated-log" within 1000: "The recycling point moves before all chunks of the snapshot are written.";
        ValidSnapshotOverwritten "valid-snapshot-overwritten" in "replicated-log" within 1000: "A snapshot is written over the valid one.";
        SnapshotChunksMixed "snapshot-chunks-mixed" in "replicated-log" within 500: "A follower takes chunks of two snapshots for one.";
        ObsoleteSnapshotInstalled "obsolete-snapshot-installed" in "replicated-log" within 2000: "A follower installs a snapshot that is older than its state.";
        FollowerReadsOneMemory "follower-reads-one-memory" in "replicated-log" within 1000: "A follower delivers an entry that it has read from one memory.";
        FollowerTakesLowestBallot "follower-takes-lowest-ballot" in "replicated-log" within 1000: "A follower delivers the entry of the lowest ballot.";
        LeadersNotInSnapshot "leaders-not-in-snapshot" in "replicated-log" within 2000: "A follower does not take the processes that may lead from a snapshot.";
        LeadsBehindRecycling "leads-behind-recycling" in "replicated-log" within 500: "A new leader continues although a memory has recycled entries that it has not delivered.";
        RecycledCountsAsRead "recycled-counts-as-read" in "replicated-log" within 200: "A memory whose register holds a newer entry counts to the majority that a follower reads.";
        EarlierReadsCount "earlier-reads-count" in "replicated-log" within 1000: "A read of an earlier round of a follower counts in the next one.";
        RefusedEntryNotRepeated "refused-entry-not-repeated" in "replicated-log" within 200: "A leader that takes a memory again does not write the refused entries again.";
        RecyclingForgetsBallot "recycling-forgets-ballot" in "replicated-log" within 500: "The header that moves the recycling point lacks the ballot.";
    }
    Store {
        RepeatedCommandExecuted "repeated-command-executed" in "kv" within 200: "A command that a client repeats is executed again.";
        EarlierCommandExecuted "earlier-command-executed" in "kv" within 200: "A command with a lower sequence number than the session's last one is executed.";
        ExpiredSessionUsed "expired-session-used" in "kv" within 2000: "A command in an ended session is executed.";
        ExpectedValueIgnored "expected-value-ignored" in "kv" within 200: "A compare-and-swap does not compare.";
        SessionsNotRestored "sessions-not-restored" in "kv" within 8000: "A snapshot restores the values without the sessions.";
        UnknownToldAsRefused "unknown-told-as-refused" in "kv" within 4000: "A client is told that its change was refused, although its outcome is unknown.";
        SnapshotDropped "snapshot-dropped" in "kv" within 1000: "A process that has applied an entry ignores a snapshot.";
        DeposedLeaderReads "deposed-leader-reads" in "kv-competing-leaders" within 2000: "A leader answers reads from its own state, without an entry of the log, although it may have been deposed.";
    }
    Transactions {
        LockedVersionUnchecked "locked-version-unchecked" in "transactions" within 4000: "The version of a record that was read is not compared after the record was locked.";
        ReadUnderLock "read-under-lock" in "transactions" within 4000: "A record is read although another attempt holds its lock.";
        TornRecordRead "torn-record-read" in "transactions" within 4000: "A record whose checksum is wrong is read.";
        UndecidedLockKept "undecided-lock-kept" in "transactions" within 4000: "An attempt that aborts does not free a lock of which it does not know whether it has taken it.";
        ValidationSkipped "validation-skipped" in "transactions" within 4000: "An attempt does not validate what it has read.";
        ValidatedUnderLock "validated-under-lock" in "transactions" within 4000: "A record that another attempt has locked is valid.";
        AbortedWhileLogging "aborted-while-logging" in "transactions" within 4000: "An attempt aborts when nobody knows whether a node has its log entry.";
        LogWriteAssumed "log-write-assumed" in "transactions" within 4000: "A WRITE of the log entry whose outcome is unknown is taken for executed.";
        LoggedOnce "logged-once" in "transactions" within 4000: "A transaction is committed when one node has its log entry.";
        ToldBeforeLogged "told-before-logged" in "transactions" within 4000: "The caller is told of the commit before the log entry is written.";
        PrimaryFirst "primary-first" in "transactions" within 4000: "A primary is written and unlocked before the backups are written.";
        BackupNotRepeated "backup-not-repeated" in "transactions" within 4000: "A WRITE of a backup whose outcome is unknown is taken for executed.";
        BackupVersionFirst "backup-version-first" in "transactions" within 4000: "A backup's version is written before its value.";
        AppliedAgainUnseen "applied-again-unseen" in "transactions" within 4000: "A record whose WRITE and unlock are in doubt is written again without a look at its lock.";
        UnlockedByWrite "unlocked-by-write" in "transactions" within 4000: "A lock is freed by a WRITE, which is repeated when its outcome is unknown.";
        RecoveredUnlocked "recovered-unlocked" in "transactions" within 4000: "A recovery writes a record whose lock does not name the logged attempt.";
        EntryNotCompleted "entry-not-completed" in "transactions" within 8000: "A recovery applies an entry that too few nodes have.";
        BackupsNotRecovered "backups-not-recovered" in "transactions" within 4000: "A recovery writes the primaries only.";
        OrphanForgotten "orphan-forgotten" in "transactions" within 4000: "A recovery does not write the backups of a record whose primary is dead.";
        OrphanOverwritten "orphan-overwritten" in "transactions" within 4000: "A recovery writes the backups of a record whose primary is dead without a look at their versions.";
        UndecidedLockTaken "undecided-lock-taken" in "txn" within 2000: "A compare-and-swap of a lock whose outcome is unknown is taken for one that has succeeded.";
        LifeNotFenced "life-not-fenced" in "txn" within 2000: "A memory node confirms a fence and leaves the life its rights.";
        EndedLifeAdmitted "ended-life-admitted" in "txn" within 2000: "A memory node admits an incarnation that it has fenced or admitted before.";
        CachedPlaceTrusted "cached-place-trusted" in "txn" within 2000: "A record at a cached place is used although it has another key.";
        AbsenceNotValidated "absence-not-validated" in "txn" within 2000: "The buckets that show that a record does not exist are not validated.";
        LiveLockFreed "live-lock-freed" in "txn" within 2000: "A lock that a transaction meets is freed although the life that holds it is not recovered.";
    }
    Memory {
        UndoneWriteAcknowledged "undone-write-acknowledged" in "memory-nodes" within 1000: "After a reconnect, a WRITE whose outcome is unknown is acknowledged.";
        UnresolvedWriteAcknowledged "unresolved-write-acknowledged" in "memory-nodes" within 1000: "A WRITE whose outcome is unknown is acknowledged when its connection breaks.";
        UnresolvedWriteRefused "unresolved-write-refused" in "memory-nodes" within 2000: "A WRITE whose outcome is unknown is refused before its connection is fenced.";
        SeqsKeptAtReconnect "sequence-numbers-kept-at-reconnect" in "memory-nodes" within 8000: "After a reconnect, a process continues with the sequence numbers of registers that it knew.";
        SeqsKeptAtChange "sequence-numbers-kept-at-change" in "memory-nodes" within 20000: "A process that takes a permission again continues with the sequence numbers of registers that it knew.";
        TornRegisterBelieved "torn-register-believed" in "memory-nodes" within 20000: "The whole slot beside a torn one counts as current after one READ.";
        LostMemoryUsed "lost-memory-used" in "memory-nodes" within 1000: "A memory that has lost its contents is used again.";
        EarlierIncarnationAccepted "earlier-incarnation-accepted" in "memory-nodes" within 1000: "An incarnation of a process is accepted after a later one.";
        RestartAccepted "restart-accepted" in "memory-nodes" within 1000: "A restarted process is accepted where restarts are not allowed.";
        IncarnationNotRecorded "incarnation-not-recorded" in "memory-nodes" within 1000: "The incarnations of processes are not recorded on disk.";
        LogNotRead "incarnations-not-read" in "memory-nodes" within 1000: "The recorded incarnations of processes are not read at a start.";
        PermissionKeptAtReconnect "permission-kept-at-reconnect" in "memory-nodes" within 1000: "A process that reconnects keeps its exclusive permission.";
        PermissionKeptAtRestart "permission-kept-at-restart" in "memory-nodes" within 1000: "A memory node that restarts with its files grants the initial permissions again.";
        ConnectionNotFenced "connection-not-fenced" in "memory-nodes" within 1000: "The earlier connection of a process stays open, with its keys.";
        RevokedByClose "revoked-by-close" in "memory-nodes" within 4000: "The close of a connection counts as the revocation of its keys.";
        PermissionNotRevoked "permission-not-revoked" in "memory-nodes" within 1000: "A change of permissions does not revoke the keys of other processes.";
        AcceptedBeforeRevocation "accepted-before-revocation" in "memory-nodes" within 3000: "A process is accepted although a revocation is not confirmed.";
        ChangedBeforeRevocation "changed-before-revocation" in "memory-nodes" within 3000: "A change of permissions is confirmed although a revocation is not.";
        UnconfirmedChangeUnanswered "unconfirmed-change-unanswered" in "memory-nodes" within 2000: "A change of permissions with an unconfirmed revocation has no answer, and its connection stays open.";
        IncompleteWriteNotEnded "incomplete-write-not-ended" in "memory-nodes" within 8000: "A new writer may complete a refused write that was torn.";
        TornRecordUsed "torn-record-used" in "memory-nodes" within 4000: "A torn record of an incarnation is used.";
        RegionsNotSynchronous "regions-not-synchronous" in "memory-nodes" within 1000: "The files of regions are not opened for synchronous writes.";
        LogNotSynchronous "incarnation-log-not-synchronous" in "memory-nodes" within 1000: "The file of incarnations is not opened for synchronous writes.";
        RebootIgnored "reboot-ignored" in "memory-nodes" within 1000: "Files that were not written synchronously are used after a reboot.";
        FailedDiskRecovers "failed-disk-recovers" in "memory-nodes" within 20000: "Processes may access the file of a region after one of its writes has failed.";
        FilesNotWrittenAgain "files-not-written-again" in "memory-nodes" within 3000: "Files are not written again when they are opened, although the page cache may show more than the disk has.";
    }
}
