(** The trilemma: exactly once, an opaque receiver, zero copy; at most two of the three.

    - Exactly once: the operation is executed at most once ([safe_for]), and once if the mechanism goes on ([live_for]).
    - Opaque receiver: after a failure the requester learns nothing from the receiver but the memory itself. Its mechanism is
      a function of its own view that may then use the memory (Transparency.v).
    - Zero copy: the receiver's NIC changes the application's memory when a packet arrives. No program of the receiver
      stands in between that could drop a second copy (System.v).

    Each two of them can be had, and this file names the theorem of each case. *)
From Coq Require Import ZArith List PeanoNat.
From Mitra Require Import Transparency.
From Mitra Require WithCopy.
Import ListNotations.

(** The operations that change something: all but READ, and CMP_SWAP where it compares with the word that is there. *)
Definition changes_something (o : op) (h : host) : Prop :=
  match o with
  | Read _ => False
  | CompareSwap a x _ => memory h a = x
  | FetchAdd a _ => (0 <= memory h a < modulus)%Z
  | Write _ _ | Send _ => True
  end.

(** Opaque and zero copy: not exactly once, for any operation that changes something and any mechanism. *)
Theorem opaque_and_zero_copy_is_not_exactly_once o h mechanism : changes_something o h ->
  ~ (safe_for o h mechanism /\ live_for o h mechanism).
Proof.
  destruct o; simpl; intro H.
  - easy.
  - apply transparent_failover_of_write_is_impossible.
  - now apply transparent_failover_of_fetch_add_is_impossible.
  - now apply transparent_failover_of_compare_swap_is_impossible.
  - apply transparent_failover_of_send_is_impossible.
Qed.

(** Zero copy and exactly once, if the receiver gives evidence: policy `exact`. *)
Theorem zero_copy_and_exactly_once h t s : reaches true h t s -> unreadable t = 0 -> known s = length (posted s) ->
  forall i, i < length (posted s) -> times_executed i s = 1.
Proof. intros R U K i H. apply (exactly_once h t s R U K i H). Qed.

(** Opaque and exactly once, if the receiver's program copies: the endpoint filter. *)
Theorem opaque_and_exactly_once h t s : WithCopy.reaches h t s -> exists s',
  WithCopy.reaches h (t ++ map WithCopy.Arrive (seq 0 (length (WithCopy.posted s)))) s' /\
  (forall i, WithCopy.times_executed i s' <= 1) /\
  (forall i, i < length (WithCopy.posted s) -> WithCopy.times_executed i s' = 1).
Proof.
  intro R. destruct (WithCopy.copied_exactly_once h t s R) as (s' & R' & _ & once). exists s'.
  split; [exact R'|]. split; [apply (WithCopy.copied_at_most_once h _ s' R')|exact once].
Qed.

(** Opaque and zero copy, if one half of exactly once is given up: policies `transparent` (at most once) and `blanket` (at
    least once). *)
Theorem opaque_and_zero_copy_has_either_half o h :
  (exists mechanism, safe_for o h mechanism) /\ (exists mechanism, live_for o h mechanism).
Proof.
  split; [exists (fun _ => Stop); apply safety_alone_is_possible|].
  exists (fun _ => Repeat (fun _ => Stop)). apply liveness_alone_is_possible.
Qed.
