(** Herlihy's two arguments, for any object whose operations hide each other.

    If of any two operations one leaves no trace that the process of the other could see, or they commute, two processes
    cannot agree. If they only leave the same memory, a third process cannot find out which came first, and three
    processes cannot agree. *)
From Coq Require Import List PeanoNat Lia.
From Mitra Require Import Protocols WaitFreedom Valency.
Import ListNotations.

Section Interference.
  Context (O : object).
  Variable same : memory O -> memory O -> Prop.
  Hypothesis same_refl : forall m, same m m.
  Hypothesis same_sym : forall m m', same m m' -> same m' m.
  Hypothesis same_apply : forall o m m', same m m' ->
    same (fst (apply O o m)) (fst (apply O o m')) /\ snd (apply O o m) = snd (apply O o m').

  (** The memory after an operation, and its response. *)
  Definition after (o : operation O) (m : memory O) : memory O := fst (apply O o m).
  Definition answer (o : operation O) (m : memory O) : response O := snd (apply O o m).

  (** The process of [o'] cannot tell whether [o] came before. *)
  Definition hides (m : memory O) (o o' : operation O) : Prop :=
    same (after o' (after o m)) (after o' m) /\ answer o' (after o m) = answer o' m.

  (** The two orders leave the same memory, and the process of [o] gets the same response. *)
  Definition commutes (m : memory O) (o o' : operation O) : Prop :=
    same (after o' (after o m)) (after o (after o' m)) /\ answer o m = answer o (after o' m).

  (** The two orders, or the second operation alone, leave the same memory; responses may differ. *)
  Definition leaves_same_memory (m : memory O) (o o' : operation O) : Prop :=
    same (after o' (after o m)) (after o (after o' m)) \/
    same (after o' (after o m)) (after o' m) \/
    same (after o (after o' m)) (after o m).

  Section Protocol.
    Context {V : Type} (P : protocol O V) (n : nat).

    Lemma loc_after_step p r (c : configuration P) : r <> p -> loc (step P p c) r = loc c r.
    Proof. intro H. unfold step. destruct (act P (loc c p)); [reflexivity|]. simpl. now apply update_other. Qed.

    Lemma act_after_step p r (c : configuration P) o next : r <> p ->
      act P (loc c r) = Invoke o next -> act P (loc (step P p c) r) = Invoke o next.
    Proof. intros H E. now rewrite loc_after_step. Qed.

    Lemma among_none : among n [].
    Proof. constructor. Qed.

    Lemma among_one p : p < n -> among n [p].
    Proof. now repeat constructor. Qed.

    Local Hint Resolve among_none among_one : core.

    (** Where [q] cannot see [p]'s operation, [q] goes on as if [p] had not moved. *)
    Lemma outcome_if_hidden c p q o next o' next' : p < n -> q < n -> p <> q -> wait_free P n c ->
      act P (loc c p) = Invoke o next -> act P (loc c q) = Invoke o' next' -> hides (mem c) o o' ->
      exists u, can P n (step P p c) u /\ can P n (step P q c) u.
    Proof.
      intros Hp Hq Hpq Hw Ap Aq [Hm Hr].
      apply (alike_outcome P n same same_apply q [q] []); auto.
      - simpl. now apply wait_free_step, wait_free_step.
      - simpl. pose proof (act_after_step p q c _ _ ltac:(congruence) Aq) as Aq'.
        unfold alike. rewrite (step_invoke P q _ _ _ Aq'), (step_invoke P q c _ _ Aq), (step_invoke P p c _ _ Ap).
        simpl. unfold after, answer in *. rewrite !update_same, Hr. auto.
    Qed.

    Lemma outcome_if_commuting c p q o next o' next' : p < n -> q < n -> p <> q -> wait_free P n c ->
      act P (loc c p) = Invoke o next -> act P (loc c q) = Invoke o' next' -> commutes (mem c) o o' ->
      exists u, can P n (step P p c) u /\ can P n (step P q c) u.
    Proof.
      intros Hp Hq Hpq Hw Ap Aq [Hm Hr].
      apply (alike_outcome P n same same_apply p [q] [p]); auto.
      - simpl. now apply wait_free_step, wait_free_step.
      - simpl. pose proof (act_after_step p q c _ _ ltac:(congruence) Aq) as Aq'.
        pose proof (act_after_step q p c _ _ Hpq Ap) as Ap'.
        unfold alike. rewrite (step_invoke P q _ _ _ Aq'), (step_invoke P p _ _ _ Ap').
        rewrite (step_invoke P q c _ _ Aq), (step_invoke P p c _ _ Ap).
        simpl. unfold after, answer in *. rewrite update_other, !update_same, Hr by assumption. auto.
    Qed.

    (** A third process [r] that sees the same memory goes on as if [p] and [q] had moved in the other order. *)
    Lemma outcome_for_third c p q r o next o' next' : p < n -> q < n -> r < n -> p <> q -> r <> p -> r <> q ->
      wait_free P n c -> act P (loc c p) = Invoke o next -> act P (loc c q) = Invoke o' next' ->
      leaves_same_memory (mem c) o o' -> exists u, can P n (step P p c) u /\ can P n (step P q c) u.
    Proof.
      intros Hp Hq Hr Hpq Hrp Hrq Hw Ap Aq H.
      pose proof (act_after_step p q c _ _ ltac:(congruence) Aq) as Aq'.
      pose proof (act_after_step q p c _ _ Hpq Ap) as Ap'.
      assert (Mpq : mem (step P q (step P p c)) = after o' (after o (mem c))).
      { now rewrite (step_invoke P q _ _ _ Aq'), (step_invoke P p c _ _ Ap). }
      assert (Mqp : mem (step P p (step P q c)) = after o (after o' (mem c))).
      { now rewrite (step_invoke P p _ _ _ Ap'), (step_invoke P q c _ _ Aq). }
      assert (Mp : mem (step P p c) = after o (mem c)) by now rewrite (step_invoke P p c _ _ Ap).
      assert (Mq : mem (step P q c) = after o' (mem c)) by now rewrite (step_invoke P q c _ _ Aq).
      assert (common : forall s t, among n s -> among n t ->
        wait_free P n (run P s (step P p c)) -> alike P same r (run P s (step P p c)) (run P t (step P q c)) ->
        exists u, can P n (step P p c) u /\ can P n (step P q c) u).
      { intros s t Hs Ht. now apply alike_outcome. }
      destruct H as [H|[H|H]].
      - apply (common [q] [p]); auto; simpl.
        + now apply wait_free_step, wait_free_step.
        + split; [now rewrite Mpq, Mqp|]. now rewrite !loc_after_step.
      - apply (common [q] []); auto; simpl.
        + now apply wait_free_step, wait_free_step.
        + split; [now rewrite Mpq, Mq|]. now rewrite !loc_after_step.
      - apply (common [] [p]); auto; simpl.
        + now apply wait_free_step.
        + split; [rewrite Mqp, Mp; now apply same_sym|]. now rewrite !loc_after_step.
    Qed.
  End Protocol.

  Lemma no_consensus_for_two (V : Type) (a b : V) n : a <> b -> 2 <= n ->
    (forall m o o', hides m o o' \/ hides m o' o \/ commutes m o o') -> ~ solves V n O.
  Proof.
    intros Hab Hn H [P HP]. apply (no_consensus P n same same_refl same_apply a b Hab Hn); auto.
    intros c p q Hw Hp Hq Hpq (o & next & Ap) (o' & next' & Aq).
    destruct (H (mem c) o o') as [H'|[H'|H']].
    - eapply outcome_if_hidden; eauto.
    - destruct (outcome_if_hidden P n c q p o' next' o next) as (u & ? & ?); auto. now exists u.
    - eapply outcome_if_commuting; eauto.
  Qed.

  Lemma no_consensus_for_three (V : Type) (a b : V) n : a <> b -> 3 <= n ->
    (forall m o o', leaves_same_memory m o o') -> ~ solves V n O.
  Proof.
    intros Hab Hn H [P HP].
    apply (no_consensus P n same same_refl same_apply a b Hab ltac:(lia)); auto.
    intros c p q Hw Hp Hq Hpq (o & next & Ap) (o' & next' & Aq).
    assert (third : exists r, r < n /\ r <> p /\ r <> q).
    { destruct (Nat.eq_dec 0 p), (Nat.eq_dec 0 q), (Nat.eq_dec 1 p), (Nat.eq_dec 1 q);
        solve [exists 0; lia | exists 1; lia | exists 2; lia]. }
    destruct third as (r & Hr & Hrp & Hrq).
    eapply (outcome_for_third P n c p q r); eauto.
  Qed.
End Interference.
