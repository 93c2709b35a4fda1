//! BERT's encoder from the operations of language models.

use std::error::Error;
use std::path::Path;

use gruff::floors::blocks::BlockType;
use gruff::floors::convert::safetensors::SafetensorsFile;
use gruff::floors::kernels::attention::{self, AttentionSpec};
use gruff::floors::kernels::matmul::{self, Glu, Projection};
use gruff::floors::kernels::{
    Activation, DType, Device, KvDtype, KvLayer, PAGE_LEN, PackedTensor, Step, StepSequence, Tensor,
    elementwise, embedding, norm,
};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const LAYERS: usize = 6;
const HIDDEN: usize = 384;
const HEADS: usize = 12;
const EPS: f32 = 1e-12;

struct Linear {
    weight: PackedTensor,
    bias: Tensor,
}

struct LayerNorm {
    weight: Tensor,
    bias: Vec<f32>,
}

struct Layer {
    qkv: [Linear; 3],
    attention: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

pub(crate) struct MiniLm {
    device: Device,
    words: PackedTensor,
    /// Of positions, with that of the first segment added.
    positions: Vec<f32>,
    norm: LayerNorm,
    layers: Vec<Layer>,
    /// `-1 / HIDDEN` everywhere: its product with a row is minus the row's mean, `HIDDEN` times.
    minus_mean: PackedTensor,
    cache: KvLayer,
}

/// Packs a matrix in blocks of `kind`.
fn pack(device: &Device, values: &[f32], kind: BlockType, rows: usize) -> Result<PackedTensor> {
    let columns = values.len() / rows;
    let mut bytes = vec![0; rows * kind.row_bytes(columns)?];
    kind.pack(values, &mut bytes)?;
    Ok(PackedTensor::from_bytes(device, &bytes, kind, [1, rows, columns])?)
}

impl MiniLm {
    /// Reads the weights, and packs every matrix in blocks of `kind`.
    pub(crate) fn load(folder: &Path, device: &Device, kind: BlockType) -> Result<Self> {
        let file = SafetensorsFile::open(&folder.join("model.safetensors"))?;
        let linear = |name: &str| -> Result<Linear> {
            let bias = file.read_f32(&format!("{name}.bias"))?;
            let weight = pack(device, &file.read_f32(&format!("{name}.weight"))?, kind, bias.len())?;
            Ok(Linear { weight, bias: device.tensor_f32(&bias, &[bias.len()])? })
        };
        let layer_norm = |name: &str| -> Result<LayerNorm> {
            let weight = device.tensor_f32(&file.read_f32(&format!("{name}.weight"))?, &[HIDDEN])?;
            Ok(LayerNorm { weight, bias: file.read_f32(&format!("{name}.bias"))? })
        };
        let layer = |index: usize| -> Result<Layer> {
            let name = |part: &str| format!("encoder.layer.{index}.{part}");
            Ok(Layer {
                qkv: [
                    linear(&name("attention.self.query"))?,
                    linear(&name("attention.self.key"))?,
                    linear(&name("attention.self.value"))?,
                ],
                attention: linear(&name("attention.output.dense"))?,
                attention_norm: layer_norm(&name("attention.output.LayerNorm"))?,
                intermediate: linear(&name("intermediate.dense"))?,
                output: linear(&name("output.dense"))?,
                output_norm: layer_norm(&name("output.LayerNorm"))?,
            })
        };
        let words = file.read_f32("embeddings.word_embeddings.weight")?;
        let segment = file.read_f32("embeddings.token_type_embeddings.weight")?;
        let mut positions = file.read_f32("embeddings.position_embeddings.weight")?;
        for row in positions.chunks_exact_mut(HIDDEN) {
            row.iter_mut().zip(&segment).for_each(|(value, segment)| *value += segment);
        }
        let pages = (positions.len() / HIDDEN).div_ceil(PAGE_LEN);
        let minus_mean = vec![-1.0 / HIDDEN as f32; HIDDEN * HIDDEN];
        Ok(Self {
            words: pack(device, &words, kind, words.len() / HIDDEN)?,
            norm: layer_norm("embeddings.LayerNorm")?,
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            minus_mean: pack(device, &minus_mean, BlockType::F32, HIDDEN)?,
            cache: KvLayer::new(device, KvDtype::F32, pages, HEADS, HIDDEN / HEADS, HIDDEN / HEADS)?,
            device: device.clone(),
            positions,
        })
    }

