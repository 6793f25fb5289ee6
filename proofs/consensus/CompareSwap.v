(** CMP_SWAP has an infinite consensus number: with it any number of processes can agree. *)
From Coq Require Import ZArith List PeanoNat Lia.
From Mitra Require Import Protocols WaitFreedom Words FirstWins.
Import ListNotations.
Local Open Scope Z_scope.

Inductive compare_swap_operation := Read (a : nat) | Write (a : nat) (v : Z) | CompareSwap (a : nat) (compare swap : Z).

(** READ and CMP_SWAP return the word before the operation, WRITE returns nothing. *)
Definition compare_swap_memory : object := Object words compare_swap_operation (option Z)
  (fun o m => match o with
   | Read a => (m, Some (m a))
   | Write a v => (write a v m, None)
   | CompareSwap a x y => (compare_swap a x y m, Some (m a))
   end).

(** Any number of processes agree: each swaps its value's code into a word that is zero at first. Who gets zero was
    first, all others get the code of the first. *)
Theorem compare_swap_agrees_for_any_number (V : Type) n : fits_in_word V -> solves V n compare_swap_memory.
Proof.
  intros (code & value & H).
  apply first_wins_solves with
    (empty := (fun _ => 0) : memory compare_swap_memory)
    (attempt := (fun v => CompareSwap 0 0 (code v)) : V -> operation compare_swap_memory)
    (winner := fun r : option Z => match r with Some 0 | None => None | Some z => Some (value z) end)
    (holds := fun w k (m : words) => (0 < k)%nat /\ m 0%nat = code w).
  - intro v. split; [reflexivity|]. split; [lia|reflexivity].
  - intros v w k m [Hk Hm] _. destruct (H w) as [Hw E]. simpl. unfold compare_swap. rewrite Hm.
    replace (code w =? 0) with false by (symmetry; apply Z.eqb_neq; lia).
    split; [|split; [lia|exact Hm]]. destruct (code w); [lia| |lia]. now rewrite E.
  - now intros w k m [Hk _].
Qed.

(** So its consensus number is infinite, and greater than that of FETCH_ADD and of registers. *)
Theorem compare_swap_has_no_finite_consensus_number n : ~ consensus_number compare_swap_memory n.
Proof.
  intros [_ H]. apply (H (S n)); [lia|]. apply compare_swap_agrees_for_any_number, bool_fits.
Qed.
