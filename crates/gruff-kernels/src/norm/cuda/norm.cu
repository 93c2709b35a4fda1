// Norms over the innermost dimension: one group of threads a row, of THREADS threads. Sums go in a tree that depends on
// the width only: the group's size is chosen by the width. Those of `many.cu` are the same.

#include "pieces.cuh"
#include "rms.cuh"

// Rows of a block.
#define ROWS (256 / THREADS > 0 ? 256 / THREADS : 1)

static __device__ __forceinline__ float group_sum(float value) {
#if THREADS == 32
    return warp_sum(value);
#else
    __shared__ float scratch[32];
    return block_sum(value, scratch);
#endif
}

// What runs once waits for its own instructions: loops are short, and ask for some values before they use the first.
static __device__ __forceinline__ float square_sum(const float *x, int width, int lane) {
    float sum = 0.0f;
#pragma unroll 1
    for (int first = lane; first < width; first += 4 * THREADS) {
        float values[4];
#pragma unroll
        for (int k = 0; k < 4; k++) values[k] = first + k * THREADS < width ? x[first + k * THREADS] : 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + k * THREADS < width) sum = fmaf(values[k], values[k], sum);
    }
    return group_sum(sum);
}

#if THREADS > 32
// A norm's weights for a lane's first word of four values.
static __device__ __forceinline__ float4 first_weights(const float *weight, int width, int lane) {
    return lane < width / 4 ? load_four(weight + 4 * lane) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// A row of a norm as it is and in pieces, a word of four values a thread at a time.
static __device__ __forceinline__ void store_norm(
    const float *x, const float *weight, float4 by, float factor, int width, int lane, float *out, u8 *to, int groups, int row
) {
#pragma unroll 1
    for (int word = lane; word < width / 4; word += THREADS) {
        float4 four = load_four(x + 4 * word);
        if (word != lane) by = load_four(weight + 4 * word);
        four.x = four.x * factor * by.x, four.y = four.y * factor * by.y;
        four.z = four.z * factor * by.z, four.w = four.w * factor * by.w;
        store_four(out + 4 * word, four);
        pieces::store_word(to, groups, row, word, four.x, four.y, four.z, four.w);
    }
}
#endif

extern "C" __global__ void rms_norm(
    const float *x, Rows x_rows, const float *weight, float *out, Rows out_rows, i64 rows, int width, float eps
) {
    in_turn();
    int lane = threadIdx.x % THREADS;
    i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / THREADS;
    if (row >= rows) return;
    x += row_offset(x_rows, row);
    out += row_offset(out_rows, row);
    float factor = rms_factor(square_sum(x, width, lane), width, eps);
    for (int i = lane; i < width; i += THREADS) out[i] = x[i] * factor * weight[i];
}

extern "C" __global__ void add_rms_norm(
    float *residual, Rows residual_rows, const float *delta, Rows delta_rows, const float *weight, float *out,
    Rows out_rows, i64 rows, int width, float eps
) {
    in_turn();
    int lane = threadIdx.x % THREADS;
    i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / THREADS;
    if (row >= rows) return;
    residual += row_offset(residual_rows, row);
    delta += row_offset(delta_rows, row);
    out += row_offset(out_rows, row);
    for (int i = lane; i < width; i += THREADS) residual[i] += delta[i];
    // Each thread reads what it has written itself.
    float factor = rms_factor(square_sum(residual, width, lane), width, eps);
    for (int i = lane; i < width; i += THREADS) out[i] = residual[i] * factor * weight[i];
}

#if THREADS > 32
// The same two, with the result in pieces for products besides. `width` is a multiple of 16.
extern "C" __global__ void rms_norm_pieces(
    const float *x, Rows x_rows, const float *weight, float *out, Rows out_rows, int width, float eps, int groups, u8 *to
) {
    ptx::let_next_kernel_begin();
    const int row = blockIdx.x, lane = threadIdx.x;
    // Weights are nobody's result.
    const float4 first = first_weights(weight, width, lane);
    ptx::wait_for_kernel_before();
    x += row_offset(x_rows, row);
    out += row_offset(out_rows, row);
    float factor = rms_factor(square_sum(x, width, lane), width, eps);
    store_norm(x, weight, first, factor, width, lane, out, to, groups, row);
    pieces::complete(to, groups, row, width);
}

extern "C" __global__ void add_rms_norm_pieces(
    float *residual, Rows residual_rows, const float *delta, Rows delta_rows, const float *weight, float *out,
    Rows out_rows, int width, float eps, int groups, u8 *to
) {
    ptx::let_next_kernel_begin();
    const int row = blockIdx.x, lane = threadIdx.x;
    // Weights are nobody's result.
    const float4 first = first_weights(weight, width, lane);
    ptx::wait_for_kernel_before();
    residual += row_offset(residual_rows, row);
    delta += row_offset(delta_rows, row);
    out += row_offset(out_rows, row);
    for (int i = lane; i < width; i += THREADS) residual[i] += delta[i];
    // A thread's squares are of what it has written itself.
    float factor = rms_factor(square_sum(residual, width, lane), width, eps);
    __syncthreads();
    store_norm(residual, weight, first, factor, width, lane, out, to, groups, row);
    pieces::complete(to, groups, row, width);
}
#endif

extern "C" __global__ void gated_rms_norm(
    const float *x, Rows x_rows, const float *weight, const float *gate, Rows gate_rows, float *out, Rows out_rows,
    i64 rows, int width, float eps
) {
    in_turn();
    int lane = threadIdx.x % THREADS;
    i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / THREADS;
    if (row >= rows) return;
    x += row_offset(x_rows, row);
    gate += row_offset(gate_rows, row);
    out += row_offset(out_rows, row);
    float factor = rms_factor(square_sum(x, width, lane), width, eps);
    for (int i = lane; i < width; i += THREADS) out[i] = x[i] * factor * weight[i] * silu(gate[i]);
}

#if THREADS == 32
// The same for all heads of a token, whose results `[T, heads * width]` are one row, in pieces besides: a block a token, a warp
// a head. `width` is a multiple of 4, the row one of 16.
extern "C" __global__ void gated_rms_norm_pieces(
    const float *x, Rows x_rows, const float *weight, const float *gate, Rows gate_rows, float *out, i64 out_token, int heads,
    int width, float eps, int groups, u8 *pieces
) {
    in_turn();
    const int token = blockIdx.x, lane = threadIdx.x % 32;
    out += token * out_token;
    for (int head = threadIdx.x / 32; head < heads; head += blockDim.x / 32) {
        const float *from = x + row_offset(x_rows, (i64)token * heads + head);
        const float *by = gate + row_offset(gate_rows, (i64)token * heads + head);
        float *to = out + head * width;
        float factor = rms_factor(square_sum(from, width, lane), width, eps);
        for (int word = lane; word < width / 4; word += 32) {
            float4 four = load_four(from + 4 * word);
            const float4 scale = load_four(weight + 4 * word), gates = load_four(by + 4 * word);
            four.x = four.x * factor * scale.x * silu(gates.x), four.y = four.y * factor * scale.y * silu(gates.y);
            four.z = four.z * factor * scale.z * silu(gates.z), four.w = four.w * factor * scale.w * silu(gates.w);
            store_four(to + 4 * word, four);
            pieces::store_word(pieces, groups, token, head * width / 4 + word, four.x, four.y, four.z, four.w);
        }
    }
    pieces::complete(pieces, groups, token, heads * width);
}
#endif

extern "C" __global__ void l2_norm(
    const float *x, Rows x_rows, float *out, Rows out_rows, i64 rows, int width, float eps, float scale
) {
    in_turn();
    int lane = threadIdx.x % THREADS;
    i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / THREADS;
    if (row >= rows) return;
    x += row_offset(x_rows, row);
    out += row_offset(out_rows, row);
    float factor = scale / sqrtf(square_sum(x, width, lane) + eps);
    for (int i = lane; i < width; i += THREADS) out[i] = x[i] * factor;
}
