//! The part of HTTP/1.1 that a scrape needs: a request head is parsed, and the connection is closed
//! after the response.

/// The longest request head, in bytes. Prometheus sends about 200.
pub(crate) const MAX_HEAD_BYTES: usize = 8 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// The metrics, with or without the body of the response (GET or HEAD).
    Metrics { with_body: bool },
    /// Something that the endpoint does not serve.
    Refused(Refusal),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Malformed,
    UnknownPath,
    UnknownMethod,
    TooLong,
}

/// Parses the head of a request from the bytes received so far. Returns `None` if it is incomplete.
pub(crate) fn parse(received: &[u8]) -> Option<Request> {
    let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return (received.len() >= MAX_HEAD_BYTES).then_some(Request::Refused(Refusal::TooLong));
    };
    if end > MAX_HEAD_BYTES {
        return Some(Request::Refused(Refusal::TooLong));
    }
    let line = received[..end].split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let refused = |refusal| Some(Request::Refused(refusal));
    let (Some(method), Some(target), Some(version), None) = (method, target, version, words.next()) else {
        return refused(Refusal::Malformed);
    };
    if !version.starts_with(b"HTTP/1.") {
        return refused(Refusal::Malformed);
    }
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => Some(Request::Metrics { with_body: method == b"GET" }),
        (b"GET" | b"HEAD", _) => refused(Refusal::UnknownPath),
        _ => refused(Refusal::UnknownMethod),
    }
}

impl Refusal {
    /// Returns the status line's code and reason, and the text of the response.
    fn describe(self) -> (&'static str, &'static str) {
        match self {
            Refusal::Malformed => ("400 Bad Request", "this is not an HTTP/1.1 request\n"),
            Refusal::UnknownPath => ("404 Not Found", "the metrics are at /metrics\n"),
            Refusal::UnknownMethod => ("405 Method Not Allowed", "use GET or HEAD\n"),
            Refusal::TooLong => {
                ("431 Request Header Fields Too Large", "the request head is longer than 8 KiB\n")
            }
        }
    }
}

/// Returns the response to a request. `metrics` is the body for [`Request::Metrics`].
pub(crate) fn response(request: Request, metrics: &str) -> Vec<u8> {
    let (status, content_type, body, with_body) = match request {
        Request::Metrics { with_body } => ("200 OK", crate::CONTENT_TYPE, metrics, with_body),
        Request::Refused(refusal) => {
            let (status, text) = refusal.describe();
            (status, "text/plain; charset=utf-8", text, true)
        }
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    let mut response = head.into_bytes();
    if with_body {
        response.extend_from_slice(body.as_bytes());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_when_their_head_is_complete() {
        let get = Request::Metrics { with_body: true };
        for (bytes, expected) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"[..], get),
            (b"GET /metrics?x=1 HTTP/1.0\r\n\r\nrest", get),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", Request::Metrics { with_body: false }),
            (b"GET / HTTP/1.1\r\n\r\n", Request::Refused(Refusal::UnknownPath)),
            (b"POST /metrics HTTP/1.1\r\n\r\n", Request::Refused(Refusal::UnknownMethod)),
            (b"GET /metrics\r\n\r\n", Request::Refused(Refusal::Malformed)),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", Request::Refused(Refusal::Malformed)),
            (b"GET /metrics HTTP/2\r\n\r\n", Request::Refused(Refusal::Malformed)),
            (b"\xff\0\r\n\r\n", Request::Refused(Refusal::Malformed)),
            (b"\r\n\r\n", Request::Refused(Refusal::Malformed)),
        ] {
            assert_eq!(parse(bytes), Some(expected), "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(parse(b""), None);
        let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        long.resize(MAX_HEAD_BYTES, b'x');
        assert_eq!(parse(&long), Some(Request::Refused(Refusal::TooLong)));
        long.resize(MAX_HEAD_BYTES + 10, b'x');
        long.extend(b"\r\n\r\n");
        assert_eq!(parse(&long), Some(Request::Refused(Refusal::TooLong)));
    }
}
