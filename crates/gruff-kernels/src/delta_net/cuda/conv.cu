// Causal convolution over each sequence, continuing from its slot; gates.

#include "common.cuh"

// A thread a channel, a block a token and some channels. With `keep`, every sequence has one token, which takes its
// place in the ring at once: its row is read by the same threads only.
extern "C" __global__ void causal_conv(
    const float *x, i64 x_stride, const float *weight, float *ring, int ring_rows, float *out, i64 out_stride,
    const int *sequences, const int *owners, int channels, int taps, int keep
) {
    in_turn();
    int token = blockIdx.x, channel = blockIdx.y * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const int *sequence = sequences + owners[token] * 8;
    int start = sequence[0], past = sequence[2];
    int position = past + token - start;
    float *slot = ring + (i64)sequence[3] * ring_rows * channels + channel;
    float sum = 0.0f;
    for (int j = max(0, taps - 1 - position); j < taps; j++) {
        int at = position + j + 1 - taps;
        float value = at < past ? slot[(i64)(at % ring_rows) * channels]
                                : x[(i64)(start + at - past) * x_stride + channel];
        sum = fmaf(weight[channel * taps + j], value, sum);
    }
    if (keep) slot[(i64)(position % ring_rows) * channels] = x[token * x_stride + channel];
    out[token * out_stride + channel] = silu(sum);
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
