(** The recoverable cell: after a failure and the fence, an owner reads from memory whether its compare-and-swap happened.

    The cell's word contains a value and a tag: the owner and the sequence number of the last change. Each owner has an
    announcement: its sequence number, and whether that change was overwritten. An owner announces its number, marks the
    change that it is about to overwrite, and then swaps the word. Any number of owners run at any speed. Each step is one
    atomic operation of a NIC, or a failure. *)
From Coq Require Import PeanoNat Lia Bool.
From Mitra Require Import Update.

Section Cell.
  Context (value : Type).

  Record word := Word { content : value; owner : nat; number : nat }.

  (** An owner's announcement ⟨sequence number, overwritten⟩. *)
  Record announcement := Announcement { announced : nat; overwritten : bool }.

  (** What an owner is doing. *)
  Inductive phase :=
  | Idle
  | Changing (old : word) (new : value) (posted : nat)  (* of its three requests, [posted] are still to be executed *)
  | Fenced (old : word)                                 (* the path has failed and is fenced; nothing is on its way *)
  | HasRead (old : word) (is_mine : bool)               (* it has read the word, and not yet its announcement *)
  | Decided (old : word) (verdict : bool).              (* whether it believes that its change happened *)

  (** The word that the owner had read when it began its change. It keeps it to the end of a recovery. *)
  Definition began_at (p : phase) : option word :=
    match p with Idle => None | Changing old _ _ | Fenced old | HasRead old _ | Decided old _ => Some old end.

  (** [numbers k] is the last sequence number of owner [k], and [happened k t] says how often the change [t] of owner [k]
      was executed. [replaced k t] is the word in the cell before it was. Nobody in the system can read the last two. *)
  Record state := State {
    cell : word;
    announcements : nat -> announcement;
    numbers : nat -> nat;
    phases : nat -> phase;
    happened : nat -> nat -> nat;
    replaced : nat -> nat -> word;
  }.

  (** At first all owners have announced number 0, which is marked as overwritten and counts as executed. *)
  Definition initial (v : value) : state :=
    State (Word v 0 0) (fun _ => Announcement 0 true) (fun _ => 0) (fun _ => Idle)
      (fun _ t => if t =? 0 then 1 else 0) (fun _ _ => Word v 0 0).

  Definition mark (a : announcement) (t : nat) : announcement :=
    if (announced a =? t) && negb (overwritten a) then Announcement t true else a.

  Inductive step : state -> state -> Prop :=
  (* An owner reads the word, takes the next number, and posts its requests for a change to [new]. *)
  | Begin c an nu ph ha re k new : ph k = Idle ->
      step (State c an nu ph ha re) (State c an (update nu k (S (nu k))) (update ph k (Changing c new 3)) ha re)
  (* Its announcement is written. *)
  | Publish c an nu ph ha re k old new : ph k = Changing old new 3 ->
      step (State c an nu ph ha re)
        (State c (update an k (Announcement (nu k) false)) nu (update ph k (Changing old new 2)) ha re)
  (* The announcement of the change that it overwrites is marked, by a compare-and-swap. *)
  | Help c an nu ph ha re k old new : ph k = Changing old new 2 ->
      step (State c an nu ph ha re)
        (State c (update an (owner old) (mark (an (owner old)) (number old))) nu (update ph k (Changing old new 1)) ha re)
  (* The compare-and-swap of the word succeeds ... *)
  | Swap c an nu ph ha re k new : ph k = Changing c new 1 ->
      step (State c an nu ph ha re)
        (State (Word new k (nu k)) an nu (update ph k (Changing c new 0))
          (update ha k (update (ha k) (nu k) (S (ha k (nu k))))) (update re k (update (re k) (nu k) c)))
  (* ... or fails, because the word is not what the owner has read. *)
  | Miss c an nu ph ha re k old new : ph k = Changing old new 1 -> c <> old ->
      step (State c an nu ph ha re) (State c an nu (update ph k (Changing old new 0)) ha re)
  (* All answers have arrived. *)
  | Finish c an nu ph ha re k old new : ph k = Changing old new 0 ->
      step (State c an nu ph ha re) (State c an nu (update ph k Idle) ha re)
  (* The path fails and is fenced, with any number of requests executed; or the next one, during the recovery. *)
  | Fail c an nu ph ha re k old p : ph k = p -> began_at p = Some old ->
      step (State c an nu ph ha re) (State c an nu (update ph k (Fenced old)) ha re)
  (* The recovery reads the word, then the announcement. Others may run in between. *)
  | ReadWord c an nu ph ha re k old : ph k = Fenced old ->
      step (State c an nu ph ha re)
        (State c an nu (update ph k (HasRead old ((owner c =? k) && (number c =? nu k)))) ha re)
  | ReadAnnouncement c an nu ph ha re k old is_mine : ph k = HasRead old is_mine ->
      step (State c an nu ph ha re)
        (State c an nu (update ph k (Decided old (is_mine || ((announced (an k) =? nu k) && overwritten (an k))))) ha re)
  (* It goes on; a change that did not happen may be begun again. *)
  | Resume c an nu ph ha re k old verdict : ph k = Decided old verdict ->
      step (State c an nu ph ha re) (State c an nu (update ph k Idle) ha re).

  Inductive reachable (v : value) : state -> Prop :=
  | reachable_initial : reachable v (initial v)
  | reachable_step s s' : reachable v s -> step s s' -> reachable v s'.

  (** The announcement says that the change [t] was overwritten, or is of a later change. *)
  Definition covers (a : announcement) (t : nat) : Prop := t < announced a \/ (announced a = t /\ overwritten a = true).

  (** What holds of one owner in its phase. *)
  Definition phase_holds (s : state) (k : nat) : Prop :=
    match phases s k with
    | Idle | Fenced _ => True
    | Changing old new n =>
        happened s (owner old) (number old) = 1 /\
        (1 <= n -> happened s k (numbers s k) = 0) /\
        (n = 3 -> announced (announcements s k) < numbers s k) /\
        (n <= 2 -> announced (announcements s k) = numbers s k) /\
        (n = 1 -> covers (announcements s (owner old)) (number old))
    | HasRead _ is_mine =>
        if is_mine then happened s k (numbers s k) = 1
        else happened s k (numbers s k) = 1 -> announcements s k = Announcement (numbers s k) true
    | Decided _ verdict => verdict = true <-> happened s k (numbers s k) = 1
    end.

  Record sound (s : state) : Prop := Sound {
    announced_are_used : forall k, announced (announcements s k) <= numbers s k;
    tag_is_true : happened s (owner (cell s)) (number (cell s)) = 1;
    marks_are_true : forall k, overwritten (announcements s k) = true ->
      happened s k (announced (announcements s k)) = 1;
    happened_once : forall k t, happened s k t <= 1;
    happened_after_announcement : forall k t, happened s k t = 1 -> t <= announced (announcements s k);
    (* The last change of each owner, if it happened, is in the word or marked. *)
    last_is_visible : forall k, happened s k (numbers s k) = 1 ->
      (owner (cell s) = k /\ number (cell s) = numbers s k) \/ announcements s k = Announcement (numbers s k) true;
    phases_hold : forall k, phase_holds s k;
    replaced_what_was_read : forall k old, began_at (phases s k) = Some old ->
      happened s k (numbers s k) = 1 -> replaced s k (numbers s k) = old;
  }.

  Lemma mark_announced a t : announced (mark a t) = announced a.
  Proof.
    unfold mark. destruct (Nat.eqb_spec (announced a) t) as [E|E]; simpl; [|reflexivity].
    destruct (overwritten a); simpl; auto.
  Qed.

  Lemma mark_overwritten a t : overwritten a = true -> mark a t = a.
  Proof. unfold mark. intros ->. now rewrite andb_false_r. Qed.

  Lemma mark_is_true a t : overwritten (mark a t) = true -> overwritten a = true \/ announced a = t.
  Proof. unfold mark. destruct (Nat.eqb_spec (announced a) t); auto. Qed.

  Lemma mark_covers a t : t <= announced a -> covers (mark a t) t.
  Proof.
    unfold covers. rewrite mark_announced. intro H.
    destruct (Nat.eq_dec (announced a) t) as [E|E]; [right|left; lia]. split; [exact E|].
    unfold mark. rewrite E, Nat.eqb_refl. now destruct (overwritten a) eqn:O; simpl.
  Qed.

  Lemma mark_keeps a t u : covers a u -> covers (mark a t) u.
  Proof.
    unfold covers. rewrite mark_announced. intros [H|[H O]]; auto. right. now rewrite mark_overwritten.
  Qed.

  Ltac at_owner j k := destruct (Nat.eq_dec j k) as [->|]; rewrite ?update_same, ?update_other by assumption.

  Lemma sound_initial v : sound (initial v).
  Proof.
    constructor; simpl; auto.
    - intros k [|t]; simpl; lia.
    - intros k [|t]; simpl; lia.
    - intro k. exact I.
    - discriminate.
  Qed.

  (** A step that changes only the phase of one owner. *)
  Lemma sound_phase c an nu ph ha re k p : sound (State c an nu ph ha re) -> p = Idle \/ began_at p = began_at (ph k) ->
    phase_holds (State c an nu (update ph k p) ha re) k -> sound (State c an nu (update ph k p) ha re).
  Proof.
    intros [AU TT MT HO HA LV PH RW] B H. constructor; auto; intro j.
    - destruct (Nat.eq_dec j k) as [->|N]; [exact H|].
      specialize (PH j). unfold phase_holds in *. simpl in *. now rewrite update_other.
    - specialize (RW j). simpl in *. at_owner j k; [|exact RW]. intro old.
      destruct B as [->|B]; [discriminate|]. rewrite B. apply RW.
  Qed.

  Lemma sound_step s s' : sound s -> step s s' -> sound s'.
  Proof.
    intros I St. pose proof I as [AU TT MT HO HA LV PH RW]. destruct St; simpl in *;
      pose proof (RW k) as Rk; rewrite H in Rk; pose proof (PH k) as Pk; unfold phase_holds in Pk; simpl in Pk; rewrite H in Pk.
    - (* Begin *)
      assert (fresh : ha k (S (nu k)) = 0).
      { pose proof (HO k (S (nu k))). pose proof (AU k).
        destruct (Nat.eq_dec (ha k (S (nu k))) 1) as [E|E]; [apply HA in E|]; lia. }
      constructor; simpl; auto.
      + intro j. at_owner j k; auto.
      + intro j. at_owner j k; auto. lia.
      + intro j. unfold phase_holds. simpl. specialize (PH j). unfold phase_holds in PH. simpl in PH. at_owner j k.
        * pose proof (AU k). repeat split; auto; lia.
        * exact PH.
      + intros j old. specialize (RW j old). at_owner j k; [lia|exact RW].
    - (* Publish *) destruct Pk as (Ho & H0 & Hlt & _ & _). specialize (H0 ltac:(lia)). specialize (Hlt eq_refl).
      constructor; simpl; auto.
      + intro j. at_owner j k; auto.
      + intro j. at_owner j k; auto. discriminate.
      + intros j t E. pose proof (HA j t E). at_owner j k; simpl; auto. lia.
      + intros j E. at_owner j k; [lia|auto].
      + intro j. specialize (PH j). unfold phase_holds in *. simpl in *. at_owner j k.
        * repeat split; auto; simpl; lia.
        * destruct (ph j) as [|o w i| |? []|]; auto. destruct PH as (Jo & J0 & J3 & J2 & J1).
          repeat split; auto. intro En. specialize (J1 En).
          destruct (Nat.eq_dec (owner o) k) as [E|E]; [|now rewrite update_other].
          rewrite E in *. rewrite update_same. left. simpl. apply HA in Jo. lia.
      + intros j w. specialize (RW j w). at_owner j k; [exact (Rk w)|exact RW].
    - (* Help *) destruct Pk as (Ho & H0 & _ & H2 & _). set (a := owner old) in *.
      assert (same : forall j, announced (update an a (mark (an a) (number old)) j) = announced (an j)).
      { intro j. at_owner j a; auto using mark_announced. }
      assert (keeps : forall j n, an j = Announcement n true ->
        update an a (mark (an a) (number old)) j = Announcement n true).
      { intros j n E. at_owner j a; auto. rewrite mark_overwritten; auto. now rewrite E. }
      constructor; simpl; auto.
      + intro j. rewrite same. auto.
      + intros j. rewrite same. at_owner j a; auto. intro O. apply mark_is_true in O as [O| ->]; auto.
      + intros j t E. rewrite same. auto.
      + intros j E. destruct (LV j E); auto.
      + intro j. specialize (PH j). unfold phase_holds in *. simpl in *. at_owner j k.
        * rewrite same. repeat split; auto; try lia. intros _. apply mark_covers, HA, Ho.
        * destruct (ph j) as [|o w i| |? []|]; auto. destruct PH as (Jo & J0 & J3 & J2 & J1).
          rewrite same. repeat split; auto. intro En. specialize (J1 En).
          destruct (Nat.eq_dec (owner o) a) as [E|E]; [|now rewrite update_other].
          rewrite E in *. rewrite update_same. now apply mark_keeps.
      + intros j w. specialize (RW j w). at_owner j k; [exact (Rk w)|exact RW].
    - (* Swap *) destruct Pk as (Ho & H0 & _ & H2 & H1). specialize (H0 ltac:(lia)). specialize (H2 ltac:(lia)).
      specialize (H1 eq_refl). rewrite H0. set (ha' := update ha k (update (ha k) (nu k) 1)).
      assert (grows : forall j t, ha j t = 1 -> ha' j t = 1).
      { intros j t E. unfold ha'. at_owner j k; auto. at_owner t (nu k); auto. }
      assert (new_only : forall j t, (j = k /\ t = nu k /\ ha' j t = 1) \/ ha' j t = ha j t).
      { intros j t. unfold ha'. at_owner j k; auto. at_owner t (nu k); auto. }
      assert (mine : ha' k (nu k) = 1) by (unfold ha'; now rewrite !update_same).
      assert (others : forall j t, j <> k -> ha' j t = ha j t)
        by (intros j t N; unfold ha'; now rewrite update_other).
      constructor; simpl; auto.
      + intros j t. destruct (new_only j t) as [(_ & _ & E)|E]; rewrite E; auto.
      + intros j t E. destruct (new_only j t) as [(-> & -> & _)|N]; [lia|]. apply HA. congruence.
      + intros j E. destruct (Nat.eq_dec j k) as [->|N]; [now left|]. right. rewrite others in E by exact N.
        destruct (LV j E) as [[Oj Nj]|M]; [|exact M]. rewrite Oj, Nj in H1. pose proof (AU j).
        destruct H1 as [L|[A O]]; [lia|]. destruct (an j). simpl in *. now subst.
      + intro j. specialize (PH j). unfold phase_holds in *. simpl in *. at_owner j k.
        * repeat split; auto; lia.
        * destruct (ph j) as [|o w i| |? []|]; rewrite ?(others j) by assumption; auto.
          destruct PH as (Jo & J0 & J3 & J2 & J1). repeat split; auto.
      + intros j w. specialize (RW j w). at_owner j k; [simpl; congruence|]. rewrite others by assumption. exact RW.
    - (* Miss *) apply sound_phase; [exact I|right; now rewrite H|]. unfold phase_holds. simpl. rewrite update_same.
      destruct Pk as (Ho & _ & _ & H2 & _). repeat split; auto; lia.
    - (* Finish *) apply sound_phase; [exact I|now left|]. unfold phase_holds. simpl. now rewrite update_same.
    - (* Fail *) apply sound_phase; [exact I|right; now rewrite H, H0|]. unfold phase_holds. simpl. now rewrite update_same.
    - (* ReadWord *) apply sound_phase; [exact I|right; now rewrite H|]. unfold phase_holds. simpl. rewrite update_same.
      destruct (Nat.eqb_spec (owner c) k) as [Eo|Eo], (Nat.eqb_spec (number c) (nu k)) as [En|En]; simpl;
        try (intro E; destruct (LV k E) as [[? ?]|M]; [contradiction|exact M]).
      now rewrite Eo, En in TT.
    - (* ReadAnnouncement *) apply sound_phase; [exact I|right; now rewrite H|]. unfold phase_holds. simpl. rewrite update_same.
      destruct is_mine; simpl; [now split|]. split.
      + intro E. apply andb_true_iff in E as [E O]. apply Nat.eqb_eq in E. rewrite <- E. auto.
      + intro E. rewrite (Pk E). simpl. now rewrite Nat.eqb_refl.
    - (* Resume *) apply sound_phase; [exact I|now left|]. unfold phase_holds. simpl. now rewrite update_same.
  Qed.

  Lemma reachable_sound v s : reachable v s -> sound s.
  Proof. induction 1; eauto using sound_initial, sound_step. Qed.

  (** No change is executed twice. *)
  Theorem cell_changes_at_most_once v s : reachable v s -> forall k t, happened s k t <= 1.
  Proof. intro R. apply (happened_once s), (reachable_sound v s R). Qed.

  (** The recovery finds out whether the change happened, whatever others have done to the cell since. So an owner that
      repeats a change exactly if it did not happen executes it exactly once. *)
  Theorem cell_recovery_is_right v s k old verdict : reachable v s -> phases s k = Decided old verdict ->
    (verdict = true <-> happened s k (numbers s k) = 1).
  Proof.
    intros R E. pose proof (phases_hold s (reachable_sound v s R) k) as P. unfold phase_holds in P. now rewrite E in P.
  Qed.

  (** And a change that happened replaced exactly the word that its owner had read, whatever others have done since. So the owner
      knows the value before its change, as an answer would have told it. *)
  Theorem cell_recovery_knows_the_replaced_word v s k old : reachable v s -> phases s k = Decided old true ->
    replaced s k (numbers s k) = old.
  Proof.
    intros R E. apply (replaced_what_was_read s (reachable_sound v s R) k); [now rewrite E|].
    now apply (cell_recovery_is_right v s k old true R E).
  Qed.

  (** Recoveries with either verdict exist: of a change whose requests were all executed, and of one whose requests were not. *)
  Lemma recoveries_exist (v w : value) verdict : exists s, reachable v s /\ phases s 1 = Decided (Word v 0 0) verdict.
  Proof.
    pose proof (reachable_initial v) as R. unfold initial in R.
    pose proof (reachable_step v _ _ R (Begin _ _ _ _ _ _ 1 w eq_refl)) as R1.
    destruct verdict.
    - pose proof (reachable_step v _ _ R1 (Publish _ _ _ _ _ _ 1 _ _ eq_refl)) as R2.
      pose proof (reachable_step v _ _ R2 (Help _ _ _ _ _ _ 1 _ _ eq_refl)) as R3.
      pose proof (reachable_step v _ _ R3 (Swap _ _ _ _ _ _ 1 _ eq_refl)) as R4.
      pose proof (reachable_step v _ _ R4 (Fail _ _ _ _ _ _ 1 _ (Changing _ _ _) eq_refl eq_refl)) as R5.
      pose proof (reachable_step v _ _ R5 (ReadWord _ _ _ _ _ _ 1 _ eq_refl)) as R6.
      pose proof (reachable_step v _ _ R6 (ReadAnnouncement _ _ _ _ _ _ 1 _ _ eq_refl)) as R7.
      eexists. split; [exact R7|reflexivity].
    - pose proof (reachable_step v _ _ R1 (Fail _ _ _ _ _ _ 1 _ (Changing _ _ _) eq_refl eq_refl)) as R2.
      pose proof (reachable_step v _ _ R2 (ReadWord _ _ _ _ _ _ 1 _ eq_refl)) as R3.
      pose proof (reachable_step v _ _ R3 (ReadAnnouncement _ _ _ _ _ _ 1 _ _ eq_refl)) as R4.
      eexists. split; [exact R4|reflexivity].
  Qed.

  (** So do recoveries of a change that is no longer in the word: owner 2 has replaced it, and marked it as overwritten before. *)
  Lemma overwritten_change_is_found (v w x : value) : exists s s', reachable v s /\ owner (cell s) = 2 /\ content (cell s) = x /\
    phases s 1 = HasRead (Word v 0 0) false /\ step s s' /\ phases s' 1 = Decided (Word v 0 0) true.
  Proof.
    pose proof (reachable_initial v) as R. unfold initial in R.
    pose proof (reachable_step v _ _ R (Begin _ _ _ _ _ _ 1 w eq_refl)) as R1.
    pose proof (reachable_step v _ _ R1 (Publish _ _ _ _ _ _ 1 _ _ eq_refl)) as R2.
    pose proof (reachable_step v _ _ R2 (Help _ _ _ _ _ _ 1 _ _ eq_refl)) as R3.
    pose proof (reachable_step v _ _ R3 (Swap _ _ _ _ _ _ 1 _ eq_refl)) as R4.
    pose proof (reachable_step v _ _ R4 (Fail _ _ _ _ _ _ 1 _ (Changing _ _ _) eq_refl eq_refl)) as R5.
    pose proof (reachable_step v _ _ R5 (Begin _ _ _ _ _ _ 2 x eq_refl)) as R6.
    pose proof (reachable_step v _ _ R6 (Publish _ _ _ _ _ _ 2 _ _ eq_refl)) as R7.
    pose proof (reachable_step v _ _ R7 (Help _ _ _ _ _ _ 2 _ _ eq_refl)) as R8.
    pose proof (reachable_step v _ _ R8 (Swap _ _ _ _ _ _ 2 _ eq_refl)) as R9.
    pose proof (reachable_step v _ _ R9 (ReadWord _ _ _ _ _ _ 1 _ eq_refl)) as R10.
    eexists. eexists. split; [exact R10|]. do 3 (split; [reflexivity|]).
    split; [exact (ReadAnnouncement _ _ _ _ _ _ 1 _ _ eq_refl)|reflexivity].
  Qed.
End Cell.
