(** The possibility theorem: fence, evidence and replay execute every operation exactly once, in posting order, and give
    it the value that it returned; in every valid trace, with any number of operations, rails and failures. *)
From Coq Require Import ZArith List PeanoNat Lia Bool Sorted.
From Mitra Require Export Invariant.
Import ListNotations.

Lemma sorted_nodup l : StronglySorted lt l -> NoDup l.
Proof.
  induction 1 as [|x l S IH F]; constructor; auto. intro H. rewrite Forall_forall in F. apply F in H. lia.
Qed.

Lemma ours_is_executed i v past : In (Ours i v) past -> In i (executions past).
Proof. induction past as [|[]]; simpl; intros []; try congruence; auto. injection H as -> ->. auto. Qed.

(** Safety: no operation is executed twice, whatever fails and whatever packets are delayed. *)
Theorem executed_at_most_once h t s : reaches true h t s -> forall i, times_executed i s <= 1.
Proof.
  intros H i. apply reached_is_sound, sorted_executions, sorted_nodup in H.
  unfold times_executed. now apply NoDup_count_occ with (decA := Nat.eq_dec).
Qed.

(** The responder executes the operations in posting order, over all rails together. *)
Theorem executed_in_posting_order h t s : reaches true h t s -> StronglySorted lt (executions (history s)).
Proof. intro H. eapply sorted_executions, reached_is_sound, H. Qed.

(** The memory is what the record of executions makes of it, and each execution returned the value that the record
    names. So each operation takes effect at one moment, between its posting and its outcome. *)
Theorem memory_is_what_the_history_makes h t s : reaches true h t s -> explains (posted s) h (history s) (machine s).
Proof. intro H. apply (history_is_true h s), (reached_is_sound h t s H). Qed.

(** Never a guess: what the application is told to be executed was executed, once, and its value is the right one. *)
Theorem outcomes_say_what_happened h t s i v : reaches true h t s -> nth_error (outcomes s) i = Some (Executed v) ->
  times_executed i s = 1 /\ exists w, In (Ours i w) (history s) /\ (v = None \/ v = Some w).
Proof.
  intros H E. pose proof (executed_at_most_once h t s H i) as most. unfold times_executed in *.
  destruct (outcomes_are_true h s (reached_is_sound h t s H) i v E) as (w & W & Hw). split; [|eauto].
  apply ours_is_executed, (count_occ_In Nat.eq_dec) in W. lia.
Qed.

(** Doubt comes from NICs that cannot be read: each such failure leaves at most one operation in doubt. *)
Definition is_doubt (o : outcome) : bool := match o with Indeterminate => true | Executed _ => false end.
Definition doubts (os : list outcome) : nat := length (filter is_doubt os).
Definition is_unreadable (e : event) : bool := match e with Recover CompletionLog => true | _ => false end.
Definition unreadable (t : list event) : nat := length (filter is_unreadable t).

Lemma doubts_app os os' : doubts (os ++ os') = doubts os + doubts os'.
Proof. unfold doubts. now rewrite filter_app, app_length. Qed.

Lemma doubts_decided s e : doubts (decide e s) <= if is_unreadable (Recover e) then 1 else 0.
Proof.
  assert (none : forall n, doubts (repeat (Executed None) n) = 0) by (unfold doubts; induction n; simpl; auto).
  unfold decide. destruct e; simpl.
  - unfold doubts. induction (skipn _ _); simpl; auto.
  - rewrite doubts_app, none. unfold doubts. destruct (_ && _); simpl; auto.
Qed.

