(** A requester with several rails, their responders, and one host memory: the states, the events, and the valid traces.

    The requester posts operations in order. A rail is a connection over one pair of NICs. The requester uses one rail
    at a time, and numbers them in the order of use. Any event may come at any time that its guard allows, so the
    environment decides about delays, losses, failures and false suspicions. *)
From Coq Require Import ZArith List PeanoNat Lia Bool.
From Mitra Require Export Operations.
Import ListNotations.

(** What the application is told about an operation. [Executed None]: it was executed, and its value is lost (which
    matters to READ, FETCH_ADD and CMP_SWAP only). [Indeterminate]: nobody knows whether it was executed. *)
Inductive outcome := Executed (v : option Z) | Indeterminate.

(** One rail. The requester has sent on it the operations [first], [first + 1], … ([sent] many); packet [p] of the rail
    is operation [first + p]. The network may delay any packet, and may deliver any number of copies of it. The responder
    executes a packet if its number is the expected PSN, and discards it otherwise. It has kept the [results] of what it
    has executed; their number is its expected PSN. Behind each operation follows its entry in the completion log;
    [logged] entries have been written. A fenced rail executes nothing more. *)
Record rail := Rail { first : nat; sent : nat; results : list Z; logged : nat; fenced : bool }.

Definition executed (r : rail) : nat := length (results r).
Definition new_rail (first : nat) : rail := Rail first 0 [] 0 false.

(** Whether the responder expects packet [p] next: it has executed those before it, and written their log entries. A rail without a
    log has them here, too: nobody reads them there, and [Log] is always possible, so the rule delays nothing. *)
Definition is_expected (r : rail) (p : nat) : bool := (p =? executed r) && (logged r =? executed r).

(** What has happened to the host's memory: our operation number [i] was executed and returned [v], or another client's
    operation was executed. Nobody in the system can read this record; the theorems are about it. *)
Inductive change := Ours (i : nat) (v : Z) | Theirs (o : op).

Record state := State {
  machine : host;
  posted : list op;           (** the operations; an operation's number is its place here *)
  outcomes : list outcome;    (** what the application has been told, in posting order *)
  rails : nat -> rail;
  active : nat;               (** the number of the rail in use; those with higher numbers were never used *)
  running : bool;             (** false from the detection of a failure to the end of its recovery *)
  history : list change;
}.

Definition initial (h : host) : state := State h [] [] (fun _ => new_rail 0) 0 true [].

(** The sources of evidence about what the responder has executed. *)
Inductive evidence :=
| ResponderPsn    (** the next expected PSN and the saved results: the responder's NIC can be read *)
| CompletionLog.  (** the log in the responder's memory: its NIC cannot be read *)

Inductive event :=
| Post (o : op)          (** the application posts an operation *)
| Transmit               (** the requester sends the next operation on the active rail *)
| Arrive (r p : nat)     (** a copy of packet [p] of rail [r] arrives at the responder *)
| Log (r : nat)          (** the log entry behind it is written *)
| Other (o : op)         (** another client's operation is executed *)
| Complete (v : Z)       (** an acknowledgement arrives, with the value [v]; the operation completes *)
| Detect                 (** the requester gives the active rail up; the rail may be dead or alive *)
| Fence                  (** the active rail is fenced *)
| Recover (e : evidence) (** the requester reads the evidence, decides, and opens the next rail for the rest *).

(** The number of the next operation that the application will be told about. *)
Definition known (s : state) : nat := length (outcomes s).

(** What the evidence says: the outcomes of further operations. The rest is sent on the next rail. *)
Definition decide (e : evidence) (s : state) : list outcome :=
  let r := rails s (active s) in
  match e with
  | ResponderPsn => map (fun v => Executed (Some v)) (skipn (known s - first r) (results r))
  | CompletionLog =>
      (* Operations with an entry were executed. The one behind them may have been, if it was sent. *)
      repeat (Executed None) (first r + logged r - known s) ++
      if (known s <=? first r + logged r) && (logged r <? sent r) then [Indeterminate] else []
  end.

(** [step must_fence s e] is the state after [e], or [None] if [e] is not possible in [s]. Evidence may be read only
    when the rail is fenced, if [must_fence] is true; with [false] that one rule is absent, and nothing else differs. *)
Definition step (must_fence : bool) (s : state) (e : event) : option state :=
  let '(State h ops outs rs a run past) := s in
  let r := rs a in
  match e with
  | Post o => Some (State h (ops ++ [o]) outs rs a run past)
  | Transmit =>
      if run && (first r + sent r <? length ops)
      then Some (State h ops outs (update rs a (Rail (first r) (S (sent r)) (results r) (logged r) (fenced r))) a run past)
      else None
  | Arrive k p =>
      let q := rs k in
      match nth_error ops (first q + p) with
      | Some o =>
          if negb (fenced q) && (p <? sent q)
          then if is_expected q p
               then let '(h', v) := execute o h in
                    Some (State h' ops outs (update rs k (Rail (first q) (sent q) (results q ++ [v]) (logged q) (fenced q)))
                            a run (past ++ [Ours (first q + p) v]))
               else Some s
          else None
      | None => None
      end
  | Log k =>
      let q := rs k in
      if negb (fenced q) && (logged q <? executed q)
      then Some (State h ops outs (update rs k (Rail (first q) (sent q) (results q) (S (logged q)) (fenced q))) a run past)
      else None
  | Other o => Some (State (effect o h) ops outs rs a run (past ++ [Theirs o]))
  | Complete v =>
      match nth_error (results r) (length outs - first r) with
      | Some w => if run && (v =? w)%Z then Some (State h ops (outs ++ [Executed (Some v)]) rs a run past) else None
      | None => None
      end
  | Detect => if run then Some (State h ops outs rs a false past) else None
  | Fence =>
      if negb run && negb (fenced r)
      then Some (State h ops outs (update rs a (Rail (first r) (sent r) (results r) (logged r) true)) a run past)
      else None
  | Recover e =>
      if negb run && (negb must_fence || fenced r)
      then let outs' := outs ++ decide e s in
           Some (State h ops outs' (update rs (S a) (new_rail (length outs'))) (S a) true past)
      else None
  end.

