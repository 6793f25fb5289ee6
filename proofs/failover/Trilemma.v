(** The trilemma: exactly once, an opaque receiver, zero copy; at most two of the three.

    - Exactly once: the operation is executed at most once ([safe_for]), and once if the mechanism goes on ([live_for]).
    - Opaque receiver: after a failure the requester learns nothing from the receiver but the answers to the operations that it
      sends. Its mechanism is a function of its own view that may then use the memory by new operations (Transparency.v), behind a fence or not.
    - Zero copy: the receiver's NIC changes the application's memory when a packet arrives. No program of the receiver
      stands in between that could drop a second copy (System.v).

    Each two of them can be had, and this file names the theorem of each case. *)
From Coq Require Import ZArith List PeanoNat.
From Mitra Require Import Transparency Liveness.
From Mitra Require WithCopy.
Import ListNotations.

(** Opaque and zero copy: not exactly once, for any operation, any memory and any mechanism, if others may write. This counts
    executions, so it holds also where a second one does no harm: for READ, a CMP_SWAP that fails, and an addition of 0.
    [no_mechanism_has_the_right_effect] looks at the effect instead, and leaves these out. *)
Theorem opaque_and_zero_copy_is_not_exactly_once closed (allowed : op -> Prop) o h mechanism : (forall a v, allowed (Write a v)) ->
  ~ (safe_for closed allowed o h mechanism /\ live_for closed allowed o h mechanism).
Proof.
  intro may. destruct (writes_restore o h) as (others & W & restored). revert mechanism.
  apply transparent_failover_is_impossible with (others := others); [|exact restored].
  apply (Forall_impl _ (P := fun w => exists a v, w = Write a v)); [|exact W]. intros w (a & v & ->). apply may.
Qed.

(** Zero copy and exactly once, if the receiver's NIC gives evidence: policy `exact`. Wherever the system is, if every NIC could be
    read so far, it can go on without a further failure until each posted operation was executed exactly once and the application has its value. Whenever the
    application has been told everything, this is so ([exactly_once]). *)
Theorem zero_copy_and_exactly_once h t s : reaches true h t s -> unreadable t = 0 -> exists more s',
  reaches true h (t ++ more) s' /\ forallb contributes more = true /\ (forall e, In (Recover e) more -> e = ResponderPsn) /\
  posted s' = posted s /\ known s' = length (posted s) /\
  forall i, i < length (posted s) -> exists v,
    nth_error (outcomes s') i = Some (Executed (Some v)) /\ times_executed i s' = 1 /\ In (Ours i v) (history s').
Proof.
  intros R U. destruct (posted_work_ends h t s ResponderPsn R) as (more & s' & R' & C & E & P & K).
  exists more, s'. repeat split; auto. intros i Hi.
  assert (U' : unreadable (t ++ more) = 0).
  { unfold unreadable in *. rewrite filter_app, app_length, U. clear - E. induction more as [|e more IH]; simpl; auto.
    destruct e as [| | | | | | | |[]]; simpl in *; auto. discriminate (E CompletionLog (or_introl eq_refl)). }
  rewrite <- P in K, Hi. destruct (exactly_once h _ s' R' U' K i Hi) as (T & v & V & W). eauto.
Qed.

(** Opaque and exactly once, if the receiver's program copies: the endpoint filter. At no time has an operation been executed
    twice; and wherever the requester is, sending everything again, and the answers to it, give each operation its value. *)
Theorem opaque_and_exactly_once h t s : WithCopy.reaches h t s ->
  (forall i, WithCopy.times_executed i s <= 1) /\
  exists s', let all := seq 0 (length (WithCopy.posted s)) in
    WithCopy.reaches h (t ++ map WithCopy.Arrive all ++ map WithCopy.Answer all) s' /\
    WithCopy.posted s' = WithCopy.posted s /\
    forall i, i < length (WithCopy.posted s) -> exists v,
      WithCopy.answers s' i = Some v /\ WithCopy.times_executed i s' = 1 /\ In (Ours i v) (WithCopy.history s').
Proof. intro R. split; [exact (WithCopy.copied_at_most_once h t s R)|exact (WithCopy.copied_exactly_once h t s R)]. Qed.

(** Opaque and zero copy, if one half of exactly once is given up: policies `transparent` (at most once) and `blanket` (at
    least once). One mechanism has it for all operations, whatever others do. *)
Theorem opaque_and_zero_copy_has_either_half :
  (exists mechanism, forall closed o h, safe_for closed (fun _ => True) o h mechanism) /\
  (exists mechanism, forall closed o h, live_for closed (fun _ => True) o h mechanism).
Proof.
  split; [exists never_repeat|exists always_repeat]; intros closed o h;
    [apply safety_alone_is_possible|apply liveness_alone_is_possible].
Qed.
