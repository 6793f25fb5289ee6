(** A NIC saves the results of its last operations only. That is enough: a requester with at most [d] operations in flight
    reads in a recovery none but the last [d] results. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Import Invariant.
Import ListNotations.

(** The last [d] results that the responder of a rail has. *)
Definition saved (d : nat) (r : rail) : list Z := skipn (executed r - d) (results r).

(** What the recovery decides from the expected PSN (the number of operations that were executed) and the saved results. *)
Definition decide_from_saved (d : nat) (s : state) : list outcome :=
  let r := rails s (active s) in
  map (fun v => Executed (Some v)) (skipn (known s - first r - (executed r - d)) (saved d r)).

Lemma skipn_skipn_le {A} (l : list A) a b : b <= a -> skipn (a - b) (skipn b l) = skipn a l.
Proof.
  revert a l. induction b as [|b IH]; intros a l H; simpl; [now rewrite Nat.sub_0_r|].
  destruct a as [|a]; [lia|]. destruct l as [|x l]; [now rewrite !skipn_nil|]. simpl. apply IH. lia.
Qed.

(** The operations in flight: sent, and without an outcome. *)
Definition in_flight_count (s : state) : nat := first (current s) + sent (current s) - known s.

Theorem saved_results_are_enough h t s d : reaches true h t s -> in_flight_count s <= d ->
  decide_from_saved d s = decide ResponderPsn s.
Proof.
  intros R W. apply reached_is_sound in R as I.
  pose proof (executed_were_sent h s I) as es. pose proof (told_were_executed h s I) as te.
  unfold in_flight_count, current in *. unfold decide_from_saved, decide, saved. f_equal.
  apply skipn_skipn_le. lia.
Qed.

(** One fewer is not enough: with two adds in flight, both executed and none acknowledged, the first add would be told the value
    of the second, and the second nothing. *)
Lemma fewer_saved_results_lose_a_value :
  match follow true (System.initial (Host (fun _ => 5%Z) []))
    [Post (FetchAdd 0 1); Post (FetchAdd 0 10); Transmit; Transmit; Arrive 0 0; Log 0; Arrive 0 1; Log 0; Detect; Fence] with
  | Some s => in_flight_count s = 2 /\ decide ResponderPsn s = [Executed (Some 5%Z); Executed (Some 6%Z)] /\
      decide_from_saved 1 s = [Executed (Some 6%Z)]
  | None => False
  end.
Proof. vm_compute. auto. Qed.
