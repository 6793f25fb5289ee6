(** Consensus among processes that share an object: what a protocol is, and what it means to solve consensus. *)
From Coq Require Import List PeanoNat.
From Mitra Require Export Update.
Import ListNotations.

(** A shared object: its states, its operations, their responses, and the effect of one operation. An operation is
    atomic. The object may be a whole memory with infinitely many words. *)
Record object := Object {
  memory : Type;
  operation : Type;
  response : Type;
  apply : operation -> memory -> memory * response;
}.

(** The next action of a process: it decides, or it invokes an operation and continues in a local state that depends
    on the response. *)
Inductive action (O : object) (V L : Type) :=
| Decide (v : V)
| Invoke (o : operation O) (next : response O -> L).
Arguments Decide {O V L} v.
Arguments Invoke {O V L} o next.

(** A protocol for values of type [V]: the local states, the first state of the memory, the first local state of each
    process with its input, and the next action in each local state. Local states and computations are arbitrary;
    a local state may contain the process's number, so each process may run a program of its own. *)
Record protocol (O : object) (V : Type) := Protocol {
  local : Type;
  initial_memory : memory O;
  start : nat -> V -> local;
  act : local -> action O V local;
}.
Arguments local {O V}. Arguments initial_memory {O V}. Arguments start {O V}. Arguments act {O V}.

Section Executions.
  Context {O : object} {V : Type} (P : protocol O V).

  (** The state of the whole system: the memory, and each process's local state. *)
  Record configuration := Configuration { mem : memory O; loc : nat -> local P }.

  Definition initial (inputs : nat -> V) : configuration :=
    Configuration (initial_memory P) (fun p => start P p (inputs p)).

  (** Process [p] executes its next operation. A process that has decided does nothing more. *)
  Definition step (p : nat) (c : configuration) : configuration :=
    match act P (loc c p) with
    | Decide _ => c
    | Invoke o next =>
        let result := apply O o (mem c) in
        Configuration (fst result) (update (loc c) p (next (snd result)))
    end.

  (** A schedule is the list of the processes that move, in order. The adversary chooses it. A process that does not
      occur in the rest of a schedule has crashed. *)
  Definition run (schedule : list nat) (c : configuration) : configuration :=
    fold_left (fun c p => step p c) schedule c.

  Definition decided (p : nat) (c : configuration) (v : V) : Prop := act P (loc c p) = Decide v.

  Definition undecided (p : nat) (c : configuration) : Prop := exists o next, act P (loc c p) = Invoke o next.

  (** The processes are the numbers below [n]. *)
  Definition among (n : nat) (schedule : list nat) : Prop := Forall (fun p => p < n) schedule.

  (** Wait-freedom. No execution from [c] is infinite in which every step is one of a process that has not decided. So
      each process decides after finitely many steps of its own, whatever the others do, and if they crash. The file
      WaitFreedom.v relates this to schedules. *)
  Inductive wait_free (n : nat) (c : configuration) : Prop :=
    wait_free_intro : (forall p, p < n -> undecided p c -> wait_free n (step p c)) -> wait_free n c.

  (** No two processes ever decide on different values. *)
  Definition agreement (n : nat) (c : configuration) : Prop :=
    forall schedule p q v w, among n schedule -> p < n -> q < n ->
    decided p (run schedule c) v -> decided q (run schedule c) w -> v = w.

  (** Every decision is the input of some process. *)
  Definition validity (n : nat) (inputs : nat -> V) : Prop :=
    forall schedule p v, among n schedule -> p < n ->
    decided p (run schedule (initial inputs)) v -> exists q, q < n /\ inputs q = v.
End Executions.
Arguments Configuration {O V P}. Arguments mem {O V P}. Arguments loc {O V P}.

(** The object solves consensus on values of type [V] among [n] processes: some protocol is wait-free, agrees and is
    valid, with all inputs. *)
Definition solves (V : Type) (n : nat) (O : object) : Prop :=
  exists P : protocol O V, forall inputs,
    wait_free P n (initial P inputs) /\ agreement P n (initial P inputs) /\ validity P n inputs.

(** Herlihy's consensus number [n], for two values: the object solves consensus among [n] processes, and not among more. *)
Definition consensus_number (O : object) (n : nat) : Prop :=
  solves bool n O /\ forall more, n < more -> ~ solves bool more O.
