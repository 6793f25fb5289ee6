//! Programs of the store, and what they say of themselves.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::time::Duration;

use mitra_kv::resp::{Reply, encode_request};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// A program that is ended when this is.
pub struct Program(pub Child);

impl Program {
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it is ours");
    }

    /// Whether it has not ended by itself.
    pub fn lives(&mut self) -> bool {
        self.0.try_wait().expect("it is ours").is_none()
    }

    /// How long it has kept processors busy.
    pub fn busy(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("it lives");
        // User's and system's ticks are the 14th and 15th field; the second is the name, in parentheses.
        let fields = stat.rsplit(')').next().expect("a part").split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().expect("known");
        Duration::from_secs_f64(ticks as f64 / per_second as f64)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a server answers, if it does in time.
pub fn ask(at: SocketAddr, words: &[&str], patience: Duration) -> Option<Reply> {
    let mut stream = TcpStream::connect_timeout(&at, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    let mut request = Vec::new();
    encode_request(&words, &mut request);
    stream.write_all(&request).ok()?;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let len = stream.read(&mut chunk).ok().filter(|&len| len > 0)?;
        bytes.extend_from_slice(&chunk[..len]);
        if let Some((reply, _)) = Reply::parse(&bytes).ok()? {
            return Some(reply);
        }
    }
}

/// What a server says of itself, if it says anything.
pub fn info(at: SocketAddr) -> Option<String> {
    match ask(at, &["INFO"], Duration::from_millis(200))? {
        Reply::Bulk(Some(info)) => String::from_utf8(info).ok(),
        _ => None,
    }
}
