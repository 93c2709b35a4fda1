//! What the machine says of itself, and what this process took of it.

pub use gruff_engine::available_memory;

/// The processor's name, where the system tells.
pub fn cpu_name() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The most memory that this process ever held, in bytes, mapped files included; `None` where the system does not
/// tell.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The processor's features that matter to kernels, those without kernels of gruff's included.
pub fn cpu_features() -> Vec<&'static str> {
    #[allow(unused_mut)]
    let mut found = Vec::new();
    macro_rules! detect {
        ($detect:ident: $($name:tt),*) => { $(if std::arch::$detect!($name) { found.push($name); })* };
    }
    #[cfg(target_arch = "x86_64")]
    detect!(is_x86_feature_detected: "sse4.2", "avx", "avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw",
        "avx512vl", "avx512vnni", "avx512bf16");
    #[cfg(target_arch = "aarch64")]
    detect!(is_aarch64_feature_detected: "neon", "fp16", "dotprod", "i8mm", "bf16", "sve", "sve2");
    found
}
