//! RESP2, the protocol that Redis' clients speak (redis.io, "Redis serialization protocol specification"): requests in, replies out.

/// Arguments of a request, at most.
const ARGUMENTS: usize = 1024;
/// Bytes of an argument, at most.
pub const MAX_ARGUMENT_BYTES: usize = 64 << 10;
/// Bytes of a line that is a request by itself, at most.
const LINE: usize = 64 << 10;

/// What a request is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RespError {
    /// It is no array of strings.
    #[error("a request is an array of bulk strings, or a line of words")]
    Syntax,
    /// It is larger than any that is meant.
    #[error("a request has at most {ARGUMENTS} arguments, of at most {MAX_ARGUMENT_BYTES} bytes")]
    TooLarge,
}

/// The words of a request, and how many bytes they take.
pub type ParsedRequest<'a> = (Vec<&'a [u8]>, usize);

/// The first request in `bytes`, and how many of them it takes; none if it is not all there.
///
/// # Errors
/// It is none. Nothing tells where the next one would begin.
pub fn parse_request(bytes: &[u8]) -> Result<Option<ParsedRequest<'_>>, RespError> {
    if bytes.first().is_some_and(|&first| first != b'*') {
        let Some(end) = bytes.iter().take(LINE).position(|&byte| byte == b'\n') else {
            return if bytes.len() < LINE { Ok(None) } else { Err(RespError::TooLarge) };
        };
        let words = bytes[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return Ok(Some((words.collect(), end + 1)));
    }
    let mut at = 0;
    let Some(count) = header(bytes, &mut at, b'*')? else { return Ok(None) };
    if count > ARGUMENTS {
        return Err(RespError::TooLarge);
    }
    let mut arguments = Vec::with_capacity(count.min(16));
    for _ in 0..count {
        let Some(len) = header(bytes, &mut at, b'$')? else { return Ok(None) };
        if len > MAX_ARGUMENT_BYTES {
            return Err(RespError::TooLarge);
        }
        let Some(argument) = bytes.get(at..at + len) else { return Ok(None) };
        match bytes.get(at + len..at + len + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(RespError::Syntax),
            None => return Ok(None),
        }
        arguments.push(argument);
        at += len + 2;
    }
    Ok(Some((arguments, at)))
}

/// The number of a line such as `$5`, behind which `at` is then.
fn header(bytes: &[u8], at: &mut usize, kind: u8) -> Result<Option<usize>, RespError> {
    const DIGITS: usize = 10;
    let rest = &bytes[*at..];
    let Some(end) = rest.iter().take(DIGITS + 2).position(|&byte| byte == b'\r' || byte == b'\n') else {
        return if rest.len() < DIGITS + 2 { Ok(None) } else { Err(RespError::Syntax) };
    };
    if rest[0] != kind || rest[end] != b'\r' || rest.get(end + 1).is_some_and(|&byte| byte != b'\n') {
        return Err(RespError::Syntax);
    }
    if rest.len() < end + 2 {
        return Ok(None);
    }
    let digits = std::str::from_utf8(&rest[1..end]).map_err(|_| RespError::Syntax)?;
    *at += end + 2;
    Ok(Some(digits.parse().map_err(|_| RespError::Syntax)?))
}

/// What is replied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A short word.
    Simple(&'static str),
    /// An error: its name in capitals, and what is to be said about it.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes; or none.
    Bulk(Option<Vec<u8>>),
    /// Several.
    Array(Vec<Reply>),
}

impl Reply {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut line = |kind: char, text: &str| {
            out.extend_from_slice(kind.to_string().as_bytes());
            // A line ends where it ends.
            out.extend(text.bytes().filter(|&byte| byte != b'\r' && byte != b'\n'));
            out.extend_from_slice(b"\r\n");
        };
        match self {
            Reply::Simple(word) => line('+', word),
            Reply::Error(text) => line('-', text),
            Reply::Integer(number) => line(':', &number.to_string()),
            Reply::Bulk(None) => line('$', "-1"),
            Reply::Bulk(Some(bytes)) => {
                line('$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Array(all) => {
                line('*', &all.len().to_string());
                all.iter().for_each(|reply| reply.encode(out));
            }
        }
    }

