//! What a file may claim before it is refused.

/// Upper bounds on what the header of a file may claim.
///
/// Counts and lengths are also checked against the bytes left in the file before anything is allocated for
/// them, so the limits matter for large files only: they bound memory and time. The defaults leave room for
/// every model known today; raise one for a file that needs it.
///
/// ```
/// let mut limits = gruff_gguf::Limits::default();
/// limits.tensors = 1 << 20;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of one file's header: everything before tensor data. Default 1 GiB.
    pub header_bytes: u64,
    /// Key-value pairs in one file. Default 65,536.
    pub keys: u64,
    /// Bytes of a key. Default 65,535, as the format says.
    pub key_bytes: u64,
    /// Bytes of one string value, or of one string of an array. Default 64 MiB.
    pub string_bytes: u64,
    /// Elements of one array. Default 2^26.
    pub array_len: u64,
    /// Arrays within arrays: 1 allows flat arrays only. Default 3.
    pub array_depth: u32,
    /// Tensors in one file. Default 262,144.
    pub tensors: u64,
    /// Bytes of a tensor's name. The format says 64, image-generation files go to 127. Default 127.
    pub tensor_name_bytes: u64,
    /// `general.alignment`. Default 2 MiB, a huge page.
    pub alignment: u64,
    /// Parts of a split model. Default 1,024.
    pub parts: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            header_bytes: 1 << 30,
            keys: 1 << 16,
            key_bytes: (1 << 16) - 1,
            string_bytes: 1 << 26,
            array_len: 1 << 26,
            array_depth: 3,
            tensors: 1 << 18,
            tensor_name_bytes: 127,
            alignment: 1 << 21,
            parts: 1 << 10,
        }
    }
}
