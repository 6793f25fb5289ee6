(** One recovery, executed step by step, so that the theorems are seen not to be empty. *)
From Coq Require Import ZArith List PeanoNat.
From Mitra Require Import System.
Import ListNotations.

(** A word that is 5 at address 0, and two adds. *)
Definition start : host := Host (fun _ => 5%Z) [].
Definition first_add : op := FetchAdd 0 1.
Definition second_add : op := FetchAdd 0 10.

(** Both adds are sent. The first is executed, its acknowledgement is lost. The rail is given up and fenced, the responder's
    PSN says that one operation was executed, and the second add goes over the next rail. *)
Definition one_failure : list event :=
  [Post first_add; Post second_add; Transmit; Transmit; Arrive 0 0; Log 0; Detect; Fence; Recover ResponderPsn;
   Transmit; Arrive 1 0; Complete 6].

Lemma both_adds_count_once :
  match follow true (initial start) one_failure with
  | Some s => executions (history s) = [0; 1] /\
      outcomes s = [Executed (Some 5%Z); Executed (Some 6%Z)] /\ memory (machine s) 0 = 16%Z
  | None => False
  end.
Proof. vm_compute. auto. Qed.

(** The responder's NIC is lost between the first add and its log entry. Nobody can know whether the add was executed (here it
    was), so it ends as [Indeterminate]. The second add is sent. *)
Definition unreadable_nic : list event :=
  [Post first_add; Post second_add; Transmit; Transmit; Arrive 0 0; Detect; Fence; Recover CompletionLog;
   Transmit; Arrive 1 0; Complete 6].

Lemma one_add_is_in_doubt :
  match follow true (initial start) unreadable_nic with
  | Some s => executions (history s) = [0; 1] /\ outcomes s = [Indeterminate; Executed (Some 6%Z)]
  | None => False
  end.
Proof. vm_compute. auto. Qed.

(** A delayed packet may be executed until the fence, and not behind it. *)
Lemma late_packet_before_the_fence :
  follow true (initial start) [Post first_add; Transmit; Detect; Arrive 0 0; Fence] <> None.
Proof. vm_compute. discriminate. Qed.

Lemma no_packet_behind_the_fence :
  follow true (initial start) [Post first_add; Transmit; Detect; Fence; Arrive 0 0] = None.
Proof. vm_compute. reflexivity. Qed.
