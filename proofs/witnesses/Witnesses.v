(** For each main definition something that satisfies it, and something that does not: no theorem is true because nothing
    is what it speaks about. *)
From Coq Require Import ZArith List PeanoNat Lia FinFun.
From Mitra Require Transparency Example WithCopy RecoverableCell RecoverableCounter.
From Mitra Require Protocols Registers FetchAdd CompareSwap.
Import ListNotations.

(** Valid traces, and the mechanisms that are judged by them (failover/System.v, failover/Transparency.v). *)
Module Failover.
  Import Transparency.

  Definition host_0 : host := Host (fun _ => 0%Z) [].

  (** A trace with a delayed packet and three copies of it is valid, and the operation is executed once. *)
  Lemma valid_trace_with_copies :
    match follow true (System.initial host_0)
      [Post (FetchAdd 0 1); Transmit; Detect; Arrive 0 0; Arrive 0 0; Arrive 0 0; Fence; Recover ResponderPsn] with
    | Some s => executions (history s) = [0] /\ outcomes s = [Executed (Some 0%Z)]
    | None => False
    end.
  Proof. vm_compute. auto. Qed.

  (** A trace in which a packet is executed that was not sent is not valid, nor one in which a fenced rail executes a packet. *)
  Lemma invalid_traces :
    follow true (System.initial host_0) [Post (FetchAdd 0 1); Arrive 0 0] = None /\
    follow true (System.initial host_0) [Post (FetchAdd 0 1); Transmit; Detect; Fence; Arrive 0 0] = None /\
    follow true (System.initial host_0) [Post (FetchAdd 0 1); Transmit; Detect; Recover ResponderPsn] = None.
  Proof. repeat split. Qed.

  (** [exactly_once] speaks about these traces: everything is told, and every NIC was readable. *)
  Lemma recovered_trace : exists s, reaches true Example.start Example.one_failure s /\
    unreadable Example.one_failure = 0 /\ known s = length (posted s) /\ active s = 1.
  Proof. eexists. split; [vm_compute; reflexivity|]. repeat split. Qed.

  (** To repeat always is not safe, never to repeat is not live, whatever others are allowed to do. *)
  Lemma repeating_is_not_safe closed allowed o h : ~ safe_for closed allowed o h always_repeat.
  Proof.
    intro safe. destruct (executed_then_is_valid closed o [] h) as (s & F & _ & T).
    specialize (safe _ _ F (others_in_executed_then _ _ _ _ (Forall_nil _))).
    rewrite (always_repeat_repeats closed o h _ s F), T in safe. simpl in safe. destruct (same_op o o); [lia|contradiction].
  Qed.

  Lemma stopping_is_not_live closed allowed o h : ~ live_for closed allowed o h never_repeat.
  Proof.
    intro live. destruct (not_executed_is_valid closed o h) as (s & F & _ & T).
    specialize (live _ _ F (others_in_not_executed _ _ _) T). simpl in live. lia.
  Qed.

  (** A record of an operation that nobody posted explains nothing. *)
  Lemma unposted_is_not_explained h g : ~ explains [] h [Ours 0 0%Z] g.
  Proof.
    intro E. inversion E as [|past g' i o _ N P|past g' o _ P]; [destruct i; discriminate N|].
    destruct past as [|? []]; discriminate P.
  Qed.

  (** A mechanism that repeats a READ has the right effect, and one that repeats an addition of 1 has not. *)
  Lemma repeated_read_is_right closed allowed a h : right_for closed allowed (Read a) h always_repeat.
  Proof. apply what_changes_nothing_can_be_repeated. intro g. apply same_host_refl. Qed.

  Lemma repeated_add_is_not_right closed allowed a h : ~ right_for closed allowed (FetchAdd a 1) h always_repeat.
  Proof.
    intro right. destruct (executed_then_is_valid closed (FetchAdd a 1) [] h) as (s & F & M & T).
    destruct (right _ _ F (others_in_executed_then _ _ _ _ (Forall_nil _))) as [_ same]. specialize (same T).
    rewrite (always_repeat_repeats closed _ h _ s F), M in same.
    apply (fetch_add_is_idempotent_only_for_zero a 1 h) in same. discriminate.
  Qed.

  (** A repetition counts wherever it stands among the operations that the mechanism has executed. *)
  Lemma equal_operation_counts h :
    repetitions (Do (Read 0) (fun _ => Do (FetchAdd 0 1) (fun _ => Do (FetchAdd 1 1) (fun _ => Stop)))) (FetchAdd 0 1) h = 1.
  Proof. reflexivity. Qed.
End Failover.

(** A receiver that copies (failover/WithCopy.v, whose example has copies that arrive late, twice and out of order). Nothing
    arrives that was not posted, and nothing is answered that was not executed. *)
