use crate::BlockType;

/// What can be wrong with a block type or with packed bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The id belonged to a type that the format dropped.
    #[error(
        "tensor type {id} ({name}) was retired from the format; convert the original model again with a current tool"
    )]
    RetiredType {
        /// The id in the file.
        id: u32,
        /// The name the type had.
        name: &'static str,
    },
    /// No type ever had this id, as far as this build knows.
    #[error("tensor type {id} is unknown to this version of gruff; a newer version may know it")]
    UnknownType {
        /// The id in the file.
        id: u32,
    },
    /// No type has this name.
    #[error("there is no tensor type called {name:?}")]
    UnknownName {
        /// The name asked for.
        name: String,
    },
    /// A row that is not a whole number of blocks, or too long to address.
    #[error("a row of {values} values is not a whole number of {block_type} blocks ({} values each)", block_type.values())]
    RowLength {
        /// The type of the row.
        block_type: BlockType,
        /// Values in the row.
        values: usize,
    },
    /// Packed bytes and unpacked values do not belong together.
    #[error("{bytes} bytes of {block_type} hold {} values, not {values}", bytes / block_type.bytes() * block_type.values())]
    Length {
        /// The type of the packed bytes.
        block_type: BlockType,
        /// How many packed bytes were given.
        bytes: usize,
        /// How many values were given or asked for.
        values: usize,
    },
    /// The type cannot be made this way.
    #[error("{block_type} blocks can be read but not written; choose another type")]
    CannotPack {
        /// The type asked for.
        block_type: BlockType,
    },
    /// A value that no type can hold.
    #[error("value {at} is {value}; only finite numbers can be quantized")]
    NotFinite {
        /// Which of the values given.
        at: usize,
        /// The value as text: infinities and NaN are not equal to themselves.
        value: String,
    },
    /// A value that the type's half-precision scale does not reach.
    #[error("{value}, among the {} values from {at}, is beyond what the scales of {block_type} can reach; keep the tensor in F32 or BF16", block_type.values())]
    TooLarge {
        /// The type asked for.
        block_type: BlockType,
        /// The first value of the block.
        at: usize,
        /// The largest magnitude in the block.
        value: String,
    },
    /// Importance that does not belong to the rows.
    #[error("the importance {fault}")]
    Importance {
        /// What is wrong with it.
        fault: String,
    },
    /// No preset has this name.
    #[error("there is no preset called {name:?}; the presets are {}", crate::mix::Preset::ALL.iter().map(|p| p.name()).collect::<Vec<_>>().join(", "))]
    UnknownPreset {
        /// The name asked for.
        name: String,
    },
    /// A tensor of experts whose name does not tell its layer.
    #[error("the name {name:?} does not begin with blk.N. for a layer N below {layers}")]
    Layer {
        /// The tensor's name.
        name: String,
        /// The model's layers.
        layers: u32,
    },
}
