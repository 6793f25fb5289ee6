(** What holds in every state that a requester reaches that fences before it reads the evidence. *)
From Coq Require Import ZArith List PeanoNat Lia Bool Sorted.
From Mitra Require Export System.
Import ListNotations.

(** The rail in use. *)
Definition current (s : state) : rail := rails s (active s).

Record sound (h : host) (s : state) : Prop := Sound {
  earlier_rails_are_fenced : forall r, r < active s -> fenced (rails s r) = true;
  later_rails_are_unused : forall r, active s < r -> rails s r = new_rail 0;
  rail_in_use_is_not_fenced : running s = true -> fenced (current s) = false;
  executed_were_sent : executed (current s) <= sent (current s);
  sent_were_posted : first (current s) + sent (current s) <= length (posted s);
  log_follows : logged (current s) <= executed (current s) <= S (logged (current s));
  told_were_executed : first (current s) <= known s <= first (current s) + executed (current s);
  (* What earlier rails have executed comes before what this one has, and this one has executed its first ones. *)
  executed_in_order : exists earlier,
    executions (history s) = earlier ++ seq (first (current s)) (executed (current s)) /\
    StronglySorted lt earlier /\ Forall (fun i => i < first (current s)) earlier;
  results_are_true : forall j v, nth_error (results (current s)) j = Some v ->
    In (Ours (first (current s) + j) v) (history s);
  outcomes_are_true : forall i v, nth_error (outcomes s) i = Some (Executed v) ->
    exists w, In (Ours i w) (history s) /\ (v = None \/ v = Some w);
  history_is_true : explains (posted s) h (history s) (machine s);
}.

Lemma sorted_app (l l' : list nat) : StronglySorted lt l -> StronglySorted lt l' ->
  (forall x y, In x l -> In y l' -> x < y) -> StronglySorted lt (l ++ l').
Proof.
  intros S S' H. induction S as [|x l S IH F]; simpl; [exact S'|]. constructor.
  - apply IH. simpl in H. auto.
  - apply Forall_app. split; [exact F|]. apply Forall_forall. simpl in H. auto.
Qed.

Lemma sorted_seq a n : StronglySorted lt (seq a n).
Proof.
  revert a. induction n as [|n IH]; simpl; intro a; constructor; auto.
  apply Forall_forall. intros x Hx. apply in_seq in Hx. lia.
Qed.

Lemma nth_error_skipn {A} (l : list A) d j : nth_error (skipn d l) j = nth_error l (d + j).
Proof.
  revert d. induction l as [|x l IH]; intros [|d]; simpl; try easy. now destruct j.
Qed.

Lemma sorted_executions h s : sound h s -> StronglySorted lt (executions (history s)).
Proof.
  intro I. destruct (executed_in_order h s I) as (earlier & -> & S & F).
  apply sorted_app; auto using sorted_seq. intros x y Hx Hy.
  rewrite Forall_forall in F. apply F in Hx. apply in_seq in Hy. lia.
Qed.

Lemma executions_below h s i : sound h s -> In i (executions (history s)) ->
  i < first (current s) + executed (current s).
Proof.
  intro I. destruct (executed_in_order h s I) as (earlier & -> & _ & F). intro H.
  apply in_app_or in H as [H|H].
  - rewrite Forall_forall in F. apply F in H. lia.
  - apply in_seq in H. lia.
Qed.

Lemma executed_one_more f n l b r v : executed (Rail f n (results r ++ [v]) l b) = S (executed r).
Proof. unfold executed. simpl. rewrite app_length. simpl. lia. Qed.

(** How many operations the application has been told about after a recovery: all that were executed, none that were
    not sent. *)
Lemma told_by_recovery h s e : sound h s ->
  first (current s) + executed (current s) <= known s + length (decide e s) <= first (current s) + sent (current s).
Proof.
  intro I. pose proof (told_were_executed h s I). pose proof (executed_were_sent h s I). pose proof (log_follows h s I).
  unfold decide. fold (current s). destruct e.
  - rewrite map_length, skipn_length. fold (executed (current s)). lia.
  - rewrite app_length, repeat_length.
    destruct (Nat.leb_spec (known s) (first (current s) + logged (current s))), (Nat.ltb_spec (logged (current s)) (sent (current s)));
      simpl; lia.
Qed.

(** What a recovery tells the application is true. *)
Lemma decided_are_true h s e j v : sound h s -> nth_error (decide e s) j = Some (Executed v) ->
  exists w, In (Ours (known s + j) w) (history s) /\ (v = None \/ v = Some w).
