//! Every parameter of a model: its name, shape and order in transformers, its name in GGUF.

use gruff_models::Names;

use super::Sizes;
use crate::layout::{Layout, Transpose, Values};

/// One parameter, or the same parameter of all experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// In transformers, without the prefix of a multimodal model: `model.layers.0.mlp.up_proj.weight`.
    pub(crate) name: String,
    /// In GGUF: `blk.0.ffn_up.weight`.
    pub(crate) tensor: String,
    /// In transformers, outermost first; of a stack of experts `[experts, rows, columns]`.
    pub(crate) shape: Vec<u64>,
    pub(crate) layout: Layout,
    /// Whether models may lack it.
    pub(crate) optional: bool,
    /// Whether it is a stack: transformers' files have one tensor an expert, or gates and ups of all in one.
    pub(crate) stacked: bool,
}

/// What a module of a layer is like.
struct Module {
    shape: Vec<u64>,
    layout: Layout,
    /// Whether the module's own name is the parameter's.
    bare: bool,
    optional: bool,
    bias: bool,
}

impl Module {
    fn new(shape: &[u64]) -> Option<Self> {
        let layout = Layout::default();
        Some(Module { shape: shape.to_vec(), layout, bare: false, optional: false, bias: false })
    }

    /// A projection, which some models give a bias.
    fn projection(shape: &[u64], layout: Layout) -> Option<Self> {
        Some(Module { layout, bias: true, ..Self::new(shape)? })
    }

    fn values(shape: &[u64], values: Values) -> Option<Self> {
        Some(Module { layout: Layout { values, ..Layout::default() }, ..Self::new(shape)? })
    }
}

/// All parameters of a model, in the order of the architecture's table, layer by layer.
pub(crate) fn parameters(architecture: &str, names: Names, sizes: &Sizes) -> Vec<Parameter> {
    let plan = Plan { architecture, sizes };
    let mut parameters = Vec::new();
    let is_layer = |(module, _): &&(&str, &str)| module.starts_with(LAYER);
    let (before, rest): (Vec<_>, Vec<_>) =
        names.0.iter().partition(|(module, _)| *module == "model.embed_tokens");
    plan.add(before.into_iter(), None, &mut parameters);
    for layer in 0..sizes.layers + sizes.mtp_layers {
        plan.add(rest.iter().copied().filter(is_layer), Some(layer), &mut parameters);
    }
    plan.add(rest.iter().copied().filter(|entry| !is_layer(entry)), None, &mut parameters);
    parameters
}

const LAYER: &str = "model.layers.N.";

struct Plan<'a> {
    architecture: &'a str,
    sizes: &'a Sizes,
}