(** A trace is valid if each of its events is possible when it comes. [reaches must_fence s trace s']: the trace leads
    from [s] to [s']. *)
Fixpoint follow (must_fence : bool) (s : state) (trace : list event) : option state :=
  match trace with
  | [] => Some s
  | e :: trace => match step must_fence s e with Some s' => follow must_fence s' trace | None => None end
  end.

Definition reaches (must_fence : bool) (h : host) (trace : list event) (s : state) : Prop :=
  follow must_fence (initial h) trace = Some s.

Lemma follow_app b s t t' : follow b s (t ++ t') = match follow b s t with Some s' => follow b s' t' | None => None end.
Proof. revert s. induction t as [|e t IH]; simpl; intro s; [reflexivity|]. now destruct (step b s e). Qed.

(** The numbers of our executed operations, in the order of execution: [2] is in the list twice if operation 2 was
    executed twice. *)
Fixpoint executions (past : list change) : list nat :=
  match past with
  | [] => []
  | Ours i _ :: past => i :: executions past
  | Theirs _ :: past => executions past
  end.

Definition times_executed (i : nat) (s : state) : nat := count_occ Nat.eq_dec (executions (history s)) i.

(** Two adds to a word that is 5, on one rail. Copies of both packets arrive out of order, again before and after their log
    entries, behind a completion, and after the failure. Each add is executed once. *)
Lemma copies_are_discarded :
  match follow true (initial (Host (fun _ => 5%Z) []))
    [Post (FetchAdd 0 1); Post (FetchAdd 0 10); Transmit; Transmit; Arrive 0 1; Arrive 0 0; Arrive 0 0; Log 0; Arrive 0 0;
     Arrive 0 1; Log 0; Arrive 0 0; Arrive 0 1; Complete 5; Arrive 0 0; Detect; Arrive 0 1; Fence; Recover ResponderPsn] with
  | Some s => executions (history s) = [0; 1] /\ memory (machine s) 0 = 16%Z /\
      outcomes s = [Executed (Some 5%Z); Executed (Some 6%Z)]
  | None => False
  end.
Proof. vm_compute. auto. Qed.

Lemma executions_app p q : executions (p ++ q) = executions p ++ executions q.
Proof. induction p as [|[]]; simpl; congruence. Qed.

(** The changes [past], executed one after the other on the host [h], lead to the host [g] and return the values that
    [past] names. Our operations are the posted ones. *)
Inductive explains (ops : list op) (h : host) : list change -> host -> Prop :=
| explains_nothing : explains ops h [] h
| explains_ours past g i o : explains ops h past g -> nth_error ops i = Some o ->
    explains ops h (past ++ [Ours i (value o g)]) (effect o g)
| explains_theirs past g o : explains ops h past g ->
    explains ops h (past ++ [Theirs o]) (effect o g).

Lemma explains_more ops more h past g : explains ops h past g -> explains (ops ++ more) h past g.
Proof.
  induction 1; constructor; auto. rewrite nth_error_app1; auto. apply nth_error_Some. congruence.
Qed.

(** The operations that a trace posts, and the outcomes that an event tells, in order. *)
Definition posts (e : event) : list op := match e with Post o => [o] | _ => [] end.
Definition tells (e : event) (s : state) : list outcome :=
  match e with Complete v => [Executed (Some v)] | Recover e => decide e s | _ => [] end.

(** What has been posted or told stays, and only these events add to it. *)
Lemma posted_and_told b s e s' : step b s e = Some s' ->
  posted s' = posted s ++ posts e /\ outcomes s' = outcomes s ++ tells e s.
Proof.
  destruct s as [h ops outs rs a run past]. intro H. destruct e; cbn [step] in H;
    repeat match type of H with match ?x with _ => _ end = _ => destruct x end; try discriminate H; injection H as <-;
    cbn [posted outcomes posts tells]; now rewrite ?app_nil_r.
Qed.

Lemma posted_follow b s t s' : follow b s t = Some s' -> posted s' = posted s ++ flat_map posts t.
Proof.
  revert s. induction t as [|e t IH]; simpl; intros s H; [injection H as <-; now rewrite app_nil_r|].
  destruct (step b s e) as [s1|] eqn:E; [|discriminate]. rewrite (IH s1 H), app_assoc. f_equal.
  apply (posted_and_told b s e s1 E).
Qed.
