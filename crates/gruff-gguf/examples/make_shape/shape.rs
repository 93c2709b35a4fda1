//! The hyper-parameters of the Qwen3.5 models and the tensors that follow from them.

/// Width of a delta-net head, of keys and values alike.
pub(crate) const STATE: u64 = 128;
/// Width of an attention head.
pub(crate) const HEAD: u64 = 256;
/// Delta-net key heads, the same in every size.
pub(crate) const KEY_HEADS: u64 = 16;
/// Taps of the causal convolution.
pub(crate) const CONV: u64 = 4;
/// One full-attention layer closes each run of this many.
pub(crate) const INTERVAL: u32 = 4;
/// Tokens of the vocabulary.
pub(crate) const VOCABULARY: u64 = 248_320;

/// The part of a layer after its mixer.
pub(crate) enum FeedForward {
    /// SwiGLU of this width.
    Dense(u64),
    /// Routed experts beside a shared one.
    Experts { count: u64, used: u64, width: u64, shared: u64 },
}

/// A model size.
pub(crate) struct Shape {
    pub name: &'static str,
    pub layers: u32,
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub value_heads: u64,
    pub feed_forward: FeedForward,
    pub tied: bool,
}

/// How the values of a tensor are spread.
#[derive(Clone, Copy)]
pub(crate) enum Values {
    /// A matrix: around 0 with this standard deviation.
    Weights(f32),
    /// A norm: near 1.
    Norm,
    /// Log-normal, negative: the logarithm of a delta net's decay per unit of time.
    Decay,
    /// Around -4.5, so that softplus gives time steps like those of trained models.
    TimeStep,
}

/// What a tensor is to the rule that chooses its block type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Never quantized.
    Exact,
    /// The embedding, when an output matrix exists beside it.
    Embedding,
    /// The output matrix, or the embedding when it serves as one.
    Output,
    /// The value projection of a layer, alone or fused with query and key.
    Value(u32),
    /// The last matrix of a layer's feed-forward, or of its experts.
    Down(u32),
    /// Any other matrix.
    Matrix,
}

/// A tensor to write.
pub(crate) struct Tensor {
    pub name: String,
    /// Row length first.
    pub shape: Vec<u64>,
    pub role: Role,
    pub values: Values,
}

impl Shape {
    /// The model called `name`, in any case.
    pub(crate) fn named(name: &str) -> Result<Shape, String> {
        let dense = |name, layers, hidden, width, heads, kv_heads, value_heads, tied| Shape {
            name,
            layers,
            hidden,
            heads,
            kv_heads,
            value_heads,
            feed_forward: FeedForward::Dense(width),
            tied,
        };
        let experts = FeedForward::Experts { count: 256, used: 8, width: 512, shared: 512 };
        let all = [
            dense("0.8B", 24, 1024, 3584, 8, 2, 16, true),
            dense("2B", 24, 2048, 6144, 8, 2, 16, true),
            dense("4B", 32, 2560, 9216, 16, 4, 32, true),
            dense("9B", 32, 4096, 12288, 16, 4, 32, false),
            dense("27B", 64, 5120, 17408, 24, 4, 48, false),
            Shape { feed_forward: experts, ..dense("35B-A3B", 40, 2048, 0, 16, 2, 32, false) },
        ];
        let names: Vec<&str> = all.iter().map(|shape| shape.name).collect();
        let unknown = format!("no model is called {name:?}; there are {}", names.join(", "));
        all.into_iter().find(|shape| shape.name.eq_ignore_ascii_case(name)).ok_or(unknown)
    }

