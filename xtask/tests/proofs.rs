//! The Coq proofs: `make -C proofs` checks them, and refuses theorems that rest on an axiom.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use mitra_test_process::{BUILD_DEADLINE, command, output_within};
use tempfile::TempDir;

fn proofs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proofs")
}

fn make(folder: &Path) -> Output {
    output_within(command("make").arg("-C").arg(folder), BUILD_DEADLINE)
}

/// Returns a temporary directory, and in it a folder with the Makefile, its script, one file of
/// proofs with `text`, and a page that names the theorem `claim`.
fn development(text: &str) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("proofs");
    fs::create_dir_all(folder.join("part")).unwrap();
    fs::write(folder.join("README.md"), "`claim`").unwrap();
    for file in ["Makefile", "check-axioms.sh"] {
        fs::copy(proofs().join(file), folder.join(file)).unwrap();
    }
    fs::write(folder.join("part/Claim.v"), text).unwrap();
    (root, folder)
}

#[test]
fn all_theorems_are_proved_without_axioms() {
    let output = make(&proofs());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("none rests on an axiom"), "{text}");
}

#[test]
fn theorem_without_axioms_passes() {
    let output = make(&development("Theorem claim : True. Proof. exact I. Qed.\n").1);
    assert!(output.status.success(), "{output:?}");
}

/// Each text hides an assumption in another way.
#[test]
fn theorem_that_rests_on_an_assumption_is_refused() {
    let texts = [
        ("axiom", "Axiom guess : False.\nTheorem claim : False. Proof. exact guess. Qed.\n"),
        (
            "library",
            "Require Import Classical.\nTheorem claim : forall P, P \\/ ~ P. Proof. exact classic. Qed.\n",
        ),
        ("admitted", "Theorem claim : False. Admitted.\n"),
        ("lemma", "Lemma gap : False. Admitted.\nTheorem claim : False. Proof. exact gap. Qed.\n"),
        ("unused", "Lemma gap : False. Proof. Admitted.\nTheorem claim : True. Proof. exact I. Qed.\n"),
        ("none", "Lemma claim : True. Proof. exact I. Qed.\n"),
    ];
    for (name, text) in texts {
        let output = make(&development(text).1);
        assert!(!output.status.success(), "{name}: {output:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("check-axioms:"), "{name}: {errors}");
    }
}

#[test]
fn theorem_that_the_page_does_not_name_is_refused() {
    let output = make(&development("Theorem another : True. Proof. exact I. Qed.\n").1);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("does not name `another`"), "{errors}");
}
