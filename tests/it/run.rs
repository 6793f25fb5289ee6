//! The commands `mitra run` and `mitra fault`, with a stub in place of the preload library.
//! `tests/programs` tests the real library.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};

use mitra_control::{ControlServer, ControlledDevice, DeviceStatus, RailState, RailStatus};
use mitra_control::{FaultAction, RailsConfig, Settings, run_dir};
use mitra_metrics::Snapshot;
use mitra_test_process::{TestProcess, command, output, preloaded};
use nix::unistd::Uid;
use serde_json::Value;

/// The stub's source: it prints that it was loaded, and its settings.
const STAND_IN: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    __attribute__((constructor)) static void loaded(void) {
        fprintf(stderr, "loaded %s %s %s %s%s [%s] %s\n", getenv("MITRA_RAILS"), getenv("MITRA_POLICY"),
            getenv("MITRA_WRITES"), getenv("MITRA_LOG"), getenv("MITRA_VERBOSE"), getenv("MITRA_FAULTS"),
            getenv("MITRA_RUN_DIR"));
    }
"#;

/// A directory with the test's files and control sockets.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Scene {
        Scene(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        self.compile_with("cc", name, source, flags)
    }

    fn compile_with(&self, compiler: &str, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (to, from) = (self.path(name), self.file(&format!("{name}.c"), source.as_bytes(), 0o600));
        let output = output(command(compiler).args(flags).arg(&from).arg("-o").arg(&to));
        assert!(output.status.success(), "{}", stderr(&output));
        to
    }

    fn mitra(&self, args: &[&str]) -> Command {
        self.prepare(command(env!("CARGO_BIN_EXE_mitra")), args)
    }

    /// Adds the arguments and this scene's environment to a command that runs `mitra`.
    fn prepare(&self, mut command: Command, args: &[&str]) -> Command {
        for name in ["RAILS", "POLICY", "WRITES", "LOG", "VERBOSE", "FAULTS", "RUN_DIR", "PREFER"] {
            command.env_remove(format!("MITRA_{name}"));
        }
        command.env_remove("LD_PRELOAD");
        command.args(args).env("XDG_RUNTIME_DIR", self.0.path());
        command
    }

    /// Returns a command `mitra run` with the stub as the preload library.
    fn run(&self, args: &[&str]) -> Command {
        self.with_stub(self.mitra(&["run"]), args)
    }

    fn with_stub(&self, mut run: Command, args: &[&str]) -> Command {
        let library = self.compile("stand-in.so", STAND_IN, &["-shared", "-fPIC"]);
        run.args(args).env("MITRA_PRELOAD", library);
        run
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Checks that the command prints this in one line on standard error and runs no program.
fn refused(command: &mut Command, code: i32, says: &str) {
    let output = output(command);
    let line = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(line.starts_with("mitra: ") && line.contains(says), "{line}");
    assert_eq!(line.matches('\n').count(), 1, "{line}");
    assert!(output.stdout.is_empty());
}

#[test]
fn program_gets_library_options_and_exit_code() {
    let scene = Scene::new();
    let mut run =
        scene.run(&["--rails", "2", "--policy", "blanket", "--writes", "repeatable", "--log", "--verbose"]);
    run.args(["--fault", "rail0 down at 2s; rail0 up at 3s", "--fault", "rail1 nic-dead"]);
    let output = output(run.args(["--", "sh", "-c", "echo $0 $1; exit 7", "--rails", "x y"]));
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(output.stdout, b"--rails x y\n");
    let dir = scene.path("mitra");
    let loaded = format!(
        "loaded 2 blanket repeatable 11 [rail0 down at 2s; rail0 up at 3s; rail1 nic-dead] {}\n",
        dir.display()
    );
    assert!(stderr(&output).ends_with(&loaded), "{}", stderr(&output));
    assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn environment_variables_apply_without_options() {
    let scene = Scene::new();
    let own_dir = scene.path("own");
    let mut run = scene.run(&["--policy", "none", "true"]);
    run.env("MITRA_RAILS", "127.9.9.9")
        .env("MITRA_VERBOSE", "1")
        .env("MITRA_POLICY", "blanket")
        .env("MITRA_RUN_DIR", &own_dir);
    let output = output(&mut run);
    let loaded = format!("loaded 127.9.9.9 none strict 01 [] {}\n", own_dir.display());
    assert!(stderr(&output).ends_with(&loaded), "{}", stderr(&output));
}

#[test]
fn earlier_preloaded_libraries_stay() {
    let scene = Scene::new();
    let other = scene.compile("other.so", &STAND_IN.replace("loaded", "other"), &["-shared", "-fPIC"]);
    let mitra = scene.prepare(preloaded(&other, env!("CARGO_BIN_EXE_mitra")), &["run"]);
    let output = output(&mut scene.with_stub(mitra, &["true"]));
    let said = stderr(&output);
    assert!(said.contains("\nloaded 1 exact") && said.contains("\nother 1 exact"), "{said}");
}

#[test]
fn missing_program_is_named() {
    let scene = Scene::new();
    refused(&mut scene.run(&["--", "no-such-program"]), 127, "no program \"no-such-program\" on the PATH");
    refused(&mut scene.run(&["--", "/no/such"]), 127, "there is no program /no/such");
    refused(&mut scene.run(&[""]), 127, "there is no program");
}

#[test]
fn non_executable_program_is_named() {
    let scene = Scene::new();
    let file = scene.file("data", b"", 0o644);
    refused(&mut scene.run(&[file.to_str().unwrap()]), 126, "data is not executable; chmod +x it");
    refused(scene.run(&["data"]).env("PATH", scene.0.path()), 126, "data is not executable");
    refused(&mut scene.run(&["/tmp"]), 126, "/tmp is a directory; give the path of a program");
}

#[test]
fn statically_linked_program_is_refused() {
    let scene = Scene::new();
    for flag in ["-static", "-static-pie"] {
        let program = scene.compile("static", "int main(void) { return 0; }", &[flag]);
        refused(&mut scene.run(&[program.to_str().unwrap()]), 126, "static is statically linked");
    }
}

/// The loader of another C library than glibc cannot load Mitra's library, and would not start the
/// program.
#[test]
fn musl() {
    let scene = Scene::new();
    let source = "#include <stdio.h>\nint main(void) { return puts(\"hello\") < 0; }\n";
    let program = scene.compile_with("musl-gcc", "hello", source, &[]);
    refused(&mut scene.run(&[program.to_str().unwrap()]), 126, "hello is linked with musl");
    // A program that a script starts runs without the library. One of glibc, after it, has it.
    let mut script =
        scene.mitra(&["run", "--", "sh", "-c", "\"$0\" && grep -c libmitra_preload /proc/self/maps"]);
    let output = output(script.arg(program));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout.starts_with(b"hello\n"), "{output:?}");
    let said = stderr(&output);
    assert!(said.lines().all(|line| line.starts_with("mitra: note: ")), "{said}");
}

/// Returns the lines of the file of suppressions that a program gets.
fn suppressions(run: &mut Command) -> Vec<String> {
    let show = "eval \"${TSAN_OPTIONS##*:}\"; cat \"$suppressions\"";
    let output = output(run.args(["sh", "-c", show]));
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn options_of_the_user_for_sanitizers_stay() {
    const OWN_LINE: &str = "called_from_lib:libmitra_preload";
    let scene = Scene::new();
    let variables = |options: &str| {
        let mut run = scene.run(&["sh", "-c", "echo \"$ASAN_OPTIONS $TSAN_OPTIONS\""]);
        let output = output(run.env("ASAN_OPTIONS", options).env("TSAN_OPTIONS", options));
        String::from_utf8(output.stdout).unwrap()
    };
    let path = scene.path("mitra/tsan-suppressions-");
    let said = variables("");
    assert!(
        said.starts_with(&format!("verify_asan_link_order=0 suppressions=\"{}", path.display())),
        "{said}"
    );
    let said = variables("exitcode=3");
    assert!(said.starts_with("exitcode=3:verify_asan_link_order=0 exitcode=3:suppressions="), "{said}");
    let said = variables("verify_asan_link_order=1");
    assert!(said.starts_with("verify_asan_link_order=1 verify_asan_link_order=1:suppressions="), "{said}");

    assert_eq!(suppressions(&mut scene.run(&[])), [OWN_LINE]);
    let own = scene.file("own", b"race:mine", 0o600);
    let options = format!("suppressions={}:exitcode=3", own.display());
    assert_eq!(suppressions(scene.run(&[]).env("TSAN_OPTIONS", &options)), ["race:mine", OWN_LINE]);
    fs::remove_file(own).unwrap();
    let mut run = scene.run(&["sh", "-c", "echo $TSAN_OPTIONS"]);
    let output = output(run.env("TSAN_OPTIONS", &options));
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), options, "nothing can be added");
}