Module Copy.
  Import WithCopy.
  Lemma invalid_traces :
    follow (initial Failover.host_0) [Arrive 0] = None /\
    follow (initial Failover.host_0) [Post (Operations.FetchAdd 0 1); Answer 0] = None /\
    follow (initial Failover.host_0) [Post (Operations.Send 1); Post (Operations.Send 2); Arrive 1; Answer 1] = None.
  Proof. repeat split. Qed.
End Copy.

(** Protocols (consensus/Protocols.v). *)
Module Consensus.
  Import Protocols Registers.

  Definition memory_0 : object := registers nat nat Nat.eq_dec.

  (** A process that reads again and again. *)
  Definition spinning : protocol memory_0 bool :=
    Protocol memory_0 bool bool (fun _ => 0) (fun _ v => v) (fun v => Invoke (O := memory_0) (ReadRegister nat nat 0) (fun _ => v)).

  Lemma spinning_is_not_wait_free inputs : ~ wait_free spinning 1 (initial spinning inputs).
  Proof.
    generalize (initial spinning inputs). intros c H. induction H as [c _ IH].
    apply (IH 0); [lia|]. unfold undecided. simpl. eauto.
  Qed.

  (** A process that decides on its own input at once. *)
  Definition selfish : protocol memory_0 bool :=
    Protocol memory_0 bool bool (fun _ => 0) (fun _ v => v) (fun v => Decide v).

  Lemma selfish_is_wait_free n inputs : wait_free selfish n (initial selfish inputs).
  Proof. constructor. intros p _ (o & next & E). discriminate E. Qed.

  Lemma selfish_does_not_agree : ~ agreement selfish 2 (initial selfish (fun p => p =? 0)).
  Proof.
    intro agree. assert (E : true = false) by (apply (agree [] 0 1 true false); auto; constructor). discriminate.
  Qed.

  (** A process that decides on [true], whatever its input is. *)
  Definition fixed : protocol memory_0 bool :=
    Protocol memory_0 bool bool (fun _ => 0) (fun _ v => v) (fun _ => Decide true).

  Lemma fixed_agrees_and_is_not_valid : agreement fixed 2 (initial fixed (fun _ => false)) /\ ~ validity fixed 2 (fun _ => false).
  Proof.
    split.
    - unfold agreement, decided. simpl. congruence.
    - intro valid. destruct (valid [] 0 true) as (q & _ & E); [constructor|lia|reflexivity|discriminate].
  Qed.

  (** The protocols that the consensus numbers need. *)
  Lemma protocols_exist : solves bool 1 memory_0 /\ solves bool 2 FetchAdd.fetch_add_memory /\
    forall n, solves bool n CompareSwap.compare_swap_memory.
  Proof.
    repeat split.
    - apply one_process_agrees, 0.
    - apply FetchAdd.fetch_add_agrees_for_two, Words.bool_fits.
    - intro n. apply CompareSwap.compare_swap_agrees_for_any_number, Words.bool_fits.
  Qed.

  (** Numbers without bound do not fit in a word: of a word's size and one more, two have the same code. *)
  Lemma naturals_do_not_fit : ~ Words.fits_in_word nat.
  Proof.
    unfold Words.fits_in_word. generalize Words.modulus. intros m (code & value & fits).
    assert (D : NoDup (map code (seq 0 (S (Z.to_nat m))))).
    { apply Injective_map_NoDup; [|apply seq_NoDup]. intros v w E.
      rewrite <- (proj2 (fits v)), <- (proj2 (fits w)). now rewrite E. }
    apply (NoDup_incl_length (l' := map Z.of_nat (seq 0 (Z.to_nat m)))) in D.
    - rewrite !map_length, !seq_length in D. lia.
    - intros z H. apply in_map_iff in H as (v & <- & _). destruct (fits v) as [B _].
      apply in_map_iff. exists (Z.to_nat (code v)). split; [|apply in_seq]; lia.
  Qed.
End Consensus.

(** Recoveries of a cell with both verdicts (objects/RecoverableCell.v, which has one of a change that others have replaced). *)
Module Cell.
  Import RecoverableCell.
  Lemma both_verdicts : forall verdict, exists s : state nat,
    reachable nat 0 s /\ phases nat s 1 = Decided nat (Word nat 0 0 0) verdict.
  Proof. exact (recoveries_exist nat 0 1). Qed.

  (** A state in which a change happened twice is not reachable. *)
  Lemma unreachable_state s k t : happened nat s k t = 2 -> ~ reachable nat 0 s.
  Proof. intros E R. pose proof (cell_changes_at_most_once nat 0 s R k t). lia. Qed.
End Cell.

(** Recoveries of a counter (objects/RecoverableCounter.v): of two adds none, one, or both were executed. Requester 1 of 8 adds. *)
Module Counter.
  Import Update RecoverableCounter.
  Local Notation reachable := (reachable 8 4 (2 ^ 48) ((2 ^ 47 - 1) / 8)).

  Lemma recoveries_exist d : d <= 2 -> exists s, reachable s /\ phases s 1 = Decided [7; -3]%Z d d.
  Proof.
    intro Hd.
    assert (begun : reachable (State 0 (fun _ => 0%Z) (fun _ => 0%Z) (update (fun _ => Idle) 1 (Adding [7; -3]%Z 0)) 0)).
    { eapply reachable_step; [apply reachable_initial|]. apply Begin; simpl; try lia; auto.
      intros [|[|[|j]]]; vm_compute; discriminate. }
    assert (recovers : forall w ow gi ph ex, reachable (State w ow gi ph ex) -> ph 1 = Adding [7; -3]%Z d ->
      exists s, reachable s /\ phases s 1 = Decided [7; -3]%Z d d).
    { intros w ow gi ph ex R E.
      assert (R1 : reachable (State w ow gi (update ph 1 (Fenced [7; -3]%Z d)) ex))
        by (eapply reachable_step; [exact R|now apply Fail]).
      assert (E1 : update ph 1 (Fenced [7; -3]%Z d) 1 = Fenced [7; -3]%Z d) by apply update_same.
      assert (R2 := reachable_step _ _ _ _ _ _ R1 (Recover _ _ _ _ _ _ _ _ _ _ _ _ E1)).
      eexists. split; [exact R2|]. simpl. rewrite update_same. f_equal.
      eapply counter_recovery_is_right; [apply eight_requesters_of_two_bits_fit|exact R2|apply update_same]. }
    destruct d as [|[|[|d]]]; [| | |lia].
    - eapply recovers; [exact begun|apply update_same].
    - eapply recovers; [|apply update_same]. eapply reachable_step; [exact begun|]. eapply Execute; [apply update_same|reflexivity].
    - eapply recovers; [|apply update_same]. eapply reachable_step; [eapply reachable_step; [exact begun|]|].
      + eapply Execute; [apply update_same|reflexivity].
      + eapply Execute; [apply update_same|reflexivity].
  Qed.

  (** Shares whose sums need more contents than the value has do not fit. *)
  Lemma too_large_shares_do_not_fit : ~ layout_fits 8 4 (2 ^ 48) (2 ^ 45).
  Proof. intros (_ & _ & H). vm_compute in H. discriminate H. Qed.

  (** A state in which a requester has counted an add that was not executed is not reachable. *)
  Lemma unreachable_state s : phases s 1 = Decided [1]%Z 0 1 -> ~ reachable s.
  Proof.
    intros E R. discriminate (counter_recovery_is_right _ _ _ _ (proj1 eight_requesters_of_two_bits_fit) s 1 [1]%Z 0 1 R E).
  Qed.

  (** The step of requester [k] by the rule, from the state that is reached so far. *)
  Ltac posts R k ds := eapply reachable_step in R; [|apply (Begin _ _ _ _ _ _ _ _ _ k ds); [lia|reflexivity|reflexivity|
    intros [|[|[|[|j]]]]; vm_compute; discriminate]].
  Ltac executes R k := eapply reachable_step in R; [|apply (Execute _ _ _ _ _ _ _ _ _ k); reflexivity].
  Ltac finishes R k ds := eapply reachable_step in R; [|apply (Finish _ _ _ _ _ _ _ _ _ k ds); reflexivity].

  (** Requester 1 adds −2 five times, in two rounds, and requester 0 adds 1 in each of them. The field of requester 1 wraps: it
      contains 3 before the second round, and 1 when two adds of this round were executed. The recovery counts two, and the value
      is −8. *)
  Lemma recovery_after_a_wrap : exists s, reachable s /\ phases s 1 = Decided [-2; -2; -2]%Z 2 2 /\
    own s 1 = 3%Z /\ Fields.field 4 (word s) 1 = 1%Z /\ value 8 4 (2 ^ 48) (word s) = (-8)%Z.
  Proof.
    pose proof (reachable_initial 8 4 (2 ^ 48) ((2 ^ 47 - 1) / 8)) as R. unfold initial in R.
    posts R 1 [-2; -2; -2]%Z. executes R 1. posts R 0 [1]%Z. executes R 0. executes R 1. executes R 1. finishes R 1 [-2; -2; -2]%Z.
    posts R 1 [-2; -2; -2]%Z. executes R 1. finishes R 0 [1]%Z. posts R 0 [1]%Z. executes R 0. executes R 1.
    eapply reachable_step in R; [|apply (Fail _ _ _ _ _ _ _ _ _ 1); reflexivity].
    eapply reachable_step in R; [|apply (Recover _ _ _ _ _ _ _ _ _ 1); reflexivity].
    eexists. split; [exact R|]. vm_compute. auto.
  Qed.
End Counter.
