//! Values of records as bytes: little endian, columns in the order of declaration, no padding
//! between them.

use std::fmt;

/// The value of a record, or of a column of a record.
pub trait Value: Sized {
    /// The largest number of bytes of an encoded value. A value of any type but a list has exactly
    /// this length.
    const MAX_LEN: usize;

    /// Appends the bytes of the value to `out`.
    fn write(&self, out: &mut Vec<u8>);

    /// Takes a value from the front of `bytes`.
    ///
    /// # Errors
    /// If the bytes are not what [`Value::write`] writes for some value.
    fn read(bytes: &mut &[u8]) -> Result<Self, Damaged>;

    /// The bytes of the value.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::MAX_LEN);
        self.write(&mut out);
        out
    }

    /// The value of these bytes.
    ///
    /// # Errors
    /// As for [`Value::read`], or if bytes are left over.
    fn decode(mut bytes: &[u8]) -> Result<Self, Damaged> {
        let value = Self::read(&mut bytes)?;
        if bytes.is_empty() { Ok(value) } else { Err(Damaged::from(Fault::Long)) }
    }
}

/// Bytes that are not the encoding of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{fault} (record type {record:?}, column {column:?})")]
pub struct Damaged {
    /// The type of the record, or an empty text for a value that is no record.
    pub record: &'static str,
    /// The column, or an empty text if the damage is in no column.
    pub column: &'static str,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with the bytes of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// Bytes are missing.
    #[error("the value is too short")]
    Short,
    /// Bytes are left over.
    #[error("the value is too long")]
    Long,
    /// A text is longer than its column, not printable ASCII, or not followed by zeros.
    #[error("the bytes are not a text")]
    Text,
    /// A number has no meaning in its column.
    #[error("the code is unknown")]
    Code,
}

impl From<Fault> for Damaged {
    fn from(fault: Fault) -> Damaged {
        Damaged { record: "", column: "", fault }
    }
}

/// Takes `count` bytes from the front of `bytes`.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Damaged> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(Fault::Short)?;
    *bytes = rest;
    Ok(taken)
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Value for $type {
            const MAX_LEN: usize = size_of::<$type>();

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &mut &[u8]) -> Result<Self, Damaged> {
                let taken = take(bytes, Self::MAX_LEN)?;
                taken.try_into().map(Self::from_le_bytes).map_err(|_| Fault::Short.into())
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i16 i64);

impl Value for bool {
    const MAX_LEN: usize = 1;

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, Damaged> {
        match u8::read(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Fault::Code.into()),
        }
    }
}

/// A column that can be null: a byte 0 or 1, and the value, or zeros for null.
impl<T: Value> Value for Option<T> {
    const MAX_LEN: usize = 1 + T::MAX_LEN;

    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        match self {
            Some(value) => value.write(out),
            None => out.resize(out.len() + T::MAX_LEN, 0),
        }
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, Damaged> {
        if bool::read(bytes)? {
            return T::read(bytes).map(Some);
        }
        let zeros = take(bytes, T::MAX_LEN)?.iter().all(|&byte| byte == 0);
        if zeros { Ok(None) } else { Err(Fault::Code.into()) }
    }
}

impl<T: Value, const N: usize> Value for [T; N] {
    const MAX_LEN: usize = N * T::MAX_LEN;

    fn write(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|item| item.write(out));
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, Damaged> {
        let items = (0..N).map(|_| T::read(bytes)).collect::<Result<Vec<T>, Damaged>>()?;
        items.try_into().map_err(|_| Fault::Short.into())
    }
}

