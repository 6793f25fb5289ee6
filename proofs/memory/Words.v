(** The words of a memory, and what READ, WRITE, FETCH_ADD and CMP_SWAP do with them (IBTA volume 1, 9.4). *)
From Coq Require Import ZArith PeanoNat.
From Mitra Require Export Update.
Local Open Scope Z_scope.

(** A memory has a word at each address. *)
Definition words := nat -> Z.

(** An atomic adds modulo 2^64. *)
Definition modulus : Z := 2 ^ 64.
Definition add (old delta : Z) : Z := (old + delta) mod modulus.

Definition write (a : nat) (v : Z) (m : words) : words := update m a v.
Definition fetch_add (a : nat) (delta : Z) (m : words) : words := update m a (add (m a) delta).
Definition compare_swap (a : nat) (compare swap : Z) (m : words) : words :=
  if m a =? compare then update m a swap else m.

(** Two memories have the same words. *)
Definition same_words (m m' : words) : Prop := forall a, m a = m' a.

Lemma same_words_refl m : same_words m m.
Proof. now intro a. Qed.

Lemma same_words_sym m m' : same_words m m' -> same_words m' m.
Proof. intros H a. symmetry. apply H. Qed.

Lemma same_write a v m m' : same_words m m' -> same_words (write a v m) (write a v m').
Proof. intros H b. unfold write, update. now destruct (Nat.eqb b a). Qed.

Lemma same_fetch_add a d m m' : same_words m m' -> same_words (fetch_add a d m) (fetch_add a d m').
Proof. intros H b. unfold fetch_add, update. rewrite (H a). now destruct (Nat.eqb b a). Qed.

Lemma same_compare_swap a x y m m' : same_words m m' -> same_words (compare_swap a x y m) (compare_swap a x y m').
Proof.
  intros H b. unfold compare_swap. rewrite (H a). destruct (m' a =? x); [|apply H].
  unfold update. now destruct (Nat.eqb b a).
Qed.

Lemma add_commutes x d e : add (add x d) e = add (add x e) d.
Proof. unfold add. rewrite !Zplus_mod_idemp_l. f_equal. ring. Qed.

(** Values that fit in a word: each has a code below 2^64 that is not zero, because zero says that nobody has written. *)
Definition fits_in_word (V : Type) : Prop :=
  exists (code : V -> Z) (value : Z -> V), forall v, 0 < code v < modulus /\ value (code v) = v.

Lemma bool_fits : fits_in_word bool.
Proof.
  exists (fun b : bool => if b then 2 else 1), (fun z => z =? 2). intros [|]; now repeat split.
Qed.
