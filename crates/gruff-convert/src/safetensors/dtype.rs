use half::{bf16, f16};

/// How the values of a tensor in a safetensors file are stored; little-endian, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    BF16,
    /// IEEE double precision.
    F64,
}

impl Dtype {
    /// Every type whose values can be read.
    pub const ALL: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64];

    /// The name that headers have.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::BF16 => "BF16",
            Dtype::F64 => "F64",
        }
    }

    /// The name that torch has for it, as `config.json` states it.
    pub const fn torch_name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::BF16 => "bfloat16",
            Dtype::F64 => "float64",
        }
    }

    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::F32 => 4,
            Dtype::F64 => 8,
        }
    }

    /// The type with this name in a header.
    pub fn named(name: &str) -> Option<Self> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Reads as many values as `out` holds from as many stored ones.
    pub(crate) fn unpack(self, bytes: &[u8], out: &mut [f32]) {
        fn each<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
                *value = read(*bytes);
            }
        }
        match self {
            Dtype::F32 => each(bytes, out, f32::from_le_bytes),
            Dtype::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Dtype::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        }
    }

    /// Appends the stored form of `values`.
    pub(crate) fn pack(self, values: &[f32], out: &mut Vec<u8>) {
        for value in values {
            match self {
                Dtype::F32 => out.extend_from_slice(&value.to_le_bytes()),
                Dtype::F16 => out.extend_from_slice(&f16::from_f32(*value).to_le_bytes()),
                Dtype::BF16 => out.extend_from_slice(&bf16::from_f32(*value).to_le_bytes()),
                Dtype::F64 => out.extend_from_slice(&f64::from(*value).to_le_bytes()),
            }
        }
    }
}