    /// The first reply in `bytes`, and how many of them it takes; none if it is not all there. Arrays are not nested.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, RespError> {
        Reply::parse_nested(bytes, 1)
    }

    fn parse_nested(bytes: &[u8], depth: u8) -> Result<Option<(Reply, usize)>, RespError> {
        let Some(&kind) = bytes.first() else { return Ok(None) };
        let Some(end) = bytes.windows(2).take(LINE).position(|two| two == b"\r\n") else {
            return if bytes.len() < LINE { Ok(None) } else { Err(RespError::TooLarge) };
        };
        let text = std::str::from_utf8(&bytes[1..end]).map_err(|_| RespError::Syntax)?;
        let number = || text.parse::<i64>().map_err(|_| RespError::Syntax);
        let mut at = end + 2;
        let reply = match kind {
            b'+' if text == "OK" => Reply::Simple("OK"),
            b'+' => Reply::Bulk(Some(text.as_bytes().to_vec())),
            b'-' => Reply::Error(text.to_owned()),
            b':' => Reply::Integer(number()?),
            b'$' if number()? < 0 => Reply::Bulk(None),
            b'$' => {
                let len = number()? as usize;
                if len > MAX_ARGUMENT_BYTES {
                    return Err(RespError::TooLarge);
                }
                let Some(body) = bytes.get(at..at + len + 2) else { return Ok(None) };
                at += len + 2;
                Reply::Bulk(Some(body[..len].to_vec()))
            }
            b'*' if depth > 0 && (0..=ARGUMENTS as i64).contains(&number()?) => {
                let mut all = Vec::new();
                for _ in 0..number()? {
                    let Some((one, len)) = Reply::parse_nested(&bytes[at..], depth - 1)? else {
                        return Ok(None);
                    };
                    all.push(one);
                    at += len;
                }
                Reply::Array(all)
            }
            _ => return Err(RespError::Syntax),
        };
        Ok(Some((reply, at)))
    }
}

/// A request's bytes.
pub fn encode_request(arguments: &[&[u8]], out: &mut Vec<u8>) {
    let all = arguments.iter().map(|argument| Reply::Bulk(Some(argument.to_vec()))).collect();
    Reply::Array(all).encode(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_soon_as_it_is_there() {
        let mut bytes = Vec::new();
        encode_request(&[b"SET", b"key", b"a\r\nb"], &mut bytes);
        let len = bytes.len();
        bytes.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
        for cut in 0..len {
            assert_eq!(parse_request(&bytes[..cut]), Ok(None), "{cut} bytes");
        }
        assert_eq!(parse_request(&bytes), Ok(Some((vec![&b"SET"[..], b"key", b"a\r\nb"], len))));
        assert_eq!(parse_request(&bytes[len..]), Ok(Some((vec![&b"PING"[..]], 14))));
        assert_eq!(parse_request(b"PING  x\r\n"), Ok(Some((vec![&b"PING"[..], b"x"], 9))));
        assert_eq!(parse_request(b"\r\n"), Ok(Some((vec![], 2))));
    }

    #[test]
    fn what_is_no_request_is_said_to_be_none() {
        for bad in [
            "*x\r\n",
            "*1\r\n:4\r\n",
            "*-1\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\n$1\r\nab\r\n",
            "*99999999999\r\n",
            "*1\n",
        ] {
            assert_eq!(parse_request(bad.as_bytes()).map(|_| ()), Err(RespError::Syntax), "{bad:?}");
        }
        for large in ["*1025\r\n", "*1\r\n$65537\r\n"] {
            assert_eq!(parse_request(large.as_bytes()), Err(RespError::TooLarge), "{large:?}");
        }
        assert_eq!(parse_request(&vec![b'x'; LINE]), Err(RespError::TooLarge));
    }

    #[test]
    fn replies_are_read_as_they_are_written() {
        let replies = [
            Reply::Simple("OK"),
            Reply::Error("ERR no".into()),
            Reply::Integer(-3),
            Reply::Bulk(None),
            Reply::Bulk(Some(b"a\r\nb".to_vec())),
            Reply::Array(vec![Reply::Integer(1), Reply::Bulk(None)]),
            Reply::Array(vec![]),
        ];
        for reply in replies {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            for cut in 0..bytes.len() {
                assert_eq!(Reply::parse(&bytes[..cut]), Ok(None));
            }
            assert_eq!(Reply::parse(&bytes), Ok(Some((reply, bytes.len()))));
        }
        assert_eq!(Reply::parse(b"*1\r\n*1\r\n:1\r\n"), Err(RespError::Syntax), "nested");
    }
}