impl Plan<'_> {
    fn add<'n>(
        &self,
        entries: impl Iterator<Item = &'n (&'n str, &'n str)>,
        layer: Option<u64>,
        out: &mut Vec<Parameter>,
    ) {
        for (module, tensor) in entries {
            let found = match (layer, module.strip_prefix(LAYER)) {
                (Some(layer), Some(own)) => self.layer_module(layer, own),
                (None, None) => self.outer_module(module),
                _ => None,
            };
            let Some(found) = found else { continue };
            let number = |text: &str| match layer {
                Some(layer) => text.replacen(".N.", &format!(".{layer}."), 1),
                None => text.to_owned(),
            };
            let (name, tensor) = (number(module), number(tensor));
            let Module { shape, layout, bare, optional, bias } = found;
            let stacked = shape.len() == 3 && module.contains(".experts.");
            if bias {
                let rows = Layout { columns: None, ..layout };
                out.push(Parameter {
                    name: format!("{name}.bias"),
                    tensor: format!("{tensor}.bias"),
                    shape: vec![shape[0]],
                    layout: rows,
                    optional: true,
                    stacked: false,
                });
            }
            let suffix = if bare { "" } else { ".weight" };
            // `ssm_dt.bias` has a suffix of its own.
            let tensor = if bare { tensor } else { format!("{tensor}.weight") };
            let name = format!("{name}{suffix}");
            out.push(Parameter { name, tensor, shape, layout, optional, stacked });
        }
    }

    /// Norms whose weights transformers holds less one.
    fn norm(&self, width: u64) -> Option<Module> {
        let zero_centred = matches!(self.architecture, "qwen35" | "qwen35moe" | "gemma3");
        Module::values(&[width], if zero_centred { Values::PlusOne } else { Values::Same })
    }

    fn outer_module(&self, module: &str) -> Option<Module> {
        let Sizes { vocab, hidden, tied, .. } = *self.sizes;
        match module {
            "model.embed_tokens" => Module::new(&[vocab, hidden]),
            "model.norm" => self.norm(hidden),
            "lm_head" => Some(Module { optional: tied, ..Module::new(&[vocab, hidden])? }),
            _ => None,
        }
    }

    fn layer_module(&self, layer: u64, module: &str) -> Option<Module> {
        let hidden = self.sizes.hidden;
        let is_mtp = layer >= self.sizes.layers;
        match module {
            "input_layernorm"
            | "post_attention_layernorm"
            | "pre_feedforward_layernorm"
            | "post_feedforward_layernorm" => return self.norm(hidden),
            // The first block for multi-token prediction has the inputs, all share them.
            "eh_proj" if layer == self.sizes.layers && is_mtp => return Module::new(&[hidden, 2 * hidden]),
            "enorm" | "hnorm" | "shared_head.norm" if layer == self.sizes.layers && is_mtp => {
                return self.norm(hidden);
            }
            _ => {}
        }
        let is_linear = self.sizes.is_linear.get(layer as usize).copied().unwrap_or(false);
        match module.split_once('.')? {
            ("self_attn", own) if !is_linear => self.attention(own),
            ("linear_attn", own) if is_linear => self.linear_attention(own),
            ("mlp", own) => self.feed_forward(own),
            _ => None,
        }
    }

    fn attention(&self, module: &str) -> Option<Module> {
        let Sizes { hidden, heads, kv_heads, head_dim, gated, qk_norm, .. } = *self.sizes;
        // GGUF's Llama turns pairs that lie side by side, transformers' the halves of a head.
        let pairs = |heads| {
            let order = Transpose { skip: 0, outer: heads, a: 2, b: head_dim / 2, inner: 1 };
            Layout { rows: (self.architecture == "llama").then_some(order), ..Layout::default() }
        };
        match module {
            "q_proj" => {
                let rows = heads * head_dim * if gated { 2 } else { 1 };
                Module::projection(&[rows, hidden], pairs(heads))
            }
            "k_proj" => Module::projection(&[kv_heads * head_dim, hidden], pairs(kv_heads)),
            "v_proj" => Module::projection(&[kv_heads * head_dim, hidden], Layout::default()),
            "o_proj" => Module::projection(&[hidden, heads * head_dim], Layout::default()),
            "q_norm" | "k_norm" if qk_norm => self.norm(head_dim),
            _ => None,
        }
    }

    fn linear_attention(&self, module: &str) -> Option<Module> {
        let hidden = self.sizes.hidden;
        let linear = self.sizes.linear?;
        // transformers groups value heads by key head; GGUF tiles them: value head h pairs with key head h mod Hk.
        let tiled = |skip, inner| {
            let ratio = linear.v_heads / linear.k_heads;
            (ratio > 1).then_some(Transpose { skip, outer: 1, a: linear.k_heads, b: ratio, inner })
        };
        let rows = |skip, inner, values| Layout { rows: tiled(skip, inner), columns: None, values };
        let with = |shape: &[u64], layout| Some(Module { layout, ..Module::new(shape)? });
        let bare = |shape: &[u64], layout| Some(Module { layout, bare: true, ..Module::new(shape)? });
        let same = Values::Same;
        match module {
            "in_proj_qkv" => with(&[linear.channels(), hidden], rows(2 * linear.keys(), linear.v_dim, same)),
            "in_proj_z" => with(&[linear.values(), hidden], rows(0, linear.v_dim, same)),
            "in_proj_b" | "in_proj_a" => with(&[linear.v_heads, hidden], rows(0, 1, same)),
            "conv1d" => {
                with(&[linear.channels(), 1, linear.kernel], rows(2 * linear.keys(), linear.v_dim, same))
            }
            "dt_bias" => bare(&[linear.v_heads], rows(0, 1, same)),
            "A_log" => bare(&[linear.v_heads], rows(0, 1, Values::NegExp)),
            "norm" => Module::new(&[linear.v_dim]),
            "out_proj" => {
                let layout = Layout { columns: tiled(0, linear.v_dim), ..Layout::default() };
                with(&[hidden, linear.values()], layout)
            }
            _ => None,
        }
    }

    fn feed_forward(&self, module: &str) -> Option<Module> {
        let Sizes { hidden, intermediate, .. } = *self.sizes;
        let Some(experts) = self.sizes.experts else {
            return match module {
                "gate_proj" | "up_proj" => Module::projection(&[intermediate, hidden], Layout::default()),
                "down_proj" => Module::projection(&[hidden, intermediate], Layout::default()),
                _ => None,
            };
        };
        match module {
            "gate" => Module::new(&[experts.count, hidden]),
            "experts.gate_proj" | "experts.up_proj" => Module::new(&[experts.count, experts.width, hidden]),
            "experts.down_proj" => Module::new(&[experts.count, hidden, experts.width]),
            "shared_expert_gate" => experts.shared_width.and_then(|_| Module::new(&[1, hidden])),
            "shared_expert.gate_proj" | "shared_expert.up_proj" => {
                Module::new(&[experts.shared_width?, hidden])
            }
            "shared_expert.down_proj" => Module::new(&[hidden, experts.shared_width?]),
            _ => None,
        }
    }
}
