//! A primary and its synchronous standby in a temporary directory. Servers and directory are
//! removed whatever ends this process; only SIGKILL leaves the directory behind.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, Uid, User};
use postgres::{Client, Config, NoTls};
use tempfile::TempDir;

/// The directory in which Debian installs each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The system user of Debian's package. PostgreSQL refuses to run as root.
const UNPRIVILEGED: &str = "postgres";

/// The time for a server to start, and to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The settings of both servers that differ from PostgreSQL's defaults.
pub(super) const SETTINGS: &[(&str, &str)] = &[
    // Only Unix sockets.
    ("listen_addresses", ""),
    // As in Mitra, data that two processes have is durable enough.
    ("fsync", "off"),
    ("full_page_writes", "off"),
    // A commit waits until the standby has its log, as in Mitra.
    ("synchronous_commit", "on"),
    // All data is in memory, and no checkpoint is due during a run.
    ("shared_buffers", "2GB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "1h"),
    ("random_page_cost", "1"),
    // The compilation of a plan takes longer than these plans.
    ("jit", "off"),
    // Locks of rows do not become locks of pages or tables.
    ("max_pred_locks_per_transaction", "4096"),
    ("max_pred_locks_per_page", "64"),
    // No shared memory outlives a server that is killed.
    ("dynamic_shared_memory_type", "mmap"),
];

pub(super) struct Clusters {
    bin: PathBuf,
    user: Option<User>,
    socket_dir: PathBuf,
    running: Arc<Mutex<Running>>,
}

/// The processes to end, and the directory to remove.
struct Running {
    dir: Option<TempDir>,
    /// The servers, and a program that makes the data of one.
    processes: Vec<Child>,
}

/// The port of a server, which is only a part of its socket's name.
#[derive(Clone, Copy)]
pub(super) enum Server {
    Primary = 1,
    Standby = 2,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Server::Primary => "primary",
            Server::Standby => "standby",
        }
    }
}

