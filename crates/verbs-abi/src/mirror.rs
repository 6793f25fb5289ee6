//! The macro that declares C types, asserts their layout at compile time, and lists them for the
//! tests.

/// A structure or union of the C ABI.
#[derive(Debug)]
pub struct Structure {
    /// The name in Rust.
    pub name: &'static str,
    /// `struct` or `union`.
    pub kind: &'static str,
    /// For a type without a name in C, the path of the member that has the type, such as
    /// `ibv_send_wr.wr.rdma`.
    pub c_path: Option<&'static str>,
    /// The size in bytes.
    pub size: usize,
    /// The alignment in bytes.
    pub align: usize,
    /// The fields in the order of their declaration.
    pub fields: &'static [Field],
}

/// A field of a [`Structure`].
#[derive(Debug)]
pub struct Field {
    /// The name in Rust, with `r#` in front of a keyword.
    pub name: &'static str,
    /// For an anonymous union in C, the names of its members. Otherwise empty: `name` is the name
    /// in C.
    pub c_names: &'static [&'static str],
    /// The offset in bytes.
    pub offset: usize,
    /// The size in bytes.
    pub size: usize,
    /// The type in Rust syntax, from which the layout test derives the C type of a function
    /// pointer.
    pub rust_type: &'static str,
}

/// A constant of the C ABI.
#[derive(Debug)]
pub struct Constant {
    /// The name, which is the same in Rust and C.
    pub name: &'static str,
    /// The value. A 64-bit unsigned value is reinterpreted as signed.
    pub value: i64,
}

/// A type for which all zeros is a valid value. Programs rely on zeros in the fields that a verb
/// does not set, because rdma-core allocates with `calloc`.
///
/// # Safety
/// The type consists of integers, raw pointers, `Option`s of function pointers, and arrays of them.
pub unsafe trait Zeroed: Sized {
    /// Returns the value of all zeros.
    fn zeroed() -> Self {
        // SAFETY: all zeros is a valid value (`# Safety` above).
        unsafe { std::mem::zeroed() }
    }
}

/// Declares the types and constants of a module, once in each module.
///
/// ```text
/// mirror! {
///     types {
///         struct ibv_x: 16 {                        // size
///             0 => context: *mut ibv_context,       // offset => field: type
///             8 => a [a, b]: u32,                   // anonymous union of `a` and `b` in C
///         }
///         /// A type without a name in C: the type of the member `wr.rdma` of `struct ibv_send_wr`.
///         struct ibv_send_wr_rdma (ibv_send_wr.wr.rdma): 16 { … }
///     }
///     constants {
///         enum ibv_y: u32 { IBV_Y_A = 0 }           // C has `enum ibv_y`
///         const link_layer: u8 { IBV_LINK_LAYER_ETHERNET = 2 }  // C has the constants, but no enum
///     }
///     opaque {
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
            #[doc = concat!("Size in bytes: ", stringify!($size), ".")]
            #[repr(C)]
            pub $kind $name {
                $(
                    #[doc = concat!("At byte offset ", stringify!($at), ".")]
                    pub $field: $type,
                )*
            }
            // SAFETY: `Zeroed` permits all types that a field of a C structure may have here.
            unsafe impl crate::Zeroed for $name {}
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
            #[doc = concat!("Represented as `", stringify!($repr), "`.")]
            pub type $group = $repr;
            $(
                #[doc = concat!("A value of [`", stringify!($group), "`].")]
                pub const $constant: $group = $value;
            )*
        )*
        $(
            $(#[$opaque_meta])*
            #[doc = "Only pointers to the type occur."]
            #[repr(C)]
            pub struct $opaque {
                _unread: [u8; 0],
                /// Prevents `Send`, `Sync` and `Unpin`: the content of the type is unknown.
                _unknown: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
            }
        )*
        pub(super) mod listed {
            #[allow(unused_imports, reason = "a module of constants names no types")]
            use super::*;
            use crate::mirror;

            pub(crate) const STRUCTURES: &[mirror::Structure] = &[$(mirror::Structure {
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
            pub(crate) const CONSTANTS: &[mirror::Constant] = &[$($(mirror::Constant {
                name: stringify!($constant),
                value: $constant as i64,
            }),*),*];
            pub(crate) const ENUMERATIONS: &[(&str, usize)] =
                &[$((concat!(stringify!($constant_kind), " ", stringify!($group)), size_of::<$group>())),*];
            pub(crate) const OPAQUE: &[&str] = &[$(stringify!($opaque)),*];
        }
    };
    (@c_path) => { None };
    (@c_path $($c_path:tt)+) => { Some(stringify!($($c_path)+)) };
}
