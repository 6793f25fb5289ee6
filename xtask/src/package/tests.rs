//! The packages of a small program, and their installation by `action.yml`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use mitra_test_process::{command, output};
use serde_json::Value;
use tempfile::TempDir;

use super::{OUT, archives};
use crate::root;

/// A directory of packages whose binary is a shell script.
struct Packages {
    _directory: TempDir,
    out: PathBuf,
    tarball: String,
    wheel: String,
}

impl Packages {
    fn make() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let program = directory.path().join("program");
        let script = "#!/bin/sh\ncase $1 in\nman) mkdir -p \"$2\"; echo page >\"$2/mitra.1\" ;;\n*) echo \"$@\" ;;\nesac\n";
        fs::write(&program, script).expect("the program can be written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is this user's file");
        let out = directory.path().join("out");
        let stage = out.join("stage");
        archives::stage(&program, &stage).expect("the program prints its pages and completions");
        let tarball = archives::tarball(&stage, &out).expect("tar makes an archive");
        let wheel = archives::wheel(&stage, &out).expect("Python makes an archive");
        archives::sums(&out).expect("sha256sum reads the archives");
        Self { _directory: directory, out, tarball, wheel }
    }

    /// Returns the files of the stage, with paths relative to it.
    fn staged(&self) -> BTreeSet<String> {
        let listed =
            stdout(command("find").arg(".").args(["-type", "f"]).current_dir(self.out.join("stage")));
        listed.lines().map(|line| line.trim_start_matches("./").to_owned()).collect()
    }
}

fn stdout(command: &mut std::process::Command) -> String {
    let Output { status, stdout, stderr } = output(command);
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("the output is UTF-8")
}

#[test]
fn tarball_has_what_is_installed_below_a_prefix() {
    let packages = Packages::make();
    let listed = stdout(
        command("tar").arg("--list").arg("--verbose").arg("--file").arg(packages.out.join(&packages.tarball)),
    );
    let files: BTreeSet<(&str, &str)> = listed
        .lines()
        .filter(|line| line.starts_with('-'))
        .map(|line| (&line[..10], line.rsplit(' ').next().unwrap_or_default()))
        .collect();
    let prefix = format!("mitra-{}-x86_64-linux-gnu", super::VERSION);
    let expected = [
        ("-rwxr-xr-x", "bin/mitra"),
        ("-rw-r--r--", "share/bash-completion/completions/mitra"),
        ("-rw-r--r--", "share/doc/mitra/LICENSE-APACHE"),
        ("-rw-r--r--", "share/doc/mitra/LICENSE-MIT"),
        ("-rw-r--r--", "share/doc/mitra/README.md"),
        ("-rw-r--r--", "share/fish/vendor_completions.d/mitra.fish"),
        ("-rw-r--r--", "share/man/man1/mitra.1"),
        ("-rw-r--r--", "share/zsh/site-functions/_mitra"),
    ]
    .map(|(mode, path)| (mode, format!("{prefix}/{path}")));
    assert_eq!(files, expected.iter().map(|(mode, path)| (*mode, path.as_str())).collect());
    assert_eq!(packages.tarball, format!("{prefix}.tar.gz"));
}

#[test]
fn packages_of_the_same_files_are_the_same() {
    let [first, second] = [Packages::make(), Packages::make()].map(|packages| {
        fs::read_to_string(packages.out.join("SHA256SUMS")).expect("the digests are written")
    });
    assert_eq!(first, second);
    assert_eq!(first.lines().count(), 2, "{first}");
}

