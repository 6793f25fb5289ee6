(** A receiver that is not zero copy: its program copies each message out of a buffer, and recognizes copies by a number.

    The requester numbers its operations, and sends any of them at any time, over any rail, as often as it likes: after a
    failure it simply sends again what has no answer. It reads no evidence and fences nothing. The network delays,
    doubles and reorders messages at will, so any posted operation may arrive at any time. The receiver's NIC only fills
    buffers; the receiver's program executes the operation if its number is the next one, and drops it otherwise. It keeps the
    results, and answers each copy of an operation that it has executed with the result. Answers are lost, delayed and doubled
    as well. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Import System.
Import ListNotations.

Record receiver := Receiver {
  machine : host;
  posted : list op;
  kept : list Z;               (** the results, in order; the operation that the program executes next has their number *)
  answers : nat -> option Z;   (** what the requester knows: the answers that have arrived *)
  history : list change;
}.

Definition initial (h : host) : receiver := Receiver h [] [] (fun _ => None) [].

Inductive event :=
| Post (o : op)      (** the application posts an operation *)
| Arrive (i : nat)   (** a copy of operation [i] arrives, over any rail, and the program handles it *)
| Answer (i : nat)   (** a copy of the answer to operation [i] arrives at the requester *)
| Other (o : op)     (** another client's operation is executed *).

Definition step (s : receiver) (e : event) : option receiver :=
  let '(Receiver h ops rs an past) := s in
  match e with
  | Post o => Some (Receiver h (ops ++ [o]) rs an past)
  | Arrive i =>
      match nth_error ops i with
      | Some o => if i =? length rs
                  then let '(h', v) := execute o h in Some (Receiver h' ops (rs ++ [v]) an (past ++ [Ours i v]))
                  else Some s
      | None => None
      end
  | Answer i =>
      match nth_error rs i with
      | Some v => Some (Receiver h ops rs (update an i (Some v)) past)
      | None => None
      end
  | Other o => Some (Receiver (effect o h) ops rs an (past ++ [Theirs o]))
  end.

Fixpoint follow (s : receiver) (trace : list event) : option receiver :=
  match trace with
  | [] => Some s
  | e :: trace => match step s e with Some s' => follow s' trace | None => None end
  end.

Definition reaches (h : host) (trace : list event) (s : receiver) : Prop := follow (initial h) trace = Some s.

Definition times_executed (i : nat) (s : receiver) : nat := count_occ Nat.eq_dec (executions (history s)) i.

(** Two adds whose copies arrive late, twice and out of order, and whose answers arrive late and twice. *)
Lemma copies_out_of_order :
  match follow (initial (Host (fun _ => 5%Z) []))
    [Post (FetchAdd 0 1); Post (FetchAdd 0 10); Arrive 1; Arrive 0; Arrive 0; Arrive 1; Answer 1; Arrive 1; Answer 0; Answer 1] with
  | Some s => executions (history s) = [0; 1] /\ memory (machine s) 0 = 16%Z /\
      answers s 0 = Some 5%Z /\ answers s 1 = Some 6%Z /\ answers s 2 = None
  | None => False
  end.
Proof. vm_compute. auto. Qed.

Lemma follow_app s t t' : follow s (t ++ t') = match follow s t with Some s' => follow s' t' | None => None end.
Proof. revert s. induction t as [|e t IH]; simpl; intro s; [reflexivity|]. now destruct (step s e). Qed.

(** What holds in every state that is reached. *)
Record sound (h : host) (s : receiver) : Prop := Sound {
  executed_in_order : executions (history s) = seq 0 (length (kept s));
  executed_were_posted : length (kept s) <= length (posted s);
  kept_are_true : forall i v, nth_error (kept s) i = Some v -> In (Ours i v) (history s);
  answers_were_kept : forall i v, answers s i = Some v -> nth_error (kept s) i = Some v;
  history_is_true : explains (posted s) h (history s) (machine s);
}.

Lemma sound_initial h : sound h (initial h).
Proof. constructor; simpl; auto; [intros [|i] v|intros i v|constructor]; discriminate. Qed.

Lemma nth_error_snoc {A} (l : list A) x i y : nth_error (l ++ [x]) i = Some y -> nth_error l i = Some y \/ (i = length l /\ x = y).
Proof.
  intro H. destruct (Nat.lt_ge_cases i (length l)) as [L|L]; [left; now rewrite nth_error_app1 in H|right].
  rewrite nth_error_app2 in H by exact L. destruct (i - length l) as [|[|d]] eqn:D; try discriminate.
  injection H as ->. split; [lia|auto].
Qed.

Lemma sound_step h s e s' : sound h s -> step s e = Some s' -> sound h s'.
Proof.
  intros [order bound true_kept true_answers true_history] E. destruct s as [m ops rs an past]. simpl in *.
  destruct e as [o|i|i|o]; simpl in E.
  - (* Post *) injection E as <-. constructor; simpl; auto; [rewrite app_length; lia|now apply explains_more].
  - (* Arrive *) destruct (nth_error ops i) as [o|] eqn:O; [|discriminate].
    destruct (Nat.eqb_spec i (length rs)) as [->|N]; [|injection E as <-; now constructor].
    pose proof (explains_ours ops h past m _ o true_history O) as P. unfold value, effect in P.
    destruct (execute o m) as [m' v]. injection E as <-. constructor; simpl; auto.
    + rewrite executions_app, app_length, order, Nat.add_1_r, seq_S. reflexivity.
    + rewrite app_length, Nat.add_1_r. apply nth_error_Some. congruence.
    + intros i w H. apply in_or_app. apply nth_error_snoc in H as [H|[-> ->]]; [auto|right; now left].
    + intros i w H. rewrite nth_error_app1; [auto|]. apply nth_error_Some. rewrite (true_answers i w H). discriminate.
  - (* Answer *) destruct (nth_error rs i) as [v|] eqn:V; [|discriminate]. injection E as <-. constructor; simpl; auto.
    intros j w. destruct (Nat.eq_dec j i) as [->|N]; [rewrite update_same; congruence|rewrite update_other by exact N; auto].
  - (* Other *) injection E as <-. constructor; simpl; auto.
    + now rewrite executions_app, app_nil_r.
    + intros i v H. apply in_or_app. auto.
    + now constructor.
Qed.

Lemma reached_is_sound h t s : reaches h t s -> sound h s.
Proof.
  unfold reaches. generalize (sound_initial h). generalize (initial h).
  induction t as [|e t IH]; simpl; intros s0 I H; [congruence|].
  destruct (step s0 e) as [s1|] eqn:E; [|discriminate]. eauto using sound_step.
Qed.

(** Safety: no operation is executed twice, however often it is sent. *)
Theorem copied_at_most_once h t s : reaches h t s -> forall i, times_executed i s <= 1.
Proof.
  intros R i. unfold times_executed. rewrite (executed_in_order h s (reached_is_sound h t s R)).
  apply NoDup_count_occ with (decA := Nat.eq_dec), seq_NoDup.
Qed.

Lemma kept_once h t s i v : reaches h t s -> nth_error (kept s) i = Some v -> times_executed i s = 1 /\ In (Ours i v) (history s).
Proof.
  intros R K. pose proof (reached_is_sound h t s R) as I. split; [|exact (kept_are_true h s I i v K)].
  unfold times_executed. rewrite (executed_in_order h s I). apply (proj1 (NoDup_count_occ' Nat.eq_dec _)); [apply seq_NoDup|].
  apply in_seq. split; [lia|]. apply nth_error_Some. congruence.
Qed.

(** Never a guess: an operation that has an answer was executed, once, and returned what the answer says. *)
Theorem copied_answers_are_true h t s i v : reaches h t s -> answers s i = Some v ->
  times_executed i s = 1 /\ In (Ours i v) (history s).
Proof. intros R A. apply (kept_once h t s i v R), (answers_were_kept h s (reached_is_sound h t s R) i v A). Qed.

(** Sending the operations [n], [n + 1], … ([k] many) has all of them executed, if those before them were. *)
Lemma send_all k n s : n <= length (kept s) <= n + k -> n + k = length (posted s) -> exists s',
  follow s (map Arrive (seq n k)) = Some s' /\ posted s' = posted s /\ length (kept s') = length (posted s).
Proof.
  revert n s. induction k as [|k IH]; simpl; intros n s L P; [exists s; repeat split; lia|].
  destruct s as [m ops rs an past]. simpl in *. destruct (nth_error ops n) as [o|] eqn:O; [|apply nth_error_None in O; lia].
  destruct (Nat.eqb_spec n (length rs)) as [->|N].
  - destruct (execute o m) as [m' v]. apply (IH _ (Receiver m' ops (rs ++ [v]) an _)); simpl; rewrite ?app_length; simpl; lia.
  - apply (IH _ (Receiver m ops rs an past)); simpl; lia.
Qed.

(** When the answers to the operations [n], [n + 1], … ([k] many) have arrived, the requester knows their results. *)
Lemma answer_all k n s : n + k <= length (kept s) -> exists s', follow s (map Answer (seq n k)) = Some s' /\
  posted s' = posted s /\ kept s' = kept s /\ history s' = history s /\
  forall i, i < n + k -> (i < n -> answers s i = nth_error (kept s) i) -> answers s' i = nth_error (kept s) i.
Proof.
  revert n s. induction k as [|k IH]; simpl; intros n s L; [exists s; repeat split; intros i Hi A; apply A; lia|].
  destruct s as [m ops rs an past]. simpl in *. destruct (nth_error rs n) as [v|] eqn:V; [|apply nth_error_None in V; lia].
  destruct (IH (S n) (Receiver m ops rs (update an n (Some v)) past)) as (s' & F & P & K & H & A); simpl in *; [lia|].
  exists s'. repeat split; auto. intros i Hi B. apply A; [lia|]. intro Li.
  destruct (Nat.eq_dec i n) as [->|N]; [now rewrite update_same|]. rewrite update_other by exact N. apply B. lia.
Qed.

(** Liveness, and exactly once: wherever the requester is, sending everything again, and the answers to it, give each operation its
    value, and each was executed exactly once. The requester need not know which of them were executed before: more copies
    change nothing. *)
Theorem copied_exactly_once h t s : reaches h t s -> exists s', let all := seq 0 (length (posted s)) in
  reaches h (t ++ map Arrive all ++ map Answer all) s' /\ posted s' = posted s /\
  forall i, i < length (posted s) -> exists v, answers s' i = Some v /\ times_executed i s' = 1 /\ In (Ours i v) (history s').
Proof.
  intro R. pose proof (executed_were_posted h s (reached_is_sound h t s R)) as L.
  destruct (send_all (length (posted s)) 0 s ltac:(lia) eq_refl) as (s1 & F1 & P1 & K1).
  destruct (answer_all (length (posted s)) 0 s1 ltac:(lia)) as (s' & F & P & K & _ & A).
  assert (R' : reaches h (t ++ map Arrive (seq 0 (length (posted s))) ++ map Answer (seq 0 (length (posted s)))) s')
    by (unfold reaches in *; rewrite follow_app, R; cbv iota; now rewrite follow_app, F1).
  exists s'. split; [exact R'|]. split; [congruence|]. intros i Hi. specialize (A i Hi ltac:(lia)).
  destruct (nth_error (kept s1) i) as [v|] eqn:V; [|apply nth_error_None in V; lia].
  exists v. split; [exact A|]. exact (copied_answers_are_true h _ s' i v R' A).
Qed.

(** The memory is what the executions make of it. *)
Theorem copied_history_is_true h t s : reaches h t s -> explains (posted s) h (history s) (machine s).
Proof. intro R. exact (history_is_true h s (reached_is_sound h t s R)). Qed.
