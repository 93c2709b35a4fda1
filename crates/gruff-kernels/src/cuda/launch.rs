//! Launching a kernel: its grid and its arguments.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::CudaDevice;
use super::kernels::Kernel;
use super::phase::Phase;
use crate::{Error, Result, Tensor};

/// The most arguments a kernel has, and the most bytes of one.
const ARGUMENTS: usize = 32;
const WORDS: usize = 64;

/// The most blocks in the second and third dimension of a grid.
const GRID_YZ: usize = 65_535;

/// A launch being put together: `device.launch(kernel).grid(…).block(…).arg(…).run()`.
#[must_use = "nothing is launched before `run`"]
pub(crate) struct Launch<'a> {
    device: &'a CudaDevice,
    kernel: Kernel,
    grid: [usize; 3],
    block: usize,
    shared: usize,
    /// Arguments one after the other, each on a border of eight bytes.
    words: [u64; WORDS],
    used: usize,
    starts: [usize; ARGUMENTS],
    arguments: usize,
}

/// What a kernel takes as an argument: plain values in the layout of C.
pub(crate) trait Argument {
    /// Writes the value's bytes to the front of `words` and returns how many words it takes.
    fn put(&self, words: &mut [u64]) -> usize;
}

macro_rules! plain_arguments {
    ($($type:ty),*) => {
        $(impl Argument for $type {
            fn put(&self, words: &mut [u64]) -> usize {
                let bytes = self.to_le_bytes();
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(&bytes);
                words[0] = u64::from_le_bytes(word);
                1
            }
        })*
    };
}

plain_arguments!(u64, u32, i32, f32, f64);

impl Argument for usize {
    /// As a 64-bit integer.
    fn put(&self, words: &mut [u64]) -> usize {
        words[0] = *self as u64;
        1
    }
}

/// A structure of eight-byte words, passed by value.
impl<const N: usize> Argument for [u64; N] {
    fn put(&self, words: &mut [u64]) -> usize {
        words[..N].copy_from_slice(self);
        N
    }
}

/// The address of a tensor's first value.
impl Argument for &Tensor {
    fn put(&self, words: &mut [u64]) -> usize {
        words[0] = super::pointer(self);
        1
    }
}

impl<'a> Launch<'a> {
    pub(super) fn new(device: &'a CudaDevice, kernel: Kernel) -> Self {
        Self {
            device,
            kernel,
            grid: [1; 3],
            block: 32,
            shared: 0,
            words: [0; WORDS],
            used: 0,
            starts: [0; ARGUMENTS],
            arguments: 0,
        }
    }

    /// Blocks; a dimension of 0 makes [`run`](Self::run) do nothing.
    pub(crate) fn grid(mut self, grid: [usize; 3]) -> Self {
        self.grid = grid;
        self
    }

    /// Threads of a block.
    pub(crate) fn block(mut self, threads: usize) -> Self {
        self.block = threads;
        self
    }

    /// Bytes of dynamic shared memory.
    pub(crate) fn shared(mut self, bytes: usize) -> Self {
        self.shared = bytes;
        self
    }

    /// The next argument.
    pub(crate) fn arg(mut self, value: impl Argument) -> Self {
        self.starts[self.arguments] = self.used;
        self.used += value.put(&mut self.words[self.used..]);
        self.arguments += 1;
        self
    }

    /// A tensor `[T, ..]`: its address and the distance of its rows.
    pub(crate) fn rows_of(self, tensor: &Tensor) -> Self {
        self.arg(tensor).arg(tensor.strides()[0])
    }

    /// A tensor `[T, heads, width]`: its address and the distances of its rows and heads.
    pub(crate) fn heads_of(self, tensor: &Tensor) -> Self {
        self.rows_of(tensor).arg(tensor.strides()[1])
    }

    /// The same of a tensor that may not be there: zeros then.
    pub(crate) fn heads_of_any(self, tensor: Option<&Tensor>) -> Self {
        match tensor {
            Some(tensor) => self.heads_of(tensor),
            None => self.arg(0_u64).arg(0_u64).arg(0_u64),
        }
    }

    /// Puts the kernel on the stream.
    pub(crate) fn run(mut self) -> Result<()> {
        let context = self.device.context();
        if self.grid.contains(&0) || context.phase() == Phase::Rehearsing {
            return Ok(());
        }
        let entry = self.kernel.entry();
        if self.grid[1..].iter().any(|blocks| *blocks > GRID_YZ) || self.grid[0] > i32::MAX as usize {
            return Err(Error::Shape {
                op: entry,
                what: format!("a grid of {:?} blocks is too large", self.grid),
            });
        }
        if self.shared > 48 << 10 {
            self.allow_shared()?;
        }
        let mut pointers = [std::ptr::null_mut::<c_void>(); ARGUMENTS];
        for (pointer, start) in pointers.iter_mut().zip(&self.starts[..self.arguments]) {
            *pointer = (&raw mut self.words[*start]).cast();
        }
        let early = self.kernel.waits() && self.device.early.is_on() && !context.clock.is_timing();
        match self.put(early, &mut pointers) {
            Err(fault) if early && self.device.early.give_up(&fault) => self.put(false, &mut pointers),
            done => done,
        }
    }

    /// Puts it on the stream, behind the end of what is there or `early`.
    fn put(&self, early: bool, arguments: &mut [*mut c_void; ARGUMENTS]) -> Result<()> {
        use sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as EARLY;
        let context = self.device.context();
        let mut attribute = sys::CUlaunchAttribute {
            id: EARLY,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: self.grid[0] as u32,
            gridDimY: self.grid[1] as u32,
            gridDimZ: self.grid[2] as u32,
            blockDimX: self.block as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared as u32,
            hStream: context.kernel_stream(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(early),
        };
        context.call(
            || format!("launching {}", self.kernel.entry()),
            // SAFETY: the kernel takes these arguments; each family's contract has checked the operands.
            || unsafe {
                let nothing = std::ptr::null_mut();
                sys::cuLaunchKernelEx(
                    &raw const config,
                    self.kernel.function(),
                    arguments.as_mut_ptr(),
                    nothing,
                )
                .result()
            },
        )?;
        context.launched(self.kernel.entry());
        Ok(())
    }

    /// Lets the kernel have more shared memory than 48 KiB, once for the most that it was asked for.
    fn allow_shared(&self) -> Result<()> {
        use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SHARED;
        let (kernel, bytes) = (&self.kernel, self.shared);
        if kernel.allowed() >= bytes {
            return Ok(());
        }
        self.device.context().call(
            || format!("asking for {bytes} bytes of shared memory for {}", kernel.entry()),
            // SAFETY: the kernel's module stays loaded.
            || unsafe { result::function::set_function_attribute(kernel.function(), SHARED, bytes as i32) },
        )?;
        kernel.allow(bytes);
        Ok(())
    }
}
