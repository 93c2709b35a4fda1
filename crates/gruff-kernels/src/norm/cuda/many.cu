// Norms for products, of as many rows as prompts have: rows that lie side by side in `pieces.cuh` are taken together, and values in the
// order in which they do, so that what a warp stores there are 64 bytes side by side, not 4. Sums are those of norm.cu, in the same
// order: of a row, thread t of THREADS has the values t, t + THREADS and so on. Values are read once and stay in registers; they are
// normed a part of THREADS columns at a time (all of a head's), which goes to the row as it is, a value a thread, and through shared
// memory to the pieces, four neighbours a thread.
//
// Constants: THREADS of a row, as norm.cu has them for the width, 32 for heads; EACH, the most values that a thread has of a row.

#include "pieces.cuh"
#include "rms.cuh"

// Rows that are taken together: half of a tile. With all eight rows of one, registers are short.
constexpr int ROWS = 4;
constexpr int WARPS = THREADS / 32;
// Columns of a part, values from a row of one to the next, so that what eight lanes read meets all banks, and words of one row.
constexpr int PART = THREADS > 32 ? THREADS : THREADS * EACH;
constexpr int PITCH = PART + 32 / ROWS;
constexpr int WORDS = PART / 4;
// Runs of 16 words, as each lane of a product has them: their first words lie side by side, then their second ones.
constexpr int RUNS = WORDS % 16 == 0 ? WORDS / 16 : 1;

// The sum of a thread's squares in a row.
static __device__ __forceinline__ float squares_of(const float (&x)[EACH]) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < EACH; k++) sum = fmaf(x[k], x[k], sum);
    return sum;
}

// A thread's values of rows of `width` values. All of them are asked for before any is waited for: where there is none, another one of
// the row is read. WHOLE: they are all there.
template <bool WHOLE>
struct Values {
    int thread, left, width;

    __device__ __forceinline__ bool has(int r, int k) const { return WHOLE || (r < left && thread + k * THREADS < width); }

    // Where the thread's first value of row r is; `rows` is where row 0 begins. Of rows that are not there, the last one that is.
    template <class T>
    __device__ __forceinline__ T *row(T *rows, i64 stride, int r) const { return rows + (WHOLE ? r : min(r, left - 1)) * stride + thread; }

    __device__ __forceinline__ float read(const float *row, int k) const {
        return row[WHOLE || thread + k * THREADS < width ? k * THREADS : -thread];
    }
};

// Stores a part of ROWS rows in pieces: `word` is the first of the part in a row, of which `end` are not the row's any more.
static __device__ __forceinline__ void store_part(u8 *to, const float *part, int groups, int first, int rows, int word, int end, int thread) {
#pragma unroll
    for (int i = thread; i < ROWS * WORDS; i += THREADS) {
        const int r = i % ROWS, j = i / ROWS, w = j % RUNS * (WORDS / RUNS) + j / RUNS;
        if (first + r >= rows || word + w >= end) continue;
        const float4 four = *(const float4 *)(part + r * PITCH + 4 * w);
        pieces::store_word(to, groups, first + r, word + w, four.x, four.y, four.z, four.w);
    }
}

#if THREADS > 32
static_assert(WARPS >= ROWS, "a warp adds up a row");

struct Shared {
    float sums[ROWS][WARPS], factors[ROWS];
    __align__(16) float part[ROWS * PITCH];
};

// Norms rows, of which a thread has the values `x`; `out` is where the first one's result begins.
template <bool WHOLE>
static __device__ __forceinline__ void norm_rows(
    Shared &shared, const float (&x)[ROWS][EACH], const Values<WHOLE> &values, const float *weight, float *out, i64 out_stride,
    int first, int rows, float eps, int groups, u8 *to
) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, width = values.width;
    float by[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) by[k] = values.read(weight + thread, k);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float sum = warp_sum(squares_of(x[r]));
        if (lane == 0) shared.sums[r][warp] = sum;
    }
    __syncthreads();
    if (warp < ROWS) {
        const float sum = warp_sum(lane < WARPS ? shared.sums[warp][lane] : 0.0f);
        if (lane == 0) shared.factors[warp] = rms_factor(sum, width, eps);
    }
    __syncthreads();
    float factor[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) factor[r] = shared.factors[r];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float value = x[r][k] * factor[r] * by[k];
            float *own = values.row(out, out_stride, r) + k * THREADS;
            if (values.has(r, k)) *own = value;
            shared.part[r * PITCH + thread] = value;
        }
        __syncthreads();
        store_part(to, shared.part, groups, first, rows, k * WORDS, width / 4, thread);
        __syncthreads();
    }
    for (int r = 0; r < ROWS && first + r < rows; r++) pieces::complete(to, groups, first + r, width);
}

