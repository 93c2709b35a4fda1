//! Kernels that begin before the end of the one in front of them: programmatic dependent launch, of compute capability 9.0
//! and later. What a launch costs, some microseconds a kernel, is then paid while the kernel before runs.
//!
//! A kernel is launched so exactly if its own text says that it waits ([`waits`]), so that launch and kernel cannot
//! disagree. Nothing else has to be right for the results to be:
//!
//! - what it does before it waits touches nothing that a kernel writes or has written (`tools/emulator` finds what does, where
//!   the host has copied nothing to the same allocation): it computes indices, reads weights and tables, and has other memory
//!   brought to the second-level cache, which is no reading of it. Tables are written by copies in the stream's order only, behind
//!   the kernels that read them and in front of all that will. A weight that a kernel has written, which no model has, is for what
//!   comes behind a copy ([`crate::norm`]);
//! - nor does it read, behind the wait, as if nothing changed while it is there (`__ldg`, `__restrict__`): such loads may be
//!   moved before the wait, and answered from what was there before;
//! - since all threads of all such kernels wait, the end of one means the end of all before it;
//! - others are launched behind the end of the kernel before, and copies and fills are, too.

use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::Card;
use crate::Error;
use crate::cuda::CudaError;

/// The driver's version from which on graphs have such launches.
const LEAST_DRIVER: i32 = 12_030;

/// The first of the calls by which a kernel waits: `common.cuh`, `ptx.cuh`.
const WAITS: [&str; 2] = ["in_turn();", "ptx::wait_for_kernel_before();"];

/// Whether kernels that wait are launched early.
pub(crate) struct Early(AtomicBool);

impl Early {
    pub(super) fn new(wanted: bool, card: &Card) -> Self {
        Self(AtomicBool::new(wanted && card.capability >= (9, 0) && card.driver >= LEAST_DRIVER))
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Where a call with early launches failed: whether it is the driver that does not know them, which is then left alone.
    pub(super) fn give_up(&self, fault: &Error) -> bool {
        let refused = matches!(fault, Error::Cuda(CudaError::Call { fault, .. })
            if ["CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE"].iter().any(|name| fault.starts_with(name)));
        refused && self.0.swap(false, Ordering::Relaxed)
    }
}

/// Whether a kernel waits for the one before: in every definition of it, all threads come to a call that does, in the
/// kernel's own body, with no branch around it and no `return` in front of it.
pub(super) fn waits(code: &str, entry: &str) -> bool {
    let mut bodies = definitions(code).filter(|(name, _)| *name == entry).peekable();
    bodies.peek().is_some() && bodies.all(|(_, body)| body_waits(body))
}

/// All kernels of a source: their names, and what follows the brace that begins their body.
pub(super) fn definitions(code: &str) -> impl Iterator<Item = (&str, &str)> {
    code.split("__global__").skip(1).filter_map(|definition| {
        let (head, body) = definition.split_once('{')?;
        // The parameters' parenthesis is the last one that opens at the outermost level: others are those of launch bounds.
        let (mut depth, mut opens) = (0, 0);
        for (at, letter) in head.char_indices() {
            match letter {
                '(' if depth == 0 => (depth, opens) = (1, at),
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
        }
        let name = head[..opens]
            .trim_end()
            .rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .next()?;
        Some((name, body))
    })
}

fn body_waits(body: &str) -> bool {
    let mut depth = 0_usize;
    for line in body.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if depth == 0 && WAITS.contains(&line) {
            return true;
        }
        if line.contains("return") {
            return false;
        }
        for letter in line.chars() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => return false,
                '}' => depth -= 1,
                _ => {}
            }
        }
        // A branch or loop without braces, whose statement the next line is.
        if depth == 0 && !line.is_empty() && !line.ends_with([';', '}', '{']) && !line.starts_with('#') {
            let open = ["if", "else", "for", "while", "do"];
            let word = line.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
            if open.contains(&word) {
                return false;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::sources::SOURCES;

    /// Sources with kernels that are launched behind the end of the kernel before.
    const ORDINARY: [&str; 2] = ["ceilings.cu", "clock.cu"];

    #[test]
    fn kernels_of_all_other_sources_wait() {
        for source in SOURCES.iter().filter(|source| !ORDINARY.contains(&source.name)) {
            let kernels: Vec<(&str, &str)> = definitions(source.code).collect();
            assert_eq!(
                kernels.len(),
                source.code.matches("extern \"C\" __global__").count(),
                "{}",
                source.name
            );
            assert!(!kernels.is_empty());
            for (name, _) in kernels {
                assert!(waits(source.code, name), "{name} in {} begins with in_turn();", source.name);
            }
        }
    }

    #[test]
    fn nothing_is_read_as_if_it_never_changed() {
        let codes = SOURCES.iter().map(|source| (source.name, source.code));
        for (name, code) in codes.chain(crate::cuda::sources::HEADERS.iter().copied()) {
            for word in ["__ldg", "__restrict__", ".nc."] {
                assert!(!code.contains(word), "{name} has {word}");
            }
        }
    }

    #[test]
    fn what_waits_is_told_from_what_does_not() {
        let kernel = |body: &str| {
            let code = format!(
                "extern \"C\" __global__ void __launch_bounds__((N / 4 + 31) / 32 * 32)\ncombine(float *x, int n) {{\n{body}\n}}\n\
                 extern \"C\" __global__ void other(int *x) {{\n    in_turn();\n    x[0] = 1;\n}}\n"
            );
            assert!(waits(&code, "other") && !waits(&code, "oth") && !waits(&code, "x"));
            waits(&code, "combine")
        };
        assert!(kernel("    in_turn();\n    x[0] = 1;"));
        assert!(kernel(
            "    int i = 3; // return\n    for (int k = 0; k < 3; k++) {\n        i++;\n    }\n    ptx::wait_for_kernel_before();"
        ));
        assert!(kernel("#if N == 3\n    int i = 3;\n#endif\n    in_turn();"));
        assert!(!kernel("    x[0] = 1;"));
        assert!(!kernel("    // in_turn();\n    x[0] = 1;"));
        assert!(!kernel("    if (n == 0) return;\n    in_turn();"));
        assert!(!kernel("    if (n == 0) {\n    in_turn();\n    }"));
        assert!(!kernel("    if (n == 0)\n    in_turn();"));
        assert!(!kernel("    x[0] = 1;\n}\nstatic void f() {\n    in_turn();"));
    }

    #[test]
    fn all_definitions_of_a_kernel_wait_or_it_does_not() {
        let one = "__global__ void f(int a) {\n    in_turn();\n}\n";
        let other = "__global__ void f(int a) {\n    a = 1;\n}\n";
        assert!(waits(one, "f") && waits(&format!("#if A\n{one}#else\n{one}#endif"), "f"));
        assert!(!waits(&format!("#if A\n{one}#else\n{other}#endif"), "f"));
    }
}