#[test]
fn set_uid_program_is_refused() {
    let scene = Scene::new();
    let program = if Uid::effective().is_root() {
        // As root, the test makes a set-uid program of another user. Other users take a program of
        // root.
        let copy = scene.file("copy", &fs::read("/bin/true").unwrap(), 0o755);
        chown(&copy, Some(65534), None).unwrap();
        fs::set_permissions(&copy, Permissions::from_mode(0o4755)).unwrap();
        copy
    } else {
        Path::new("/usr/bin/passwd").to_owned()
    };
    refused(&mut scene.run(&[program.to_str().unwrap()]), 126, "is set-uid");
}

#[test]
fn damaged_or_foreign_program_is_refused() {
    let scene = Scene::new();
    let mut elf = fs::read("/bin/true").unwrap();
    let cut = scene.file("cut", &elf[..80], 0o755);
    refused(&mut scene.run(&[cut.to_str().unwrap()]), 126, "cut is a damaged program");
    elf[4] = 1; // ELFCLASS32
    let foreign = scene.file("foreign", &elf, 0o755);
    refused(&mut scene.run(&[foreign.to_str().unwrap()]), 126, "foreign is built for another machine");
    let lost = scene.file("lost", b"#! /no/such/shell -e\n", 0o755);
    refused(&mut scene.run(&[lost.to_str().unwrap()]), 126, "the interpreter of");
}