Proof.
  intros I. pose proof (told_were_executed h s I). pose proof (log_follows h s I).
  unfold decide. fold (current s). destruct e.
  - rewrite nth_error_map, nth_error_skipn.
    destruct (nth_error (results (current s)) (known s - first (current s) + j)) as [w|] eqn:E; simpl; [|discriminate].
    intros [= <-]. exists w. split; [|auto]. apply (results_are_true h s I) in E.
    now replace (known s + j) with (first (current s) + (known s - first (current s) + j)) by lia.
  - set (n := first (current s) + logged (current s) - known s). intro E.
    destruct (Nat.lt_ge_cases j n) as [Hj|Hj].
    + rewrite nth_error_app1 in E by (now rewrite repeat_length).
      destruct (nth_error (results (current s)) (known s - first (current s) + j)) as [w|] eqn:W.
      * exists w. apply (results_are_true h s I) in W.
        replace (known s + j) with (first (current s) + (known s - first (current s) + j)) by lia. split; [exact W|].
        apply nth_error_In, repeat_spec in E. injection E as ->. auto.
      * apply nth_error_None in W. fold (executed (current s)) in W. lia.
    + rewrite nth_error_app2, repeat_length in E by (now rewrite repeat_length).
      destruct ((known s <=? first (current s) + logged (current s)) && (logged (current s) <? sent (current s))).
      * destruct (j - n) as [|[|k]]; discriminate E.
      * destruct (j - n); discriminate E.
Qed.

Lemma expected r p : is_expected r p = true -> p = executed r /\ logged r = executed r.
Proof. unfold is_expected. intro H. apply andb_true_iff in H as [P L]. now apply Nat.eqb_eq in P, L. Qed.

(** A guard that held. *)
Ltac take_guard H G :=
  match type of H with (if ?b then _ else _) = Some _ => destruct b eqn:G; [|discriminate H] end.

Ltac split_guard G :=
  repeat match type of G with _ && _ = true => apply andb_true_iff in G as [G ?] end.

Lemma sound_initial h : sound h (initial h).
Proof.
  constructor; unfold current, known; simpl; try lia; auto.
  - exists []. repeat split; constructor.
  - intros [|j]; discriminate.
  - intros [|i]; discriminate.
  - constructor.
Qed.

(** Only the active rail can execute a packet or write a log entry. *)
Lemma only_active_executes h s r : sound h s -> fenced (rails s r) = false -> sent (rails s r) > 0 -> r = active s.
Proof.
  intros I F S. destruct (lt_eq_lt_dec r (active s)) as [[L|E]|L]; auto.
  - rewrite (earlier_rails_are_fenced h s I r L) in F. discriminate.
  - rewrite (later_rails_are_unused h s I r L) in S. simpl in S. lia.
Qed.

