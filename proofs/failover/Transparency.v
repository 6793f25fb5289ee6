(** Transparent failover: the requester decides from its view and from what it does with the memory after the failure.

    The note allows it to read the memory. Here it may do anything: read, write, use atomics, as often as it likes, and
    choose each step after the result of the last. It is impossible nevertheless, if others may restore the memory (the
    ABA problem). What helps is evidence that was recorded when the operation was executed; see ExactlyOnce.v. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Export TwoHistories ExactlyOnce.
Import ListNotations.

(** What the requester does after the failure: nothing more, or have the backup NIC execute an operation, and go on according to
    the value. It ends, because the type is inductive. *)
Inductive procedure :=
| Stop
| Do (o : op) (next : Z -> procedure).

(** How often the procedure has the backup NIC execute the operation [o], or one that is equal to it, if it runs alone on the
    host [h]. *)
Fixpoint repetitions (p : procedure) (o : op) (h : host) : nat :=
  match p with
  | Stop => 0
  | Do o' next => (if same_op o' o then 1 else 0) + repetitions (next (value o' h)) o (effect o' h)
  end.

Lemma repetitions_same p o h h' : same_words (memory h) (memory h') -> repetitions p o h = repetitions p o h'.
Proof.
  revert h h'. induction p as [|o' next IH]; simpl; intros h h' H; [reflexivity|].
  destruct (same_memory_effect o' h h' H) as [H' ->]. now rewrite (IH _ _ _ H').
Qed.

(** Whatever others do in the trace is [allowed]. *)
Definition others_do (allowed : op -> Prop) (trace : list event) : Prop := forall o, In (Other o) trace -> allowed o.

(** A failover mechanism chooses the procedure by the requester's view. The note asks for two properties, for the
    operation [o] that starts on the host [h]. Safety: the primary's executions and the backup's together are at most
    one. Liveness: if the primary has not executed the operation, the backup does. Nobody else runs during the recovery,
    no packet is delayed, and before it others do what is allowed, so the theorems ask for less than a real mechanism must do. *)
Definition safe_for (allowed : op -> Prop) (o : op) (h : host) (mechanism : list event -> procedure) : Prop :=
  forall trace s, in_flight o h trace s -> others_do allowed trace ->
    times_executed 0 s + repetitions (mechanism (view trace)) o (machine s) <= 1.
Definition live_for (allowed : op -> Prop) (o : op) (h : host) (mechanism : list event -> procedure) : Prop :=
  forall trace s, in_flight o h trace s -> others_do allowed trace -> times_executed 0 s = 0 ->
    1 <= repetitions (mechanism (view trace)) o (machine s).

(** Each alone is easy to have: never repeat, and always repeat what the view says was posted. *)
Definition never_repeat (view : list event) : procedure := Stop.
Definition always_repeat (view : list event) : procedure :=
  match flat_map posts view with o :: _ => Do o (fun _ => Stop) | [] => Stop end.

Lemma always_repeat_repeats o h trace s g : in_flight o h trace s -> repetitions (always_repeat (view trace)) o g = 1.
Proof.
  intros (R & P & _). apply posted_follow in R. rewrite P in R. unfold always_repeat.
  replace (flat_map posts (view trace)) with (flat_map posts trace); [|clear; now induction trace as [|[]]; simpl; congruence].
  simpl in R. rewrite <- R. simpl. now destruct (same_op o o).
Qed.

Theorem safety_alone_is_possible allowed o h : safe_for allowed o h never_repeat.
Proof. intros t s [R _] _. simpl. rewrite Nat.add_0_r. apply (executed_at_most_once h t s R). Qed.

Theorem liveness_alone_is_possible allowed o h : live_for allowed o h always_repeat.
Proof. intros trace s F _ _. now rewrite (always_repeat_repeats o h trace s). Qed.

Lemma others_in_not_executed allowed o : others_do allowed (not_executed o).
Proof. intros o' [E|[E|[E|[]]]]; discriminate E. Qed.

Lemma others_in_executed_then allowed o others : Forall allowed others -> others_do allowed (executed_then o others).
Proof.
  intros F o' H. apply in_app_or in H as [[E|[E|[E|[]]]]|H]; try discriminate E.
  apply in_app_or in H as [H|[E|[]]]; [|discriminate E].
  apply in_map_iff in H as (x & [= ->] & H). rewrite Forall_forall in F. auto.
Qed.

(** Both together are impossible if others are allowed to restore the memory. *)
Theorem transparent_failover_is_impossible allowed o h others :
  Forall allowed others -> same_words (memory (effects others (effect o h))) (memory h) ->
  forall mechanism, ~ (safe_for allowed o h mechanism /\ live_for allowed o h mechanism).
Proof.
  intros may restored mechanism [safe live].
  destruct (not_executed_is_valid o h) as (s & F & M & T).
  destruct (executed_then_is_valid o others h) as (s' & F' & M' & T').
  specialize (live _ _ F (others_in_not_executed allowed o) T).
  specialize (safe _ _ F' (others_in_executed_then allowed o others may)).
  rewrite T', M' in safe. rewrite M in live.
  rewrite (repetitions_same _ o _ h restored), <- sender_cannot_tell in safe. lia.
Qed.

(** The main result of the note: for CMP_SWAP that would succeed. All that others ever do is to swap the word back. *)
Theorem transparent_failover_of_compare_swap_is_impossible a x y h : memory h a = x -> let o := CompareSwap a x y in
  forall mechanism, ~ (safe_for (eq (CompareSwap a y x)) o h mechanism /\ live_for (eq (CompareSwap a y x)) o h mechanism).
Proof.
  intros Hm o. apply transparent_failover_is_impossible with (others := [CompareSwap a y x]); [auto|].
  exact (proj1 (reset_compare_swap a x y h Hm)).
Qed.

(** For FETCH_ADD on a word of 64 bits. All that others ever do is to subtract what it adds. *)
Theorem transparent_failover_of_fetch_add_is_impossible a d h : (0 <= memory h a < modulus)%Z -> let o := FetchAdd a d in
  forall mechanism, ~ (safe_for (eq (FetchAdd a (- d))) o h mechanism /\ live_for (eq (FetchAdd a (- d))) o h mechanism).
Proof.
  intros Hm o. apply transparent_failover_is_impossible with (others := [FetchAdd a (- d)]); [auto|].
  exact (proj1 (reset_fetch_add a d h Hm)).
Qed.

(** And for WRITE, which the note allows: whoever waits for the WRITE may reset the word. *)
Theorem transparent_failover_of_write_is_impossible a v h : let o := Write a v in let reset := Write a (memory h a) in
  forall mechanism, ~ (safe_for (eq reset) o h mechanism /\ live_for (eq reset) o h mechanism).
Proof.
  intros o reset. apply transparent_failover_is_impossible with (others := [reset]); [auto|]. exact (proj1 (reset_write a v h)).
Qed.

(** And for SEND, even if others never do anything: the requester cannot see the receives that its messages have taken. *)
Theorem transparent_failover_of_send_is_impossible v h :
  forall mechanism, ~ (safe_for (fun _ => False) (Send v) h mechanism /\ live_for (fun _ => False) (Send v) h mechanism).
Proof. apply transparent_failover_is_impossible with (others := []); [auto|]. intro a. reflexivity. Qed.