#[test]
fn program_without_verbs_runs_with_a_note() {
    let scene = Scene::new();
    let note = |command: &[&str]| {
        let output = output(&mut scene.run(command));
        assert!(stderr(&output).contains("loaded"), "{}", stderr(&output));
        let notes: Vec<_> =
            stderr(&output).lines().filter(|line| line.starts_with("mitra: ")).map(str::to_owned).collect();
        assert!(notes.len() < 2, "{notes:?}");
        notes.into_iter().next()
    };
    let said = note(&["true"]).expect("a note");
    assert!(said.contains("/true is not linked with libibverbs"), "{said}");
    let script = scene.file("script", b"#!/bin/sh\nexit 0\n", 0o755);
    let said = note(&[script.to_str().unwrap()]).expect("a note");
    assert!(said.contains("script is a script, and /bin/sh is not linked"), "{said}");
    // `ibv_devinfo` is linked with libibverbs directly, and `fi_info` through another library.
    assert_eq!(note(&["ibv_devinfo", "-h"]), None);
    assert_eq!(note(&["fi_info", "--version"]), None);
}

#[test]
fn missing_library_is_named_with_instructions() {
    let scene = Scene::new();
    refused(
        scene.mitra(&["run", "true"]).env("MITRA_PRELOAD", "/no/lib.so"),
        2,
        "MITRA_PRELOAD=\"/no/lib.so\"",
    );
    let spaced = scene.path("a b.so");
    fs::copy(scene.compile("plain.so", STAND_IN, &["-shared", "-fPIC"]), &spaced).unwrap();
    refused(scene.mitra(&["run", "true"]).env("MITRA_PRELOAD", spaced), 2, "no path with a space");
}

