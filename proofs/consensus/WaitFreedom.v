(** Wait-freedom: what follows from the definition, and how to prove it of a protocol without loops. *)
From Coq Require Import List PeanoNat Lia.
From Mitra Require Import Protocols.
Import ListNotations.

Section WaitFreedom.
  Context {O : object} {V : Type} (P : protocol O V) (n : nat).

  Lemma act_cases (l : local P) : (exists v, act P l = Decide v) \/ (exists o next, act P l = Invoke o next).
  Proof. destruct (act P l); eauto. Qed.

  Lemma step_decided p c v : decided P p c v -> step P p c = c.
  Proof. unfold decided, step. now intros ->. Qed.

  Lemma step_invoke p c o next : act P (loc c p) = Invoke o next ->
    step P p c = Configuration (fst (apply O o (mem c))) (update (loc c) p (next (snd (apply O o (mem c))))).
  Proof. unfold step. now intros ->. Qed.

  Lemma run_app s t c : run P (s ++ t) c = run P t (run P s c).
  Proof. apply fold_left_app. Qed.

  Lemma wait_free_step p c : p < n -> wait_free P n c -> wait_free P n (step P p c).
  Proof.
    intros Hp [H]. destruct (act_cases (loc c p)) as [[v Hv]|Hu].
    - rewrite (step_decided p c v Hv). now constructor.
    - now apply H.
  Qed.

  Lemma wait_free_run s c : among n s -> wait_free P n c -> wait_free P n (run P s c).
  Proof.
    intros Hs. revert c. induction Hs as [|p s Hp _ IH]; simpl; auto using wait_free_step.
  Qed.

  (** Decisions are final. *)
  Lemma decided_step p q c v : decided P p c v -> decided P p (step P q c) v.
  Proof.
    intro H. destruct (Nat.eq_dec q p) as [->|Hq].
    - now rewrite (step_decided p c v H).
    - unfold decided, step in *. destruct (act P (loc c q)); auto.
      simpl. now rewrite update_other by congruence.
  Qed.

  Lemma decided_run s p c v : decided P p c v -> decided P p (run P s c) v.
  Proof. revert c. induction s; simpl; auto using decided_step. Qed.

  (** A process that runs alone decides. *)
  Lemma solo_decides p c : p < n -> wait_free P n c -> exists k v, decided P p (run P (repeat p k) c) v.
  Proof.
    intros Hp H. induction H as [c _ IH].
    destruct (act_cases (loc c p)) as [[v Hv]|Hu].
    - now exists 0, v.
    - destruct (IH p Hp Hu) as (k & v & Hv). now exists (S k), v.
  Qed.

  (** The first [k] processes of an infinite schedule. *)
  Definition prefix (schedule : nat -> nat) (k : nat) : list nat := map schedule (seq 0 k).

  Lemma prefix_S schedule k : prefix schedule (S k) = schedule 0 :: prefix (fun i => schedule (S i)) k.
  Proof. unfold prefix. simpl. now rewrite <- seq_shift, map_map. Qed.

  (** In every infinite schedule, a process that moves again and again decides. *)
  Theorem wait_free_in_every_schedule c schedule p :
    wait_free P n c -> (forall i, schedule i < n) -> (forall i, exists j, i <= j /\ schedule j = p) ->
    exists k v, decided P p (run P (prefix schedule k) c) v.
  Proof.
    intro H. revert schedule. induction H as [c _ IH]. intros s Hs Hp.
    assert (tail : (forall i, s (S i) < n) /\ (forall i, exists j, i <= j /\ s (S j) = p)).
    { split; [intro; apply Hs|]. intro i. destruct (Hp (S i)) as ([|j] & Hj & E); [lia|].
      exists j. split; [lia|exact E]. }
    (* Steps of decided processes change nothing. The next step of an undecided process comes at some time, because [p] moves. *)
    destruct (act_cases (loc c p)) as [[v Hv]|Hu]; [now exists 0, v|].
    destruct (Hp 0) as (j & _ & Hj). clear tail.
    revert s Hs Hp Hj. induction j as [|j IHj]; intros s Hs Hp Hj.
    all: assert (tail : forall i, exists k, i <= k /\ s (S k) = p)
      by (intro i; destruct (Hp (S i)) as ([|k] & Hk & E); [lia|]; exists k; split; [lia|exact E]).
    - destruct (IH (s 0) (Hs 0) ltac:(now rewrite Hj) (fun i => s (S i)) (fun i => Hs (S i)) tail) as (k & v & Hd).
      exists (S k), v. rewrite prefix_S. exact Hd.
    - destruct (act_cases (loc c (s 0))) as [[w Hw]|Hu0].
      + destruct (IHj (fun i => s (S i)) (fun i => Hs (S i)) tail Hj) as (k & v & Hd).
        exists (S k), v. rewrite prefix_S. simpl. now rewrite (step_decided _ _ w Hw).
      + destruct (IH (s 0) (Hs 0) Hu0 (fun i => s (S i)) (fun i => Hs (S i)) tail) as (k & v & Hd).
        exists (S k), v. rewrite prefix_S. exact Hd.
  Qed.

  (** The sum of a function over the processes. *)
  Fixpoint total (f : nat -> nat) (k : nat) : nat :=
    match k with 0 => 0 | S k => f k + total f k end.

  Lemma total_same f g k : (forall p, p < k -> f p = g p) -> total f k = total g k.
  Proof. induction k; intro H; simpl; [auto|]. rewrite H, IHk; auto. Qed.

  Lemma total_less f g k p : p < k -> f p < g p -> (forall q, q <> p -> f q = g q) -> total f k < total g k.
  Proof.
    intros Hp Hl Hs. induction k as [|k IH]; [lia|]. simpl.
    destruct (Nat.eq_dec p k) as [->|Hk].
    - rewrite (total_same f g k); [lia|]. intros q Hq. apply Hs. lia.
    - rewrite (Hs k) by congruence. specialize (IH ltac:(lia)). lia.
  Qed.

  (** A protocol in which each operation lowers a rank of the local state is wait-free. *)
  Lemma wait_free_by_rank (rank : local P -> nat) :
    (forall l o next r, act P l = Invoke o next -> rank (next r) < rank l) -> forall c, wait_free P n c.
  Proof.
    intros lower c. remember (total (fun p => rank (loc c p)) n) as t eqn:Ht.
    revert c Ht. induction t as [t IH] using (well_founded_induction Nat.lt_wf_0). intros c ->.
    constructor. intros p Hp (o & next & Ha). eapply IH; [|reflexivity].
    rewrite (step_invoke _ _ _ _ Ha). simpl. apply total_less with p; auto.
    - rewrite update_same. eauto.
    - intros q Hq. now rewrite update_other.
  Qed.
End WaitFreedom.