Lemma doubts_step s e s' : step true s e = Some s' ->
  doubts (outcomes s') <= doubts (outcomes s) + if is_unreadable e then 1 else 0.
Proof.
  destruct s as [m ops outs rs a run past]. intro H.
  destruct e as [o| |k p|k|o|v| | |e]; simpl in H.
  - injection H as <-. simpl. lia.
  - take_guard H G. injection H as <-. simpl. lia.
  - destruct (nth_error _ _) as [o|]; [|discriminate]. take_guard H G. destruct (is_expected _ _); [destruct (execute o m)|];
      injection H as <-; simpl; lia.
  - take_guard H G. injection H as <-. simpl. lia.
  - injection H as <-. simpl. lia.
  - destruct (nth_error _ _); [|discriminate]. take_guard H G. injection H as <-. simpl. rewrite doubts_app. change (doubts [Executed (Some v)]) with 0. simpl. lia.
  - take_guard H G. injection H as <-. simpl. lia.
  - take_guard H G. injection H as <-. simpl. lia.
  - take_guard H G. injection H as <-. simpl outcomes. rewrite doubts_app.
    pose proof (doubts_decided (State m ops outs rs a run past) e). lia.
Qed.

Theorem each_unreadable_nic_leaves_at_most_one_doubt h t s : reaches true h t s -> doubts (outcomes s) <= unreadable t.
Proof.
  unfold reaches. enough (forall t s s', follow true s t = Some s' -> doubts (outcomes s') <= doubts (outcomes s) + unreadable t)
    by (intro H'; apply H in H'; simpl in H'; exact H').
  clear. induction t as [|e t IH]; simpl; intros s s' H.
  - injection H as ->. unfold unreadable. simpl. lia.
  - destruct (step true s e) as [s1|] eqn:E; [|discriminate]. apply IH in H. apply doubts_step in E.
    unfold unreadable in *. simpl. destruct (is_unreadable e); simpl; lia.
Qed.

(** With readable NICs every operation gets its value. *)
Lemma values_step s e s' : step true s e = Some s' -> is_unreadable e = false ->
  (forall i o, nth_error (outcomes s) i = Some o -> exists v, o = Executed (Some v)) ->
  (forall i o, nth_error (outcomes s') i = Some o -> exists v, o = Executed (Some v)).
Proof.
  destruct s as [m ops outs rs a run past]. intros H U.
  assert (more : forall new, (forall o, In o new -> exists v, o = Executed (Some v)) ->
    (forall i o, nth_error outs i = Some o -> exists v, o = Executed (Some v)) ->
    (forall i o, nth_error (outs ++ new) i = Some o -> exists v, o = Executed (Some v))).
  { intros new N I i o E. apply nth_error_In, in_app_or in E as [E|E]; auto. apply In_nth_error in E as [j E]. eauto. }
  destruct e as [o| |k p|k|o|v| | |e]; simpl in H.
  - now injection H as <-.
  - take_guard H G. now injection H as <-.
  - destruct (nth_error _ _) as [o|]; [|discriminate]. take_guard H G.
    destruct (is_expected _ _); [destruct (execute o m)|]; now injection H as <-.
  - take_guard H G. now injection H as <-.
  - now injection H as <-.
  - destruct (nth_error _ _); [|discriminate]. take_guard H G. injection H as <-. apply more. intros o [<-|[]]. eauto.
  - take_guard H G. now injection H as <-.
  - take_guard H G. now injection H as <-.
  - take_guard H G. injection H as <-. apply more. destruct e; [|discriminate]. intros o Ho.
    apply in_map_iff in Ho as (v & <- & _). eauto.
Qed.

(** The possibility theorem, for the failures after which the responder's NIC can be read (packets lost or delayed, links
    dead, the requester's NIC dead): as soon as the application has been told about all operations, each was executed
    exactly once, and the application has its value. *)
Theorem exactly_once h t s : reaches true h t s -> unreadable t = 0 -> known s = length (posted s) ->
  forall i, i < length (posted s) -> times_executed i s = 1 /\
    exists v, nth_error (outcomes s) i = Some (Executed (Some v)) /\ In (Ours i v) (history s).
Proof.
  intros H U K i Hi.
  assert (values : forall i o, nth_error (outcomes s) i = Some o -> exists v, o = Executed (Some v)).
  { assert (G : forall t s0, follow true s0 t = Some s -> unreadable t = 0 ->
      (forall i o, nth_error (outcomes s0) i = Some o -> exists v, o = Executed (Some v)) ->
      forall i o, nth_error (outcomes s) i = Some o -> exists v, o = Executed (Some v)).
    { clear. induction t as [|e t IH]; simpl; intros s0 F U I; [now injection F as ->|].
      destruct (step true s0 e) as [s1|] eqn:E; [|discriminate]. unfold unreadable in U. simpl in U.
      destruct (is_unreadable e) eqn:Ue; [discriminate|].
      apply (IH s1 F U), (values_step s0 e s1 E Ue I). }
    apply (G t (initial h) H U). intros [|j] o; discriminate. }
  destruct (nth_error (outcomes s) i) as [o|] eqn:E.
  - destruct (values i o E) as [v ->]. destruct (outcomes_say_what_happened h t s i (Some v) H E) as (T & w & W & [Hw|Hw]);
      [discriminate|]. injection Hw as ->. eauto.
  - apply nth_error_None in E. unfold known in K. lia.
Qed.

(** The evidence of a fenced rail never changes. So it does not matter when it is read, how often, and whether the answer
    is lost and given again. *)
Theorem evidence_of_a_fenced_rail_is_final h t s e s' r : reaches true h t s -> step true s e = Some s' ->
  r <= active s -> fenced (rails s r) = true -> rails s' r = rails s r.
Proof.
  intros H E L F. apply reached_is_sound in H. pose proof (rail_in_use_is_not_fenced h s H) as open.
  destruct s as [m ops outs rs a run past]. unfold current in open. simpl in *.
  destruct e as [o| |k p|k|o|v| | |e]; simpl in E.
  - now injection E as <-.
  - take_guard E G. split_guard G. injection E as <-. simpl. apply update_other. intros ->.
    rewrite open in F by assumption. discriminate.
  - destruct (nth_error _ _) as [o|]; [|discriminate]. take_guard E G. destruct (is_expected _ _); [|now injection E as <-].
    destruct (execute o m). split_guard G. injection E as <-. simpl. apply update_other. intros ->. rewrite F in G. discriminate.
  - take_guard E G. split_guard G. injection E as <-. simpl. apply update_other. intros ->. rewrite F in G. discriminate.
  - now injection E as <-.
  - destruct (nth_error _ _); [|discriminate]. take_guard E G. now injection E as <-.
  - take_guard E G. now injection E as <-.
  - take_guard E G. split_guard G. injection E as <-. simpl. apply update_other. intros ->. now rewrite F in *.
  - take_guard E G. injection E as <-. simpl. apply update_other. lia.
Qed.