/// Returns the path that `mitra run` gives to the dynamic loader.
fn library_of(command: &mut Command) -> PathBuf {
    let output = output(command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]));
    assert!(output.status.success(), "{}", stderr(&output));
    // Only the loader of glibc replaces `$LIB`. All its values name the same directory.
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim().replace("/$LIB/", "/"))
}

#[test]
fn library_is_written_where_the_loader_can_use_it() {
    let scene = Scene::new();
    assert_eq!(library_of(&mut scene.mitra(&[])).parent(), Some(&*scene.path("mitra")));
    // The loader would take a path with a space for two paths.
    let spaced = scene.path("with space");
    fs::create_dir(&spaced).unwrap();
    let mut mitra = scene.mitra(&[]);
    mitra.env("XDG_RUNTIME_DIR", &spaced).env("HOME", scene.0.path()).env_remove("XDG_CACHE_HOME");
    assert_eq!(library_of(&mut mitra).parent(), Some(&*scene.path(".cache/mitra")));
    let cache = scene.path("cache");
    mitra = scene.mitra(&[]);
    mitra.env("XDG_RUNTIME_DIR", &spaced).env("XDG_CACHE_HOME", &cache);
    assert_eq!(library_of(&mut mitra).parent(), Some(&*cache.join("mitra")));
    // Another user could replace a library in this directory.
    fs::set_permissions(cache.join("mitra"), Permissions::from_mode(0o777)).unwrap();
    mitra = scene.mitra(&["run", "true"]);
    mitra.env("XDG_RUNTIME_DIR", &spaced).env("XDG_CACHE_HOME", &cache);
    refused(&mut mitra, 2, "set XDG_RUNTIME_DIR to a directory");
}

#[test]
fn directory_without_programs_is_not_used() {
    let scene = Scene::new();
    let noexec = scene.path("noexec");
    fs::create_dir(&noexec).unwrap();
    // The loader maps no library from a file system that is mounted in this way. The namespaces
    // need no root.
    let mut unshare = command("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c"]);
    unshare.arg("mount -t tmpfs -o noexec,mode=700 none \"$0\" && exec \"$@\"").arg(&noexec);
    unshare.arg(env!("CARGO_BIN_EXE_mitra")).env_remove("LD_PRELOAD").env_remove("XDG_CACHE_HOME");
    unshare.env("XDG_RUNTIME_DIR", &noexec).env("HOME", scene.0.path());
    assert_eq!(library_of(&mut unshare).parent(), Some(&*scene.path(".cache/mitra")));
}

#[test]
fn relative_directory_is_made_absolute() {
    let scene = Scene::new();
    let mut mitra = scene.mitra(&[]);
    let library = library_of(mitra.env("MITRA_RUN_DIR", "relative").current_dir(scene.0.path()));
    assert_eq!(library.parent(), Some(&*scene.path("relative").canonicalize().unwrap()));
}

#[test]
fn bad_options_are_named() {
    let scene = Scene::new();
    for (args, says) in [
        (&["--rails", "0", "true"][..], "0 rails are configured"),
        (&["--rails", "9", "true"], "use 1 to 8"),
        (&["--nics", "many", "true"], "expected soft or minimal"),
        (&["--policy", "best", "true"], "\"best\" is none of the choices; say exact"),
        (&["--writes", "lax", "true"], "say strict or repeatable"),
        (&["--fault", "rail0 gone", "true"], "unknown fault \"gone\""),
        (&["--fault", "rail1 down", "true"], "the device has only rail0"),
        (&["--prefer", "1", "true"], "the device has no rail1; say a rail below 1"),
        (&["--rails", "2", "--prefer", "0", "--policy", "none", "true"], "use --policy exact"),
        (&["--rials", "2", "true"], "--rials"),
        (&["--rails", "2"], "<PROGRAM>"),
    ] {
        refused(&mut scene.run(args), 2, says);
    }
    refused(scene.run(&["true"]).env("MITRA_POLICY", "best"), 2, "MITRA_POLICY=\"best\"");
    refused(scene.run(&["true"]).env("MITRA_NICS", "many"), 2, "MITRA_NICS=\"many\": expected soft or");
    refused(scene.run(&["true"]).env("MITRA_PREFER", "1"), 2, "MITRA_PREFER: the device has no rail1");
    refused(scene.run(&["true"]).env("MITRA_FAULTS", "rail1 link-down"), 2, "MITRA_FAULTS: ");
    let open = scene.path("mitra");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
    refused(&mut scene.run(&["true"]), 2, "no other user can access");
}

