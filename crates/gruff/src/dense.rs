use gruff_convert::Dense;

use crate::{Checkpoint, Error, Result};

/// How the weights of a GGUF checkpoint are taken, as transformers' class of this name says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GgufConfig {
    /// Unpack weights to dense tensors, by transformers' names and in its order. Otherwise they stay packed.
    pub dequantize: bool,
}

impl Checkpoint {
    /// The weights as dense tensors by transformers' names, each unpacked when it is asked for.
    ///
    /// ```no_run
    /// use gruff::{AutoTokenizer, GgufConfig};
    ///
    /// let checkpoint = AutoTokenizer::from_pretrained("unsloth/Qwen3.5-4B-GGUF:Q4_K_M").checkpoint()?;
    /// let weights = checkpoint.state_dict(GgufConfig { dequantize: true })?;
    /// for name in weights.names() {
    ///     println!("{name} {:?}", weights.shape(name));
    /// }
    /// let up: Vec<f32> = weights.values("model.layers.0.mlp.up_proj.weight")?;
    /// # Ok::<(), gruff::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] unless `config` says to dequantize; [`Error::Convert`] for a file whose tensors are not those
    /// of its architecture.
    pub fn state_dict(&self, config: GgufConfig) -> Result<Dense<'_>> {
        if !config.dequantize {
            let fault = "weights stay packed unless GgufConfig says to dequantize them; set `dequantize: true`, or read \
                         them from the container: `Checkpoint::gguf`";
            return Err(Error::Option(fault.to_owned()));
        }
        Ok(Dense::new(self.gguf())?)
    }
}
