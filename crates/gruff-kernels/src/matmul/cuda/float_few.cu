// Matrices of plain floats times few columns, on tensor cores at the speed of memory.
//
// A block computes 16 rows (of gated units eight of the gate and the same eight of up) for up to eight columns; its warps take
// groups of 256 values in turn and add their sums up in order, so that a result has the bits that `float_many.cu` gives. Weights
// go from memory to registers as they lie, eight values a lane, some runs ahead of the products; x is read in f32 and made terms
// of (`terms.cuh`) in registers, since a launch of its own for that would cost more.
//
// Constants: WEIGHT; ALIGNED (1: all rows begin at multiples of 16 bytes); SLOTS (1: blockIdx.y counts rows of the output, each
// with an expert of its own; one column. 0: it counts tiles of eight columns).
#include "terms.cuh"

// The most warps of a block.
constexpr int WARPS = 8;
// Runs that are loaded together: eight loads of 16 bytes a lane.
constexpr int AHEAD = 4 / terms::WORDS;
constexpr int PARTS = terms::RUNS / AHEAD;
static_assert(PARTS % 2 == 0, "the first part of a group is always in the first buffer");

// A lane's weights of some runs, of its upper and its lower row.
struct Part {
    uint4 words[AHEAD][2][terms::WORDS];
};

__device__ __forceinline__ void load(Part &part, const u8 *const (&rows)[2], int k, int cols) {
    constexpr int VALUES = 16 / terms::WEIGHT_BYTES;
#pragma unroll
    for (int run = 0; run < AHEAD; run++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int word = 0; word < terms::WORDS; word++) {
                const int at = k + run * terms::RUN + word * VALUES;
                uint4 &to = part.words[run][half][word];
#if ALIGNED
                to = at < cols ? *(const uint4 *)(rows[half] + (i64)at * terms::WEIGHT_BYTES) : make_uint4(0, 0, 0, 0);
#else
                to = terms::gather_word(rows[half], at, cols);
#endif
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
float_few(Matrices matrices, int count, int what, FloatRows x, const int *ids) {
    in_turn();
    // Sums of a round of groups, of two rounds.
    __shared__ float4 exchanged[2][WARPS][32];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const bool glu = what >= GLU;
    int tile = blockIdx.x, index = 0;
    if (!glu) index = matrix_of(matrices, count, 16, tile);
    const Matrix &matrix = matrices.at[index];
    const int row = tile * (glu ? 8 : 16);

    int expert = 0, column = blockIdx.y * 8, from = column + lane / 4;
    bool there = from < x.rows;
#if SLOTS
    column = x.first + blockIdx.y;
    expert = ids[column / x.used * x.id_stride + column % x.used];
    if ((u32)expert >= (u32)x.experts) return;
    from = column / x.share, there = lane / 4 == 0;
#endif
    const float *values = x.values + (there ? from : 0) * x.stride;
    const bool aligned = (((size_t)x.values | (size_t)(x.stride * 4)) & 15) == 0;

    const i64 row_bytes = (i64)x.cols * terms::WEIGHT_BYTES;
    const Matrix &lower = glu ? matrices.at[1] : matrix;
    const u8 *const rows[2] = {
        matrix.weights + expert * matrix.matrix_bytes + min(row + lane / 4, matrix.rows - 1) * row_bytes,
        lower.weights + expert * lower.matrix_bytes + min(row + (glu ? 0 : 8) + lane / 4, matrix.rows - 1) * row_bytes,
    };
    const int groups = (x.cols + terms::GROUP - 1) / terms::GROUP, mine = lane % 4 * 8;

    float totals[4] = {};
    Part parts[2];
    load(parts[0], rows, warp * terms::GROUP + mine, x.cols);
    for (int first = 0, round = 0; first < groups; first += warps, round ^= 1) {
        const int group = first + warp, begin = group * terms::GROUP;
        float sums[4] = {}, scale = 1.0f;
#if WEIGHT == 1
        float inverse = 1.0f;
        if (begin < x.cols) {
            float largest = 0.0f;
#pragma unroll 4
            for (int run = 0; run < terms::RUNS; run++) {
                float some[8] = {};
                if (there) load_values(values, begin + run * terms::RUN + mine, x.cols, aligned, some);
#pragma unroll
                for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(some[i]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
            terms::group_scale(largest, scale, inverse);
        }
#endif
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int next = part + 1 < PARTS ? begin + (part + 1) * AHEAD * terms::RUN : begin + warps * terms::GROUP;
            load(parts[(part + 1) % 2], rows, next + mine, x.cols);
#pragma unroll
            for (int run = 0; run < AHEAD; run++) {
                const int k = begin + (part * AHEAD + run) * terms::RUN;
                if (k >= x.cols) continue;
                float some[8] = {};
                if (there) load_values(values, k + mine, x.cols, aligned, some);
                u32 both[2][4], top[terms::WEIGHT_TERMS][4], bottom[terms::WEIGHT_TERMS][4];
                terms::split_values(some, scale, both[0], both[1]);
                terms::split_weights(parts[part % 2].words[run][0], top);
                terms::split_weights(parts[part % 2].words[run][1], bottom);
#pragma unroll
                for (int step = 0; step < 2; step++) {
#pragma unroll
                    for (int product = 0; product < terms::PRODUCTS; product++) {
                        terms::multiply(sums, top, bottom, both, step, product);
                    }
                }
            }
        }
#if WEIGHT == 1
        // Lane 4 c has the scale of column c.
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float by = __shfl_sync(FULL_WARP, inverse, (lane % 4 * 2 + e) * 4);
            sums[e] = __fmul_rn(sums[e], by), sums[e + 2] = __fmul_rn(sums[e + 2], by);
        }
#endif
        if (warps == 1) {
#pragma unroll
            for (int e = 0; e < 4; e++) totals[e] = __fadd_rn(totals[e], sums[e]);
            continue;
        }
        exchanged[round][warp][lane] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        __syncthreads();
        if (warp == 0) {
            for (int i = 0; i < min(warps, groups - first); i++) {
                const float4 other = exchanged[round][i][lane];
                totals[0] = __fadd_rn(totals[0], other.x), totals[1] = __fadd_rn(totals[1], other.y);
                totals[2] = __fadd_rn(totals[2], other.z), totals[3] = __fadd_rn(totals[3], other.w);
            }
        }
    }
    if (warp != 0) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int c = lane % 4 * 2 + e, upper = row + lane / 4;
        if (SLOTS ? c != 0 : column + c >= x.rows) continue;
        if (upper >= matrix.rows) continue;
        const i64 to = column + c;
        if (glu) {
            terms::finish_glu(matrices, what, expert, upper, to, totals[e], totals[e + 2]);
            continue;
        }
        const float scale = scale_of(matrix, expert);
        finish(matrix, what, scale, upper, to, totals[e]);
        if (upper + 8 < matrix.rows) finish(matrix, what, scale, upper + 8, to, totals[e + 2]);
    }
}
