//! The macro that declares a mirrored type, asserts its layout and lists it.

/// A mirrored structure or union.
#[derive(Debug)]
pub struct Structure {
    /// Its name here.
    pub name: &'static str,
    /// `struct` or `union`.
    pub kind: &'static str,
    /// Where C has it without a name: the path of the member of that type, beginning with a structure's name.
    pub c_path: Option<&'static str>,
    /// Its size.
    pub size: usize,
    /// Its alignment.
    pub align: usize,
    /// Its fields.
    pub fields: &'static [Field],
}

/// A field of a [`Structure`].
#[derive(Debug)]
pub struct Field {
    /// Its name here, with `r#` where Rust needs that.
    pub name: &'static str,
    /// Its names in C where they differ: the members of a union without a name.
    pub c_names: &'static [&'static str],
    /// Its offset.
    pub offset: usize,
    /// Its size.
    pub size: usize,
    /// Its type as the source has it, from which the test writes the C type of a function slot.
    pub rust_type: &'static str,
}

/// A mirrored constant.
#[derive(Debug)]
pub struct Constant {
    /// Its name, here and in C.
    pub name: &'static str,
    /// Its value; of a 64-bit one, the same bits.
    pub value: i64,
}

/// Declares everything of one module; to be called once in each.
///
/// ```text
/// mirror! {
///     types {
///         /// Documentation.
///         struct ibv_x: 16 {                        // size
///             0 => context: *mut ibv_context,       // offset => field: type
///             8 => a [a, b]: u32,                   // C has a union of `a` and `b` without a name
///         }
///         /// A type that has no name in C, at member `wr.rdma` of `struct ibv_send_wr`.
///         struct ibv_send_wr_rdma (ibv_send_wr.wr.rdma): 16 { … }
///     }
///     constants {
///         /// Documentation.
///         enum ibv_y: u32 { IBV_Y_A = 0 }           // C has `enum ibv_y`
///         /// Documentation.
///         const link_layer: u8 { IBV_LINK_LAYER_ETHERNET = 2 }  // C has only the constants
///     }
///     opaque {
///         /// Documentation.
///         ibv_z,
///     }
/// }
/// ```
macro_rules! mirror {
    (
        types {$(
            $(#[$meta:meta])*
            $kind:ident $name:ident $(($($c_path:tt)+))?: $size:expr => {
                $($at:expr => $field:ident $([$($c_names:ident),+])?: $type:ty,)*
            }
        )*}
        constants {$(
            $(#[$constant_meta:meta])*
            $constant_kind:ident $group:ident: $repr:ty {
                $($constant:ident = $value:expr),* $(,)?
            }
        )*}
        opaque {$(
            $(#[$opaque_meta:meta])*
            $opaque:ident,
        )*}
    ) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            pub $kind $name {
                $(
                    #[doc = concat!("At byte ", stringify!($at), ".")]
                    pub $field: $type,
                )*
            }
            const _: () = {
                assert!(size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
                $(assert!(
                    std::mem::offset_of!($name, $field) == $at,
                    concat!("offset of ", stringify!($name), ".", stringify!($field))
                );)*
            };
        )*
        $(
            $(#[$constant_meta])*
            pub type $group = $repr;
            $(
                #[doc = concat!("A value of [`", stringify!($group), "`].")]
                pub const $constant: $group = $value;
            )*
        )*
        $(
            $(#[$opaque_meta])*
            #[repr(C)]
            pub struct $opaque {
                _unread: [u8; 0],
                /// Neither `Send`, `Sync` nor `Unpin`: nothing is known of it.
                _unknown: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
            }
        )*
        pub(super) mod listed {
            #[allow(unused_imports, reason = "a module of constants names no types")]
            use super::*;
            use crate::abi::mirror;

            pub(in crate::abi) const STRUCTURES: &[mirror::Structure] = &[$(mirror::Structure {
                name: stringify!($name),
                kind: stringify!($kind),
                c_path: mirror!(@c_path $($($c_path)+)?),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[$(mirror::Field {
                    name: stringify!($field),
                    c_names: &[$($(stringify!($c_names)),+)?],
                    offset: std::mem::offset_of!($name, $field),
                    size: size_of::<$type>(),
                    rust_type: stringify!($type),
                }),*],
            }),*];
            pub(in crate::abi) const CONSTANTS: &[mirror::Constant] = &[$($(mirror::Constant {
                name: stringify!($constant),
                value: $constant as i64,
            }),*),*];
            pub(in crate::abi) const ENUMERATIONS: &[(&str, usize)] =
                &[$((concat!(stringify!($constant_kind), " ", stringify!($group)), size_of::<$group>())),*];
            pub(in crate::abi) const OPAQUE: &[&str] = &[$(stringify!($opaque)),*];
        }
    };
    (@c_path) => { None };
    (@c_path $($c_path:tt)+) => { Some(stringify!($($c_path)+)) };
}