impl Clusters {
    /// Starts a primary without a standby. Call it before the process has other threads.
    ///
    /// # Errors
    /// If PostgreSQL is not installed, or does not start.
    pub(super) fn start() -> Result<Clusters> {
        let bin = programs()?;
        let user = unprivileged_user()?;
        let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
        let socket_dir = dir.path().to_owned();
        if let Some(user) = &user {
            chown(dir.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
        let running = Arc::new(Mutex::new(Running { dir: Some(dir), processes: Vec::new() }));
        end_on_signals(&running)?;
        let clusters = Clusters { bin, user, socket_dir, running };
        let data = clusters.data_dir(Server::Primary);
        let mut initdb = clusters.program("initdb");
        initdb.args(["--auth=trust", "--username=mitra", "--locale=C", "--encoding=UTF8", "--no-sync", "-D"]);
        clusters.run(initdb.arg(data))?;
        clusters.start_server(Server::Primary)?;
        Ok(clusters)
    }

    /// Copies the primary, starts the copy as its standby, and makes all later commits wait for the
    /// standby.
    pub(super) fn add_standby(&self) -> Result<()> {
        let mut copy = self.program("pg_basebackup");
        copy.args([
            "--checkpoint=fast",
            "--no-sync",
            "--write-recovery-conf",
            "-U",
            "mitra",
            "-p",
            "1",
            "-h",
        ]);
        self.run(copy.arg(&self.socket_dir).arg("-D").arg(self.data_dir(Server::Standby)))?;
        self.start_server(Server::Standby)?;
        let mut primary = self.connect(Server::Primary, "postgres")?;
        primary.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'")?;
        primary.batch_execute("SELECT pg_reload_conf()")?;
        let begin = Instant::now();
        while self.is_synchronous().is_err() {
            ensure!(begin.elapsed() < TIMEOUT, "the standby does not become synchronous");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Checks that commits wait for the standby.
    pub(super) fn is_synchronous(&self) -> Result<()> {
        let mut primary = self.connect(Server::Primary, "postgres")?;
        let rows = primary.query("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'", &[])?;
        ensure!(rows.len() == 1, "the primary has no synchronous standby");
        Ok(())
    }

    /// Waits until the standby has applied all that the primary has logged.
    pub(super) fn wait_for_standby(&self) -> Result<()> {
        let mut primary = self.connect(Server::Primary, "postgres")?;
        let end: String = primary.query_one("SELECT pg_current_wal_flush_lsn()::text", &[])?.get(0);
        let mut standby = self.connect(Server::Standby, "postgres")?;
        let begin = Instant::now();
        let has_all = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
        while !standby.query_one(&has_all, &[])?.get::<_, bool>(0) {
            ensure!(begin.elapsed() < TIMEOUT, "the standby does not reach the primary's log");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(super) fn config(&self, server: Server, database: &str) -> Config {
        let mut config = Config::new();
        config.host_path(&self.socket_dir).port(server as u16).user("mitra").dbname(database);
        config
    }

    pub(super) fn connect(&self, server: Server, database: &str) -> Result<Client> {
        let client = self.config(server, database).connect(NoTls);
        client.with_context(|| format!("cannot connect to the {}", server.name()))
    }

    /// The first process of each server, which has started the server's other processes.
    pub(super) fn postmasters(&self) -> Vec<u32> {
        lock(&self.running).processes.iter().map(Child::id).collect()
    }

    /// The version, as `postgres --version` prints it.
    pub(super) fn version(&self) -> Result<String> {
        let output = self.program("postgres").arg("--version").output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn start_server(&self, server: Server) -> Result<()> {
        let mut postgres = self.program("postgres");
        postgres.arg("-D").arg(self.data_dir(server)).args(["-p", &(server as u16).to_string(), "-k"]);
        postgres.arg(&self.socket_dir);
        for (name, value) in SETTINGS {
            postgres.args(["-c", &format!("{name}={value}")]);
        }
        let log = self.spawn(&mut postgres, server.name())?;
        let begin = Instant::now();
        while let Err(error) = self.connect(server, "postgres") {
            if begin.elapsed() > TIMEOUT || self.poll_last()?.is_some() {
                return Err(error.context(format!("its log is\n{}", fs::read_to_string(log)?)));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn run(&self, command: &mut Command) -> Result<()> {
        let log = self.spawn(command, "program")?;
        let status = loop {
            match self.poll_last()? {
                Some(status) => break status,
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        lock(&self.running).processes.pop();
        ensure!(status.success(), "{command:?} has failed ({status}): {}", fs::read_to_string(log)?);
        Ok(())
    }

    /// Starts a process that [`Running::end`] ends, and returns the file with its output.
    fn spawn(&self, command: &mut Command, name: &str) -> Result<PathBuf> {
        let log = self.socket_dir.join(format!("{name}.log"));
        // An interrupt at the terminal ends this process, which ends the servers.
        command.process_group(0).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut running = lock(&self.running);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        running.processes.push(child);
        Ok(log)
    }

    /// The exit status of the process that was started last, if the process has ended.
    fn poll_last(&self) -> Result<Option<ExitStatus>> {
        Ok(lock(&self.running).processes.last_mut().context("no process was started")?.try_wait()?)
    }

    fn data_dir(&self, server: Server) -> PathBuf {
        self.socket_dir.join(server.name())
    }

    /// A command that runs a program of PostgreSQL as an unprivileged user. When the thread that
    /// starts the program ends, SIGQUIT ends the program by an immediate shutdown.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if let Some(User { uid, gid, .. }) = &self.user {
            command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups"]);
        }
        command.arg("--").arg(self.bin.join(name)).current_dir(&self.socket_dir).stdin(Stdio::null());
        command
    }
}

impl Drop for Clusters {
    fn drop(&mut self) {
        lock(&self.running).end();
    }
}

impl Running {
    fn end(&mut self) {
        // The standby would complain about a primary that has ended.
        for mut process in self.processes.drain(..).rev() {
            if let Err(error) = end(&mut process) {
                eprintln!("cannot end process {}: {error:#}", process.id());
            }
        }
        if let Some(dir) = self.dir.take()
            && let Err(error) = dir.close()
        {
            eprintln!("cannot remove a temporary directory: {error}");
        }
    }
}

/// Ends a process at once. A server ends its own child processes.
fn end(process: &mut Child) -> Result<()> {
    let begin = Instant::now();
    while process.try_wait()?.is_none() {
        let signal = if begin.elapsed() < TIMEOUT { Signal::SIGQUIT } else { Signal::SIGKILL };
        kill(Pid::from_raw(process.id().try_into()?), signal)?;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Ends the servers and this process when a signal asks for it.
fn end_on_signals(running: &Arc<Mutex<Running>>) -> Result<()> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    // Threads that start later inherit the blocked signals; started programs do not.
    signals.thread_block()?;
    let running = Arc::clone(running);
    thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        let mut running = lock(&running);
        running.end();
        // The main thread, whose connections fail now, waits for the lock, so it does not end the
        // process first.
        std::process::exit(128 + signal as i32);
    });
    Ok(())
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The directory of PostgreSQL's programs, of the highest version that is installed.
fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let installed = versions.map(|entry| entry.path()).filter(|path| path.join("bin/postgres").is_file());
    let newest = installed.max_by_key(|path| number(path));
    let newest = newest.ok_or_else(|| {
        anyhow!("PostgreSQL is not in {VERSIONS}: install Debian's package postgresql (apt-get install postgresql)")
    })?;
    Ok(newest.join("bin"))
}

/// The user to run PostgreSQL as, or `None` if this process's own user will do.
fn unprivileged_user() -> Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let user = User::from_name(UNPRIVILEGED)?;
    let user = user
        .with_context(|| format!("PostgreSQL refuses to run as root, and there is no user {UNPRIVILEGED}"))?;
    Ok(Some(user))
}
