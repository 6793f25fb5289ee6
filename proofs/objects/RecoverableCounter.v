(** The recoverable counter: each add is one FETCH_ADD that adds to the value and steps a field of its requester in the
    same word. After a failure and the fence, the field tells how many of the adds under way were executed.

    There are [n] requesters with fields of [b] contents (b = 2^m for fields of m bits), and the value has [c] contents
    above them, so the word has [b^n * c] (2^64). Each step is one atomic operation of a NIC, or a failure. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Export Fields.
From Mitra Require Import Update.
Import ListNotations.
Local Open Scope Z_scope.

(** The sum of a function over 0 … n − 1, and of a list. *)
Fixpoint total (g : nat -> Z) (n : nat) : Z := match n with O => 0 | S n => total g n + g n end.
Fixpoint sum (l : list Z) : Z := match l with [] => 0 | x :: l => x + sum l end.

Lemma total_ext g g' n : (forall i, (i < n)%nat -> g i = g' i) -> total g n = total g' n.
Proof. induction n as [|n IH]; simpl; intro H; [reflexivity|]. rewrite IH, H by auto. reflexivity. Qed.

Lemma total_update g n k x : (k < n)%nat -> total (update g k x) n = total g n + (x - g k).
Proof.
  induction n as [|n IH]; intro H; [lia|]. simpl. destruct (Nat.eq_dec k n) as [->|N].
  - rewrite update_same, (total_ext _ g); [ring|]. intros i Hi. apply update_other. lia.
  - rewrite IH, update_other by lia. ring.
Qed.

Lemma total_zero g n : (forall i, g i = 0) -> total g n = 0.
Proof. intro H. induction n as [|n IH]; simpl; [reflexivity|]. rewrite IH, H. reflexivity. Qed.

Lemma total_bound g n m : (forall i, (i < n)%nat -> Z.abs (g i) <= m) -> Z.abs (total g n) <= Z.of_nat n * m.
Proof.
  induction n as [|n IH]; simpl total; intro H; [lia|]. pose proof (H n ltac:(lia)).
  specialize (IH (fun i Hi => H i ltac:(lia))). rewrite Nat2Z.inj_succ. lia.
Qed.

Lemma sum_firstn_S l d x : nth_error l d = Some x -> sum (firstn (S d) l) = sum (firstn d l) + x.
Proof.
  revert d. induction l as [|y l IH]; intros [|d] H; try discriminate.
  - injection H as ->. simpl. ring.
  - simpl in H. apply IH in H. change (y + sum (firstn (S d) l) = y + sum (firstn d l) + x). lia.
Qed.

