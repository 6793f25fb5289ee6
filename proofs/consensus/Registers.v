(** Registers have consensus number 1: READ and WRITE alone do not let two processes agree. *)
From Coq Require Import List PeanoNat Lia.
From Mitra Require Import Protocols WaitFreedom Interference.
Import ListNotations.

(** Registers with arbitrary addresses and arbitrary values. No register is too large, and there are as many as the
    protocol needs. *)
Section Registers.
  Context (address value : Type) (address_eq : forall a b : address, {a = b} + {a <> b}).

  Inductive register_operation := ReadRegister (a : address) | WriteRegister (a : address) (v : value).

  Definition set_register (a : address) (v : value) (m : address -> value) : address -> value :=
    fun b => if address_eq b a then v else m b.

  (** A read returns the content, a write returns nothing. *)
  Definition registers : object := Object (address -> value) register_operation (option value)
    (fun o m => match o with
     | ReadRegister a => (m, Some (m a))
     | WriteRegister a v => (set_register a v m, None)
     end).

  Let same (m m' : address -> value) : Prop := forall a, m a = m' a.

  (** Of two operations, a READ is invisible, and of two WRITEs to one register the second hides the first. *)
  Lemma registers_hide (m : memory registers) (o o' : operation registers) :
    hides registers same m o o' \/ hides registers same m o' o \/ commutes registers same m o o'.
  Proof.
    destruct o as [a|a v]; [left; now split|].
    destruct o' as [b|b w]; [right; left; now split|].
    destruct (address_eq a b) as [->|Hab]; [left|right; right].
    - split; [|reflexivity]. intro x. unfold after. simpl. unfold set_register. now destruct (address_eq x b).
    - split; [|reflexivity]. intro x. unfold after. simpl. unfold set_register.
      destruct (address_eq x b), (address_eq x a); congruence.
  Qed.

  (** No protocol over registers lets two or more processes agree on one of two values [a] and [b]. *)
  Theorem registers_cannot_agree (V : Type) (a b : V) n : a <> b -> 2 <= n -> ~ solves V n registers.
  Proof.
    intros Hab Hn. apply (no_consensus_for_two registers same) with (a := a) (b := b); auto.
    - now intros m x.
    - intros [x|x v] m m' H; split; simpl; auto; [now rewrite (H x)|].
      intro y. unfold set_register. now destruct (address_eq y x).
    - apply registers_hide.
  Qed.

  (** One process decides on its own input. So the theorem does not hold merely because nothing is a protocol. *)
  Lemma one_process_agrees (V : Type) (v0 : value) : solves V 1 registers.
  Proof.
    exists (Protocol registers V V (fun _ => v0) (fun _ v => v) (fun v => Decide v)). intro inputs.
    assert (fixed : forall s c, run (Protocol registers V V (fun _ => v0) (fun _ v => v) (fun v => Decide v)) s c = c)
      by (induction s; simpl; auto).
    split; [|split].
    - constructor. intros p _ (o & next & E). discriminate E.
    - intros s p q v w _ Hp Hq. rewrite fixed. unfold decided. simpl.
      replace p with 0 by lia. replace q with 0 by lia. congruence.
    - intros s p v _ Hp. rewrite fixed. unfold decided. simpl. intros [= <-]. eauto.
  Qed.

  Theorem registers_have_consensus_number_1 (v0 : value) : consensus_number registers 1.
  Proof.
    split; [now apply one_process_agrees|]. intros more Hn. now apply (registers_cannot_agree bool true false).
  Qed.
End Registers.
