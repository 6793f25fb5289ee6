(** Transparent failover: the requester decides from its view and from what it does with the memory after the failure.

    The note allows it to read the memory. Here it may do anything: read, write, use atomics, as often as it likes, and
    choose each step after the result of the last. It is impossible nevertheless, if others may restore the memory (the
    ABA problem). What helps is evidence that was recorded when the operation was executed; see ExactlyOnce.v. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Export TwoHistories ExactlyOnce.
Import ListNotations.

(** What the requester does after the failure: nothing more, or have the backup NIC execute the operation, or execute
    some other operation, and go on according to the value. It ends, because the type is inductive. *)
Inductive procedure :=
| Stop
| Repeat (next : Z -> procedure)
| Do (o : op) (next : Z -> procedure).

(** How often the procedure has the backup NIC execute the operation [o], if it runs alone on the host [h]. *)
Fixpoint repetitions (p : procedure) (o : op) (h : host) : nat :=
  match p with
  | Stop => 0
  | Repeat next => S (repetitions (next (value o h)) o (effect o h))
  | Do o' next => repetitions (next (value o' h)) o (effect o' h)
  end.

Lemma repetitions_same p o h h' : same_words (memory h) (memory h') -> repetitions p o h = repetitions p o h'.
Proof.
  revert h h'. induction p as [|next IH|o' next IH]; simpl; intros h h' H; [reflexivity| |].
  - destruct (same_memory_effect o h h' H) as [H' ->]. now rewrite (IH _ _ _ H').
  - destruct (same_memory_effect o' h h' H) as [H' ->]. now rewrite (IH _ _ _ H').
Qed.

(** A failover mechanism chooses the procedure by the requester's view. The note asks for two properties, for the
    operation [o] that starts on the host [h]. Safety: the primary's executions and the backup's together are at most
    one. Liveness: if the primary has not executed the operation, the backup does. Nobody else runs during the recovery
    and no packet is delayed, so the theorems ask for less than a real mechanism must do. *)
Definition safe_for (o : op) (h : host) (mechanism : list event -> procedure) : Prop :=
  forall trace s, in_flight o h trace s ->
    times_executed 0 s + repetitions (mechanism (view trace)) o (machine s) <= 1.
Definition live_for (o : op) (h : host) (mechanism : list event -> procedure) : Prop :=
  forall trace s, in_flight o h trace s -> times_executed 0 s = 0 ->
    1 <= repetitions (mechanism (view trace)) o (machine s).

(** Each alone is easy to have: never repeat, always repeat. *)
Theorem safety_alone_is_possible o h : safe_for o h (fun _ => Stop).
Proof. intros t s [R _]. simpl. rewrite Nat.add_0_r. apply (executed_at_most_once h t s R). Qed.

Theorem liveness_alone_is_possible o h : live_for o h (fun _ => Repeat (fun _ => Stop)).
Proof. intros trace s _ _. simpl. lia. Qed.

(** Both together are impossible if others can restore the memory. *)
Theorem transparent_failover_is_impossible o h others :
  same_words (memory (effects others (effect o h))) (memory h) ->
  forall mechanism, ~ (safe_for o h mechanism /\ live_for o h mechanism).
Proof.
  intros restored mechanism [safe live].
  destruct (not_executed_is_valid o h) as (s & F & M & T).
  destruct (executed_then_is_valid o others h) as (s' & F' & M' & T').
  specialize (live _ _ F T). specialize (safe _ _ F'). rewrite T', M' in safe. rewrite M in live.
  rewrite (repetitions_same _ o _ h restored), <- sender_cannot_tell in safe. lia.
Qed.

(** The main result of the note: for CMP_SWAP that would succeed. *)
Theorem transparent_failover_of_compare_swap_is_impossible a x y h : memory h a = x ->
  forall mechanism, ~ (safe_for (CompareSwap a x y) h mechanism /\ live_for (CompareSwap a x y) h mechanism).
Proof. intro Hm. eapply transparent_failover_is_impossible. exact (proj1 (reset_compare_swap a x y h Hm)). Qed.

(** For FETCH_ADD on a word of 64 bits. *)
Theorem transparent_failover_of_fetch_add_is_impossible a d h : (0 <= memory h a < modulus)%Z ->
  forall mechanism, ~ (safe_for (FetchAdd a d) h mechanism /\ live_for (FetchAdd a d) h mechanism).
Proof. intro Hm. eapply transparent_failover_is_impossible. exact (proj1 (reset_fetch_add a d h Hm)). Qed.

(** And for WRITE, which the note allows: whoever waits for the WRITE may reset the word. *)
Theorem transparent_failover_of_write_is_impossible a v h :
  forall mechanism, ~ (safe_for (Write a v) h mechanism /\ live_for (Write a v) h mechanism).
Proof. eapply transparent_failover_is_impossible. exact (proj1 (reset_write a v h)). Qed.

(** And for SEND, whatever others do: the requester cannot see the receives that its messages have taken. *)
Theorem transparent_failover_of_send_is_impossible v h :
  forall mechanism, ~ (safe_for (Send v) h mechanism /\ live_for (Send v) h mechanism).
Proof. apply transparent_failover_is_impossible with (others := []). intro a. reflexivity. Qed.
