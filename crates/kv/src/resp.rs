//! RESP, the wire protocol of Redis (redis.io, "Redis serialization protocol specification"):
//! parsing of requests and of RESP2 replies, and encoding in RESP2 and RESP3.

/// The maximum number of arguments of a request, and of elements of an array in a reply.
const MAX_ARGUMENTS: usize = 1024;
/// The largest argument of a request, and the largest bulk string of a reply, in bytes.
pub const MAX_ARGUMENT_BYTES: usize = 64 << 10;
/// The maximum length of an inline request, and of a line of a reply, in bytes.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The reasons for which bytes are not a valid request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RespError {
    /// The bytes do not follow the RESP2 syntax.
    #[error("a request is an array of bulk strings, or a line of words")]
    Syntax,
    /// The request exceeds the limits on the number or size of arguments.
    #[error("a request has at most {MAX_ARGUMENTS} arguments, of at most {MAX_ARGUMENT_BYTES} bytes")]
    TooLarge,
}

/// The arguments of a request, and the length of the encoded request in bytes.
pub type ParsedRequest<'a> = (Vec<&'a [u8]>, usize);

/// Parses the first request in `bytes`. Returns `None` if the request is incomplete.
///
/// # Errors
/// [`RespError`] if the bytes are not a valid request. The start of the next request is then
/// unknown, so the caller must close the connection.
pub fn parse_request(bytes: &[u8]) -> Result<Option<ParsedRequest<'_>>, RespError> {
    if bytes.first().is_some_and(|&first| first != b'*') {
        let Some(end) = bytes.iter().take(MAX_LINE_BYTES).position(|&byte| byte == b'\n') else {
            return if bytes.len() < MAX_LINE_BYTES { Ok(None) } else { Err(RespError::TooLarge) };
        };
        let words = bytes[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let words: Vec<&[u8]> = words.take(MAX_ARGUMENTS + 1).collect();
        return if words.len() <= MAX_ARGUMENTS {
            Ok(Some((words, end + 1)))
        } else {
            Err(RespError::TooLarge)
        };
    }
    let mut at = 0;
    let Some(count) = parse_header(bytes, &mut at, b'*')? else { return Ok(None) };
    if count > MAX_ARGUMENTS {
        return Err(RespError::TooLarge);
    }
    let mut arguments = Vec::with_capacity(count.min(16));
    for _ in 0..count {
        let Some(len) = parse_header(bytes, &mut at, b'$')? else { return Ok(None) };
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

/// Parses the line at offset `at`, which consists of the byte `kind` and a number, such as `$5`.
/// Returns the number and advances `at` to the next line, or returns `None` if the line is
/// incomplete.
fn parse_header(bytes: &[u8], at: &mut usize, kind: u8) -> Result<Option<usize>, RespError> {
    const MAX_DIGITS: usize = 10;
    let rest = &bytes[*at..];
    let Some(end) = rest.iter().take(MAX_DIGITS + 2).position(|&byte| byte == b'\r' || byte == b'\n') else {
        return if rest.len() < MAX_DIGITS + 2 { Ok(None) } else { Err(RespError::Syntax) };
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

/// The version of the protocol in which replies are encoded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Protocol {
    /// RESP2, which every connection begins with.
    #[default]
    Resp2,
    /// RESP3, which a client asks for with `HELLO 3`.
    Resp3,
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A simple string.
    Simple(&'static str),
    /// An error: a code in capitals, then a message.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string, or nil.
    Bulk(Option<Vec<u8>>),
    /// An array.
    Array(Vec<Reply>),
    /// A map. In RESP2: an array of keys and values in turn.
    Map(Vec<(Reply, Reply)>),
    /// A set. In RESP2: an array.
    Set(Vec<Reply>),
    /// A message that is not the reply to a request. In RESP2: an array.
    Push(Vec<Reply>),
    /// Text for people. In RESP2: a bulk string.
    Text(String),
}

impl Reply {
    /// Appends the reply to `out`, encoded in RESP2.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_as(Protocol::Resp2, out);
    }

    /// Appends the encoded reply to `out`.
    pub fn encode_as(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let is_resp3 = protocol == Protocol::Resp3;
        let mut line = |kind: char, text: &str| {
            out.extend_from_slice(kind.to_string().as_bytes());
            // A line break inside the text would end the reply early.
            out.extend(text.bytes().filter(|&byte| byte != b'\r' && byte != b'\n'));
            out.extend_from_slice(b"\r\n");
        };
        match self {
            Reply::Bulk(None) if is_resp3 => line('_', ""),
            Reply::Text(text) if is_resp3 => {
                line('=', &(text.len() + 4).to_string());
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Reply::Simple(word) => line('+', word),
            Reply::Error(text) => line('-', text),
            Reply::Integer(number) => line(':', &number.to_string()),
            Reply::Bulk(None) => line('$', "-1"),
            Reply::Bulk(Some(bytes)) => {
                line('$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Text(text) => {
                line('$', &text.len().to_string());
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Reply::Map(all) => {
                match is_resp3 {
                    true => line('%', &all.len().to_string()),
                    false => line('*', &(2 * all.len()).to_string()),
                }
                for (key, value) in all {
                    key.encode_as(protocol, out);
                    value.encode_as(protocol, out);
                }
            }
            Reply::Array(all) | Reply::Set(all) | Reply::Push(all) => {
                let kind = match self {
                    Reply::Set(_) if is_resp3 => '~',
                    Reply::Push(_) if is_resp3 => '>',
                    _ => '*',
                };
                line(kind, &all.len().to_string());
                all.iter().for_each(|reply| reply.encode_as(protocol, out));
            }
        }
    }

    /// Returns a bulk string.
    pub(crate) fn bulk(bytes: impl Into<Vec<u8>>) -> Reply {
        Reply::Bulk(Some(bytes.into()))
    }

    /// Returns about how many bytes the reply takes in memory.
    pub(crate) fn held_bytes(&self) -> usize {
        let inside = match self {
            Reply::Simple(_) | Reply::Integer(_) | Reply::Bulk(None) => 0,
            Reply::Error(text) | Reply::Text(text) => text.len(),
            Reply::Bulk(Some(bytes)) => bytes.len(),
            Reply::Array(all) | Reply::Set(all) | Reply::Push(all) => all.iter().map(Reply::held_bytes).sum(),
            Reply::Map(all) => all.iter().map(|(key, value)| key.held_bytes() + value.held_bytes()).sum(),
        };
        size_of::<Reply>() + inside
    }

    /// Parses the first reply in `bytes`, which is RESP2. Returns the reply and its encoded length
    /// in bytes, or `None` if the reply is incomplete. A simple string other than `OK` is returned
    /// as [`Reply::Bulk`]. An array must not contain arrays.
    ///
    /// # Errors
    /// [`RespError`] if the bytes are not a valid reply.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, RespError> {
        Reply::parse_nested(bytes, 1)
    }

    /// Parses a reply that may contain `depth` levels of arrays.
    fn parse_nested(bytes: &[u8], depth: u8) -> Result<Option<(Reply, usize)>, RespError> {
        let Some(&kind) = bytes.first() else { return Ok(None) };
        // MAX_LINE_BYTES includes the end of the line. The parser therefore rejects the same lines,
        // however many bytes have arrived.
        let Some(end) = bytes.windows(2).take(MAX_LINE_BYTES - 1).position(|two| two == b"\r\n") else {
            return if bytes.len() < MAX_LINE_BYTES { Ok(None) } else { Err(RespError::TooLarge) };
        };
        let text = bytes.get(1..end).ok_or(RespError::Syntax)?; // an empty line has no kind
        let text = std::str::from_utf8(text).map_err(|_| RespError::Syntax)?;
        if text.contains(['\r', '\n']) {
            return Err(RespError::Syntax);
        }
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
                if !body.ends_with(b"\r\n") {
                    return Err(RespError::Syntax);
                }
                at += len + 2;
                Reply::Bulk(Some(body[..len].to_vec()))
            }
            b'*' if depth > 0 && (0..=MAX_ARGUMENTS as i64).contains(&number()?) => {
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

/// Appends an encoded request to `out`.
pub fn encode_request(arguments: &[&[u8]], out: &mut Vec<u8>) {
    let all = arguments.iter().map(|argument| Reply::Bulk(Some(argument.to_vec()))).collect();
    Reply::Array(all).encode(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_parses_once_it_is_complete() {
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
    fn malformed_and_oversized_requests_are_errors() {
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
        assert_eq!(parse_request(&vec![b'x'; MAX_LINE_BYTES]), Err(RespError::TooLarge));
        let words = |count| b"x ".repeat(count).into_iter().chain(*b"\r\n").collect::<Vec<u8>>();
        assert!(parse_request(&words(MAX_ARGUMENTS)).is_ok());
        assert_eq!(parse_request(&words(MAX_ARGUMENTS + 1)), Err(RespError::TooLarge));
    }

    #[test]
    fn replies_differ_between_protocols() {
        let word = |word: &str| Reply::bulk(word);
        let cases = [
            (Reply::Bulk(None), "$-1\r\n", "_\r\n"),
            (word("a"), "$1\r\na\r\n", "$1\r\na\r\n"),
            (
                Reply::Map(vec![(word("a"), Reply::Bulk(None))]),
                "*2\r\n$1\r\na\r\n$-1\r\n",
                "%1\r\n$1\r\na\r\n_\r\n",
            ),
            (Reply::Set(vec![Reply::Integer(1)]), "*1\r\n:1\r\n", "~1\r\n:1\r\n"),
            (Reply::Push(vec![Reply::Integer(1)]), "*1\r\n:1\r\n", ">1\r\n:1\r\n"),
            (Reply::Text("a\r\nb".into()), "$4\r\na\r\nb\r\n", "=8\r\ntxt:a\r\nb\r\n"),
        ];
        for (reply, resp2, resp3) in cases {
            for (protocol, expected) in [(Protocol::Resp2, resp2), (Protocol::Resp3, resp3)] {
                let mut bytes = Vec::new();
                reply.encode_as(protocol, &mut bytes);
                assert_eq!(String::from_utf8_lossy(&bytes), expected, "{reply:?}");
            }
        }
    }

    #[test]
    fn encoded_replies_parse_back() {
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
        assert_eq!(Reply::parse(b"*1\r\n*1\r\n:1\r\n"), Err(RespError::Syntax), "a nested array");
        assert_eq!(Reply::parse(b"\r\n"), Err(RespError::Syntax), "an empty line");
        assert_eq!(
            Reply::parse(b"$1\r\nabc"),
            Err(RespError::Syntax),
            "a bulk string that is longer than it says"
        );
        assert_eq!(Reply::parse(b"-a\rb\r\n"), Err(RespError::Syntax), "half a line break");
        for (len, is_too_long) in [(MAX_LINE_BYTES, false), (MAX_LINE_BYTES + 1, true)] {
            let line = [&vec![b'+'; len - 2][..], b"\r\n"].concat();
            for end in [len - 1, len] {
                let parsed = Reply::parse(&line[..end]);
                assert_eq!(parsed == Err(RespError::TooLarge), is_too_long, "{end} of {len} bytes");
            }
        }
    }
}
