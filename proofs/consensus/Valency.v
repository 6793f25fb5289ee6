(** The valency argument of Fischer, Lynch, Paterson and Herlihy, for every protocol and every number of processes.

    A configuration is bivalent if two different values can still be decided. Consensus has a bivalent first
    configuration. If, wherever two processes are about to move, some value can be decided after either of them, then a
    bivalent configuration always has a bivalent successor, which contradicts wait-freedom.

    The proof needs no axiom: it never asks whether a given configuration is bivalent, it only shows that none is. *)
From Coq Require Import List PeanoNat Lia.
From Mitra Require Import Protocols WaitFreedom.
Import ListNotations.

Section Valency.
  Context {O : object} {V : Type} (P : protocol O V) (n : nat).

  (** Some schedule from [c] leads to a decision on [v]. *)
  Definition can (c : configuration P) (v : V) : Prop :=
    exists s p, among n s /\ p < n /\ decided P p (run P s c) v.

  Definition bivalent (c : configuration P) : Prop := exists v w, v <> w /\ can c v /\ can c w.

  (** If [v] can be decided, then a process has decided on it, or some process that has not decided can move to where
      [v] can be decided. *)
  Lemma first_move c v : can c v ->
    (exists p, p < n /\ decided P p c v) \/ (exists p, p < n /\ undecided P p c /\ can (step P p c) v).
  Proof.
    intros (s & p & Hs & Hp & Hv). revert c Hv. induction Hs as [|q s Hq Hs IH]; intros c Hv; [eauto|].
    destruct (act_cases P (loc c q)) as [[w Hw]|Hu].
    - simpl in Hv. rewrite (step_decided P q c w Hw) in Hv. auto.
    - right. exists q. repeat split; auto. now exists s, p.
  Qed.

  Lemma agreement_step p c : p < n -> agreement P n c -> agreement P n (step P p c).
  Proof.
    intros Hp H s q r v w Hs Hq Hr Hv Hw. apply (H (p :: s) q r); auto. now constructor.
  Qed.

  (** If a process has decided on [v], no other value can be decided. *)
  Lemma decided_fixes c p v w : agreement P n c -> p < n -> decided P p c v -> can c w -> v = w.
  Proof.
    intros H Hp Hv (s & q & Hs & Hq & Hw). apply (H s p q); auto using decided_run.
  Qed.

  (** From any two processes that are about to move, some common value can be decided. *)
  Definition common_outcome : Prop :=
    forall c p q, wait_free P n c -> p < n -> q < n -> p <> q -> undecided P p c -> undecided P q c ->
    exists u, can (step P p c) u /\ can (step P q c) u.

  Lemma no_bivalent c : common_outcome -> wait_free P n c -> agreement P n c -> ~ bivalent c.
  Proof.
    intros common H. induction H as [c Hc IH]. intros agree (v & w & Hvw & Hv & Hw).
    destruct (first_move c v Hv) as [(p & Hp & D)|(p & Hp & Up & Cv)].
    { apply Hvw. eauto using decided_fixes. }
    destruct (first_move c w Hw) as [(q & Hq & D)|(q & Hq & Uq & Cw)].
    { apply Hvw. symmetry. eauto using decided_fixes. }
    assert (univalent : forall r, r < n -> undecided P r c -> ~ bivalent (step P r c))
      by auto using agreement_step.
    destruct (Nat.eq_dec p q) as [<-|Hpq].
    { apply (univalent p); auto. now exists v, w. }
    destruct (common c p q) as (u & Cpu & Cqu); auto; [now constructor|].
    (* [u] is neither different from [v] nor different from [w]. *)
    apply (univalent p Hp Up). exists u, v. repeat split; auto. intros ->.
    apply (univalent q Hq Uq). now exists v, w.
  Qed.
End Valency.

