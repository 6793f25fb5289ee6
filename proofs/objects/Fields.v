(** A word that contains a field of [b] possible contents for each of [n] requesters, and a value above the fields. *)
From Coq Require Import ZArith PeanoNat Lia.
From Mitra Require Import Update.
Local Open Scope Z_scope.

Section Layout.
  Context (b : Z).

  (** [power k] is the weight of field [k]. *)
  Definition power (k : nat) : Z := b ^ Z.of_nat k.

  (** The word with the contents [f 0], [f 1], … of [n] fields, field 0 lowest, and the value [v] above them. *)
  Fixpoint pack (f : nat -> Z) (n : nat) (v : Z) : Z :=
    match n with O => v | S n => f O + b * pack (fun i => f (S i)) n v end.

  (** The content of field [k], and what is above [n] fields. *)
  Definition field (w : Z) (k : nat) : Z := (w / power k) mod b.
  Definition above (n : nat) (w : Z) : Z := w / power n.

  Definition is_content (x : Z) : Prop := 0 <= x < b.
End Layout.

(** The word 10 11 01 in binary digits: two fields of 2 bits, which contain 1 and 3, and the value 2. *)
Lemma fields_of_two_bits :
  pack 4 (fun k => match k with O => 1 | _ => 3 end) 2 2 = 45 /\ field 4 45 0 = 1 /\ field 4 45 1 = 3 /\ above 4 2 45 = 2.
Proof. vm_compute. auto. Qed.

Section Fields.
  Context (b : Z).
  Hypothesis two_contents : 2 <= b.

  Lemma power_0 : power b 0 = 1.
  Proof. reflexivity. Qed.

  Lemma power_S k : power b (S k) = b * power b k.
  Proof. unfold power. rewrite Nat2Z.inj_succ, Z.pow_succ_r by lia. reflexivity. Qed.

  Lemma power_positive k : 0 < power b k.
  Proof. unfold power. apply Z.pow_pos_nonneg; lia. Qed.

  Lemma pack_ext f g n v : (forall i, f i = g i) -> pack b f n v = pack b g n v.
  Proof. revert f g. induction n as [|n IH]; simpl; intros f g H; [reflexivity|]. now rewrite H, (IH _ (fun i => g (S i))). Qed.

  Lemma pack_zero f n : (forall i, f i = 0) -> pack b f n 0 = 0.
  Proof. revert f. induction n as [|n IH]; simpl; intros f H; [reflexivity|]. rewrite H, IH by auto. ring. Qed.

  Lemma divide_lowest x r : is_content b x -> (x + b * r) / b = r.
  Proof. intros [H H']. rewrite Z.mul_comm, Z.div_add, Z.div_small by lia. lia. Qed.

  (** Each field has its content, whatever the value is. *)
  Lemma field_pack f n v k : (k < n)%nat -> (forall i, is_content b (f i)) -> field b (pack b f n v) k = f k.
  Proof.
    revert f k. induction n as [|n IH]; intros f k Hk Hf; [lia|]. unfold field. destruct k as [|k]; simpl.
    - rewrite power_0, Z.div_1_r, Z.mul_comm, Z.mod_add by lia. apply Z.mod_small, Hf.
    - pose proof (power_positive k). rewrite power_S, <- Z.div_div, divide_lowest by (try apply Hf; lia).
      apply (IH (fun i => f (S i)) k); [lia|auto].
  Qed.

  (** The value is what is above the fields. *)
  Lemma above_pack f n v : (forall i, is_content b (f i)) -> above b n (pack b f n v) = v.
  Proof.
    unfold above. revert f. induction n as [|n IH]; intros f Hf; simpl; [now rewrite power_0, Z.div_1_r|].
    pose proof (power_positive n). rewrite power_S, <- Z.div_div, divide_lowest by (try apply Hf; lia). apply IH. auto.
  Qed.

  (** To change a field, add the difference with its weight; to change the value, add with the weight above all fields. *)
  Lemma pack_field f n v k x : (k < n)%nat -> pack b (update f k x) n v = pack b f n v + (x - f k) * power b k.
  Proof.
    revert f k. induction n as [|n IH]; intros f k Hk; [lia|]. destruct k as [|k]; simpl.
    - rewrite power_0, update_same, (pack_ext _ (fun i => f (S i))); [ring|]. intro i. now apply update_other.
    - rewrite (pack_ext _ (update (fun i => f (S i)) k x)) by (intro i; reflexivity).
      rewrite IH, power_S, update_other by lia. ring.
  Qed.

  Lemma pack_value f n v d : pack b f n (v + d) = pack b f n v + d * power b n.
  Proof.
    revert f. induction n as [|n IH]; intro f; cbn [pack]; [rewrite power_0; ring|]. rewrite IH, power_S. ring.
  Qed.

  (** A word has finitely many bits: the value is kept modulo [c], and the fields are not touched. *)
  Lemma pack_modulo f n v c : 0 < c -> (forall i, is_content b (f i)) ->
    pack b f n v mod (power b n * c) = pack b f n (v mod c).
  Proof.
    intros Hc. revert f. induction n as [|n IH]; intros f Hf; [cbn [pack]; now rewrite power_0, Z.mul_1_l|].
    pose proof (power_positive n). rewrite power_S, <- Z.mul_assoc.
    rewrite (Z.rem_mul_r (pack b f (S n) v) b (power b n * c)) by nia. simpl pack.
    rewrite divide_lowest by apply Hf. rewrite (IH (fun i => f (S i))) by auto. f_equal.
    rewrite Z.mul_comm, Z.mod_add by lia. apply Z.mod_small, Hf.
  Qed.
End Fields.