(** Events that change the active rail's fields, and nothing that others rely on. *)
Lemma sound_step h s e s' : sound h s -> step true s e = Some s' -> sound h s'.
Proof.
  intros I H. pose proof I as [fence unused open es sp lf te [earlier (order & sorted & below)] rt ot ht].
  destruct s as [m ops outs rs a run past]. unfold current, known in *. simpl in *.
  destruct e as [o| |k p|k|o|v| | |e]; simpl in H.
  - (* Post *) injection H as <-. constructor; unfold current, known; simpl; auto.
    + rewrite app_length. lia.
    + exists earlier. auto.
    + now apply explains_more.
  - (* Transmit *) take_guard H G. injection H as <-. split_guard G. apply Nat.ltb_lt in H.
    constructor; unfold current, known; simpl; rewrite ?update_same; simpl; auto; unfold executed in *; simpl; try lia.
    + intros r Hr. rewrite update_other by lia. auto.
    + intros r Hr. rewrite update_other by lia. auto.
    + exists earlier. auto.
  - (* Arrive *) destruct (nth_error ops (first (rs k) + p)) as [o|] eqn:E; [|discriminate].
    take_guard H G. destruct (is_expected (rs k) p) eqn:X'; [|now injection H as <-].
    destruct (execute o m) as [m' v] eqn:X. injection H as <-. split_guard G.
    apply negb_true_iff in G. apply Nat.ltb_lt in H. apply expected in X' as [-> X'].
    assert (k = a) as -> by (apply (only_active_executes h _ k I); simpl; auto; lia).
    constructor; unfold current, known; simpl; rewrite ?update_same; simpl; auto;
      rewrite ?executed_one_more; try lia.
    + intros r Hr. rewrite update_other by lia. auto.
    + intros r Hr. rewrite update_other by lia. auto.
    + exists earlier. rewrite executions_app, order, <- app_assoc, seq_S. auto.
    + intros j w Hj. apply in_or_app. destruct (Nat.lt_ge_cases j (executed (rs a))) as [L|L].
      * rewrite nth_error_app1 in Hj by exact L. left. auto.
      * rewrite nth_error_app2 in Hj by exact L. right. fold (executed (rs a)) in Hj.
        destruct (j - executed (rs a)) as [|d] eqn:D; [|destruct d; discriminate].
        injection Hj as <-. left. f_equal. lia.
    + intros i w Hi. destruct (ot i w Hi) as (u & U & Hu). exists u. split; [|exact Hu]. apply in_or_app. auto.
    + pose proof (explains_ours ops h past m _ o ht E) as P. unfold value, effect in P. now rewrite X in P.
  - (* Log *) take_guard H G. injection H as <-. split_guard G. apply negb_true_iff in G. apply Nat.ltb_lt in H.
    assert (k = a) as ->.
    { destruct (lt_eq_lt_dec k a) as [[L|L]|L]; auto.
      - rewrite (fence k L) in G. discriminate.
      - rewrite (unused k L) in H. unfold executed in H. simpl in H. lia. }
    constructor; unfold current, known; simpl; rewrite ?update_same; simpl; auto; unfold executed in *; simpl; try lia.
    + intros r Hr. rewrite update_other by lia. auto.
    + intros r Hr. rewrite update_other by lia. auto.
    + exists earlier. auto.
  - (* Other *) injection H as <-. constructor; unfold current, known; simpl; auto.
    + exists earlier. rewrite executions_app. simpl. rewrite app_nil_r. auto.
    + intros j w Hj. apply in_or_app. auto.
    + intros i w Hi. destruct (ot i w Hi) as (u & U & Hu). exists u. split; [|exact Hu]. apply in_or_app. auto.
    + now constructor.
  - (* Complete *) destruct (nth_error (results (rs a)) (length outs - first (rs a))) as [w|] eqn:E; [|discriminate].
    take_guard H G. injection H as <-. split_guard G. apply Z.eqb_eq in H as ->.
    assert (L : length outs - first (rs a) < executed (rs a)) by (apply nth_error_Some; congruence).
    constructor; unfold current, known; simpl; auto; rewrite ?app_length; simpl; try lia.
    + exists earlier. auto.
    + intros i u Hi. destruct (Nat.lt_ge_cases i (length outs)) as [Li|Li].
      * rewrite nth_error_app1 in Hi by exact Li. auto.
      * rewrite nth_error_app2 in Hi by exact Li.
        destruct (i - length outs) as [|d] eqn:D; [|destruct d; discriminate].
        injection Hi as <-. exists w. split; [|auto]. apply rt in E.
        now replace i with (first (rs a) + (length outs - first (rs a))) by lia.
  - (* Detect *) take_guard H G. injection H as <-. constructor; unfold current, known; simpl; auto. exists earlier. auto.
  - (* Fence *) take_guard H G. injection H as <-.
    constructor; unfold current, known; simpl; rewrite ?update_same; simpl; auto.
    + intros r Hr. rewrite update_other by lia. auto.
    + intros r Hr. rewrite update_other by lia. auto.
    + intros ->. discriminate.
    + exists earlier. auto.
  - (* Recover *) take_guard H G. split_guard G. simpl in H0.
    set (s := State m ops outs rs a run past) in *.
    pose proof (told_by_recovery h s e I) as T. unfold current, known in T. simpl in T.
    assert (decided := fun j v => decided_are_true h s e j v I). unfold known in decided. simpl in decided.
    set (new := decide e s) in *. injection H as <-.
    constructor; unfold current, known; simpl; rewrite ?update_same; simpl; unfold executed; simpl;
      rewrite ?app_length; auto; try lia.
    + intros r Hr. rewrite update_other by lia. destruct (Nat.eq_dec r a) as [->|]; [assumption|]. apply fence. lia.
    + intros r Hr. rewrite update_other by lia. apply unused. lia.
    + exists (executions past). rewrite app_nil_r. repeat split.
      * apply (sorted_executions h s I).
      * apply Forall_forall. intros i Hi. apply (executions_below h s i I) in Hi. unfold current in Hi. simpl in Hi. lia.
    + intros [|j]; discriminate.
    + intros i v Hi. destruct (Nat.lt_ge_cases i (length outs)) as [L|L].
      * rewrite nth_error_app1 in Hi by exact L. auto.
      * rewrite nth_error_app2 in Hi by exact L. apply decided in Hi.
        now replace (length outs + (i - length outs)) with i in Hi by lia.
Qed.

Lemma sound_follow h s t s' : sound h s -> follow true s t = Some s' -> sound h s'.
Proof.
  revert s. induction t as [|e t IH]; simpl; intros s I H; [congruence|].
  destruct (step true s e) as [s1|] eqn:E; [|discriminate]. eauto using sound_step.
Qed.

Lemma reached_is_sound h t s : reaches true h t s -> sound h s.
Proof. apply sound_follow, sound_initial. Qed.
