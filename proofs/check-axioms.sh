#!/usr/bin/env bash
# Prints `Print Assumptions` for each theorem of the compiled files, and fails unless Coq answers
# each time "Closed under the global context". What a file calls `Theorem` counts; a `Lemma` is a
# step, and the answer covers the lemmas that a theorem uses. Fails as well if a file leaves
# anything unproved, or if README.md does not name a theorem.
set -euo pipefail
cd "$(dirname "$0")"
page=README.md
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
failed=0
fail() { echo "check-axioms: $*" >&2; failed=1; }

# Assumptions that no theorem uses are refused too.
if grep -nwE 'Axioms?|Parameters?|Conjecture|Admitted|admit|bypass_check|Unset Guard Checking' -- */*.v >&2; then
  fail "the lines above assume something"
fi

# "consensus/Registers.v:  Theorem registers_cannot_agree …" becomes "consensus.Registers.registers_cannot_agree".
mapfile -t theorems < <(grep -HoE '^ *Theorem [A-Za-z0-9_]+' -- */*.v | sed -E 's|/|.|; s|\.v: *Theorem |.|')

for theorem in "${theorems[@]}"; do
  echo "From Mitra Require ${theorem%.*}."
  echo "Goal True. idtac \"$theorem:\". Abort."
  echo "Print Assumptions Mitra.$theorem."
done >"$folder/query.v"
coqc -R . Mitra "$folder/query.v" | tee "$folder/answers"
closed=$(grep -c '^Closed under the global context$' "$folder/answers") || true
if [ "${#theorems[@]}" = 0 ] || [ "$closed" != "${#theorems[@]}" ]; then
  fail "of ${#theorems[@]} theorems $closed rest on no axiom; the answers above name the axioms"
fi

for theorem in "${theorems[@]##*.}"; do
  grep -q "\`$theorem\`" "$page" || fail "$page does not name \`$theorem\`"
done
[ "$failed" = 0 ] || exit 1
echo "check-axioms: ${#theorems[@]} theorems, none rests on an axiom"
