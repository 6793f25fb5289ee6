(** Liveness: while rails stop failing, all posted work ends. And so the traces of the other theorems exist. *)
From Coq Require Import ZArith List PeanoNat Lia Bool.
From Mitra Require Export Invariant.
Import ListNotations.

(** The events that the requester, its rails and the recovery contribute. The others are the application's posts, other
    clients, and failures. *)
Definition contributes (e : event) : bool :=
  match e with Post _ | Other _ | Detect => false | _ => true end.

(** An upper bound for how many such events can still come. *)
Definition work (s : state) : nat :=
  let n := length (posted s) in
  let r := current s in
  let to_execute := n - first r - executed r + (n - first r - logged r) in
  if running s then n - known s + (n - first r - sent r) + to_execute
  else 4 * (n - known s) + 1 + (if fenced r then 0 else 1 + to_execute).

(** The events that come without an effect: the responder discards a copy of a packet. *)
Definition is_discarded (s : state) (e : event) : bool :=
  match e with Arrive r p => negb (is_expected (rails s r) p) | _ => false end.

(** Every other such event lowers the bound. So if failures stop, only finitely many events with an effect come. *)
Theorem every_contribution_lowers_the_work h t s e s' : reaches true h t s -> contributes e = true ->
  is_discarded s e = false -> step true s e = Some s' -> work s' < work s.