    /// `general.architecture`.
    pub(crate) fn architecture(&self) -> &'static str {
        match self.feed_forward {
            FeedForward::Dense(_) => "qwen35",
            FeedForward::Experts { .. } => "qwen35moe",
        }
    }

    /// Whether layer `i` is a delta net, not full attention.
    pub(crate) fn is_linear(&self, i: u32) -> bool {
        !(i + 1).is_multiple_of(INTERVAL)
    }

    /// Width of all value heads of a delta net together.
    pub(crate) fn inner(&self) -> u64 {
        STATE * self.value_heads
    }

    /// Every tensor, in the order of the layers.
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        let mut list = List { tensors: Vec::new(), prefix: String::new() };
        // Twice the deviation that keeps the variance: logits spread enough for one token to stand out.
        let embedding = Values::Weights(2.0 / (self.hidden as f32).sqrt());
        let role = if self.tied { Role::Output } else { Role::Embedding };
        list.add("token_embd.weight", &[self.hidden, VOCABULARY], role, embedding);
        for i in 0..self.layers {
            list.prefix = format!("blk.{i}.");
            list.norm("attn_norm.weight", self.hidden);
            if self.is_linear(i) {
                self.delta_net(&mut list, i);
            } else {
                self.attention(&mut list, i);
            }
            list.norm("post_attention_norm.weight", self.hidden);
            self.feed_forward(&mut list, i);
        }
        list.prefix.clear();
        list.norm("output_norm.weight", self.hidden);
        if !self.tied {
            list.add("output.weight", &[self.hidden, VOCABULARY], Role::Output, embedding);
        }
        list.tensors
    }

    fn delta_net(&self, list: &mut List, i: u32) {
        let (hidden, inner, heads) = (self.hidden, self.inner(), self.value_heads);
        let channels = 2 * STATE * KEY_HEADS + inner;
        list.matrix("attn_qkv.weight", &[hidden, channels], Role::Value(i), 1.0);
        list.matrix("attn_gate.weight", &[hidden, inner], Role::Matrix, 1.0);
        list.matrix("ssm_conv1d.weight", &[CONV, channels], Role::Exact, 1.0);
        list.add("ssm_dt.bias", &[heads], Role::Exact, Values::TimeStep);
        list.add("ssm_a", &[heads], Role::Exact, Values::Decay);
        list.matrix("ssm_alpha.weight", &[hidden, heads], Role::Matrix, 1.0);
        list.matrix("ssm_beta.weight", &[hidden, heads], Role::Matrix, 1.0);
        list.norm("ssm_norm.weight", STATE);
        list.matrix("ssm_out.weight", &[inner, hidden], Role::Matrix, self.residual());
    }

    fn attention(&self, list: &mut List, i: u32) {
        let (hidden, kv) = (self.hidden, HEAD * self.kv_heads);
        // Queries and their gates side by side.
        list.matrix("attn_q.weight", &[hidden, 2 * HEAD * self.heads], Role::Matrix, 1.0);
        list.matrix("attn_k.weight", &[hidden, kv], Role::Matrix, 1.0);
        list.matrix("attn_v.weight", &[hidden, kv], Role::Value(i), 1.0);
        list.norm("attn_q_norm.weight", HEAD);
        list.norm("attn_k_norm.weight", HEAD);
        list.matrix("attn_output.weight", &[HEAD * self.heads, hidden], Role::Matrix, self.residual());
    }

    fn feed_forward(&self, list: &mut List, i: u32) {
        let hidden = self.hidden;
        match self.feed_forward {
            FeedForward::Dense(width) => {
                list.matrix("ffn_gate.weight", &[hidden, width], Role::Matrix, 1.0);
                list.matrix("ffn_up.weight", &[hidden, width], Role::Matrix, 1.0);
                list.matrix("ffn_down.weight", &[width, hidden], Role::Down(i), self.residual());
            }
            FeedForward::Experts { count, width, shared, .. } => {
                list.matrix("ffn_gate_inp.weight", &[hidden, count], Role::Exact, 1.0);
                list.matrix("ffn_gate_exps.weight", &[hidden, width, count], Role::Matrix, 1.0);
                list.matrix("ffn_up_exps.weight", &[hidden, width, count], Role::Matrix, 1.0);
                list.matrix("ffn_down_exps.weight", &[width, hidden, count], Role::Down(i), self.residual());
                list.matrix("ffn_gate_inp_shexp.weight", &[hidden], Role::Exact, 1.0);
                list.matrix("ffn_gate_shexp.weight", &[hidden, shared], Role::Matrix, 1.0);
                list.matrix("ffn_up_shexp.weight", &[hidden, shared], Role::Matrix, 1.0);
                list.matrix("ffn_down_shexp.weight", &[shared, hidden], Role::Down(i), self.residual());
            }
        }
    }

    /// Gain of the matrices that write to the residual stream: its variance grows by about one over all layers.
    fn residual(&self) -> f32 {
        1.0 / (2.0 * self.layers as f32).sqrt()
    }
}

/// Tensors of one layer after another.
struct List {
    tensors: Vec<Tensor>,
    prefix: String,
}

impl List {
    fn add(&mut self, name: &str, shape: &[u64], role: Role, values: Values) {
        let name = format!("{}{name}", self.prefix);
        self.tensors.push(Tensor { name, shape: shape.to_vec(), role, values });
    }

    /// A matrix that multiplies the variance of its input by the square of `gain`.
    fn matrix(&mut self, name: &str, shape: &[u64], role: Role, gain: f32) {
        self.add(name, shape, role, Values::Weights(gain / (shape[0] as f32).sqrt()));
    }

    fn norm(&mut self, name: &str, width: u64) {
        self.add(name, &[width], Role::Exact, Values::Norm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_its_tensors_and_parameters() {
        // Logs of the real checkpoints show 320 tensors and 752 M parameters (0.8B), 1.88 B (2B) and 733 tensors
        // (35B-A3B); the other figures pin what the table gives.
        let expected = [
            ("0.8B", 320, 752_393_024),
            ("2B", 320, 1_881_825_088),
            ("4B", 426, 4_205_751_296),
            ("9B", 427, 8_953_803_264),
            ("27B", 851, 26_895_998_464),
            ("35b-a3b", 733, 34_660_610_688),
        ];
        for (name, tensors, parameters) in expected {
            let made = Shape::named(name).unwrap().tensors();
            let count: u64 = made.iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum();
            assert_eq!((made.len(), count), (tensors, parameters), "{name}");
        }
        assert!(Shape::named("3B").err().unwrap().contains("27B"));
    }
}
