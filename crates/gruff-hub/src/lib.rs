//! Model names to files on disk, in huggingface_hub's cache layout.
//!
//! [`ModelId`] reads what people write (a path, `owner/repo:Q4_K_M`, `owner/repo@revision:file.gguf`, …), [`Hub`]
//! turns it into paths: from the disk, from the cache that huggingface_hub and transformers use too, or from the Hub.
//! Downloads resume, are checked against the checksum that the Hub announces, and get their final name only when they
//! are whole. [`Cache::list`] tells what is there already.
//!
//! Everything a server says is untrusted: names, sizes, redirects. The access token goes to the Hub's own scheme, host
//! and port only.

mod cache;
mod choose;
mod download;
mod environment;
mod error;
mod http;
mod hub;
mod id;
mod local;
mod name;
mod partial;
mod progress;
mod remote_file;
mod retry;

pub use cache::{Cache, CachedFile};
pub use choose::{GgufSet, RepoFile};
pub use environment::{DEFAULT_ENDPOINT, Environment};
pub use error::Error;
pub use hub::{Hub, HubBuilder, ModelFiles, RepoListing};
pub use id::{ModelId, Select};
pub use name::RepoId;
pub use progress::{Progress, Silent};
pub use remote_file::RemoteFile;
pub use retry::Retry;

/// Sampling defaults that the authors of a model recommend, in transformers' format.
const GENERATION_CONFIG: &str = "generation_config.json";

/// Compiles the example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/models.md")]
struct Guide;