Proof.
  intros R C D H. apply reached_is_sound in R as I.
  pose proof (executed_were_sent h s I) as es. pose proof (sent_were_posted h s I) as sp.
  pose proof (log_follows h s I) as lf. pose proof (told_were_executed h s I) as te.
  pose proof (rail_in_use_is_not_fenced h s I) as open.
  assert (only : forall r, fenced (rails s r) = false -> sent (rails s r) > 0 -> r = active s)
    by (intro r; apply (only_active_executes h s r I)).
  assert (unused := later_rails_are_unused h s I). assert (fence := earlier_rails_are_fenced h s I).
  pose proof (fun e => told_by_recovery h s e I) as told.
  destruct s as [m ops outs rs a run past]. unfold current, known in *. simpl in *.
  destruct e as [o| |k p|k|o|v| | |e]; simpl in H; try discriminate.
  - (* Transmit *) take_guard H G. split_guard G. apply Nat.ltb_lt in H0. injection H as <-.
    unfold work, current, known. simpl. rewrite update_same, G. unfold executed in *. simpl. lia.
  - (* Arrive *) destruct (nth_error ops (first (rs k) + p)) as [o|] eqn:E; [|discriminate]. apply negb_false_iff in D. simpl in D.
    take_guard H G. rewrite D in H. destruct (execute o m) as [m' v]. split_guard G. apply negb_true_iff in G.
    apply Nat.ltb_lt in H0. apply expected in D as [-> D].
    assert (k = a) as -> by (apply only; auto; lia). injection H as <-.
    unfold work, current, known. simpl. rewrite update_same. simpl. rewrite executed_one_more, G.
    destruct run; lia.
  - (* Log *) take_guard H G. split_guard G. apply negb_true_iff in G. apply Nat.ltb_lt in H0.
    assert (k = a) as ->.
    { destruct (lt_eq_lt_dec k a) as [[L|L]|L]; auto.
      - rewrite (fence k L) in G. discriminate.
      - rewrite (unused k L) in H0. unfold executed in H0. simpl in H0. lia. }
    injection H as <-. unfold work, current, known. simpl. rewrite update_same. simpl. rewrite G. unfold executed in *.
    simpl. destruct run; lia.
  - (* Complete *) destruct (nth_error (results (rs a)) (length outs - first (rs a))) as [w|] eqn:E; [|discriminate].
    assert (L : length outs - first (rs a) < executed (rs a)) by (apply nth_error_Some; congruence).
    take_guard H G. split_guard G. injection H as <-. unfold work, current, known. simpl. rewrite G, app_length. simpl. lia.
  - (* Fence *) take_guard H G. split_guard G. apply negb_true_iff in G, H0. injection H as <-.
    unfold work, current, known. simpl. rewrite update_same, G, H0. unfold executed. simpl. lia.
  - (* Recover *) take_guard H G. split_guard G. apply negb_true_iff in G. simpl in H0. specialize (told e).
    set (new := decide e _) in *. injection H as <-. unfold work, current, known. simpl.
    rewrite update_same, G, H0. unfold executed in *. simpl. rewrite app_length. lia.
Qed.

(** Only a new post and a failure raise it. *)
Theorem only_posts_and_failures_raise_the_work h t s e s' : reaches true h t s -> step true s e = Some s' ->
  work s < work s' -> e = Detect \/ exists o, e = Post o.
Proof.
  intros R E W. destruct (contributes e) eqn:C.
  - destruct (is_discarded s e) eqn:D; [|pose proof (every_contribution_lowers_the_work h t s e s' R C D E); lia].
    enough (s' = s) as -> by lia. destruct s as [m ops outs rs a run past], e; try discriminate D.
    apply negb_true_iff in D. simpl in *. rewrite D in E. destruct (nth_error _ _); [|discriminate].
    destruct (_ && _); congruence.
  - destruct e; try discriminate C; eauto. destruct s. injection E as <-. unfold work, current, known in W. simpl in W. lia.
Qed.

(** How many events of a trace from [s] on are contributions with an effect. *)
Fixpoint contributions (s : state) (trace : list event) : nat :=
  match trace with
  | [] => 0
  | e :: trace =>
      (if contributes e && negb (is_discarded s e) then 1 else 0) +
      match step true s e with Some s' => contributions s' trace | None => 0 end
  end.

(** So while rails do not fail and nothing more is posted, there are finitely many of them, whatever others do in between. *)
Theorem contributions_are_bounded h t s more s' : reaches true h t s -> follow true s more = Some s' ->
  ~ In Detect more -> flat_map posts more = [] -> contributions s more + work s' <= work s.
Proof.
  revert t s. induction more as [|e more IH]; simpl; intros t s R H D P; [injection H as <-; auto|].
  destruct (step true s e) as [s1|] eqn:E; [|discriminate].
  assert (R1 : reaches true h (t ++ [e]) s1) by (unfold reaches in *; rewrite follow_app, R; simpl; now rewrite E).
  apply app_eq_nil in P as [P P']. specialize (IH _ s1 R1 H (fun N => D (or_intror N)) P').
  destruct (contributes e) eqn:C, (is_discarded s e) eqn:X; simpl;
    [|pose proof (every_contribution_lowers_the_work h t s e s1 R C X E); lia| |];
    (destruct (Nat.le_gt_cases (work s1) (work s)) as [L|L]; [lia|]);
    (destruct (only_posts_and_failures_raise_the_work h t s e s1 R E L) as [->|[o ->]]; [now destruct D; left|discriminate P]).
Qed.

(** While the application waits for an outcome, such an event is possible, whichever evidence can be read. *)
Theorem some_contribution_is_possible h t s readable : reaches true h t s -> known s < length (posted s) ->
  exists e s', contributes e = true /\ is_discarded s e = false /\ (forall e', e = Recover e' -> e' = readable) /\
    step true s e = Some s'.
Proof.
  intros R K. apply reached_is_sound in R as I.
  pose proof (executed_were_sent h s I) as es. pose proof (sent_were_posted h s I) as sp.
  pose proof (log_follows h s I) as lf. pose proof (told_were_executed h s I) as te.
  pose proof (rail_in_use_is_not_fenced h s I) as open.
  destruct s as [m ops outs rs a run past]. unfold current, known in *. simpl in *.
  destruct run; simpl in *.
  - specialize (open eq_refl).
    destruct (Nat.lt_ge_cases (first (rs a) + sent (rs a)) (length ops)) as [L|L].
    { exists Transmit. simpl. apply Nat.ltb_lt in L. rewrite L. eexists. repeat split. discriminate. }
    destruct (Nat.lt_ge_cases (executed (rs a)) (sent (rs a))) as [X|X].
    { destruct (Nat.lt_ge_cases (logged (rs a)) (executed (rs a))) as [G|G].
      - exists (Log a). simpl. apply Nat.ltb_lt in G. rewrite open, G. eexists. repeat split. discriminate.
      - exists (Arrive a (executed (rs a))). simpl. rewrite open.
        destruct (nth_error ops (first (rs a) + executed (rs a))) as [o|] eqn:E;
          [|apply nth_error_None in E; lia].
        assert (x : is_expected (rs a) (executed (rs a)) = true).
        { unfold is_expected. rewrite Nat.eqb_refl. apply Nat.eqb_eq. lia. }
        apply Nat.ltb_lt in X. rewrite X, x. destruct (execute o m). eexists. repeat split. discriminate. }
    destruct (nth_error (results (rs a)) (length outs - first (rs a))) as [v|] eqn:E;
      [|apply nth_error_None in E; unfold executed in *; lia].
    exists (Complete v). simpl. rewrite Z.eqb_refl. eexists. repeat split. discriminate.
  - destruct (fenced (rs a)) eqn:F.
    + exists (Recover readable). simpl. eexists. repeat split. congruence.
    + exists Fence. simpl. eexists. repeat split. discriminate.
Qed.

(** The two together: from every valid trace the system can go on, without a further failure or post, until the application has
    been told about everything that it has posted. *)
Theorem posted_work_ends h t s readable : reaches true h t s -> exists more s',
  reaches true h (t ++ more) s' /\ forallb contributes more = true /\
  (forall e, In (Recover e) more -> e = readable) /\ posted s' = posted s /\ known s' = length (posted s).
Proof.
  remember (work s) as w eqn:W. revert t s W. induction w as [w IH] using (well_founded_induction Nat.lt_wf_0).
  intros t s -> R.
  assert (K : known s <= length (posted s)).
  { apply reached_is_sound in R. pose proof (told_were_executed h s R). pose proof (executed_were_sent h s R).
    pose proof (sent_were_posted h s R). lia. }
  destruct (Nat.eq_dec (known s) (length (posted s))) as [D|D].
  { exists [], s. rewrite app_nil_r. repeat split; auto. intros e []. }
  destruct (some_contribution_is_possible h t s readable R ltac:(lia)) as (e & s1 & C & Eff & E & S).
  pose proof (every_contribution_lowers_the_work h t s e s1 R C Eff S) as L.
  assert (R1 : reaches true h (t ++ [e]) s1) by (unfold reaches in *; rewrite follow_app, R; simpl; now rewrite S).
  destruct (IH _ L (t ++ [e]) s1 eq_refl R1) as (more & s' & R' & C' & E' & P & D').
  assert (P1 : posted s1 = posted s).
  { destruct (posted_and_told true s e s1 S) as [-> _]. destruct e; try discriminate C; apply app_nil_r. }
  rewrite P1 in P, D'. exists (e :: more), s'. rewrite <- app_assoc in R'. repeat split; auto.
  - simpl. now rewrite C.
  - intros e' [->|H]; auto.
Qed.
