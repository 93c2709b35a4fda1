// Causal convolution over each sequence, continuing from its slot; gates.

#include "common.cuh"

// Where a step's inputs, weights and rings are.
struct Conv {
    const float *x;
    i64 x_stride;
    const float *weight;
    float *ring;
    i64 ring_rows;
    float *out;
    i64 out_stride;
    const int *sequences, *owners;
    int channels, taps;
};

// One channel of one token.
static __device__ __forceinline__ void convolve(const Conv &conv, int token, int channel, bool keep) {
    const int *sequence = conv.sequences + conv.owners[token] * 8;
    int start = sequence[0], past = sequence[2], rows = (int)conv.ring_rows;
    int position = past + token - start;
    float *slot = conv.ring + (i64)sequence[3] * rows * conv.channels + channel;
    float sum = 0.0f;
    for (int j = max(0, conv.taps - 1 - position); j < conv.taps; j++) {
        int at = position + j + 1 - conv.taps;
        float value = at < past ? slot[(i64)(at % rows) * conv.channels]
                                : conv.x[(i64)(start + at - past) * conv.x_stride + channel];
        sum = fmaf(conv.weight[channel * conv.taps + j], value, sum);
    }
    if (keep) slot[(i64)(position % rows) * conv.channels] = conv.x[token * conv.x_stride + channel];
    conv.out[token * conv.out_stride + channel] = silu(sum);
}

// A thread a channel, a block a token and some channels. With `keep`, every sequence has one token, which takes its
// place in the ring at once: its row is read by the same threads only.
extern "C" __global__ void causal_conv(Conv conv, int keep) {
    in_turn();
    int channel = blockIdx.y * blockDim.x + threadIdx.x;
    if (channel < conv.channels) convolve(conv, blockIdx.x, channel, keep);
}

// For prompts: a thread a channel of RUN tokens in a row, whose inputs it reads once where they are all the step's.
constexpr int RUN = 16;

extern "C" __global__ void causal_conv_runs(Conv conv, int tokens) {
    in_turn();
    const int channel = blockIdx.y * blockDim.x + threadIdx.x, first = blockIdx.x * RUN;
    if (channel >= conv.channels) return;
    constexpr int TAPS = 4;
    const int owner = conv.owners[first];
    if (conv.taps != TAPS || first + RUN > tokens || conv.owners[first + RUN - 1] != owner ||
        first - conv.sequences[owner * 8] < TAPS - 1) {
        for (int token = first; token < min(first + RUN, tokens); token++) convolve(conv, token, channel, false);
        return;
    }
    const float *from = conv.x + (i64)(first - TAPS + 1) * conv.x_stride + channel;
    float values[RUN + TAPS - 1], weight[TAPS];
#pragma unroll
    for (int i = 0; i < RUN + TAPS - 1; i++) values[i] = from[i * conv.x_stride];
#pragma unroll
    for (int j = 0; j < TAPS; j++) weight[j] = conv.weight[channel * TAPS + j];
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++) sum = fmaf(weight[j], values[i + j], sum);
        conv.out[(first + i) * conv.out_stride + channel] = silu(sum);
    }
}

// The last inputs of each sequence into its ring: block x is sequence and how far from the end.
extern "C" __global__ void keep_inputs(
    const float *x, i64 x_stride, float *ring, int ring_rows, const int *sequences, int channels
) {
    in_turn();
    int channel = blockIdx.y * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const int *sequence = sequences + blockIdx.x / ring_rows * 8;
    int back = blockIdx.x % ring_rows, len = sequence[1];
    if (back >= len) return;
    int i = len - 1 - back, position = sequence[2] + i;
    ring[((i64)sequence[3] * ring_rows + position % ring_rows) * channels + channel] =
        x[(i64)(sequence[0] + i) * x_stride + channel];
}

extern "C" __global__ void delta_gates(
    const float *a, i64 a_stride, const float *b, i64 b_stride, const float *dt_bias, const float *a_neg, float *decay,
    i64 decay_stride, float *beta, i64 beta_stride, int tokens, int heads
) {
    in_turn();
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (i64)tokens * heads) return;
    int token = (int)(i / heads), head = (int)(i - (i64)token * heads);
    float x = a[token * a_stride + head] + dt_bias[head];
    float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    float step = sigmoid(b[token * b_stride + head]);
    decay[token * decay_stride + head] = a_neg[head] * softplus;
    beta[token * beta_stride + head] = step;
}