/// A text of at most `N` printable ASCII characters: its length in two bytes, its characters, and
/// zeros up to `N`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    const LEN_FITS: () = assert!(N <= u16::MAX as usize);

    /// The first `N` characters of `text`. A character that is not printable ASCII becomes a
    /// question mark.
    pub fn new(text: &str) -> Text<N> {
        let () = Self::LEN_FITS;
        let mut new = Text { len: 0, bytes: [0; N] };
        for (byte, character) in new.bytes.iter_mut().zip(text.chars()) {
            *byte = if is_printable(character) { character as u8 } else { b'?' };
            new.len += 1;
        }
        new
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Both constructors have checked that the characters are ASCII.
        str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

fn is_printable(character: char) -> bool {
    matches!(character, ' '..='~')
}

impl<const N: usize> Value for Text<N> {
    const MAX_LEN: usize = 2 + N;

    fn write(&self, out: &mut Vec<u8>) {
        self.len.write(out);
        out.extend_from_slice(&self.bytes);
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, Damaged> {
        let len = u16::read(bytes)?;
        let taken: [u8; N] = take(bytes, N)?.try_into().map_err(|_| Fault::Short)?;
        let Some((text, padding)) = taken.split_at_checked(usize::from(len)) else {
            return Err(Fault::Text.into());
        };
        if text.iter().all(|&byte| is_printable(char::from(byte))) && padding.iter().all(|&byte| byte == 0) {
            Ok(Text { len, bytes: taken })
        } else {
            Err(Fault::Text.into())
        }
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Declares a record type: a struct whose fields are columns, and its [`Value`].
macro_rules! record {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident { $($(#[$column_about:meta])* pub $column:ident: $type:ty,)* }
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name { $($(#[$column_about])* pub $column: $type,)* }

        impl $crate::Value for $name {
            const MAX_LEN: usize = 0 $(+ <$type as $crate::Value>::MAX_LEN)*;

            fn write(&self, out: &mut Vec<u8>) {
                let _ = out;
                $($crate::Value::write(&self.$column, out);)*
            }

            fn read(bytes: &mut &[u8]) -> Result<Self, $crate::Damaged> {
                let _ = &bytes;
                Ok($name {$(
                    $column: <$type as $crate::Value>::read(bytes).map_err(|damaged| $crate::Damaged {
                        record: stringify!($name),
                        column: stringify!($column),
                        ..damaged
                    })?,
                )*})
            }
        }
    )*};
}
pub(crate) use record;

#[cfg(test)]
mod tests {
    use super::*;

    record! {
        pub struct Sample {
            pub number: i64,
            pub null: Option<u16>,
            pub text: Text<5>,
            pub list: [bool; 2],
        }
    }

    fn sample() -> Sample {
        Sample { number: -2, null: None, text: Text::new("abc"), list: [true, false] }
    }

    #[test]
    fn layout_is_fixed_and_little_endian() {
        let bytes = sample().encode();
        assert_eq!(
            bytes,
            [254, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 3, 0, b'a', b'b', b'c', 0, 0, 1, 0]
        );
        assert_eq!(bytes.len(), Sample::MAX_LEN);
        assert_eq!(Sample::decode(&bytes), Ok(sample()));
        let some = Sample { null: Some(258), ..sample() };
        assert_eq!(Sample::decode(&some.encode()), Ok(some));
    }

    #[test]
    fn damaged_bytes_name_the_column_and_the_fault() {
        let damaged = |at: usize, byte: u8| {
            let mut bytes = sample().encode();
            bytes[at] = byte;
            Sample::decode(&bytes).map_err(|error| (error.record, error.column, error.fault))
        };
        assert_eq!(damaged(8, 2), Err(("Sample", "null", Fault::Code)));
        assert_eq!(damaged(9, 1), Err(("Sample", "null", Fault::Code)), "null has no value");
        assert_eq!(damaged(11, 6), Err(("Sample", "text", Fault::Text)), "longer than the column");
        assert_eq!(damaged(13, 7), Err(("Sample", "text", Fault::Text)), "not printable");
        assert_eq!(damaged(16, b'd'), Err(("Sample", "text", Fault::Text)), "text after its end");
        assert_eq!(damaged(18, 9), Err(("Sample", "list", Fault::Code)));
        let bytes = sample().encode();
        for len in 0..bytes.len() {
            assert_eq!(Sample::decode(&bytes[..len]).map_err(|error| error.fault), Err(Fault::Short));
        }
        let long = [bytes, vec![0]].concat();
        assert_eq!(Sample::decode(&long).map_err(|error| error.fault), Err(Fault::Long));
    }

    #[test]
    fn text_keeps_what_fits() {
        assert_eq!(Text::<4>::new("abcdef").as_str(), "abcd");
        assert_eq!(Text::<4>::new("aé\n").as_str(), "a??");
        assert_eq!(format!("{:>6}|{:?}", Text::<4>::new("ab"), Text::<4>::new("c")), "    ab|\"c\"");
    }
}
