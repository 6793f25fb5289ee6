//! The driver's end of `rxe_peer.c`'s line protocol.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

/// The address at which `rxe_peer` listens, as seen from the namespace peer0.
pub(crate) const SERVICE: &str = "10.77.0.1:7471";

/// One connection to `rxe_peer`: one device context with its PD and CQ.
pub(crate) struct Peer {
    stream: BufReader<TcpStream>,
}

impl Peer {
    /// Connects, waiting for the service to come up, and opens a device.
    pub(crate) fn open(device: &str) -> Result<Self> {
        let mut attempts = 0;
        let stream = loop {
            match TcpStream::connect(SERVICE) {
                Ok(stream) => break stream,
                Err(error) if attempts == 50 => return Err(error).context(SERVICE),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
            attempts += 1;
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut peer = Self { stream: BufReader::new(stream) };
        peer.ask(&format!("open dev={device}"))?;
        Ok(peer)
    }

    /// Sends a request and returns its answer. An `err` answer is an error.
    pub(crate) fn ask(&mut self, request: &str) -> Result<Answer> {
        self.ask_all(&[request])
    }

    /// Sends several requests at once and returns the answer to the last.
    pub(crate) fn ask_all<R: AsRef<str>>(&mut self, requests: &[R]) -> Result<Answer> {
        self.ask_each(requests)?.pop().context("no request")
    }

    /// Sends several requests at once and returns their answers. After all answers have arrived,
    /// the first `err` is returned as an error.
    pub(crate) fn ask_each<R: AsRef<str>>(&mut self, requests: &[R]) -> Result<Vec<Answer>> {
        let lines: String = requests.iter().flat_map(|it| [it.as_ref(), "\n"]).collect();
        self.stream.get_mut().write_all(lines.as_bytes())?;
        let mut answers = Vec::new();
        for request in requests {
            let mut answer = String::new();
            let read = self.stream.read_line(&mut answer);
            let request = request.as_ref();
            ensure!(read.with_context(|| request.to_owned())? > 0, "rxe_peer ended at `{request}`");
            answers.push(Answer(answer.trim().to_owned()));
        }
        for (answer, request) in answers.iter().zip(requests) {
            ensure!(answer.0.starts_with("ok"), "`{}`: {}", request.as_ref(), answer.0);
        }
        Ok(answers)
    }

    /// Waits up to five seconds for `n` completions, and returns those that arrived.
    pub(crate) fn poll(&mut self, n: usize) -> Result<Vec<Completion>> {
        self.ask(&format!("poll n={n}"))?.completions()
    }

    /// Returns the next completion, which must arrive within five seconds.
    pub(crate) fn completion(&mut self) -> Result<Completion> {
        self.poll(1)?.pop().context("no completion came")
    }

    /// Checks that no completion arrives within 20 ms.
    pub(crate) fn expect_none(&mut self) -> Result<()> {
        let answer = self.ask("poll n=1 ms=20")?;
        ensure!(answer.number("n")? == 0, "an unexpected completion: {}", answer.0);
        Ok(())
    }
}

/// The words of a reply.
#[derive(Clone, Debug)]
pub(crate) struct Answer(String);

impl Answer {
    /// Returns the value of `key=value`.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.0.split([' ', ';']).find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// Returns the value of `key=value` as a number.
    pub(crate) fn number(&self, key: &str) -> Result<u64> {
        let value = self.text(key).with_context(|| format!("no {key} in `{}`", self.0))?;
        number(value)
    }

    /// Returns the completions in a reply to `poll`.
    pub(crate) fn completions(&self) -> Result<Vec<Completion>> {
        self.items().map(|it| Completion::parse(&it)).collect()
    }

    /// Returns the parts of a reply after each semicolon.
    pub(crate) fn items(&self) -> impl Iterator<Item = Answer> {
        self.0.split("; ").skip(1).map(|it| Answer(it.to_owned()))
    }
}

fn number(text: &str) -> Result<u64> {
    let value = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    value.map_err(|error| anyhow!("{text}: {error}"))
}

/// A work completion. `op` and `len` are set only if the status is success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) wr: u64,
    pub(crate) status: String,
    pub(crate) op: String,
    pub(crate) len: u64,
    pub(crate) imm: Option<u64>,
    pub(crate) inv: Option<u64>,
}

impl Completion {
    fn parse(item: &Answer) -> Result<Self> {
        let optional = |key| item.text(key).map(number).transpose();
        Ok(Self {
            wr: item.number("wr")?,
            status: item.text("status").unwrap_or_default().to_owned(),
            op: item.text("op").unwrap_or_default().to_owned(),
            len: optional("len")?.unwrap_or(0),
            imm: optional("imm")?,
            inv: optional("inv")?,
        })
    }

    /// Checks that the completion is a success of `op`.
    pub(crate) fn expect(&self, op: &str) -> Result<()> {
        ensure!(self.status == "success" && self.op == op, "wanted a successful {op}, got {self:?}");
        Ok(())
    }

    pub(crate) fn expect_status(&self, status: &str) -> Result<()> {
        ensure!(self.status == status, "wanted {status}, got {self:?}");
        Ok(())
    }
}

/// Returns the byte at `offset` of the pattern that the commands `fill` and `check` use for a seed.
pub(crate) fn pattern(seed: u32, offset: u32) -> u8 {
    (seed.wrapping_mul(0x9e37_79b1).wrapping_add(offset.wrapping_mul(0x85eb_ca6b)) >> 24) as u8
}