    /// The embedding of each text: the mean of its hidden states, of length 1.
    pub(crate) fn embed(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        texts.iter().map(|ids| self.embed_one(ids)).collect()
    }

    fn embed_one(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let len = ids.len();
        let x = self.device.zeros(DType::F32, &[len, HIDDEN])?;
        embedding::embed(ids, &self.words, 1.0, &x)?;
        elementwise::add(&x, &self.device.tensor_f32(&self.positions[..len * HIDDEN], &[len, HIDDEN])?)?;
        self.layer_norm(&x, &self.norm)?;
        for layer in &self.layers {
            let attended = self.attend(layer, &x)?;
            elementwise::add(&x, &self.linear(&layer.attention, &attended)?)?;
            self.layer_norm(&x, &layer.attention_norm)?;
            let inner = self.linear(&layer.intermediate, &x)?;
            // GELU, as the gate of a gated unit whose other half is 1.
            let ones = self.device.tensor_f32(&vec![1.0; inner.len()], inner.shape())?;
            elementwise::glu(&inner, &ones, Glu::GeluTanh, &inner)?;
            elementwise::add(&x, &self.linear(&layer.output, &inner)?)?;
            self.layer_norm(&x, &layer.output_norm)?;
        }
        let mut mean = vec![0.0_f64; HIDDEN];
        for row in x.to_vec_f32()?.chunks_exact(HIDDEN) {
            mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += f64::from(*value));
        }
        let length = mean.iter().map(|value| value * value).sum::<f64>().sqrt();
        Ok(mean.iter().map(|value| (value / length) as f32).collect())
    }

    fn linear(&self, linear: &Linear, x: &Tensor) -> Result<Tensor> {
        let out = self.device.zeros(DType::F32, &[x.shape()[0], linear.weight.rows()])?;
        matmul::linear(&Activation::new(x)?, &linear.weight, Some(&linear.bias), &out)?;
        Ok(out)
    }

    /// LayerNorm, in place: less the mean, then an RMS norm, then the bias.
    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Result<()> {
        let before = self.device.zeros(DType::F32, x.shape())?;
        elementwise::copy(x, &before)?;
        matmul::linear_add(&Activation::new(&before)?, &self.minus_mean, x)?;
        norm::rms_norm(x, &norm.weight, EPS, x)?;
        let bias = norm.bias.repeat(x.shape()[0]);
        Ok(elementwise::add(x, &self.device.tensor_f32(&bias, x.shape())?)?)
    }

    /// Attention in which every token sees every other. The kernel lets a token see what came before it, so each query
    /// goes in as the last token of a sequence of its own, all of them over the same pages.
    fn attend(&self, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let len = x.shape()[0];
        let outs: Vec<Tensor> = (0..3)
            .map(|_| self.device.zeros(DType::F32, &[len, HIDDEN]))
            .collect::<std::result::Result<_, _>>()?;
        let projections: Vec<Projection> = layer
            .qkv
            .iter()
            .zip(&outs)
            .map(|(linear, out)| Projection { weight: &linear.weight, bias: Some(&linear.bias), out })
            .collect();
        matmul::linear_many(&Activation::new(x)?, &projections)?;
        let [q, k, v] = [&outs[0], &outs[1], &outs[2]].map(|tensor| tensor.split_last(HEADS));
        let pages: Vec<u32> = (0..len.div_ceil(PAGE_LEN) as u32).collect();
        let sequence = |len, past, slot| StepSequence { len, past, slot, pages: pages.clone() };
        let whole = Step::text(vec![0; len], vec![sequence(len, 0, 0)])?;
        attention::write_kv(&whole, &k?, &v?, &self.cache)?;
        let last = (0..len).map(|slot| sequence(1, len - 1, slot)).collect();
        let queries = Step::text(vec![0; len], last)?;
        let spec =
            AttentionSpec { scale: ((HIDDEN / HEADS) as f32).sqrt().recip(), window: None, softcap: None };
        let out = self.device.zeros(DType::F32, &[len, HEADS, HIDDEN / HEADS])?;
        attention::attention(&queries, &q?, &self.cache, &spec, &out)?;
        Ok(out.reshape(&[len, HIDDEN])?)
    }
}
