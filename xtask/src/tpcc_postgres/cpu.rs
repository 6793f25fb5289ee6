//! The processor time of processes.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// The user and system time of this process.
pub(super) fn of_this_process() -> Result<Duration> {
    Ok(ticks(Stat::read("self")?.own))
}

/// The user and system time of a process and its children, ended children included.
pub(super) fn of_process_and_children(process: u32) -> Result<Duration> {
    let root = Stat::read(&process.to_string())?;
    let mut sum = root.own + root.ended_children;
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        let name = entry?.file_name();
        // Another process may end meanwhile.
        if let Some(name) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
            && let Ok(stat) = Stat::read(name)
            && stat.parent == process
        {
            sum += stat.own + stat.ended_children;
        }
    }
    Ok(ticks(sum))
}

/// The times in clock ticks.
struct Stat {
    parent: u32,
    own: u64,
    ended_children: u64,
}

impl Stat {
    fn read(process: &str) -> Result<Stat> {
        let path = format!("/proc/{process}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The name of the program is in parentheses, and may contain parentheses.
        let fields = text.rsplit_once(')').map(|(_, fields)| fields.split_whitespace().collect::<Vec<_>>());
        let fields = fields.with_context(|| format!("{path} is not as proc(5) says"))?;
        // Counted from field 3, the state.
        let field = |number: usize| -> Result<u64> {
            Ok(fields.get(number - 3).context("a field is missing")?.parse()?)
        };
        Ok(Stat {
            parent: u32::try_from(field(4)?)?,
            own: field(14)? + field(15)?,
            ended_children: field(16)? + field(17)?,
        })
    }
}

fn ticks(count: u64) -> Duration {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    Duration::from_secs_f64(count as f64 / per_second as f64)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A shell that ends when its input ends has a child of its own, which uses the processor and
    /// ends.
    #[test]
    fn ended_children_count() {
        let script = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo done; read line";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line)
            .unwrap();
        assert!(of_process_and_children(shell.id()).unwrap() > Duration::ZERO);
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
