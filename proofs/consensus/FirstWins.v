(** A protocol of one operation: each process tries to be the first, and decides on the value of the first. *)
From Coq Require Import List PeanoNat Lia.
From Mitra Require Import Protocols WaitFreedom.
Import ListNotations.

Section FirstWins.
  Context {O : object} {V : Type}.
  (** The first state of the memory, the operation of a process with its input, and what the response says: that the
      process was first ([None]), or the value of the first. *)
  Variables (empty : memory O) (attempt : V -> operation O) (winner : response O -> option V).

  Inductive phase := Trying (v : V) | Done (v : V).

  Definition first_wins : protocol O V := Protocol O V phase empty (fun _ v => Trying v)
    (fun l => match l with
     | Trying v => Invoke (attempt v) (fun r => Done match winner r with None => v | Some w => w end)
     | Done v => Decide v
     end).

  Lemma first_wins_wait_free n c : wait_free first_wins n c.
  Proof.
    apply wait_free_by_rank with (rank := fun l => match l with Trying _ => 1 | Done _ => 0 end).
    intros [v|v] o next r; simpl; intros [= <- <-]. auto.
  Qed.

  (** Either nobody has moved, or all that are done are done with the value of the first. [holds w k m] is what the
      memory looks like when the first has proposed [w] and [k] processes are done. *)
  Variables (n : nat) (holds : V -> nat -> memory O -> Prop).

  Definition trying (l : phase) : nat := match l with Trying _ => 1 | Done _ => 0 end.

  Definition invariant (inputs : nat -> V) (c : configuration first_wins) : Prop :=
    (mem c = empty /\ forall p, loc c p = Trying (inputs p)) \/
    exists first k, first < n /\ k + total (fun p => trying (loc c p)) n = n /\ holds (inputs first) k (mem c) /\
      forall p, loc c p = Trying (inputs p) \/ loc c p = Done (inputs first).

  Hypothesis first_attempt : forall v,
    winner (snd (apply O (attempt v) empty)) = None /\ holds v 1 (fst (apply O (attempt v) empty)).
  Hypothesis later_attempt : forall v w k m, holds w k m -> 0 < k < n ->
    winner (snd (apply O (attempt v) m)) = Some w /\ holds w (S k) (fst (apply O (attempt v) m)).
  Hypothesis holds_positive : forall w k m, holds w k m -> 0 < k.

  Lemma total_update f p x k : p < k -> total (update f p x) k + f p = total f k + x.
  Proof.
    induction k as [|k IH]; [lia|]. intro Hp. simpl. destruct (Nat.eq_dec p k) as [->|Hk].
    - rewrite update_same, (total_same (update f k x) f); [lia|]. intros q Hq. apply update_other. lia.
    - rewrite update_other by congruence. specialize (IH ltac:(lia)). lia.
  Qed.

  Lemma total_one k : total (fun _ => 1) k = k.
  Proof. induction k; simpl; congruence. Qed.

  Lemma trying_after (c : configuration first_wins) p v : p < n -> trying (loc c p) = 1 ->
    S (total (fun q => trying (update (loc c) p (Done v) q)) n) = total (fun q => trying (loc c q)) n.
  Proof.
    intros Hp H. pose proof (total_update (fun q => trying (loc c q)) p 0 n Hp) as E. simpl in E. rewrite H in E.
    rewrite (total_same _ (update (fun q => trying (loc c q)) p 0)); [lia|].
    intros q _. unfold update. now destruct (Nat.eqb q p).
  Qed.

  Lemma invariant_step inputs c p : p < n -> invariant inputs c -> invariant inputs (step first_wins p c).
  Proof.
    intros Hp [[Hm Hl]|(first & k & Hf & Hk & Hm & Hl)].
    - right. exists p, 1. unfold step. rewrite Hl. simpl. rewrite Hm.
      destruct (first_attempt (inputs p)) as [-> ?]. repeat split; auto.
      + change (S (total (fun q => trying (update (loc c) p (Done (inputs p)) q)) n) = n).
        rewrite trying_after; [|auto|now rewrite Hl].
        rewrite (total_same _ (fun _ => 1)); [apply total_one|]. intros q _. now rewrite Hl.
      + intro q. destruct (Nat.eq_dec q p) as [->|Hq].
        * right. apply update_same.
        * left. now rewrite update_other.
    - unfold step. destruct (Hl p) as [E|E].
      + right. exists first, (S k). rewrite E. simpl.
        assert (Hlt : 0 < k < n).
        { split; [eauto|]. pose proof (trying_after c p (inputs p) Hp ltac:(now rewrite E)). lia. }
        destruct (later_attempt (inputs p) _ _ _ Hm Hlt) as [-> ?]. repeat split; auto.
        * transitivity (k + total (fun q => trying (loc c q)) n); [|exact Hk].
          rewrite <- (trying_after c p (inputs first) Hp), <- plus_n_Sm; [reflexivity|now rewrite E].
        * intro q. destruct (Nat.eq_dec q p) as [->|Hq]; [right; apply update_same|now rewrite update_other].
      + rewrite E. simpl. right. exists first, k. auto.
  Qed.

  Lemma invariant_run inputs s : among n s -> invariant inputs (run first_wins s (initial first_wins inputs)).
  Proof.
    intro Hs. assert (H : invariant inputs (initial first_wins inputs)) by now left.
    revert H. generalize (initial first_wins inputs). induction Hs; simpl; auto using invariant_step.
  Qed.

  Lemma first_wins_solves : solves V n O.
  Proof.
    exists first_wins. intro inputs.
    assert (done : forall s p v, among n s -> decided first_wins p (run first_wins s (initial first_wins inputs)) v ->
      exists first k, first < n /\ v = inputs first /\
        invariant inputs (run first_wins s (initial first_wins inputs)) /\
        holds (inputs first) k (mem (run first_wins s (initial first_wins inputs)))
        /\ forall q, loc (run first_wins s (initial first_wins inputs)) q = Trying (inputs q)
             \/ loc (run first_wins s (initial first_wins inputs)) q = Done (inputs first)).
    { intros s p v Hs. unfold decided. pose proof (invariant_run inputs s Hs) as I.
      destruct I as [[Hm Hl]|(first & k & Hf & Hk & Hm & Hl)].
      - rewrite Hl. discriminate.
      - destruct (Hl p) as [E|E]; rewrite E; simpl; [discriminate|]. intros [= <-].
        exists first, k. repeat split; auto. right. exists first, k. auto. }
    split; [apply first_wins_wait_free|split].
    - intros s p q v w Hs Hp Hq Hv Hw.
      destruct (done s p v Hs Hv) as (first & k & _ & -> & _ & _ & Hl). unfold decided in Hw.
      destruct (Hl q) as [E|E]; rewrite E in Hw; simpl in Hw; congruence.
    - intros s p v Hs Hp Hv. destruct (done s p v Hs Hv) as (first & k & Hf & -> & _). eauto.
  Qed.
End FirstWins.
