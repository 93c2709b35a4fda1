//! Models that are at hand and not loaded: those of the Hub's cache.

use std::fmt;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use axum::http::StatusCode;
use gruff::{
    AutoModelForCausalLM, AutoTokenizer, Checkpoint, FromCheckpoint, Hub, LoadOptions, ModelFiles, ModelId,
};

use crate::ServedModel;
use crate::api_error::ApiError;

/// The models of a cache, which a server loads when a request names them. Nothing is ever downloaded for a request.
pub struct Library {
    hub: Hub,
    options: LoadOptions,
}

/// A model of the library, as lists have it.
pub(crate) struct Shelved {
    pub(crate) id: String,
    /// Its only or first part, with links followed.
    pub(crate) file: PathBuf,
    pub(crate) bytes: u64,
    /// Seconds since 1970 when its file was written.
    pub(crate) created: u64,
}

impl Library {
    /// The models in huggingface_hub's cache, or in the one in `cache_dir`. `options` are those that models are loaded
    /// with; a context longer than a model was trained for is cut to that.
    ///
    /// # Errors
    /// [`gruff::Error::Hub`] when there is no place for a cache.
    pub fn new(cache_dir: Option<PathBuf>, options: LoadOptions) -> gruff::Result<Self> {
        let mut hub = Hub::builder().local_files_only(true);
        if let Some(folder) = cache_dir {
            hub = hub.cache_dir(folder);
        }
        Ok(Self { hub: hub.build()?, options })
    }

    /// The files that a name means.
    pub(crate) fn find(&self, name: &str) -> Option<ModelFiles> {
        self.hub.resolve(&ModelId::parse_hub(name).ok()?).ok()
    }

    /// What can be asked for.
    pub(crate) fn list(&self) -> Vec<Shelved> {
        let files = self.hub.cache().models().unwrap_or_else(|error| {
            tracing::warn!("the models of the cache cannot be listed: {error}");
            Vec::new()
        });
        let shelved = |file: gruff::floors::hub::CachedFile| {
            let written = std::fs::metadata(&file.path).and_then(|data| data.modified()).ok();
            let created = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let created = created.map_or(0, |time| time.as_secs());
            Shelved { id: file.id(), file: file.blob, bytes: file.size, created }
        };
        files.into_iter().map(shelved).collect()
    }

    /// Opens a model. Its weights are mapped and take memory when they are first read.
    pub(crate) fn open(&self, files: ModelFiles) -> Result<ServedModel, ApiError> {
        let id = files.id.clone();
        let open = || -> gruff::Result<ServedModel> {
            let checkpoint = Checkpoint::open(files)?;
            let tokenizer = AutoTokenizer::from_checkpoint(&checkpoint, &self.options)?;
            let model = AutoModelForCausalLM::from_checkpoint(&checkpoint, &self.options)?;
            Ok(ServedModel::new(id.clone(), model.into(), tokenizer).read_from(checkpoint.files()))
        };
        open().map_err(|error| {
            // It may name folders of this machine.
            tracing::error!("{id} cannot be loaded: {error}");
            let message = "the model cannot be loaded; the server's log says why";
            ApiError {
                param: Some("model".to_owned()),
                ..ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, "model_not_loadable", message)
            }
        })
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("cache", &self.hub.cache().root()).finish_non_exhaustive()
    }
}