#[test]
fn pip_installs_the_wheel() {
    let packages = Packages::make();
    assert_eq!(packages.wheel, format!("mitra-{}-py3-none-manylinux_2_34_x86_64.whl", super::VERSION));
    let target = packages.out.join("python");
    // python3-venv, which the tests have, makes an environment without the network.
    stdout(command("/usr/bin/python3").args(["-m", "venv"]).arg(&target));
    let mut pip = command(target.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--find-links"]);
    stdout(pip.arg(&packages.out).arg("mitra"));
    assert_eq!(stdout(command(target.join("bin/mitra")).arg("hello")), "hello\n");
    let mut show = command(target.join("bin/python3"));
    let shown = stdout(show.args(["-m", "pip", "show", "--disable-pip-version-check", "--files", "mitra"]));
    for expected in ["../../../bin/mitra", "licenses/LICENSE-MIT", "licenses/LICENSE-APACHE"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

/// Returns `[package.metadata.deb]` of the root's Cargo.toml.
fn debian_metadata() -> Value {
    let mut cargo = command(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]).current_dir(root());
    let metadata: Value = serde_json::from_str(&stdout(&mut cargo)).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("the workspace has packages");
    let mitra = packages.iter().find(|package| package["name"] == "mitra").expect("mitra is one");
    mitra["metadata"]["deb"].clone()
}

#[test]
fn debian_package_has_each_staged_file_and_no_other_dependency() {
    let deb = debian_metadata();
    // Of the libraries that the binary is linked with. Mitra has its own libibverbs.
    assert_eq!(deb["depends"], "$auto");
    assert_eq!(deb["recommends"], Value::Null);
    let mut left = Packages::make().staged();
    for asset in deb["assets"].as_array().expect("assets are a list") {
        let source = asset[0].as_str().and_then(|source| source.strip_prefix(OUT)?.strip_prefix("/stage/"));
        let source = source.unwrap_or_else(|| panic!("{asset} is not staged"));
        let count = left.len();
        match source.strip_suffix('*') {
            Some(directory) => left.retain(|file| !file.starts_with(directory)),
            None => left.retain(|file| file != source),
        }
        assert!(left.len() < count, "{asset} matches no staged file");
    }
    assert!(left.is_empty(), "{left:?} are not in the Debian package");
}

/// Returns the one step of `action.yml`.
fn action_step() -> Value {
    let mut python = command("/usr/bin/python3");
    python.args(["-c", "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin.buffer), sys.stdout)"]);
    let file = fs::File::open(root().join("action.yml")).expect("the action is at the root");
    let text = stdout(python.stdin(file));
    let action: Value = serde_json::from_str(&text).expect("Python prints JSON");
    assert_eq!(action["runs"]["using"], "composite");
    assert_eq!(action["inputs"]["version"]["default"], "latest");
    let [step] = &action["runs"]["steps"].as_array().expect("an action has steps")[..] else {
        panic!("the action has one step: {text}")
    };
    step.clone()
}

/// Runs the step of `action.yml` as GitHub does, with the files of `server` as the server's.
fn run_action(server: &Path, version: &str) -> Output {
    let step = action_step();
    assert_eq!(step["shell"], "bash");
    let mut bash = command("bash");
    bash.args(["--noprofile", "--norc", "-eo", "pipefail", "-c"]);
    bash.arg(step["run"].as_str().expect("the step has a script"));
    let contexts = [
        ("${{ inputs.version }}", version),
        ("${{ github.server_url }}", &format!("file://{}", server.display())),
        ("${{ github.action_repository || github.repository }}", "owner/mitra"),
        ("${{ github.action_path }}", root().to_str().expect("the path is UTF-8")),
    ];
    for (name, value) in step["env"].as_object().expect("the step has an environment") {
        let value = value.as_str().expect("a variable is a text").to_owned();
        let value = contexts.iter().fold(value, |value, (context, is)| value.replace(context, is));
        assert!(!value.contains("${{"), "{name} is {value}");
        bash.env(name, value);
    }
    output(bash.env("RUNNER_TEMP", server.join("temp")).env("GITHUB_PATH", server.join("path")))
}

#[test]
fn action_installs_a_release_whose_digest_is_right() {
    let packages = Packages::make();
    let server = tempfile::tempdir().expect("a temporary directory can be made");
    let releases = server.path().join("owner/mitra/releases");
    for release in ["latest/download", &format!("download/v{}", super::VERSION)] {
        let directory = releases.join(release);
        fs::create_dir_all(&directory).expect("the directory can be made");
        for file in ["SHA256SUMS", &packages.tarball] {
            fs::copy(packages.out.join(file), directory.join(file)).expect("the file can be copied");
        }
    }
    let v_version = format!("v{}", super::VERSION);
    for version in ["latest", super::VERSION, &v_version] {
        let Output { status, stdout, stderr } = run_action(server.path(), version);
        assert!(status.success(), "{version}: {}", String::from_utf8_lossy(&stderr));
        assert_eq!(String::from_utf8_lossy(&stdout), "--version\n", "{version}");
        let path = fs::read_to_string(server.path().join("path")).expect("the step adds to the path");
        let bin = path.lines().next().expect("the path has a line");
        assert!(Path::new(bin).join("mitra").is_file(), "{path}");
        fs::remove_dir_all(server.path().join("temp")).expect("the directory can be removed");
        fs::remove_file(server.path().join("path")).expect("the file can be removed");
    }

    let refused = |version: &str, reason: &str| {
        let Output { status, stderr, .. } = run_action(server.path(), version);
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(!status.success() && stderr.contains(reason), "{version}: {stderr}");
        assert!(!server.path().join("temp").exists() && !server.path().join("path").exists());
    };
    refused("0.0.0", "there is no release at file:///");
    let latest = releases.join("latest/download");
    fs::write(latest.join(&packages.tarball), "another file").expect("the file can be written");
    refused("latest", "is not the file of SHA256SUMS");
    fs::write(latest.join("SHA256SUMS"), "no digest\n").expect("the file can be written");
    refused("latest", "names no mitra-VERSION-x86_64-linux-gnu.tar.gz");
}

#[test]
fn scripts_have_the_syntax_of_bash() {
    for script in ["deploy/install.sh", "xtask/package/check"] {
        stdout(command("bash").arg("-n").arg(root().join(script)));
    }
}
