(** The two histories of an operation whose completion is missing when its rail fails: it was not executed, or it was
    executed and its acknowledgement was lost. The requester observes the same in both. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Export System.
Import ListNotations.

(** The events that the requester observes: what its application and it itself do, and the completions. It observes
    neither the responder nor other clients. *)
Definition observed (e : event) : bool :=
  match e with Arrive _ _ | Log _ | Other _ => false | _ => true end.

Definition view (trace : list event) : list event := filter observed trace.

(** The requester gives the rail up, and fences it if [closed]. *)
Definition given_up (closed : bool) : list event := Detect :: if closed then [Fence] else [].

(** The rail failed before the responder executed the operation. *)
Definition not_executed (closed : bool) (o : op) : list event := [Post o; Transmit] ++ given_up closed.

(** The responder executed the operation, then others changed the memory, and the rail failed before the completion. *)
Definition executed_then (closed : bool) (o : op) (others : list op) : list event :=
  [Post o; Transmit; Arrive 0 0] ++ map Other others ++ given_up closed.

(** A valid trace after which the one operation [o] is in flight on the rail that has been given up. The rail is fenced or not,
    and no evidence has been read. *)
Definition in_flight (closed : bool) (o : op) (h : host) (trace : list event) (s : state) : Prop :=
  reaches true h trace s /\ posted s = [o] /\ outcomes s = [] /\
  running s = false /\ active s = 0 /\ fenced (rails s 0) = closed.

Lemma follow_others b os t h ops outs rs a run past :
  follow b (State h ops outs rs a run past) (map Other os ++ t) =
  follow b (State (effects os h) ops outs rs a run (past ++ map Theirs os)) t.
Proof.
  revert h past. induction os as [|o os IH]; simpl; intros h past; [now rewrite app_nil_r|].
  rewrite IH. now rewrite <- app_assoc.
Qed.

Lemma executions_theirs os : executions (map Theirs os) = [].
Proof. now induction os. Qed.

Lemma not_executed_is_valid closed o h : exists s, in_flight closed o h (not_executed closed o) s /\
  machine s = h /\ times_executed 0 s = 0.
Proof. destruct closed; eexists; repeat split. Qed.

Lemma executed_then_is_valid closed o others h : exists s, in_flight closed o h (executed_then closed o others) s /\
  machine s = effects others (effect o h) /\ times_executed 0 s = 1.
Proof.
  unfold in_flight, reaches, executed_then, effect. simpl follow at 1. cbn.
  destruct (execute o h) as [h' v] eqn:E. cbn. rewrite follow_others.
  destruct closed; cbn; eexists; repeat split; unfold times_executed; cbn; now rewrite executions_theirs.
Qed.

(** Theorem 1 of the note, for every operation, every memory, and whatever others do; with a fence and without. *)
Theorem sender_cannot_tell closed o others : view (not_executed closed o) = view (executed_then closed o others).
Proof.
  unfold executed_then, view. rewrite !filter_app. simpl.
  now replace (filter observed (map Other others)) with (@nil event) by (now induction others).
Qed.

(** So no rule on the view says in all valid traces whether the operation was executed. *)
Theorem no_rule_on_the_view_is_right closed o h :
  ~ exists rule : list event -> bool, forall trace s, in_flight closed o h trace s ->
      (rule (view trace) = true <-> times_executed 0 s = 1).
Proof.
  intros [rule right]. destruct (not_executed_is_valid closed o h) as (s & F & _ & T).
  destruct (executed_then_is_valid closed o [] h) as (s' & F' & _ & T').
  apply right in F as [F _]. apply right in F' as [_ F'].
  rewrite (sender_cannot_tell closed o []) in F. rewrite F in T by auto. discriminate.
Qed.

(** A packet may be delayed: the operation that was not executed when the rail failed is executed afterwards. *)
Theorem delayed_packet_is_executed_after_the_failure o h :
  exists s, reaches true h (not_executed false o ++ [Arrive 0 0]) s /\ times_executed 0 s = 1.
Proof.
  unfold reaches. cbn. destruct (execute o h). eexists. split; reflexivity.
Qed.
