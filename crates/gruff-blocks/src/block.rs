//! What a block type is in memory: a struct of plain bytes and the formula that unpacks it.

use bytemuck::{Pod, Zeroable};
use half::f16;

use crate::BlockType;

/// A block as it lies in a file: fields in the order of the format, alignment 1, no padding.
///
/// Because the alignment is 1, any byte slice of the right length can be viewed as blocks in place
/// (`bytemuck::cast_slice::<u8, Q4_K>`), memory-mapped files included.
pub trait Block: Pod {
    /// The row of the type table that this layout belongs to.
    const TYPE: BlockType;
    /// The unpacked block: `[f32; TYPE.values()]`.
    type Values: Pod + AsMut<[f32]>;

    /// Unpacks the block, in the order of the values in the row.
    fn unpack(&self, values: &mut Self::Values);
}

/// An IEEE half-precision number, little-endian, at any address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16(pub [u8; 2]);

impl F16 {
    /// The number, widened without loss.
    pub fn get(self) -> f32 {
        f16::from_le_bytes(self.0).to_f32()
    }
}

impl From<f32> for F16 {
    /// Rounds to nearest, ties to even.
    fn from(value: f32) -> Self {
        F16(f16::from_f32(value).to_le_bytes())
    }
}

/// An unsigned 16-bit integer, little-endian, at any address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct U16(pub [u8; 2]);

impl U16 {
    /// The integer.
    pub const fn get(self) -> u16 {
        u16::from_le_bytes(self.0)
    }
}

/// Declares the layout of a block type: a struct of byte-aligned fields whose size is that of the type table.
macro_rules! block_layout {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        #[allow(non_camel_case_types)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        const _: () = assert!(size_of::<$name>() == $crate::BlockType::$name.bytes() && align_of::<$name>() == 1);
    };
}
pub(crate) use block_layout;
