use gruff_blocks::BlockType;

use crate::DType;

/// What can go wrong when an operation is asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Operands whose shapes do not fit together.
    #[error("{op}: {what}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Which operand, what it is and what it should be.
        what: String,
    },
    /// An operand of a number type the operation does not take.
    #[error("{op}: {operand} is {found}, but {expected} is needed")]
    DType {
        /// The operation.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// Its type.
        found: DType,
        /// The type that is needed.
        expected: DType,
    },
    /// Operands that live on different devices.
    #[error("{op}: {operand} lives on another device than the output ({device}); copy it there first")]
    Device {
        /// The operation.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// The device of the output.
        device: String,
    },
    /// An output that overlaps an input it must not overlap, or memory that must not be written.
    #[error("{op}: {operand} {fault}")]
    Alias {
        /// The operation.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// What is wrong with its memory.
        fault: &'static str,
    },
    /// A value outside its range: a token id past the table, an expert that does not exist.
    #[error("{op}: {what}")]
    Value {
        /// The operation.
        op: &'static str,
        /// Which value and which range.
        what: String,
    },
    /// The device has no implementation for this type.
    #[error("{op}: {device} cannot compute with {block_type} weights")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The device.
        device: String,
        /// The type of the weights.
        block_type: BlockType,
    },
    /// Memory that could not be had.
    #[error(
        "could not take {bytes} bytes of memory on {device}: choose a smaller context, fewer sequences or a smaller model"
    )]
    OutOfMemory {
        /// The device.
        device: String,
        /// How much was asked for.
        bytes: usize,
    },
    /// Packed bytes that disagree with their type or shape.
    #[error(transparent)]
    Blocks(#[from] gruff_blocks::Error),
    /// A CUDA device that cannot be had, or a call of it that failed.
    #[error(transparent)]
    Cuda(#[from] crate::CudaError),
    /// Another of the devices that compute together has failed.
    #[error("rank {rank} has failed: {why}")]
    Rank {
        /// The first that did.
        rank: usize,
        /// Its error.
        why: String,
    },
    /// A device option that cannot be honoured.
    #[error("{what}")]
    Option {
        /// Which option, what is wrong and what to do.
        what: String,
    },
}

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;
