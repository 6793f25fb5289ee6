(** Without the fence the same recovery executes operations twice: the delayed packet is the counterexample. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Import System.
Import ListNotations.

(** The operation is sent on rail 0, and its packet is delayed. The requester reads the evidence (not executed) and sends
    it again on rail 1, where it is executed and completes. Then the delayed packet is executed. *)
Definition delayed_packet (o : op) (h : host) : list event :=
  [Post o; Transmit; Detect; Recover ResponderPsn; Transmit; Arrive 1 0; Complete (value o h); Arrive 0 0].

(** The system is the same, but for the rule that evidence is read behind the fence. For every operation and every memory,
    the operation is executed twice, and the application is told that all is well. *)
Theorem without_the_fence_executed_twice o h : exists s, reaches false h (delayed_packet o h) s /\
  times_executed 0 s = 2 /\ machine s = effect o (effect o h) /\ outcomes s = [Executed (Some (value o h))].
Proof.
  unfold reaches, delayed_packet, value, effect. cbn. destruct (execute o h) as [h' v] eqn:E. cbn. rewrite Z.eqb_refl.
  cbn. destruct (execute o h') as [h'' v'] eqn:E'. cbn. eexists. repeat split.
Qed.

(** The counter is then wrong. *)
Theorem without_the_fence_fetch_add_counts_twice a d h : (d mod modulus <> 0)%Z ->
  exists s, reaches false h (delayed_packet (FetchAdd a d) h) s /\
    memory (machine s) a <> memory (effect (FetchAdd a d) h) a.
Proof.
  intro Hd. destruct (without_the_fence_executed_twice (FetchAdd a d) h) as (s & R & _ & M & _).
  exists s. split; [exact R|]. rewrite M. intro E. apply Hd, (fetch_add_is_idempotent_only_for_zero a d h).
  split; [|reflexivity]. intro b. destruct (Nat.eq_dec b a) as [->|Hb]; [exact E|].
  simpl. unfold fetch_add. now rewrite !update_other.
Qed.

(** The rule refuses this trace: its [Recover] comes before a [Fence]. *)
Lemma the_fence_refuses_it o h : follow true (initial h) (delayed_packet o h) = None.
Proof. reflexivity. Qed.
