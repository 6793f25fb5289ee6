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
    names. So each operation that is executed takes effect at one moment, behind its posting. *)
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
  intro H. apply posted_and_told in H as [_ ->]. rewrite doubts_app. apply Nat.add_le_mono_l.
  destruct e; solve [apply doubts_decided|apply le_n].
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

(** What a recovery leaves in doubt is the operation at the edge of the log: the first without an entry, if it was sent. *)
Lemma decided_doubt s e j : nth_error (decide e s) j = Some Indeterminate ->
  e = CompletionLog /\ known s + j = first (current s) + logged (current s) /\ logged (current s) < sent (current s).
Proof.
  unfold decide. fold (current s). destruct e; [rewrite nth_error_map; now destruct (nth_error _ j)|].
  destruct (Nat.lt_ge_cases j (first (current s) + logged (current s) - known s)) as [Hj|Hj].
  - rewrite nth_error_app1 by (now rewrite repeat_length). intro E. now apply nth_error_In, repeat_spec in E.
  - rewrite nth_error_app2, repeat_length by (now rewrite repeat_length).
    destruct (Nat.leb_spec (known s) (first (current s) + logged (current s)));
      destruct (Nat.ltb_spec (logged (current s)) (sent (current s))); destruct (j - _) as [|[|d]] eqn:D; simpl; intro E; try discriminate E.
    repeat split; lia.
Qed.

(** So over whole traces: each operation in doubt was at the edge of the log when a NIC could not be read. *)
Theorem doubt_is_at_the_edge_of_the_log h t s i : reaches true h t s -> nth_error (outcomes s) i = Some Indeterminate ->
  exists before after s0, t = before ++ Recover CompletionLog :: after /\ reaches true h before s0 /\
    i = first (current s0) + logged (current s0) /\ logged (current s0) < sent (current s0).
Proof.
  unfold reaches. revert s. induction t as [|e t IH] using rev_ind; intro s; [intros [= <-]; now destruct i|].
  rewrite follow_app. destruct (follow true (initial h) t) as [s0|] eqn:R; [|discriminate]. simpl.
  destruct (step true s0 e) as [s1|] eqn:E; [|discriminate]. intros [= ->].
  destruct (posted_and_told true s0 e s E) as [_ ->]. destruct (Nat.lt_ge_cases i (known s0)) as [L|L].
  - rewrite nth_error_app1 by exact L. intro D. destruct (IH s0 eq_refl D) as (before & after & s2 & -> & P).
    exists before, (after ++ [e]), s2. split; [now rewrite <- app_assoc|exact P].
  - rewrite nth_error_app2 by exact L. fold (known s0). intro D.
    destruct e; try (destruct (i - known s0) as [|[|d]]; discriminate D).
    destruct (decided_doubt s0 e (i - known s0) D) as (-> & Edge & Sent). exists t, [], s0. repeat split; auto; lia.
Qed.

(** With readable NICs every operation gets its value. *)
Lemma values_step s e s' : step true s e = Some s' -> is_unreadable e = false ->
  (forall i o, nth_error (outcomes s) i = Some o -> exists v, o = Executed (Some v)) ->
  (forall i o, nth_error (outcomes s') i = Some o -> exists v, o = Executed (Some v)).
Proof.
  intros H U I i o E. apply posted_and_told in H as [_ T]. rewrite T in E.
  apply nth_error_In, in_app_or in E as [E|E]; [apply In_nth_error in E as [j E]; eauto|].
  destruct e as [| | | | |v| | |e]; try contradiction E.
  - destruct E as [<-|[]]. eauto.
  - destruct e; [|discriminate]. apply in_map_iff in E as (v & <- & _). eauto.
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

Lemma fenced_rail_step h s e s' r : sound h s -> step true s e = Some s' -> fenced (rails s r) = true -> rails s' r = rails s r.
Proof.
  intros I E F. pose proof (rail_in_use_is_not_fenced h s I) as open.
  destruct (Nat.lt_ge_cases (active s) r) as [L|L]; [rewrite (later_rails_are_unused h s I r L) in F; discriminate|].
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

(** The evidence of a fenced rail never changes, whatever follows. So it does not matter when it is read, how often, and whether
    the answer is lost and given again. *)
Theorem evidence_of_a_fenced_rail_is_final h t s more s' r : reaches true h t s -> fenced (rails s r) = true ->
  follow true s more = Some s' -> rails s' r = rails s r.
Proof.
  intro R. apply reached_is_sound in R. clear t. revert s R. induction more as [|e more IH]; simpl; intros s I F H.
  - now injection H as <-.
  - destruct (step true s e) as [s1|] eqn:E; [|discriminate]. pose proof (fenced_rail_step h s e s1 r I E F) as same.
    rewrite <- same. apply IH; [exact (sound_step h s e s1 I E)|congruence|exact H].
Qed.

Lemma executed_by_step h s e s' : sound h s -> step true s e = Some s' ->
  exists new, history s' = history s ++ new /\ forall i, In i (executions new) -> known s <= i < length (posted s').
Proof.
  intros I E. pose proof (told_were_executed h s I) as T. pose proof (executed_were_sent h s I) as S.
  pose proof (only_active_executes h s) as active_only.
  destruct s as [m ops outs rs a run past]. unfold current, known in *. simpl in *.
  destruct e as [o| |k p|k|o|v| | |e]; simpl in E.
  3: { destruct (nth_error ops (first (rs k) + p)) as [o|] eqn:N; [|discriminate]. take_guard E G.
       destruct (is_expected _ _) eqn:X; [|injection E as <-; exists []; simpl; now rewrite app_nil_r].
       destruct (execute o m) as [m' v]. injection E as <-. exists [Ours (first (rs k) + p) v]. split; [reflexivity|].
       intros i [<-|[]]. simpl. apply expected in X as [-> _]. split_guard G.
       apply negb_true_iff in G. apply Nat.ltb_lt in H.
       rewrite (active_only k I G) in * by lia. split; [lia|]. apply nth_error_Some. congruence. }
  4: { injection E as <-. exists [Theirs o]. split; [reflexivity|intros i []]. }
  all: exists []; split; [|intros i []]; rewrite app_nil_r;
    repeat match type of E with match ?x with _ => _ end = _ => destruct x end; try discriminate E; now injection E as <-.
Qed.

(** What is executed later was not told before: also an operation that ended as [Indeterminate] stays as it is. *)
Theorem nothing_that_was_told_is_executed_later h t s more s' : reaches true h t s -> follow true s more = Some s' ->
  exists new, history s' = history s ++ new /\ forall i, In i (executions new) -> known s <= i < length (posted s').
Proof.
  intro R. apply reached_is_sound in R. clear t. revert s R. induction more as [|e more IH]; simpl; intros s I H.
  - injection H as <-. exists []. rewrite app_nil_r. now split.
  - destruct (step true s e) as [s1|] eqn:E; [|discriminate].
    destruct (executed_by_step h s e s1 I E) as (new & P & B). destruct (posted_and_told true s e s1 E) as [_ O].
    destruct (IH s1 (sound_step h s e s1 I E) H) as (new' & P' & B'). exists (new ++ new').
    split; [rewrite P', P; symmetry; apply app_assoc|]. intros i J. rewrite executions_app in J. apply in_app_or in J as [J|J].
    + apply B in J. apply posted_follow in H. rewrite H, app_length. lia.
    + apply B' in J. unfold known in *. rewrite O, app_length in J. lia.
Qed.
