(** A receiver that is not zero copy: its program copies each message out of a buffer, and recognizes copies by a number.

    The requester numbers its operations, and sends any of them at any time, over any rail, as often as it likes: after a
    failure it simply sends again what has no answer. It reads no evidence and fences nothing. The network delays,
    doubles and reorders messages at will, so any posted operation may arrive at any time. The receiver's NIC only fills
    buffers; the receiver's program executes the operation if its number is the next one, and drops it otherwise. *)
From Coq Require Import ZArith List PeanoNat Lia Sorted.
From Mitra Require Import Invariant.
Import ListNotations.

Record receiver := Receiver {
  machine : host;
  posted : list op;
  next : nat;               (** the number of the operation that the program executes next *)
  history : list change;
}.

Definition initial (h : host) : receiver := Receiver h [] 0 [].

Inductive event :=
| Post (o : op)      (** the application posts an operation *)
| Arrive (i : nat)   (** a copy of operation [i] arrives, over any rail, and the program handles it *)
| Other (o : op)     (** another client's operation is executed *).

Definition step (s : receiver) (e : event) : option receiver :=
  let '(Receiver h ops n past) := s in
  match e with
  | Post o => Some (Receiver h (ops ++ [o]) n past)
  | Arrive i =>
      match nth_error ops i with
      | Some o => if i =? n then let '(h', v) := execute o h in Some (Receiver h' ops (S n) (past ++ [Ours i v]))
                  else Some s
      | None => None
      end
  | Other o => Some (Receiver (effect o h) ops n (past ++ [Theirs o]))
  end.

Fixpoint follow (s : receiver) (trace : list event) : option receiver :=
  match trace with
  | [] => Some s
  | e :: trace => match step s e with Some s' => follow s' trace | None => None end
  end.

Definition reaches (h : host) (trace : list event) (s : receiver) : Prop := follow (initial h) trace = Some s.

Definition times_executed (i : nat) (s : receiver) : nat := count_occ Nat.eq_dec (executions (history s)) i.

Lemma executed_in_order h t s : reaches h t s -> executions (history s) = seq 0 (next s) /\ next s <= length (posted s).
Proof.
  unfold reaches. enough (forall t s s', executions (history s) = seq 0 (next s) /\ next s <= length (posted s) ->
    follow s t = Some s' -> executions (history s') = seq 0 (next s') /\ next s' <= length (posted s'))
    by (apply (H t (initial h)); split; reflexivity).
  clear. induction t as [|e t IH]; simpl; intros s s' I H; [now injection H as <-|].
  destruct (step s e) as [s1|] eqn:E; [|discriminate]. apply (IH s1 s'); [|exact H]. clear IH H s'.
  destruct s as [m ops n past], I as [I L]. simpl in *. destruct e as [o|i|o].
  - injection E as <-. simpl. rewrite app_length. split; [exact I|lia].
  - destruct (nth_error ops i) as [o|] eqn:O; [|discriminate]. destruct (Nat.eqb_spec i n) as [->|N].
    + destruct (execute o m). injection E as <-. cbn [history next posted]. rewrite executions_app, I, seq_S. split; [reflexivity|].
      apply nth_error_Some. congruence.
    + injection E as <-. auto.
  - injection E as <-. simpl. rewrite executions_app, app_nil_r. auto.
Qed.

(** Safety: no operation is executed twice, however often it is sent. *)
Theorem copied_at_most_once h t s : reaches h t s -> forall i, times_executed i s <= 1.
Proof.
  intros H i. unfold times_executed. apply executed_in_order in H as [-> _].
  apply NoDup_count_occ with (decA := Nat.eq_dec), seq_NoDup.
Qed.

(** Liveness, and exactly once: wherever the requester is, sending again what the receiver has not executed yet ends with
    each operation executed exactly once. The requester need not know which these are: sending more copies changes
    nothing. *)
Theorem copied_exactly_once h t s : reaches h t s -> exists s',
  reaches h (t ++ map Arrive (seq 0 (length (posted s)))) s' /\ posted s' = posted s /\
  forall i, i < length (posted s) -> times_executed i s' = 1.
Proof.
  intro R. pose proof (executed_in_order h t s R) as [_ L].
  enough (G : forall k n s, executions (history s) = seq 0 (next s) -> n <= next s -> next s <= n + k ->
      n + k = length (posted s) -> exists s', follow s (map Arrive (seq n k)) = Some s' /\ posted s' = posted s /\
      next s' = length (posted s)).
  { pose proof (executed_in_order h t s R) as [X _].
    destruct (G (length (posted s)) 0 s X ltac:(lia) ltac:(lia) eq_refl) as (s' & F & P & N). exists s'.
    assert (R' : reaches h (t ++ map Arrive (seq 0 (length (posted s)))) s').
    { unfold reaches in *. clear - R F. revert R F. generalize (initial h). induction t as [|e t IH]; simpl; intros s0 R F.
      - now injection R as ->.
      - destruct (step s0 e); [eauto|discriminate]. }
    split; [exact R'|]. split; [exact P|]. intros i Hi. unfold times_executed.
    apply executed_in_order in R' as [-> _]. rewrite N. apply (proj1 (NoDup_count_occ' Nat.eq_dec _)); [apply seq_NoDup|].
    apply in_seq. lia. }
  clear. induction k as [|k IH]; simpl; intros n s X H1 H2 H3.
  - exists s. repeat split. lia.
  - destruct s as [m ops x past]. simpl in *. destruct (nth_error ops n) as [o|] eqn:O; [|apply nth_error_None in O; lia].
    destruct (Nat.eqb_spec n x) as [->|N].
    + destruct (execute o m) as [m' v]. apply (IH (S x) (Receiver m' ops (S x) (past ++ [Ours x v]))); cbn [history next posted]; try lia.
      now rewrite executions_app, X, seq_S.
    + apply (IH (S n) (Receiver m ops x past)); simpl; auto; lia.
Qed.

(** The memory is what the executions make of it. *)
Theorem copied_history_is_true h t s : reaches h t s -> explains (posted s) h (history s) (machine s).
Proof.
  unfold reaches. enough (forall t s s', explains (posted s) h (history s) (machine s) ->
    follow s t = Some s' -> explains (posted s') h (history s') (machine s'))
    by (apply (H t (initial h)); constructor).
  clear. induction t as [|e t IH]; simpl; intros s s' I H; [now injection H as <-|].
  destruct (step s e) as [s1|] eqn:E; [|discriminate]. apply (IH s1 s'); [|exact H]. clear IH H s'.
  destruct s as [m ops n past]. simpl in *. destruct e as [o|i|o].
  - injection E as <-. simpl. now apply explains_more.
  - destruct (nth_error ops i) as [o|] eqn:O; [|discriminate]. destruct (i =? n).
    + pose proof (explains_ours ops h past m i o I O) as P. unfold value, effect in P.
      destruct (execute o m). injection E as <-. exact P.
    + injection E as <-. exact I.
  - injection E as <-. simpl. now constructor.
Qed.