(** What one process can see. *)
Section Indistinguishability.
  Context {O : object} {V : Type} (P : protocol O V) (n : nat).

  (** States of the memory that no operation tells apart. Memories are functions, and Coq does not identify functions
      that are equal everywhere; so this is a relation instead of equality. *)
  Variable same : memory O -> memory O -> Prop.
  Hypothesis same_refl : forall m, same m m.
  Hypothesis same_apply : forall o m m', same m m' ->
    same (fst (apply O o m)) (fst (apply O o m')) /\ snd (apply O o m) = snd (apply O o m').

  (** Process [r] sees no difference. *)
  Definition alike (r : nat) (c d : configuration P) : Prop := same (mem c) (mem d) /\ loc c r = loc d r.

  Lemma alike_step r c d : alike r c d -> alike r (step P r c) (step P r d).
  Proof.
    intros [Hm Hl]. unfold alike, step. rewrite <- Hl. destruct (act P (loc c r)); auto.
    destruct (same_apply o _ _ Hm) as [Hm' Hr]. simpl. rewrite !update_same, Hr. auto.
  Qed.

  Lemma alike_solo r k c d v : alike r c d ->
    decided P r (run P (repeat r k) c) v -> decided P r (run P (repeat r k) d) v.
  Proof.
    revert c d. induction k as [|k IH]; simpl; intros c d H Hv.
    - unfold decided in *. destruct H as [_ <-]. exact Hv.
    - eauto using alike_step.
  Qed.

  (** Two configurations that one process cannot tell apart have an outcome in common. *)
  Lemma alike_outcome r s t c d : among n s -> among n t -> r < n -> wait_free P n (run P s c) ->
    alike r (run P s c) (run P t d) -> exists u, can P n c u /\ can P n d u.
  Proof.
    intros Hs Ht Hr Hw H. destruct (solo_decides P n r _ Hr Hw) as (k & u & Hu).
    assert (solo : among n (repeat r k)) by (apply Forall_forall; intros x Hx; now apply repeat_spec in Hx as ->).
    exists u. split.
    - exists (s ++ repeat r k), r. rewrite run_app. repeat split; auto. now apply Forall_app.
    - exists (t ++ repeat r k), r. rewrite run_app. repeat split; auto; [now apply Forall_app|].
      eauto using alike_solo.
  Qed.

  (** With inputs [a] for process 0 and [b] for all others, either can be decided: a process that runs alone cannot know
      that the others have another input. *)
  Lemma bivalent_start (a b : V) : a <> b -> 2 <= n ->
    (forall inputs, wait_free P n (initial P inputs) /\ validity P n inputs) ->
    bivalent P n (initial P (fun p => if Nat.eqb p 0 then a else b)).
  Proof.
    intros Hab Hn H. set (inputs := fun p => if Nat.eqb p 0 then a else b).
    assert (own : forall p, p < n -> can P n (initial P inputs) (inputs p)).
    { intros p Hp. destruct (H inputs) as [Hw _].
      destruct (solo_decides P n p _ Hp Hw) as (k & u & Hu).
      assert (solo : among n (repeat p k)) by (apply Forall_forall; intros x Hx; now apply repeat_spec in Hx as ->).
      destruct (H (fun _ => inputs p)) as [_ valid].
      destruct (valid (repeat p k) p u) as (q & _ & E); auto.
      { apply (alike_solo p k (initial P inputs)); auto. split; [apply same_refl|reflexivity]. }
      exists (repeat p k), p. rewrite E. auto. }
    exists a, b. repeat split; auto.
    - apply (own 0). lia.
    - apply (own 1). lia.
  Qed.

  (** So there is no consensus protocol if two processes about to move always have a common outcome. *)
  Lemma no_consensus (a b : V) : a <> b -> 2 <= n -> common_outcome P n ->
    ~ (forall inputs, wait_free P n (initial P inputs) /\ agreement P n (initial P inputs) /\ validity P n inputs).
  Proof.
    intros Hab Hn common H. destruct (H (fun p => if Nat.eqb p 0 then a else b)) as (Hw & Ha & _).
    apply (no_bivalent P n _ common Hw Ha). apply bivalent_start; auto.
    intro inputs. destruct (H inputs) as (? & ? & ?). auto.
  Qed.
End Indistinguishability.
