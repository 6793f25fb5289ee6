(** Transparent failover: the requester decides from its view and from what it does with the memory after the failure.

    The note allows it to read the memory. Here it may do anything: read, write, use atomics, as often as it likes, and
    choose each step after the result of the last. It is impossible nevertheless, if others may restore the memory (the
    ABA problem); even if the rail was fenced before. What helps is evidence that was recorded when the operation was
    executed; see ExactlyOnce.v. *)
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

(** The host after the procedure, if it runs alone. *)
Fixpoint ends (p : procedure) (h : host) : host :=
  match p with
  | Stop => h
  | Do o next => ends (next (value o h)) (effect o h)
  end.

Lemma repetitions_same p o h h' : same_words (memory h) (memory h') -> repetitions p o h = repetitions p o h'.
Proof.
  revert h h'. induction p as [|o' next IH]; simpl; intros h h' H; [reflexivity|].
  destruct (same_memory_effect o' h h' H) as [H' ->]. now rewrite (IH _ _ _ H').
Qed.

(** The procedure depends on the words only, and adds the same messages to what has been received. *)
Lemma ends_same p h h' : same_words (memory h) (memory h') ->
  same_words (memory (ends p h)) (memory (ends p h')) /\
  exists more, received (ends p h) = received h ++ more /\ received (ends p h') = received h' ++ more.
Proof.
  revert h h'. induction p as [|o next IH]; simpl; intros h h' H.
  - split; [exact H|]. exists []. now rewrite !app_nil_r.
  - destruct (same_memory_effect o h h' H) as [H' E]. rewrite <- E.
    destruct (IH (value o h) _ _ H') as (W & more & M & M'). split; [exact W|]. rewrite M, M'.
    destruct o as [| | | |v]; try (exists more; split; reflexivity). exists (v :: more). simpl. now rewrite <- !app_assoc.
Qed.

(** Whatever others do in the trace is [allowed]. *)
Definition others_do (allowed : op -> Prop) (trace : list event) : Prop := forall o, In (Other o) trace -> allowed o.

(** A failover mechanism chooses the procedure by the requester's view. The note asks for two properties, for the
    operation [o] that starts on the host [h], and whose rail has been fenced ([closed]) or not. Safety: the primary's
    executions and the backup's together are at most one. Liveness: if the primary has not executed the operation, the
    backup does. Nobody else runs during the recovery, no packet is delayed, and before it others do what is allowed, so
    the theorems ask for less than a real mechanism must do. *)
Definition safe_for (closed : bool) (allowed : op -> Prop) (o : op) (h : host) (mechanism : list event -> procedure) : Prop :=
  forall trace s, in_flight closed o h trace s -> others_do allowed trace ->
    times_executed 0 s + repetitions (mechanism (view trace)) o (machine s) <= 1.
Definition live_for (closed : bool) (allowed : op -> Prop) (o : op) (h : host) (mechanism : list event -> procedure) : Prop :=
  forall trace s, in_flight closed o h trace s -> others_do allowed trace -> times_executed 0 s = 0 ->
    1 <= repetitions (mechanism (view trace)) o (machine s).

(** Both count executions of equal operations. This one looks at the effect only, by whatever operations it comes about: what
    was not executed takes effect, and behind what was executed the recovery changes nothing. *)
Definition right_for (closed : bool) (allowed : op -> Prop) (o : op) (h : host) (mechanism : list event -> procedure) : Prop :=
  forall trace s, in_flight closed o h trace s -> others_do allowed trace ->
    let final := ends (mechanism (view trace)) (machine s) in
    (times_executed 0 s = 0 -> same_host final (effect o (machine s))) /\
    (times_executed 0 s = 1 -> same_host final (machine s)).

(** Each alone is easy to have: never repeat, and always repeat what the view says was posted. *)
Definition never_repeat (view : list event) : procedure := Stop.
Definition always_repeat (view : list event) : procedure :=
  match flat_map posts view with o :: _ => Do o (fun _ => Stop) | [] => Stop end.

Lemma always_repeat_repeats closed o h trace s : in_flight closed o h trace s ->
  always_repeat (view trace) = Do o (fun _ => Stop).
Proof.
  intros (R & P & _). apply posted_follow in R. rewrite P in R. unfold always_repeat.
  replace (flat_map posts (view trace)) with (flat_map posts trace); [|clear; now induction trace as [|[]]; simpl; congruence].
  simpl in R. now rewrite <- R.
Qed.

Theorem safety_alone_is_possible closed allowed o h : safe_for closed allowed o h never_repeat.
Proof. intros t s [R _] _. simpl. rewrite Nat.add_0_r. apply (executed_at_most_once h t s R). Qed.

Theorem liveness_alone_is_possible closed allowed o h : live_for closed allowed o h always_repeat.
Proof. intros trace s F _ _. rewrite (always_repeat_repeats closed o h trace s F). simpl. now destruct (same_op o o). Qed.

(** An operation that changes nothing, as a READ, can be repeated always, whatever others did before the recovery. *)
Theorem what_changes_nothing_can_be_repeated closed allowed o h : (forall g, same_host (effect o g) g) ->
  right_for closed allowed o h always_repeat.
Proof.
  intros same trace s F _. rewrite (always_repeat_repeats closed o h trace s F). split; intros _; [apply same_host_refl|apply same].
Qed.

Lemma theirs_are_others b s t s' o : follow b s t = Some s' -> In (Theirs o) (history s') ->
  In (Theirs o) (history s) \/ In (Other o) t.
Proof.
  revert s. induction t as [|e t IH]; simpl; intros s H J; [injection H as ->; auto|].
  destruct (step b s e) as [s1|] eqn:E; [|discriminate]. destruct (IH s1 H J) as [K|K]; [|auto].
  destruct s as [m ops outs rs a run past]. destruct e; cbn [step] in E;
    repeat match type of E with match ?x with _ => _ end = _ => destruct x end; try discriminate E; injection E as <-;
    cbn [history] in *; auto; apply in_app_or in K as [K|[K|[]]]; auto; [discriminate K|]. injection K as ->. auto.
Qed.

(** If others do nothing, so can an idempotent operation, as a WRITE, as far as the effect goes. The value of a repeated CMP_SWAP
    is wrong: [repeated_compare_swap_reports_failure]. *)
Theorem idempotent_operations_can_be_repeated_alone closed o h : (forall g, idempotent o g) ->
  right_for closed (fun _ => False) o h always_repeat.
Proof.
  intros twice trace s F alone. rewrite (always_repeat_repeats closed o h trace s F). split; intro T; [apply same_host_refl|].
  destruct F as (R & P & _). simpl. pose proof (memory_is_what_the_history_makes h trace s R) as M. rewrite P in M.
  unfold times_executed in T. inversion M as [E X|past g [|[|i]] o' X N|past g o' X E]; try discriminate N.
  - rewrite <- E in T. discriminate T.
  - injection N as ->. apply twice.
  - destruct (theirs_are_others true _ trace s o' R) as [[]|K]; [rewrite <- E; apply in_or_app; simpl; auto|].
    destruct (alone o' K).
Qed.

Lemma others_in_given_up allowed closed : others_do allowed (given_up closed).
Proof. intros o [E|H]; [discriminate E|]. destruct closed; [destruct H as [E|[]]; discriminate E|destruct H]. Qed.

Lemma others_in_not_executed allowed closed o : others_do allowed (not_executed closed o).
Proof. intros o' [E|[E|H]]; [discriminate E|discriminate E|exact (others_in_given_up allowed closed o' H)]. Qed.

Lemma others_in_executed_then allowed closed o others : Forall allowed others ->
  others_do allowed (executed_then closed o others).
Proof.
  intros F o' H. apply in_app_or in H as [[E|[E|[E|[]]]]|H]; try discriminate E.
  apply in_app_or in H as [H|H]; [|exact (others_in_given_up allowed closed o' H)].
  apply in_map_iff in H as (x & [= ->] & H). rewrite Forall_forall in F. auto.
Qed.

(** Both together are impossible if others are allowed to restore the memory. *)
Theorem transparent_failover_is_impossible closed allowed o h others :
  Forall allowed others -> same_words (memory (effects others (effect o h))) (memory h) ->
  forall mechanism, ~ (safe_for closed allowed o h mechanism /\ live_for closed allowed o h mechanism).
Proof.
  intros may restored mechanism [safe live].
  destruct (not_executed_is_valid closed o h) as (s & F & M & T).
  destruct (executed_then_is_valid closed o others h) as (s' & F' & M' & T').
  specialize (live _ _ F (others_in_not_executed allowed closed o) T).
  specialize (safe _ _ F' (others_in_executed_then allowed closed o others may)).
  rewrite T', M' in safe. rewrite M in live.
  rewrite (repetitions_same _ o _ h restored), <- sender_cannot_tell in safe. lia.
Qed.

(** Nor has a mechanism the right effect by other operations, such as a WRITE of the sum, or several that cancel each other, unless
    the operation changes nothing. *)
Theorem no_mechanism_has_the_right_effect closed (allowed : op -> Prop) o h mechanism : (forall a v, allowed (Write a v)) ->
  ~ same_host (effect o h) h -> ~ right_for closed allowed o h mechanism.
Proof.
  intros may changes right. destruct (writes_restore o h) as (others & W & restored).
  destruct (not_executed_is_valid closed o h) as (s & F & M & T).
  destruct (executed_then_is_valid closed o others h) as (s' & F' & M' & T').
  assert (D : Forall allowed others)
    by (apply (Forall_impl _ (P := fun w => exists a v, w = Write a v)); [intros w (a & v & ->); apply may|exact W]).
  destruct (proj1 (right _ _ F (others_in_not_executed allowed closed o)) T) as [E R].
  destruct (proj2 (right _ _ F' (others_in_executed_then allowed closed o others D)) T') as [E' R'].
  rewrite M in E, R. rewrite M', <- sender_cannot_tell in E', R'.
  destruct (ends_same (mechanism (view (not_executed closed o))) _ _ restored) as (same & more & X' & X).
  rewrite X' in R'. rewrite X in R. apply changes. split.
  - intro a. rewrite <- (E a), <- (same a), (E' a). apply restored.
  - rewrite <- R. replace more with (@nil Z); [apply app_nil_r|].
    apply (f_equal (@length Z)) in R'. rewrite app_length in R'. destruct more; [reflexivity|simpl in R'; lia].
Qed.

(** The main result of the note: for CMP_SWAP that would succeed. All that others ever do is to swap the word back. *)
Theorem transparent_failover_of_compare_swap_is_impossible closed a x y h : memory h a = x -> let o := CompareSwap a x y in
  forall mechanism, ~ (safe_for closed (eq (CompareSwap a y x)) o h mechanism /\ live_for closed (eq (CompareSwap a y x)) o h mechanism).
Proof.
  intros Hm o. apply transparent_failover_is_impossible with (others := [CompareSwap a y x]); [auto|].
  exact (proj1 (reset_compare_swap a x y h Hm)).
Qed.

(** For FETCH_ADD on a word of 64 bits. All that others ever do is to subtract what it adds. *)
Theorem transparent_failover_of_fetch_add_is_impossible closed a d h : (0 <= memory h a < modulus)%Z -> let o := FetchAdd a d in
  forall mechanism, ~ (safe_for closed (eq (FetchAdd a (- d))) o h mechanism /\ live_for closed (eq (FetchAdd a (- d))) o h mechanism).
Proof.
  intros Hm o. apply transparent_failover_is_impossible with (others := [FetchAdd a (- d)]); [auto|].
  exact (proj1 (reset_fetch_add a d h Hm)).
Qed.

(** And for WRITE, which the note allows: whoever waits for the WRITE may reset the word. *)
Theorem transparent_failover_of_write_is_impossible closed a v h : let o := Write a v in let reset := Write a (memory h a) in
  forall mechanism, ~ (safe_for closed (eq reset) o h mechanism /\ live_for closed (eq reset) o h mechanism).
Proof.
  intros o reset. apply transparent_failover_is_impossible with (others := [reset]); [auto|]. exact (proj1 (reset_write a v h)).
Qed.

(** And for SEND, even if others never do anything: the requester cannot see the receives that its messages have taken. *)
Theorem transparent_failover_of_send_is_impossible closed v h :
  forall mechanism, ~ (safe_for closed (fun _ => False) (Send v) h mechanism /\ live_for closed (fun _ => False) (Send v) h mechanism).
Proof. apply transparent_failover_is_impossible with (others := []); [auto|]. intro a. reflexivity. Qed.
