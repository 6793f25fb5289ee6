(** FETCH_ADD has consensus number 2: with READ, WRITE and FETCH_ADD two processes can agree, three cannot. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Import Protocols WaitFreedom Interference Words FirstWins.
Import ListNotations.
Local Open Scope Z_scope.

Inductive fetch_add_operation := Read (a : nat) | Write (a : nat) (v : Z) | FetchAdd (a : nat) (delta : Z).

(** READ and FETCH_ADD return the word before the operation, WRITE returns nothing. *)
Definition fetch_add_memory : object := Object words fetch_add_operation (option Z)
  (fun o m => match o with
   | Read a => (m, Some (m a))
   | Write a v => (write a v m, None)
   | FetchAdd a d => (fetch_add a d m, Some (m a))
   end).

(** Any two of these operations leave the same memory in both orders, or the later one hides the earlier one. *)
Lemma fetch_add_leaves_same_memory (m : words) (o o' : fetch_add_operation) :
  leaves_same_memory fetch_add_memory same_words m o o'.
Proof.
  unfold leaves_same_memory, after.
  assert (refl : forall m, same_words m m) by apply same_words_refl.
  destruct o as [a|a v|a d], o' as [b|b w|b e]; simpl; auto; destruct (Nat.eq_dec a b) as [<-|Hab].
  - right; left. intro x. unfold write, update. now destruct (Nat.eqb x a).
  - left. intro x. unfold write, update.
    destruct (Nat.eqb_spec x a), (Nat.eqb_spec x b); congruence.
  - right; right. intro x. unfold write, fetch_add, update. now destruct (Nat.eqb x a).
  - left. intro x. unfold write, fetch_add, update.
    destruct (Nat.eqb_spec x a), (Nat.eqb_spec x b), (Nat.eqb_spec a b), (Nat.eqb_spec b a); congruence.
  - right; left. intro x. unfold write, fetch_add, update. now destruct (Nat.eqb x a).
  - left. intro x. unfold write, fetch_add, update.
    destruct (Nat.eqb_spec x a), (Nat.eqb_spec x b), (Nat.eqb_spec a b), (Nat.eqb_spec b a); congruence.
  - left. intro x. unfold fetch_add. destruct (Nat.eq_dec x a) as [->|Hx].
    + rewrite !update_same. apply add_commutes.
    + now rewrite !update_other.
  - left. intro x. unfold fetch_add, update.
    destruct (Nat.eqb_spec x a), (Nat.eqb_spec x b), (Nat.eqb_spec a b), (Nat.eqb_spec b a); congruence.
Qed.

(** No protocol over READ, WRITE and FETCH_ADD lets three or more processes agree on one of two values. *)
Theorem fetch_add_cannot_agree_for_three (V : Type) (a b : V) n : a <> b -> (3 <= n)%nat -> ~ solves V n fetch_add_memory.
Proof.
  intros Hab Hn. apply (no_consensus_for_three fetch_add_memory same_words) with (a := a) (b := b); auto.
  - apply same_words_refl.
  - apply same_words_sym.
  - intros [x|x v|x d] m m' H; split; simpl; auto using same_write, same_fetch_add; now rewrite (H x).
  - apply fetch_add_leaves_same_memory.
Qed.

(** Two processes agree: each adds its value's code to a word that is zero at first. Who gets zero was first, the other
    one gets the code of the first. *)
Theorem fetch_add_agrees_for_two (V : Type) : fits_in_word V -> solves V 2 fetch_add_memory.
Proof.
  intros (code & value & H).
  apply first_wins_solves with
    (empty := (fun _ => 0) : memory fetch_add_memory)
    (attempt := (fun v => FetchAdd 0 (code v)) : V -> operation fetch_add_memory)
    (winner := fun r : option Z => match r with Some 0 | None => None | Some z => Some (value z) end)
    (holds := fun w k (m : words) => k = 1%nat /\ m 0%nat = code w \/ (2 <= k)%nat).
  - intro v. split; [reflexivity|]. left. split; [reflexivity|]. simpl. unfold fetch_add, add, update. simpl.
    destruct (H v) as [Hv _]. apply Z.mod_small. unfold modulus in *. lia.
  - intros v w k m [[-> Hm]|Hk] [_ Hk2]; [|lia]. split; [|right; lia]. simpl. rewrite Hm.
    destruct (H w) as [Hw E]. destruct (code w); [lia| |lia]. now rewrite E.
  - intros w k m [[-> _]|Hk]; lia.
Qed.

Theorem fetch_add_has_consensus_number_2 : consensus_number fetch_add_memory 2.
Proof.
  split; [apply fetch_add_agrees_for_two, bool_fits|].
  intros more Hn. now apply (fetch_add_cannot_agree_for_three bool true false).
Qed.
