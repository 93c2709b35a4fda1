//! Whether the processor has AMX's products of bytes, and the system lets this process use them.

/// Whether tiles of bytes may be used. Asks the system for them when first called: their registers are saved only for
/// processes that asked.
pub(super) fn available() -> bool {
    #[cfg(target_os = "linux")]
    {
        static AVAILABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *AVAILABLE.get_or_init(|| linux::has_instructions() && linux::is_permitted())
    }
    #[cfg(not(target_os = "linux"))]
    false
}

#[cfg(target_os = "linux")]
mod linux {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid_count, _xgetbv};

    /// Bits of EDX of leaf 7: `AMX-TILE` and `AMX-INT8`.
    const INSTRUCTIONS: u32 = 1 << 24 | 1 << 25;

    /// The state component of the tiles' content, and its bit with that of their configuration.
    const TILE_DATA: u64 = 18;
    const STATE: u64 = 1 << 17 | 1 << TILE_DATA;

    /// `SYS_arch_prctl` and `ARCH_REQ_XCOMP_PERM` of `asm/prctl.h`.
    const ARCH_PRCTL: u64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023;

    /// The processor has the instructions and the system switches their state on.
    pub(super) fn has_instructions() -> bool {
        if !std::arch::is_x86_feature_detected!("xsave") || !std::arch::is_x86_feature_detected!("avx512f") {
            return false;
        }
        let leaf = __cpuid_count(7, 0);
        // SAFETY: the system has enabled XSAVE, without which AVX-512 is not reported.
        leaf.edx & INSTRUCTIONS == INSTRUCTIONS && unsafe { state() } & STATE == STATE
    }

    /// # Safety
    /// The system has enabled XSAVE.
    #[target_feature(enable = "xsave")]
    unsafe fn state() -> u64 {
        // SAFETY: promised by the caller.
        unsafe { _xgetbv(0) }
    }

    /// Asks for the tiles' state, for all threads of this process.
    pub(super) fn is_permitted() -> bool {
        let mut result = ARCH_PRCTL as i64;
        // SAFETY: a system call that reads and writes no memory; it clobbers what is named.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") result,
                in("rdi") REQUEST_PERMISSION,
                in("rsi") TILE_DATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        result == 0
    }
}