struct Notes(Sender<(usize, FaultAction)>);

impl ControlledDevice for Notes {
    fn apply_fault(&mut self, rail: usize, change: FaultAction) -> Result<(), String> {
        self.0.send((rail, change)).unwrap();
        Ok(())
    }

    fn status(&mut self) -> DeviceStatus {
        let device = |last| (last == 6).then(|| "mlx5_0".to_owned());
        let rail =
            |last, state| RailStatus { address: [127, 0, 0, last].into(), device: device(last), state };
        DeviceStatus {
            rails: vec![rail(5, RailState::Up), rail(6, RailState::Failed)],
            queue_pairs: 4,
            failovers: 1,
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        Snapshot { queue_pairs: 4, vqp_count: 4, recovering: 1, ..Snapshot::default() }
    }
}

#[test]
fn faults_reach_running_programs() {
    let scene = Scene::new();
    let (sender, notes) = channel();
    let settings =
        Settings { rails: RailsConfig::Count(2), run_dir: Some(scene.path("mitra")), ..Settings::default() };
    let server = ControlServer::start(&settings, Notes(sender)).unwrap();
    let pid = std::process::id();
    let fault = |args: &[&str]| output(scene.mitra(&["fault"]).args(args));

    // Without a selection, the command lists the processes and injects nothing.
    let output = fault(&["rail1", "nic-dead"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--pid, --program or --all"), "{}", stderr(&output));
    assert!(String::from_utf8(output.stdout).unwrap().contains("rail0 127.0.0.5"));
    assert!(notes.try_recv().is_err(), "nothing was injected");

    let output = fault(&["--all", "rail1", "nic-dead"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}: done\n"));
    let (rail, change) = notes.try_recv().expect("done when it says so");
    assert_eq!((rail, change.to_string().as_str()), (1, "nic-dead"));

    let output = fault(&["--json", "--pid", &pid.to_string(), "rail0 up; rail0 down"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report, serde_json::json!({"processes": [{"pid": pid}]}));
    assert_eq!(notes.try_iter().count(), 2);

    let own = std::env::current_exe().unwrap();
    let own = own.file_name().and_then(|name| name.to_str()).unwrap();
    assert_eq!(fault(&["--program", own, "rail0 up"]).status.code(), Some(0));
    assert_eq!(notes.try_iter().count(), 1);
    refused(
        &mut scene.mitra(&["fault", "--program", "ib_write_bw", "rail0 up"]),
        1,
        "no process of yours that runs ib_write_bw has Mitra's device open",
    );
    refused(&mut scene.mitra(&["fault", "--all", "--pid", "1", "rail0 up"]), 2, "cannot be used with");

    let output = fault(&["--json", "--all", "rail2 down"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["processes"][0]["error"].as_str().unwrap().contains("rail0 to rail1"), "{report}");

    let report: Value = serde_json::from_slice(&fault(&["--list", "--json"]).stdout).unwrap();
    let process = &report["processes"][0];
    assert_eq!(
        (&process["pid"], &process["queue_pairs"], &process["failovers"]),
        (&pid.into(), &4.into(), &1.into())
    );
    assert_eq!(
        (&process["rails"][1]["address"], &process["rails"][1]["state"]),
        (&"127.0.0.6".into(), &"failed".into())
    );
    let [soft, hard] = [0, 1].map(|rail| process["rails"][rail].get("device"));
    assert_eq!((soft, hard), (None, Some(&"mlx5_0".into())), "{process}");
    let text = String::from_utf8(fault(&["--list"]).stdout).unwrap();
    assert!(text.contains("rail1 127.0.0.6 (mlx5_0)") && text.contains("failovers 1"), "{text}");

    refused(
        &mut scene.mitra(&["fault", "--pid", "1", "rail0 up"]),
        1,
        "no process 1 of yours has Mitra's device open",
    );
    refused(&mut scene.mitra(&["fault", "rail0", "gone"]), 2, "unknown fault \"gone\"");
    refused(&mut scene.mitra(&["fault", "--all"]), 2, "the fault is missing");
    let output = fault(&[]);
    assert_eq!((output.status.code(), &output.stdout), (Some(2), &fault(&["--list"]).stdout));
    assert!(stderr(&output).contains("nothing was injected"), "{}", stderr(&output));
    refused(&mut scene.mitra(&["fault", "--list", "rail0 up"]), 2, "cannot be used with");
    drop(server);
    let none = "none of your programs has Mitra's device open";
    refused(&mut scene.mitra(&["fault", "--all", "rail0 up"]), 1, none);
    let output = fault(&["--list"]);
    assert_eq!((output.status.code(), output.stdout), (Some(0), vec![]));
}

/// A killed process leaves its socket. Another process may have its ID by now, so only the refused
/// connection shows that the process has ended.
#[test]
fn socket_without_a_listener_is_no_process() {
    let scene = Scene::new();
    let dir = scene.path("mitra");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
    let socket = run_dir::socket(&dir, std::process::id());
    let leave_socket = || drop(UnixListener::bind(&socket).unwrap());
    let none = "none of your programs has Mitra's device open; start one with `mitra run`\n";

    for (args, code, stdout) in [
        (&["fault", "--list"][..], 0, ""),
        (&["fault", "--all", "rail0 up"], 1, ""),
        (&["watch", "--once"], 1, ""),
        (&["watch", "--once", "--json"], 1, "{\"processes\":[]}\n"),
    ] {
        leave_socket();
        let output = output(&mut scene.mitra(args));
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), stdout, "{args:?}");
        assert!(stderr(&output).ends_with(none), "{args:?}: {}", stderr(&output));
        assert!(!socket.exists(), "{args:?}: the socket is removed");
    }
}

#[test]
fn watch_shows_running_programs_until_the_last_one_has_ended() {
    let scene = Scene::new();
    let settings = Settings { run_dir: Some(scene.path("mitra")), ..Settings::default() };
    let server = ControlServer::start(&settings, Notes(channel().0)).unwrap();
    let pid = std::process::id();
    let watch = |args: &[&str]| output(scene.mitra(&["watch"]).args(args));

    let output = watch(&["--once"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("{pid}: ")), "{text}");
    assert!(text.contains("virtual queue pairs 4, recovering 1"), "{text}");
    let json: Value = serde_json::from_slice(&watch(&["--once", "--json"]).stdout).unwrap();
    let process = &json["processes"][0];
    assert_eq!((&process["pid"], &process["queue_pairs"]), (&pid.into(), &4.into()));
    for field in
        ["program", "rails", "vqp_count", "recovering", "vqps", "closed", "events", "durations", "latency"]
    {
        assert!(process.get(field).is_some(), "{field} is missing: {process}");
    }

    // One object per look, until the server, and so the process's socket, is gone.
    let mut live = scene.mitra(&["watch", "--json", "--interval", "0.05"]);
    let mut live = TestProcess::start(live.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut lines = BufReader::new(live.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let json: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    }
    drop(server);
    lines.for_each(|line| assert!(line.unwrap().starts_with('{')));
    let output = live.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("the last process has ended"), "{}", stderr(&output));

    let none = "none of your programs has Mitra's device open; start one with `mitra run`";
    refused(&mut scene.mitra(&["watch"]), 1, none);
    refused(
        &mut scene.mitra(&["watch", "--program", "ib_write_bw"]),
        1,
        "no process of yours that runs ib_write_bw",
    );
    let output = watch(&["--once", "--json"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"{\"processes\":[]}\n"[..]));
    refused(&mut scene.mitra(&["watch", "--interval", "0"]), 2, "use seconds from 0.05 to 3600");
    refused(&mut scene.mitra(&["watch", "--sort", "size"]), 2, "--sort");
}
