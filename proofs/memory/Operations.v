(** The operations that a program posts, and which of them may be executed twice. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Export Words.
Import ListNotations.
Local Open Scope Z_scope.

(** What the responder's NIC changes: the words of the memory, and the messages that have taken a receive. *)
Record host := Host { memory : words; received : list Z }.

(** An operation. It is one packet: a WRITE of several packets is several WRITEs here. *)
Inductive op :=
| Read (a : nat)
| Write (a : nat) (v : Z)
| FetchAdd (a : nat) (delta : Z)
| CompareSwap (a : nat) (compare swap : Z)
| Send (message : Z).

Definition same_op (o o' : op) : {o = o'} + {o <> o'}.
Proof. decide equality; auto using Nat.eq_dec, Z.eq_dec. Defined.

(** The host after the operation, and the value that the requester gets: the word before it, and 0 for a WRITE and a SEND. *)
Definition execute (o : op) (h : host) : host * Z :=
  match o with
  | Read a => (h, memory h a)
  | Write a v => (Host (write a v (memory h)) (received h), 0)
  | FetchAdd a d => (Host (fetch_add a d (memory h)) (received h), memory h a)
  | CompareSwap a x y => (Host (compare_swap a x y (memory h)) (received h), memory h a)
  | Send v => (Host (memory h) (received h ++ [v]), 0)
  end.

Definition effect (o : op) (h : host) : host := fst (execute o h).
Definition value (o : op) (h : host) : Z := snd (execute o h).

(** Several operations of others, in order. *)
Definition effects (os : list op) (h : host) : host := fold_left (fun h o => effect o h) os h.

(** Two hosts that no operation tells apart. *)
Definition same_host (h h' : host) : Prop := same_words (memory h) (memory h') /\ received h = received h'.

Lemma same_host_refl h : same_host h h.
Proof. split; [apply same_words_refl|reflexivity]. Qed.

Lemma same_host_sym h h' : same_host h h' -> same_host h' h.
Proof. intros [H E]. split; [now apply same_words_sym|congruence]. Qed.

Lemma same_effect o h h' : same_host h h' -> same_host (effect o h) (effect o h') /\ value o h = value o h'.
Proof.
  unfold effect, value. intros [H E]. destruct o; unfold same_host; simpl; rewrite ?E, ?(H a);
    auto using same_write, same_fetch_add, same_compare_swap.
Qed.

(** The value of an operation, and what it makes of the memory, depend on the memory only: no operation tells which messages have
    been received. *)
Lemma same_memory_effect o h h' : same_words (memory h) (memory h') ->
  same_words (memory (effect o h)) (memory (effect o h')) /\ value o h = value o h'.
Proof.
  unfold effect, value. intro H. destruct o; simpl; rewrite ?(H a);
    auto using same_write, same_fetch_add, same_compare_swap.
Qed.

(** An operation is idempotent on a host if executing it twice in a row has the effect of executing it once. *)
Definition idempotent (o : op) (h : host) : Prop := same_host (effect o (effect o h)) (effect o h).

Theorem read_is_idempotent a h : idempotent (Read a) h.
Proof. apply same_host_refl. Qed.

Theorem write_is_idempotent a v h : idempotent (Write a v) h.
Proof. split; [|reflexivity]. intro b. simpl. unfold write, update. now destruct (Nat.eqb b a). Qed.

(** A SEND that is executed twice takes two receives. *)
Theorem send_is_not_idempotent v h : ~ idempotent (Send v) h.
Proof.
  intros [_ E]. simpl in E. apply (f_equal (@length Z)) in E. rewrite !app_length in E. simpl in E. lia.
Qed.

(** Adding twice differs from adding once unless the addend is a multiple of 2^64. *)
Theorem fetch_add_is_idempotent_only_for_zero a d h : idempotent (FetchAdd a d) h <-> d mod modulus = 0.
Proof.
  unfold idempotent, same_host. simpl. split.
  - intros [H _]. specialize (H a). unfold fetch_add in H. rewrite !update_same in H. unfold add in H.
    assert (E : (memory h a + d - (memory h a + d + d)) mod modulus = 0).
    { rewrite Zminus_mod. rewrite Zplus_mod_idemp_l in H. rewrite H, Z.sub_diag. reflexivity. }
    replace (memory h a + d - (memory h a + d + d)) with (- d) in E by ring.
    destruct (Z.eq_dec (d mod modulus) 0) as [|N]; auto.
    rewrite (Z.mod_opp_l_nz d modulus) in E; [|easy|exact N].
    pose proof (Z.mod_pos_bound d modulus eq_refl). lia.
  - intro E. split; [|reflexivity]. intro b. unfold fetch_add. destruct (Nat.eq_dec b a) as [->|Hb].
    + rewrite !update_same. unfold add. rewrite Zplus_mod_idemp_l.
      rewrite Zplus_mod, E, Z.add_0_r. now apply Z.mod_mod.
    + now rewrite !update_other.
Qed.

(** A CMP_SWAP that is repeated at once leaves the right memory. But the second execution returns the new word, so a
    program that is given this value believes that its CMP_SWAP failed. *)
Theorem repeated_compare_swap_reports_failure a x y h : x <> y -> memory h a = x ->
  idempotent (CompareSwap a x y) h /\
  value (CompareSwap a x y) h = x /\
  value (CompareSwap a x y) (effect (CompareSwap a x y) h) = y.
Proof.
  intros Hxy Hm. assert (E : memory (effect (CompareSwap a x y) h) a = y).
  { simpl. unfold compare_swap. rewrite Hm, Z.eqb_refl. apply update_same. }
  split; [|split; [exact Hm|exact E]].
  set (g := effect (CompareSwap a x y) h) in *.
  split; [|reflexivity]. intro b. change (compare_swap a x y (memory g) b = memory g b). unfold compare_swap.
  rewrite E. now replace (y =? x) with false by (symmetry; apply Z.eqb_neq; congruence).
Qed.

(** With a reset by somebody else between them, both executions succeed. *)
Theorem compare_swap_can_succeed_twice a x y h : memory h a = x ->
  let once := effect (CompareSwap a x y) h in
  let reset := effect (CompareSwap a y x) once in
  value (CompareSwap a x y) h = x /\ value (CompareSwap a x y) reset = x.
Proof.
  intros Hm. split; [exact Hm|]. unfold value, effect. simpl. unfold compare_swap. rewrite Hm, Z.eqb_refl, update_same, Z.eqb_refl.
  apply update_same.
Qed.

(** A repeated WRITE overwrites whatever others have left in the word in between, for example a flag that its reader has
    consumed and reset. So idempotence is not enough where others use the memory. *)
Theorem repeated_write_undoes_others a v others h :
  let left := effects others (effect (Write a v) h) in
  memory (effect (Write a v) left) a = v /\ (memory left a <> v -> ~ same_host (effect (Write a v) left) left).
Proof.
  intro left. assert (E : memory (effect (Write a v) left) a = v) by apply update_same.
  split; [exact E|]. intros N [S _]. apply N. now rewrite <- (S a).
Qed.

(** A READ changes nothing, nor does a CMP_SWAP that fails; and adding 0 again changes nothing. Adding 1 again does. *)
Theorem repeated_read_is_harmless a x y h : same_host (effect (Read a) h) h /\
  (memory h a <> x -> same_host (effect (CompareSwap a x y) h) h) /\
  idempotent (FetchAdd a 0) h /\ ~ idempotent (FetchAdd a 1) h.
Proof.
  repeat split.
  - intro b. simpl. unfold compare_swap. apply Z.eqb_neq in H as ->. reflexivity.
  - now apply fetch_add_is_idempotent_only_for_zero.
  - intro H. apply fetch_add_is_idempotent_only_for_zero in H. discriminate.
Qed.

(** Operations of others that restore what a word was before CMP_SWAP, FETCH_ADD or WRITE. *)
Lemma reset_compare_swap a x y h : memory h a = x ->
  same_host (effects [CompareSwap a y x] (effect (CompareSwap a x y) h)) h.
Proof.
  intro Hm. split; [|reflexivity]. intro b. simpl. unfold compare_swap. rewrite Hm, Z.eqb_refl, update_same, Z.eqb_refl.
  destruct (Nat.eq_dec b a) as [->|Hb]; [rewrite update_same; congruence|now rewrite !update_other].
Qed.

Lemma reset_fetch_add a d h : 0 <= memory h a < modulus ->
  same_host (effects [FetchAdd a (- d)] (effect (FetchAdd a d) h)) h.
Proof.
  intro Hm. split; [|reflexivity]. intro b. simpl. unfold fetch_add.
  destruct (Nat.eq_dec b a) as [->|Hb]; [|now rewrite !update_other].
  rewrite !update_same. unfold add. rewrite Zplus_mod_idemp_l.
  replace (memory h a + d + - d) with (memory h a) by ring. now apply Z.mod_small.
Qed.

Lemma reset_write a v h : same_host (effects [Write a (memory h a)] (effect (Write a v) h)) h.
Proof.
  split; [|reflexivity]. intro b. simpl. unfold write.
  destruct (Nat.eq_dec b a) as [->|Hb]; [now rewrite update_same|now rewrite !update_other].
Qed.

(** One WRITE, or nothing, restores the words after any operation. *)
Lemma writes_restore o h : exists others, Forall (fun w => exists a v, w = Write a v) others /\
  same_words (memory (effects others (effect o h))) (memory h).
Proof.
  destruct o as [a|a v|a d|a x y|v]; [exists []| | | |exists []]; try (split; [constructor|apply same_words_refl]);
    exists [Write a (memory h a)]; (split; [eauto|]); intro b; simpl; unfold write, fetch_add, compare_swap;
    try destruct (memory h a =? x)%Z; destruct (Nat.eq_dec b a) as [->|Hb];
    rewrite ?update_same, ?update_other by assumption; reflexivity.
Qed.
