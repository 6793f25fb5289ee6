//! Queries of child processes, and requests to a server of the store.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use mitra_kv::resp::{Reply, encode_request};
use mitra_test_process::TestProcess;
use nix::unistd::{SysconfVar, sysconf};

/// Returns the processor time that a process has used, user and system.
pub fn cpu_time(process: &TestProcess) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("the process runs");
    // proc(5): user and system ticks are fields 14 and 15; field 2 is the name in parentheses,
    // which may contain spaces.
    let fields = stat.rsplit(')').next().expect("split gives a part").split_whitespace();
    let ticks: u64 =
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("proc(5) has a number")).sum();
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().expect("Linux has it");
    Duration::from_secs_f64(ticks as f64 / per_second as f64)
}

/// Sends a request to a server and returns its reply, or nothing after `timeout`.
pub fn request(at: SocketAddr, words: &[&str], timeout: Duration) -> Option<Reply> {
    let mut stream = TcpStream::connect_timeout(&at, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    let mut bytes_out = Vec::new();
    encode_request(&words, &mut bytes_out);
    stream.write_all(&bytes_out).ok()?;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let len = stream.read(&mut chunk).ok().filter(|&len| len > 0)?;
        bytes.extend_from_slice(&chunk[..len]);
        if let Some((reply, _)) = Reply::parse(&bytes).ok()? {
            return Some(reply);
        }
    }
}

/// Returns a server's reply to INFO, if it replies within 200 ms.
pub fn info(at: SocketAddr) -> Option<String> {
    match request(at, &["INFO"], Duration::from_millis(200))? {
        Reply::Bulk(Some(info)) => String::from_utf8(info).ok(),
        _ => None,
    }
}