Section Model.
  (** [share] bounds the sum of each requester's adds, at every moment. *)
  Context (n : nat) (b c share : Z).

  (** What a requester is doing with the adds [deltas]. The number [done] of those that were executed is what the requester wants
      to know. *)
  Inductive phase :=
  | Idle
  | Adding (deltas : list Z) (done : nat)                  (* they are posted *)
  | Fenced (deltas : list Z) (done : nat)                  (* the path has failed and is fenced *)
  | Decided (deltas : list Z) (done : nat) (count : nat)   (* the requester believes that [count] were executed *).

  Definition deltas (p : phase) : list Z :=
    match p with Idle => [] | Adding ds _ | Fenced ds _ | Decided ds _ _ => ds end.
  Definition done (p : phase) : nat :=
    match p with Idle => 0%nat | Adding _ d | Fenced _ d | Decided _ d _ => d end.

  Record state := State {
    word : Z;
    own : nat -> Z;        (** what the field of each requester contained before the adds under way *)
    given : nat -> Z;      (** the sum of the adds that each requester knows to be executed *)
    phases : nat -> phase;
    executed : Z;          (** the sum of all executed adds; nobody in the system can read it *)
  }.

  Definition initial : state := State 0 (fun _ => 0) (fun _ => 0) (fun _ => Idle) 0.

  (** The number that FETCH_ADD adds for the add of [delta] by requester [k] whose field contains [f]. *)
  Definition addend (k : nat) (f delta : Z) : Z := delta * power b n + ((f + 1) mod b - f) * power b k.

  (** The word after one of these FETCH_ADDs; and what the field contains after [count] of them, if it contained [f] before. *)
  Definition add_to (w : Z) (k : nat) (f delta : Z) : Z := (w + addend k f delta) mod (power b n * c).
  Definition after (f : Z) (count : nat) : Z := (f + Z.of_nat count) mod b.

  (** How many of the adds under way were executed, by a word whose field contained [f] before them. *)
  Definition count_executed (w : Z) (k : nat) (f : Z) : nat := Z.to_nat ((field b w k - f) mod b).

  (** How a client reads the value: what is above the fields, as a signed number. *)
  Definition value (w : Z) : Z := let q := above b n w in if 2 * q <? c then q else q - c.

  Inductive step : state -> state -> Prop :=
  (* A requester posts adds: fewer than its field has contents, and within its share after each of them. *)
  | Begin w ow gi ph ex k ds : (k < n)%nat -> ph k = Idle -> Z.of_nat (length ds) < b ->
      (forall j, Z.abs (gi k + sum (firstn j ds)) <= share) ->
      step (State w ow gi ph ex) (State w ow gi (update ph k (Adding ds 0)) ex)
  (* The next of them is executed; its addend was computed when it was posted. *)
  | Execute w ow gi ph ex k ds d delta : ph k = Adding ds d -> nth_error ds d = Some delta ->
      step (State w ow gi ph ex)
        (State (add_to w k (after (ow k) d) delta) ow gi (update ph k (Adding ds (S d))) (ex + delta))
  (* All answers have arrived. *)
  | Finish w ow gi ph ex k ds : ph k = Adding ds (length ds) ->
      step (State w ow gi ph ex)
        (State w (update ow k (after (ow k) (length ds))) (update gi k (gi k + sum ds)) (update ph k Idle) ex)
  (* The path fails and is fenced, with any number of adds executed. *)
  | Fail w ow gi ph ex k ds d : ph k = Adding ds d ->
      step (State w ow gi ph ex) (State w ow gi (update ph k (Fenced ds d)) ex)
  (* The recovery reads the word. *)
  | Recover w ow gi ph ex k ds d : ph k = Fenced ds d ->
      step (State w ow gi ph ex)
        (State w ow gi (update ph k (Decided ds d (count_executed w k (ow k)))) ex)
  (* The requester takes the first [count] adds for executed. It may begin the others again. *)
  | Resume w ow gi ph ex k ds d count : ph k = Decided ds d count ->
      step (State w ow gi ph ex)
        (State w (update ow k (after (ow k) count)) (update gi k (gi k + sum (firstn count ds)))
          (update ph k Idle) ex).

  Inductive reachable : state -> Prop :=
  | reachable_initial : reachable initial
  | reachable_step s s' : reachable s -> step s s' -> reachable s'.

  (** The layout: fields have at least two contents, and all shares together fit the value. *)
  Definition layout_fits : Prop := 2 <= b /\ 0 <= share /\ 2 * (Z.of_nat n * share) < c.
End Model.

(** Two requesters with fields of 4 contents, and a value of 16 contents. Requester 0 adds −1 six times, and requester 1 adds 2 in
    between. The field of requester 0 wraps and carries nothing into that of requester 1: the word is −4, 1, 2 in the end. *)
Lemma field_wraps_without_carry :
  let add w step := let '(k, f, delta) := step in add_to 2 4 16 w k f delta in
  let w := fold_left add
    [(0%nat, after 4 0 0, -1); (0%nat, after 4 0 1, -1); (0%nat, after 4 0 2, -1); (1%nat, after 4 0 0, 2);
     (0%nat, after 4 3 0, -1); (0%nat, after 4 3 1, -1); (0%nat, after 4 3 2, -1)] 0 in
  value 2 4 16 w = -4 /\ field 4 w 0 = 2 /\ field 4 w 1 = 1 /\
  count_executed 4 w 0 3 = 3%nat /\ count_executed 4 w 1 0 = 1%nat.
Proof. vm_compute. auto. Qed.

Section Counter.
  Context (n : nat) (b c share : Z).
  Hypothesis fits : layout_fits n b c share.

  (** What the field of a requester contains, and what its executed adds sum up to. *)
  Definition content (s : state) (k : nat) : Z := after b (own s k) (done (phases s k)).
  Definition contributed (s : state) (k : nat) : Z := given s k + sum (firstn (done (phases s k)) (deltas (phases s k))).

  Definition phase_holds (s : state) (k : nat) : Prop :=
    let p := phases s k in
    (done p <= length (deltas p))%nat /\ Z.of_nat (length (deltas p)) < b /\
    (forall j, Z.abs (given s k + sum (firstn j (deltas p))) <= share) /\
    match p with Decided _ d count => count = d | _ => True end.

  Record sound (s : state) : Prop := Sound {
    word_is : word s = pack b (content s) n (executed s mod c);
    sum_is : executed s = total (contributed s) n;
    own_is_content : forall k, is_content b (own s k);
    phases_hold : forall k, phase_holds s k;
    others_are_idle : forall k, (n <= k)%nat -> phases s k = Idle;
  }.

  Lemma c_positive : 0 < c.
  Proof. destruct fits as (_ & S & C). pose proof (Z.mul_nonneg_nonneg _ _ (Zle_0_nat n) S). lia. Qed.

  Lemma modulo_is_content x : is_content b (x mod b).
  Proof. destruct fits as [B _]. unfold is_content. apply Z.mod_pos_bound. lia. Qed.

  Lemma content_is_content s k : is_content b (content s k).
  Proof. apply modulo_is_content. Qed.

  Lemma sound_initial : sound initial.
  Proof.
    destruct fits as (B & S & C). constructor; unfold initial, content, contributed, phase_holds, is_content; simpl.
    - rewrite pack_zero; [reflexivity|auto].
    - symmetry. now apply total_zero.
    - intro k. lia.
    - intro k. repeat split; try lia. intros [|j]; simpl; lia.
    - reflexivity.
  Qed.

  (** A step of requester [k] that changes neither the word nor what its field and its executed adds amount to. *)
  Lemma sound_own s k o g p : sound s -> is_content b o ->
    after b o (done p) = content s k -> g + sum (firstn (done p) (deltas p)) = contributed s k ->
    (p <> Idle -> (k < n)%nat) ->
    (forall s', phases s' k = p -> given s' k = g -> phase_holds s' k) ->
    sound (State (word s) (update (own s) k o) (update (given s) k g) (update (phases s) k p) (executed s)).
  Proof.
    intros [W Sm O P Id] Ho Cn Gn Kn Ph. constructor; simpl.
    - rewrite W. apply pack_ext. intro j. unfold content at 2. simpl.
      destruct (Nat.eq_dec j k) as [->|N]; [now rewrite !update_same, Cn|now rewrite !update_other].
    - rewrite Sm. apply total_ext. intros j _. unfold contributed at 2. simpl.
      destruct (Nat.eq_dec j k) as [->|N]; [now rewrite !update_same, Gn|now rewrite !update_other].
    - intro j. destruct (Nat.eq_dec j k) as [->|N]; [now rewrite update_same|now rewrite update_other].
    - intro j. destruct (Nat.eq_dec j k) as [->|N]; [apply Ph; simpl; apply update_same|].
      specialize (P j). unfold phase_holds in *. simpl. now rewrite !update_other.
    - intros j Hj. destruct (Nat.eq_dec j k) as [->|N]; [|rewrite update_other by exact N; auto].
      rewrite update_same. destruct p; auto; exfalso; (assert (k < n)%nat by (apply Kn; discriminate)); lia.
  Qed.

  Lemma sound_ext s ow gi ph : sound s -> (forall j, ow j = own s j) -> (forall j, gi j = given s j) ->
    (forall j, ph j = phases s j) -> sound (State (word s) ow gi ph (executed s)).
  Proof.
    intros [W Sm O P Id] Eo Eg Ep. constructor; simpl.
    - rewrite W. apply pack_ext. intro j. unfold content. simpl. now rewrite Eo, Ep.
    - rewrite Sm. apply total_ext. intros j _. unfold contributed. simpl. now rewrite Eg, Ep.
    - intro j. rewrite Eo. auto.
    - intro j. specialize (P j). unfold phase_holds in *. simpl. now rewrite Eg, Ep.
    - intros j Hj. rewrite Ep. auto.
  Qed.

  (** A step that changes the phase of requester [k] only. *)
  Lemma sound_phase s k p : sound s -> done p = done (phases s k) -> firstn (done p) (deltas p) = firstn (done p) (deltas (phases s k)) ->
    (p <> Idle -> (k < n)%nat) -> (forall s', phases s' k = p -> given s' k = given s k -> phase_holds s' k) ->
    sound (State (word s) (own s) (given s) (update (phases s) k p) (executed s)).
  Proof.
    intros I D F Kn Ph.
    assert (S' : sound (State (word s) (update (own s) k (own s k)) (update (given s) k (given s k)) (update (phases s) k p) (executed s))).
    { apply sound_own; auto.
      - apply (own_is_content s I).
      - unfold content. now rewrite D.
      - unfold contributed. now rewrite F, D. }
    apply (sound_ext _ (own s) (given s) (update (phases s) k p)) in S'; simpl in *; auto;
      intro j; destruct (Nat.eq_dec j k) as [->|N]; rewrite ?update_same, ?update_other by assumption; auto.
  Qed.

  Lemma acts_below s k : sound s -> phases s k <> Idle -> (k < n)%nat.
  Proof. intros I N. destruct (Nat.lt_ge_cases k n); auto. destruct N. now apply (others_are_idle s I). Qed.

  Lemma sound_step s s' : sound s -> step n b c share s s' -> sound s'.
  Proof.
    intros I St. destruct fits as (B & Sh & C).
    assert (below : forall k, phases s k <> Idle -> (k < n)%nat) by (intro k; apply (acts_below s k I)).
    pose proof (phases_hold s I) as P. unfold phase_holds in P.
    destruct St as [w ow gi ph ex k ds Hk Hp Hl Hs|w ow gi ph ex k ds d delta Hp Hd|w ow gi ph ex k ds Hp|w ow gi ph ex k ds d Hp
                   |w ow gi ph ex k ds d Hp|w ow gi ph ex k ds d count Hp]; simpl in *.
    - (* Begin *) apply (sound_phase (State w ow gi ph ex) k (Adding ds 0) I); simpl; rewrite ?Hp; auto.
      intros s' E G. unfold phase_holds. rewrite E, G. simpl. repeat split; auto. lia.
    - (* Execute *) assert (Hk : (k < n)%nat) by (apply below; congruence).
      destruct (P k) as (L & Lb & Bd & _). rewrite Hp in L, Lb, Bd. simpl in *.
      pose proof I as [W Sm O _ Id]. simpl in *. set (s := State w ow gi ph ex) in *.
      assert (f : after b (ow k) d = content s k) by (unfold content; simpl; now rewrite Hp).
      assert (len : (d < length ds)%nat) by (apply nth_error_Some; congruence).
      constructor; simpl.
      + unfold add_to, addend. rewrite f, W.
        replace (pack b (content s) n (ex mod c) + (delta * power b n + ((content s k + 1) mod b - content s k) * power b k))
          with (pack b (update (content s) k ((content s k + 1) mod b)) n (ex mod c + delta))
          by (rewrite pack_value, pack_field by auto; ring).
        rewrite pack_modulo, Zplus_mod_idemp_l; [| |exact c_positive|].
        * apply pack_ext. intro j. unfold content at 3. simpl. destruct (Nat.eq_dec j k) as [->|N].
          -- rewrite !update_same. simpl. rewrite <- f. unfold after. rewrite Zplus_mod_idemp_l. f_equal. lia.
          -- now rewrite !update_other.
        * exact B.
        * intro j. destruct (Nat.eq_dec j k) as [->|N]; [rewrite update_same; apply modulo_is_content|
            rewrite update_other by exact N; apply content_is_content].
      + rewrite (total_ext _ (update (contributed s) k (contributed s k + delta))).
        * rewrite total_update by exact Hk. rewrite Sm. fold s. ring.
        * intros j _. unfold contributed at 1. cbn [given phases]. destruct (Nat.eq_dec j k) as [->|N].
          -- rewrite !update_same. cbn [done deltas]. rewrite (sum_firstn_S ds d delta Hd). unfold contributed. simpl. rewrite Hp. simpl. ring.
          -- now rewrite !update_other.
      + exact O.
      + intro j. unfold phase_holds. simpl. destruct (Nat.eq_dec j k) as [->|N].
        * rewrite update_same. simpl. repeat split; auto.
        * rewrite update_other by exact N. apply (P j).
      + intros j Hj. rewrite update_other by lia. auto.
    - (* Finish *) destruct (P k) as (L & Lb & Bd & _). rewrite Hp in L, Lb, Bd. simpl in *.
      apply (sound_own (State w ow gi ph ex) k _ _ Idle I); simpl.
      + apply modulo_is_content.
      + unfold content, after. simpl. now rewrite Hp, Z.add_0_r, Zmod_mod.
      + unfold contributed. simpl. rewrite Hp. simpl. rewrite firstn_all. ring.
      + congruence.
      + intros s' E G. unfold phase_holds. rewrite E, G. simpl. repeat split; try lia. intro j. rewrite firstn_nil. simpl.
        specialize (Bd (length ds)). rewrite firstn_all in Bd. now rewrite Z.add_0_r.
    - (* Fail *) destruct (P k) as (L & Lb & Bd & _). rewrite Hp in L, Lb, Bd. simpl in *.
      apply (sound_phase (State w ow gi ph ex) k (Fenced ds d) I); simpl; rewrite ?Hp; auto.
      + intros _. apply below. congruence.
      + intros s' E G. unfold phase_holds. rewrite E, G. simpl. auto.
    - (* Recover *) destruct (P k) as (L & Lb & Bd & _). rewrite Hp in L, Lb, Bd. simpl in *.
      assert (Hk : (k < n)%nat) by (apply below; congruence).
      apply (sound_phase (State w ow gi ph ex) k _ I); simpl; rewrite ?Hp; auto.
      intros s' E G. unfold phase_holds. rewrite E, G. simpl. repeat split; auto.
      pose proof (word_is _ I) as W. simpl in W. unfold count_executed. rewrite W, field_pack by (auto using content_is_content).
      unfold content, after. simpl. rewrite Hp. simpl. rewrite Zminus_mod_idemp_l.
      replace (ow k + Z.of_nat d - ow k) with (Z.of_nat d) by ring. rewrite Z.mod_small by lia. apply Nat2Z.id.
    - (* Resume *) destruct (P k) as (L & Lb & Bd & Q). rewrite Hp in L, Lb, Bd, Q. simpl in *. subst count.
      apply (sound_own (State w ow gi ph ex) k _ _ Idle I); simpl.
      + apply modulo_is_content.
      + unfold content, after. simpl. now rewrite Hp, Z.add_0_r, Zmod_mod.
      + unfold contributed. simpl. rewrite Hp. simpl. ring.
      + congruence.
      + intros s' E G. unfold phase_holds. rewrite E, G. simpl. repeat split; try lia. intro j. rewrite firstn_nil. simpl.
        rewrite Z.add_0_r. apply Bd.
  Qed.

  Lemma reachable_sound s : reachable n b c share s -> sound s.
  Proof. induction 1; eauto using sound_initial, sound_step. Qed.

  (** The recovery finds out how many of the adds under way were executed, whatever the others have added since within
      their shares. So a requester that begins the rest again executes each add exactly once. *)
  Theorem counter_recovery_is_right s k ds d count : reachable n b c share s -> phases s k = Decided ds d count -> count = d.
  Proof.
    intros R E. destruct (phases_hold s (reachable_sound s R) k) as (_ & _ & _ & P). now rewrite E in P.
  Qed.

  (** Every client that reads the word at any time reads the sum of the adds that were executed. *)
  Theorem counter_value_is_the_sum s : reachable n b c share s -> value n b c (word s) = executed s.
  Proof.
    intro R. apply reachable_sound in R as I. destruct fits as (B & Sh & C).
    unfold value. rewrite (word_is s I), above_pack by auto using content_is_content.
    assert (bound : Z.abs (executed s) <= Z.of_nat n * share).
    { rewrite (sum_is s I). apply total_bound. intros k _. destruct (phases_hold s I k) as (_ & _ & Bd & _). apply Bd. }
    destruct (Z.le_gt_cases 0 (executed s)).
    - rewrite Z.mod_small by lia. destruct (Z.ltb_spec (2 * executed s) c); lia.
    - replace (executed s mod c) with (executed s + c).
      + destruct (Z.ltb_spec (2 * (executed s + c)) c); lia.
      + rewrite <- (Z.mod_add _ 1), Z.mul_1_l by lia. symmetry. apply Z.mod_small. lia.
  Qed.

  (** Nothing was carried out of the word, nor into a field: the field of each requester counts its adds. *)
  Theorem counter_fields_count_the_adds s : reachable n b c share s -> 0 <= word s < power b n * c /\
    forall k, (k < n)%nat -> field b (word s) k = after b (own s k) (done (phases s k)).
  Proof.
    intro R. apply reachable_sound in R as I. destruct fits as (B & _ & _). pose proof (power_positive b B n).
    pose proof c_positive. rewrite (word_is s I). split.
    - rewrite <- (Z.mod_mod (executed s) c), <- pack_modulo by (auto using content_is_content; lia). apply Z.mod_pos_bound. nia.
    - intros k Hk. apply (field_pack b B (content s)); auto using content_is_content.
  Qed.

  (** When no requester has adds under way, the value is the sum of what the requesters take for executed. *)
  Theorem counter_counts_every_add_once s : reachable n b c share s -> (forall k, phases s k = Idle) ->
    value n b c (word s) = total (given s) n.
  Proof.
    intros R Q. rewrite counter_value_is_the_sum by exact R. rewrite (sum_is s (reachable_sound s R)).
    apply total_ext. intros k _. unfold contributed. rewrite Q. simpl. ring.
  Qed.
End Counter.

(** The layout with 8 requesters of 2 bits: 2^48 contents of the value, in a word of 64 bits. *)
Lemma eight_requesters_of_two_bits_fit :
  layout_fits 8 4 (2 ^ 48) ((2 ^ 47 - 1) / 8) /\ power 4 8 * 2 ^ 48 = 2 ^ 64.
Proof. split; [unfold layout_fits; repeat split; vm_compute; congruence|reflexivity]. Qed.
