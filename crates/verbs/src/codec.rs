//! Messages as bytes: how the values in a message are written, and how bytes from a peer are read.
//!
//! A message implements [`Codec`], mostly by a list of its fields in [`codec!`](crate::codec).
//! Numbers are little-endian and have no padding. Reading never panics, and allocates no more than
//! the bytes that it has read.

use mitra_wire::{Psn, Qpn, Srqn};

use crate::device::{Gid, Mtu};
use crate::handle::Key;
use crate::wr::RemoteAddr;

/// A value with one encoding.
pub trait Codec<'a>: Sized {
    /// Appends the encoding to `out`.
    fn put(&self, out: &mut impl Extend<u8>);

    /// Removes the value from the front of the reader.
    ///
    /// # Errors
    /// [`Malformed`] if the reader does not begin with an encoding.
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed>;

    /// Returns the encoding.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Returns the value whose encoding is `bytes`.
    ///
    /// # Errors
    /// [`Malformed`] if `bytes` are no encoding, or more than one.
    fn from_bytes(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let value = Self::take(&mut reader)?;
        reader.finish().map(|()| value)
    }
}

/// A message of one of several kinds. Its own encoding is the kind, and then the fields of the
/// kind. A protocol that has the kind elsewhere in its header writes the two separately.
pub trait Kinds<'a>: Codec<'a> {
    /// The number of the kind.
    fn kind(&self) -> u8;

    /// Appends the fields to `out`.
    fn put_fields(&self, out: &mut impl Extend<u8>);

    /// Removes the fields of a message of this kind from the front of the reader.
    ///
    /// # Errors
    /// [`Malformed::Kind`] if there is no such kind, and other errors as [`Codec::take`].
    fn take_fields(kind: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed>;
}

/// The reason why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Malformed {
    /// The bytes end within a field.
    #[error("the message ends within a field")]
    Short,
    /// Bytes follow the last field.
    #[error("bytes follow the last field of the message")]
    Surplus,
    /// The message is of an unknown kind.
    #[error("the kind {0} of the message is unknown")]
    Kind(u8),
    /// A field has a value that the field's type does not have.
    #[error("a field of the message has a value that is not allowed")]
    Field,
}

/// The bytes of a message that are not yet read.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Creates a reader of all of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Returns whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads this many bytes.
    ///
    /// # Errors
    /// [`Malformed::Short`] if fewer are left.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// Reads this many values, one after another.
    ///
    /// # Errors
    /// The error of the first value that is [`Malformed`].
    pub fn list<T: Codec<'a>, L: FromIterator<T>>(&mut self, len: usize) -> Result<L, Malformed> {
        (0..len).map(|_| T::take(self)).collect()
    }

    /// Ends the message.
    ///
    /// # Errors
    /// [`Malformed::Surplus`] if bytes are left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(Malformed::Surplus) }
    }
}

/// Implements [`Codec`] by a list of fields, in the order of their encodings.
///
/// - `codec! { struct Name { a, b } }` is for a struct.
/// - `codec! { enum Name { 1 => First { a, b }, 2 => Second(x), 3 => Third } }` is for an enum, and
///   also implements [`Kinds`]. The enum may have one type parameter; the macro encodes its values,
///   too.
///
/// A condition after `if` must hold for the fields that are read; otherwise they are
/// [`Malformed::Field`]. A field `a as module` has the encoding that the functions `put` and `take`
/// of the module define.
#[macro_export]
macro_rules! codec {
    (struct $name:ident { $($field:ident $(as $with:ident)?),* } $(if $check:expr)?) => {
        impl $crate::Codec<'_> for $name {
            fn put(&self, out: &mut impl Extend<u8>) {
                let Self { $($field),* } = self;
                $($crate::codec!(@put $field, out $(, $with)?);)*
            }

            fn take(reader: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                $(let $field = $crate::codec!(@take reader $(, $with)?);)*
                $(if !$check { return Err($crate::Malformed::Field); })?
                Ok(Self { $($field),* })
            }
        }
    };

    (enum $name:ident $(<$body:ident>)? {
        $($kind:literal => $variant:ident
            $({ $($field:ident $(as $with:ident)?),* })?
            $(( $($item:ident $(as $item_with:ident)?),* ))?
            $(if $check:expr)?),* $(,)?
    }) => {
        impl<'a $(, $body: $crate::Codec<'a>)?> $crate::Codec<'a> for $name $(<$body>)? {
            fn put(&self, out: &mut impl Extend<u8>) {
                out.extend([$crate::Kinds::kind(self)]);
                $crate::Kinds::put_fields(self, out);
            }

            fn take(reader: &mut $crate::Reader<'a>) -> Result<Self, $crate::Malformed> {
                let kind = $crate::Codec::take(reader)?;
                $crate::Kinds::take_fields(kind, reader)
            }
        }

        impl<'a $(, $body: $crate::Codec<'a>)?> $crate::Kinds<'a> for $name $(<$body>)? {
            fn kind(&self) -> u8 {
                match self {
                    $(Self::$variant { .. } => $kind,)*
                }
            }

            fn put_fields(&self, out: &mut impl Extend<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($item),* ))? => {
                        $($($crate::codec!(@put $field, out $(, $with)?);)*)?
                        $($($crate::codec!(@put $item, out $(, $item_with)?);)*)?
                    })*
                }
            }

            fn take_fields(kind: u8, reader: &mut $crate::Reader<'a>) -> Result<Self, $crate::Malformed> {
                match kind {
                    $($kind => {
                        $($(let $field = $crate::codec!(@take reader $(, $with)?);)*)?
                        $($(let $item = $crate::codec!(@take reader $(, $item_with)?);)*)?
                        $(if !$check { return Err($crate::Malformed::Field); })?
                        Ok(Self::$variant $({ $($field),* })? $(( $($item),* ))?)
                    })*
                    _ => Err($crate::Malformed::Kind(kind)),
                }
            }
        }
    };

    (@put $field:ident, $out:ident) => { $crate::Codec::put($field, $out) };
    (@put $field:ident, $out:ident, $with:ident) => { $with::put($field, $out) };
    (@take $reader:ident) => { $crate::Codec::take($reader)? };
    (@take $reader:ident, $with:ident) => { $with::take($reader)? };
}

