//! The objects that `mitra kv --json` prints.

use serde_json::{Value, json};

/// `value` is `None` if the key has no value. `index` is the index of the change that set the
/// value.
pub(super) fn value(key: &str, value: Option<&[u8]>, index: Option<u64>) -> Value {
    match value.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
        None => json!({"key": key, "value": null, "index": index}),
        Some(Ok(text)) => json!({"key": key, "value": text, "index": index}),
        Some(Err(bytes)) => json!({"key": key, "value_hex": super::key::hex(bytes), "index": index}),
    }
}

pub(super) fn stored(key: &str, done: bool) -> Value {
    json!({"key": key, "stored": done})
}

pub(super) fn swapped(key: &str, done: bool) -> Value {
    json!({"key": key, "swapped": done})
}

pub(super) fn deleted(key: &str, done: bool) -> Value {
    json!({"key": key, "deleted": done})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_is_no_text_is_in_hexadecimal() {
        let text = value("k", Some("blåtand".as_bytes()), Some(7));
        assert_eq!(text, json!({"key": "k", "value": "blåtand", "index": 7}));
        let bytes = value("k", Some(&[0xff, 0x00]), Some(8));
        assert_eq!(bytes, json!({"key": "k", "value_hex": "ff00", "index": 8}));
        assert_eq!(value("k", None, None), json!({"key": "k", "value": null, "index": null}));
    }
}
