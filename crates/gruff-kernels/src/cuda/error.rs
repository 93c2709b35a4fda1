//! What can go wrong with a CUDA device, each with its remedy.

/// The oldest driver that kernels are built for: CUDA 12.0.
pub(crate) const LEAST_DRIVER: i32 = 12_000;

/// The lowest compute capability: Turing, the first that every supported compiler still builds for.
pub(crate) const LEAST_CAPABILITY: (i32, i32) = (7, 5);

/// What can go wrong with a CUDA device.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The driver's library is not there, or finds no driver in the kernel.
    #[error(
        "no NVIDIA driver ({what}): install one and see that `nvidia-smi` lists the card; a container needs the card \
         handed in (docker: --gpus all)"
    )]
    NoDriver {
        /// What was looked for or what it said.
        what: String,
        /// Whether there is a driver which does not work, rather than none, or one that sees no card.
        broken: bool,
    },
    /// The driver is older than the kernels need.
    #[error(
        "the NVIDIA driver offers CUDA {}.{}, but 12.0 is needed: install driver 525 or a newer one",
        found / 1000, found % 1000 / 10
    )]
    OldDriver {
        /// What `cuDriverGetVersion` says: 12040 is 12.4.
        found: i32,
    },
    /// There is no such card.
    #[error(
        "there is no device cuda:{ordinal}: the driver shows {count} (numbered from 0, restricted by \
         CUDA_VISIBLE_DEVICES if that is set)"
    )]
    NoDevice {
        /// The number that was asked for.
        ordinal: usize,
        /// Cards that the driver shows.
        count: usize,
    },
    /// The card is older than the kernels need.
    #[error("{name} has compute capability {}.{}, but 7.5 (Turing) or later is needed: use --device cpu", capability.0, capability.1)]
    OldDevice {
        /// The card.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// The library that compiles kernels is not there.
    #[error(
        "no NVRTC, the library that compiles CUDA kernels, beside a driver for CUDA {}.{}: `pip install \
         nvidia-cuda-nvrtc{}` or install the CUDA toolkit, or name the library in GRUFF_NVRTC (looked for {tried})",
        driver / 1000, driver % 1000 / 10, if *driver >= 13_000 { "" } else { "-cu12" }
    )]
    NoCompiler {
        /// The driver's version.
        driver: i32,
        /// Names and folders that were tried.
        tried: String,
    },
    /// The library that compiles kernels does not know the card, or is newer than the driver.
    #[error("NVRTC {}.{} at {path} cannot serve this machine: {what}", version.0, version.1)]
    Compiler {
        /// The library.
        path: String,
        /// Its version.
        version: (i32, i32),
        /// What does not fit and what to do.
        what: String,
    },
    /// The library through which cards compute together is not there.
    #[error(
        "no NCCL, the library through which cards exchange what each has computed: `pip install nvidia-nccl-cu12` \
         (nvidia-nccl-cu13 beside a driver for CUDA 13) or install libnccl2, or name the library in GRUFF_NCCL (looked \
         for {tried}); --split-mode layer does without it"
    )]
    NoNccl {
        /// Names and folders that were tried.
        tried: String,
    },
    /// A call of NCCL failed; its communicators cannot be used any more.
    #[error(
        "NCCL, {call}: {fault}; NCCL_DEBUG=INFO has it tell more, and --split-mode layer does without it"
    )]
    Nccl {
        /// What was asked for.
        call: String,
        /// The library's words.
        fault: String,
    },
    /// A kernel that does not compile: a fault of this program.
    #[error("kernel {source_name} does not compile for {arch}, please report this:\n{log}")]
    Compile {
        /// The source file.
        source_name: String,
        /// The architecture.
        arch: String,
        /// The compiler's words.
        log: String,
    },
    /// Operations that were to be recorded and replayed do something that cannot be.
    #[error("a step cannot be recorded: {what}")]
    Recording {
        /// What they do.
        what: String,
    },
    /// A call of the driver failed.
    #[error("{call} on {device}: {fault}{}", remedy(fault))]
    Call {
        /// What was asked for.
        call: String,
        /// The device.
        device: String,
        /// The driver's name for the fault and its words.
        fault: String,
    },
}

impl CudaError {
    /// Whether a machine simply has no card, as most have not, rather than one that cannot be used.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoDriver { broken: false, .. })
    }
}

/// Faults of kernels, after which a context answers every call with the same.
const KERNEL_FAULTS: [&str; 8] = [
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_LAUNCH_FAILED",
];

/// Faults of the card or the driver that a context does not get over either.
const CARD_FAULTS: [&str; 7] = [
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_UNKNOWN",
];

/// Whether a fault of the driver, in its words, is one that every later call meets again.
pub(crate) fn lasts(fault: &str) -> bool {
    KERNEL_FAULTS.iter().chain(&CARD_FAULTS).any(|name| fault.starts_with(name))
}

/// What to do about a fault of the driver.
fn remedy(fault: &str) -> &'static str {
    if fault.starts_with("CUDA_ERROR_OUT_OF_MEMORY") {
        "; choose a smaller context, fewer sequences or a smaller model, or end what else uses the card"
    } else if KERNEL_FAULTS.iter().any(|name| fault.starts_with(name)) {
        "; the device cannot be used any more by this process: start it again, and please report this"
    } else if lasts(fault) {
        "; the device cannot be used any more by this process: look for the cause in the system's log, then start it again"
    } else if fault.contains("NO_BINARY_FOR_GPU")
        || fault.contains("UNSUPPORTED_PTX")
        || fault.contains("INVALID_IMAGE")
    {
        "; the kernels were compiled by a newer NVRTC than the driver knows: install a newer driver, or an NVRTC of its \
         version"
    } else {
        ""
    }
}

/// A driver error in words: `CUDA_ERROR_OUT_OF_MEMORY: out of memory`.
pub(crate) fn words(error: cudarc::driver::DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, _>| found.map(|t| t.to_string_lossy().into_owned()).ok();
    let name = text(error.error_name()).unwrap_or_else(|| format!("error {:?}", error.0));
    match text(error.error_string()) {
        Some(words) => format!("{name}: {words}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_last_are_told_from_others() {
        let lasting = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered";
        assert!(lasts(lasting) && remedy(lasting).contains("report"));
        let gone = "CUDA_ERROR_UNKNOWN: unknown error";
        assert!(lasts(gone) && remedy(gone).contains("start it again"));
        for passing in ["CUDA_ERROR_OUT_OF_MEMORY: out of memory", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"] {
            assert!(!lasts(passing) && !remedy(passing).contains("start"), "{passing}");
        }
    }
}