template <bool WHOLE>
static __device__ __forceinline__ void norm_of(
    Shared &shared, const float *from, i64 stride, const float *weight, float *out, i64 out_stride, int first, int rows, int width, float eps,
    int groups, u8 *to
) {
    const Values<WHOLE> values = {(int)threadIdx.x, rows - first, width};
    float x[ROWS][EACH];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float *row = values.row(from + first * stride, stride, r);
#pragma unroll
        for (int k = 0; k < EACH; k++) x[r][k] = values.read(row, k);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int k = 0; k < EACH; k++) x[r][k] = values.has(r, k) ? x[r][k] : 0.0f;
    norm_rows(shared, x, values, weight, out + first * out_stride, out_stride, first, rows, eps, groups, to);
}

template <bool WHOLE>
static __device__ __forceinline__ void add_and_norm(
    Shared &shared, float *residual, i64 stride, const float *delta, i64 delta_stride, const float *weight, float *out, i64 out_stride,
    int first, int rows, int width, float eps, int groups, u8 *to
) {
    const Values<WHOLE> values = {(int)threadIdx.x, rows - first, width};
    float x[ROWS][EACH];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float *row = values.row(residual + first * stride, stride, r);
        const float *other = values.row(delta + first * delta_stride, delta_stride, r);
#pragma unroll
        for (int k = 0; k < EACH; k++) x[r][k] = values.read(row, k) + values.read(other, k);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float *row = values.row(residual + first * stride, stride, r);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            float *own = row + k * THREADS;
            if (values.has(r, k)) *own = x[r][k];
            else x[r][k] = 0.0f;
        }
    }
    norm_rows(shared, x, values, weight, out + first * out_stride, out_stride, first, rows, eps, groups, to);
}

// As `rms_norm_pieces` and `add_rms_norm_pieces` of norm.cu, a block ROWS rows.
extern "C" __global__ void __launch_bounds__(THREADS, THREADS <= 640 ? 2 : 1) rms_norm_many(
    const float *from, i64 stride, const float *weight, float *out, i64 out_stride, int rows, int width, float eps, int groups, u8 *to
) {
    in_turn();
    __shared__ Shared shared;
    const int first = blockIdx.x * ROWS;
    if (first + ROWS <= rows && width == EACH * THREADS)
        norm_of<true>(shared, from, stride, weight, out, out_stride, first, rows, width, eps, groups, to);
    else norm_of<false>(shared, from, stride, weight, out, out_stride, first, rows, width, eps, groups, to);
}

extern "C" __global__ void __launch_bounds__(THREADS, THREADS <= 640 ? 2 : 1) add_rms_norm_many(
    float *residual, i64 stride, const float *delta, i64 delta_stride, const float *weight, float *out, i64 out_stride, int rows,
    int width, float eps, int groups, u8 *to
) {
    in_turn();
    __shared__ Shared shared;
    const int first = blockIdx.x * ROWS;
    if (first + ROWS <= rows && width == EACH * THREADS)
        add_and_norm<true>(shared, residual, stride, delta, delta_stride, weight, out, out_stride, first, rows, width, eps, groups, to);
    else add_and_norm<false>(shared, residual, stride, delta, delta_stride, weight, out, out_stride, first, rows, width, eps, groups, to);
}
#else
constexpr int HEADS = 8;

// As `gated_rms_norm_pieces` of norm.cu: a block has ROWS tokens, and HEADS of their heads, a warp each.
extern "C" __global__ void __launch_bounds__(32 * HEADS) gated_rms_norm_many(
    const float *x, i64 x_token, i64 x_head, const float *weight, const float *gate, i64 gate_token, i64 gate_head, float *out,
    i64 out_token, int heads, int rows, int width, float eps, int groups, u8 *pieces
) {
    in_turn();
    __shared__ __align__(16) float parts[HEADS][ROWS * PITCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * ROWS, head = blockIdx.y * HEADS + warp;
    if (head < heads) {
        float *part = parts[warp];
        float own[ROWS][EACH], gates[ROWS][EACH], factor[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                const int column = lane + 32 * k;
                const bool here = first + r < rows && column < width;
                own[r][k] = here ? x[(first + r) * x_token + head * x_head + column] : 0.0f;
                gates[r][k] = here ? gate[(first + r) * gate_token + head * gate_head + column] : 0.0f;
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) factor[r] = rms_factor(warp_sum(squares_of(own[r])), width, eps);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int column = lane + 32 * k;
            const float by = column < width ? weight[column] : 0.0f;
            float *to_column = out + first * out_token + head * width + column;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float value = own[r][k] * factor[r] * by * silu(gates[r][k]);
                if (first + r < rows && column < width) to_column[r * out_token] = value;
                part[r * PITCH + column] = value;
            }
        }
        __syncwarp();
        const int word = head * width / 4;
        store_part(pieces, part, groups, first, rows, word, word + width / 4, lane);
    }
    if (blockIdx.y == 0)
        for (int r = 0; r < ROWS && first + r < rows; r++) pieces::complete(pieces, groups, first + r, heads * width);
}
#endif
