//! The table of all CUDA sources. Each stands beside its family's other kernels and is compiled by itself.

use super::error::CudaError;
use super::nvrtc::Nvrtc;
use crate::matmul::cuda::{MATVEC, vector_of_each_type};

/// Preprocessor constants of a variant, with their values.
pub(crate) type Defines = [(&'static str, i64)];

/// A CUDA C++ file.
pub(crate) struct Source {
    /// `norm.cu`.
    pub(crate) name: &'static str,
    pub(crate) code: &'static str,
    /// Options of the compiler besides those of all sources.
    pub(crate) options: &'static [&'static str],
    /// The variants that a check without a card compiles: every constant the source expects, with typical values.
    pub(crate) variants: &'static [&'static Defines],
}

/// What sources may include, by name.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("common.cuh", include_str!("common.cuh")),
    ("ptx.cuh", include_str!("ptx.cuh")),
    ("blocks.cuh", include_str!("blocks.cuh")),
    ("chunk.cuh", include_str!("../delta_net/cuda/chunk.cuh")),
    ("piece.cuh", include_str!("../delta_net/cuda/piece.cuh")),
    ("pieces.cuh", include_str!("../matmul/cuda/pieces.cuh")),
    ("packed.cuh", include_str!("../matmul/cuda/packed.cuh")),
    ("terms.cuh", include_str!("../matmul/cuda/terms.cuh")),
    ("tiles.cuh", include_str!("../matmul/cuda/tiles.cuh")),
    ("rows.cuh", include_str!("../matmul/cuda/rows.cuh")),
    ("pages.cuh", include_str!("../attention/cuda/pages.cuh")),
    ("tile.cuh", include_str!("../attention/cuda/tile.cuh")),
    ("keys.cuh", include_str!("../attention/cuda/keys.cuh")),
    ("queries.cuh", include_str!("../attention/cuda/queries.cuh")),
    ("spans.cuh", include_str!("../attention/cuda/spans.cuh")),
    ("results.cuh", include_str!("../attention/cuda/results.cuh")),
    ("rope.cuh", include_str!("../rope/cuda/rope.cuh")),
    ("rms.cuh", include_str!("../norm/cuda/rms.cuh")),
    ("row.cuh", include_str!("../delta_net/cuda/row.cuh")),
    ("product.cuh", include_str!("../matmul/cuda/product.cuh")),
];

/// All sources.
pub(crate) static SOURCES: &[&Source] = &[
    &super::ceilings::CEILINGS,
    &super::clock::CLOCK,
    &crate::attention::cuda::ATTENTION,
    &crate::attention::cuda::FLASH,
    &crate::attention::cuda::PREPARE,
    &crate::attention::cuda::WRITE,
    &crate::delta_net::cuda::CHUNKS,
    &crate::delta_net::cuda::CONV,
    &crate::delta_net::cuda::DELTA,
    &crate::delta_net::cuda::FACTORS,
    &crate::delta_net::cuda::KEEP,
    &crate::delta_net::cuda::NET,
    &crate::delta_net::cuda::SCAN,
    &crate::delta_net::cuda::TOKEN,
    &crate::elementwise::cuda::SOURCE,
    &crate::embedding::cuda::SOURCE,
    &crate::matmul::cuda::MATMUL,
    &crate::matmul::cuda::BATCH,
    &crate::matmul::cuda::FLOAT_FEW,
    &crate::matmul::cuda::FLOAT_MANY,
    &crate::matmul::cuda::MATVEC,
    &crate::matmul::cuda::PIECES,
    &crate::matmul::cuda::SCALAR,
    &crate::matmul::cuda::TERMS,
    &crate::moe::cuda::SOURCE,
    &crate::moe::cuda::route::SOURCE,
    &crate::norm::cuda::SOURCE,
    &crate::norm::cuda::MANY,
    &crate::rope::cuda::SOURCE,
    &crate::sampling::cuda::SOURCE,
];

impl Source {
    /// Options of a variant's compilation besides the architecture. Divisions and roots are IEEE's by default, and a
    /// product and a sum become one operation.
    pub(crate) fn options(&self, defines: &Defines) -> Vec<String> {
        let defines = defines.iter().map(|(name, value)| format!("--define-macro={name}={value}"));
        self.options.iter().map(|option| (*option).to_owned()).chain(defines).collect()
    }
}

/// One compiled variant of a source.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The source and its constants: `attention.cu KV=1`.
    pub name: String,
    /// The machine code, or what is wrong.
    pub result: Result<Vec<u8>, String>,
}

/// Compiles every source in every listed variant for an architecture such as `sm_90a`, without a card; `each` sees
/// them one by one.
///
/// # Errors
/// [`CudaError::NoCompiler`]; what goes wrong in a source is in its result.
pub fn compile_all(arch: &str, mut each: impl FnMut(&Compiled)) -> Result<Vec<Compiled>, CudaError> {
    let nvrtc = Nvrtc::find(i32::MAX)?;
    let mut all = Vec::new();
    let mut compile = |source: &Source, defines: &Defines| {
        let mut name = source.name.to_owned();
        for (constant, value) in defines {
            name += &format!(" {constant}={value}");
        }
        let result = nvrtc
            .compile(source.name, source.code, arch, &source.options(defines))
            .map_err(|error| error.to_string());
        all.push(Compiled { name, result });
        all.last().into_iter().for_each(&mut each);
    };
    for source in SOURCES {
        source.variants.iter().for_each(|defines| compile(source, defines));
    }
    vector_of_each_type().for_each(|defines| compile(&MATVEC, &defines));
    Ok(all)
}