impl<const N: usize> Codec<'_> for [u8; N] {
    fn put(&self, out: &mut impl Extend<u8>) {
        out.extend(*self);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (bytes, rest) = reader.0.split_first_chunk().ok_or(Malformed::Short)?;
        reader.0 = rest;
        Ok(*bytes)
    }
}

/// All bytes that are left in the message.
impl<'a> Codec<'a> for &'a [u8] {
    fn put(&self, out: &mut impl Extend<u8>) {
        out.extend(self.iter().copied());
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(reader.rest())
    }
}

/// All bytes that are left in the message.
impl Codec<'_> for Vec<u8> {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.as_slice().put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(reader.rest().to_vec())
    }
}

impl<'a, A: Codec<'a>, B: Codec<'a>> Codec<'a> for (A, B) {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok((A::take(reader)?, B::take(reader)?))
    }
}

/// 0, or 1 and the value.
impl<'a, T: Codec<'a>> Codec<'a> for Option<T> {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        bool::take(reader)?.then(|| T::take(reader)).transpose()
    }
}

/// Implements [`Codec`] by the conversion to a type with an encoding. A value that does not convert
/// back is malformed.
macro_rules! codec_as {
    ($($name:ty as $with:ty: |$to:ident| $put:expr, |$from:ident| $take:expr;)*) => {$(
        impl Codec<'_> for $name {
            fn put(&self, out: &mut impl Extend<u8>) {
                let $to = *self;
                Codec::put(&$put, out);
            }

            fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                let $from = <$with>::take(reader)?;
                $take.ok_or(Malformed::Field)
            }
        }
    )*};
}

codec_as! {
    u8 as [u8; 1]: |n| [n], |bytes| Some(bytes[0]);
    u16 as [u8; 2]: |n| n.to_le_bytes(), |bytes| Some(u16::from_le_bytes(bytes));
    u32 as [u8; 4]: |n| n.to_le_bytes(), |bytes| Some(u32::from_le_bytes(bytes));
    u64 as [u8; 8]: |n| n.to_le_bytes(), |bytes| Some(u64::from_le_bytes(bytes));
    bool as u8: |is_set| u8::from(is_set), |byte| (byte < 2).then_some(byte == 1);
    Gid as [u8; 16]: |gid| gid.0, |bytes| Some(Gid(bytes));
    Key as u32: |key| key.0, |n| Some(Key(n));
    Mtu as u16: |mtu| mtu.bytes() as u16, |bytes| Mtu::from_bytes(bytes.into());
    Psn as u32: |psn| psn.value(), |n| (n >> 24 == 0).then(|| Psn::new(n));
    Qpn as u32: |qpn| qpn.value(), |n| (n >> 24 == 0).then(|| Qpn::new(n));
    Srqn as u32: |srqn| srqn.value(), |n| (n >> 24 == 0).then(|| Srqn::new(n));
}

codec! { struct RemoteAddr { addr, rkey } }

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, PartialEq, Debug)]
    struct Range {
        first: u16,
        last: u16,
    }

    codec! { struct Range { first, last } if first <= last }

    #[derive(Clone, PartialEq, Debug)]
    enum Message<B> {
        Stop,
        Send { to: Option<Qpn>, body: B },
        Ranges(Range, [u8; 2]),
    }

    codec! { enum Message<B> { 1 => Stop, 2 => Send { to, body }, 9 => Ranges(range, flags) } }

    #[test]
    fn messages_are_their_kind_and_their_fields() {
        let body: &[u8] = b"body";
        for (message, bytes) in [
            (Message::Stop, &[1][..]),
            (Message::Send { to: None, body }, b"\x02\0body"),
            (Message::Send { to: Some(Qpn::new(0x01_0203)), body: b"" }, &[2, 1, 3, 2, 1, 0]),
            (Message::Ranges(Range { first: 3, last: 0x0102 }, [7, 8]), &[9, 3, 0, 2, 1, 7, 8]),
        ] {
            assert_eq!(message.to_bytes(), bytes);
            assert_eq!(Message::from_bytes(bytes), Ok(message.clone()));
            assert_eq!(Message::take_fields(message.kind(), &mut Reader::new(&bytes[1..])), Ok(message));
        }
    }

    #[test]
    fn malformed_bytes_are_refused_with_the_reason() {
        type Any<'a> = Message<&'a [u8]>;
        for (bytes, error) in [
            (&[][..], Malformed::Short),
            (&[9, 3, 0, 2, 1, 7], Malformed::Short),
            (&[1, 0], Malformed::Surplus),
            (&[3], Malformed::Kind(3)),
            (&[2, 2], Malformed::Field),
            (&[2, 1, 0, 0, 0, 1], Malformed::Field),
            (&[9, 3, 0, 2, 0, 7, 8], Malformed::Field),
        ] {
            assert_eq!(Any::from_bytes(bytes), Err(error), "{bytes:?}");
        }
        assert_eq!(Reader::new(&[0; 3]).list::<u16, Vec<_>>(usize::MAX), Err(Malformed::Short));
    }
}
