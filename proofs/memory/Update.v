(** Functions on numbers, changed at one place. *)
From Coq Require Import PeanoNat.

(** The function [f] with [x] in the place of [p]. *)
Definition update {A} (f : nat -> A) (p : nat) (x : A) : nat -> A :=
  fun q => if Nat.eqb q p then x else f q.

Lemma update_same {A} (f : nat -> A) p x : update f p x p = x.
Proof. unfold update. now rewrite Nat.eqb_refl. Qed.

Lemma update_other {A} (f : nat -> A) p q x : q <> p -> update f p x q = f q.
Proof. intro H. unfold update. now apply Nat.eqb_neq in H as ->. Qed.
