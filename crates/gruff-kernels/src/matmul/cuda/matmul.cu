// Packed matrices times many columns, on tensor cores.
//
// A block of threads computes ROWS rows of the matrix for COLUMNS rows of x. For each group of 256 values along the rows
// packed bytes and codes of x arrive in shared memory (while the group before is computed), the packed ones are unpacked
// there to int8 with their scales and minima beside them, and `mma.sync` multiplies sub-blocks of 32, or their halves
// where those have scales of their own, to exact integers. Everything from there on is f32 in the order that
// `product.cuh` states, so a result has the bits that `matvec.cu` gives.
//
// Constants: WEIGHT; ROWS 64 or 128; COLUMNS 16 to 128; SLOTS (1: rows of x are gathered by expert, as `moe.cu` lists them).
#include "product.cuh"

constexpr int WARPS_ACROSS = COLUMNS >= 128 ? 4 : 2;
constexpr int WARPS_DOWN = 8 / WARPS_ACROSS;
// Tiles of 16 rows and of 8 columns of a warp.
constexpr int DOWN = ROWS / WARPS_DOWN / 16;
constexpr int ACROSS = COLUMNS / WARPS_ACROSS / 8;
// Tiles whose packed codes are unpacked by one thread: its part of a group.
constexpr int PARTS = 256 / ROWS;
constexpr int PART = 8 / PARTS;

// Bytes from a row to the next in shared memory; an odd number of 16-byte words, so that eight rows meet all banks.
constexpr int PITCH = 256 + 16;
constexpr int BLOCK_PITCH = 8 * 16 + 16;
// Words of 16 bytes that a misaligned group touches.
constexpr int PACKED_WORDS = (Weight::BYTES + 15 + 15) / 16;
constexpr int PACKED_PITCH = 16 * (PACKED_WORDS | 1);
constexpr int SCALES = (Weight::HALVES ? 16 : 8) + 1;

// Where things lie in shared memory.
constexpr int CODES_AT = Weight::TABLE * 4;
constexpr int X_AT = CODES_AT + ROWS * PITCH;
constexpr int BLOCKS_AT = X_AT + 2 * COLUMNS * PITCH;
constexpr int PACKED_AT = BLOCKS_AT + 2 * COLUMNS * BLOCK_PITCH;
constexpr int SCALES_AT = PACKED_AT + 2 * ROWS * PACKED_PITCH;
constexpr int MINIMA_AT = SCALES_AT + ROWS * SCALES * 4;
constexpr int FROM_AT = MINIMA_AT + (Weight::MINIMUM ? ROWS * SCALES * 4 : 0);
// At the end results take the place of everything before the rows' numbers.
constexpr int RESULT_PITCH = ROWS + 1;
static_assert(CODES_AT + COLUMNS * RESULT_PITCH * 4 <= FROM_AT, "results fit");

struct Input {
    // [row][group][256] codes, and their second terms.
    const u8 *codes;
    const u8 *second;
    // [row][group][8]
    const int4 *blocks;
    int rows;
    // Rows of the output that share a row of x.
    int share;
};

// Rows of x that one expert multiplies: `count` entries of the order from `start` on.
struct Batch {
    int expert, start, count, unused;
};

// Which rows a block of threads computes.
struct Tile {
    const Matrix *matrix;
    int matrix_index, row, expert;
    bool glu;
};

// The packed row behind row r of the tile. For gated units eight rows of the gate and the same eight of up make sixteen, so
// that a lane holds both results.
__device__ __forceinline__ const u8 *packed_row(const Matrices &matrices, const Tile &tile, int r, i64 row_bytes, const u8 *&end) {
    const Matrix *matrix = tile.matrix;
    int row = tile.row + r;
    if (tile.glu) {
        matrix = &matrices.at[r / 8 % 2];
        row = tile.row + r / 16 * 8 + r % 8;
    }
    const u8 *first = matrix->weights + tile.expert * matrix->matrix_bytes;
    end = first + matrix->rows * row_bytes;
    return first + min(row, matrix->rows - 1) * row_bytes;
}

__device__ __forceinline__ void
fetch(const Matrices &matrices, const Tile &tile, const Input &x, int group, int groups, i64 row_bytes, int stage, u8 *shared) {
    u8 *packed = shared + PACKED_AT + stage * ROWS * PACKED_PITCH;
    for (int i = threadIdx.x; i < ROWS * PACKED_WORDS; i += 256) {
        const int r = i / PACKED_WORDS, word = i % PACKED_WORDS;
        const u8 *end, *from = packed_row(matrices, tile, r, row_bytes, end) + (i64)group * Weight::BYTES;
        const u8 *base = (const u8 *)((size_t)from & ~(size_t)15) + 16 * word;
        if (base < from + Weight::BYTES) copy_16(packed + r * PACKED_PITCH + 16 * word, base, clamp_bytes(end - base));
    }
    const int *from = (const int *)(shared + FROM_AT);
    u8 *codes = shared + X_AT + stage * COLUMNS * PITCH;
    for (int i = threadIdx.x; i < COLUMNS * 16; i += 256) {
        const int c = i / 16, word = i % 16;
        copy_16(codes + c * PITCH + 16 * word, x.codes + ((i64)from[c] * groups + group) * 256 + 16 * word, 16);
    }
    u8 *blocks = shared + BLOCKS_AT + stage * COLUMNS * BLOCK_PITCH;
    for (int i = threadIdx.x; i < COLUMNS * 8; i += 256) {
        const int c = i / 8, block = i % 8;
        copy_16(blocks + c * BLOCK_PITCH + 16 * block, x.blocks + ((i64)from[c] * groups + group) * 8 + block, 16);
    }
}

// Unpacks sub-blocks FIRST.. of one row to signed bytes.
template <int FIRST>
__device__ __forceinline__ void unpack_part(const u8 *packed, const u32 *book, int count, u8 *codes, float *scales, float *minima) {
    u32 words[GROUP_WORDS<Weight>];
    load_group<Weight, false>(packed, words);
    each_sub_block<FIRST, PART>([&](auto j) {
        constexpr int J = decltype(j)::value;
        u32 q[8];
        float scale[2], minimum[2];
        Weight::template decode<J>(words, book, q, scale, minimum);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = blocks::signed_codes<Weight::OFFSET>(q[i]);
        ((uint4 *)(codes + 32 * J))[0] = make_uint4(q[0], q[1], q[2], q[3]);
        ((uint4 *)(codes + 32 * J))[1] = make_uint4(q[4], q[5], q[6], q[7]);
        // Behind the end of a row lies another's data.
        const bool inside = J < count;
        if constexpr (Weight::HALVES) {
            scales[2 * J] = inside ? scale[0] : 0.0f, scales[2 * J + 1] = inside ? scale[1] : 0.0f;
            if (Weight::MINIMUM) minima[2 * J] = inside ? minimum[0] : 0.0f, minima[2 * J + 1] = inside ? minimum[1] : 0.0f;
        } else {
            scales[J] = inside ? scale[0] : 0.0f;
            if (Weight::MINIMUM) minima[J] = inside ? minimum[0] : 0.0f;
        }
    });
}

__device__ __forceinline__ void unpack(const Matrices &matrices, const Tile &tile, int group, i64 row_bytes, int count, int stage, u8 *shared) {
    const int r = threadIdx.x % ROWS, part = threadIdx.x / ROWS;
    const u8 *end, *from = packed_row(matrices, tile, r, row_bytes, end) + (i64)group * Weight::BYTES;
    const u8 *packed = shared + PACKED_AT + stage * ROWS * PACKED_PITCH + r * PACKED_PITCH + ((size_t)from & 15);
    const u32 *book = (const u32 *)shared;
    u8 *codes = shared + CODES_AT + r * PITCH;
    float *scales = (float *)(shared + SCALES_AT) + r * SCALES, *minima = (float *)(shared + MINIMA_AT) + r * SCALES;
    if (part == 0) unpack_part<0>(packed, book, count, codes, scales, minima);
    else if (part == 1) unpack_part<PART % 8>(packed, book, count, codes, scales, minima);
    if constexpr (PARTS == 4) {
        if (part == 2) unpack_part<4>(packed, book, count, codes, scales, minima);
        else if (part == 3) unpack_part<6>(packed, book, count, codes, scales, minima);
    }
}

// Integers plus this, as bits, are floats of 12,582,912 and the integer.
constexpr int MAGIC = 0x4b400000;

__device__ __forceinline__ float from_magic(int bits) { return __fadd_rn(__int_as_float(bits), -12582912.0f); }

// What two columns of x bring to a sub-block: scales, and sums of it or of its halves.
struct Pair {
    float scale[2], low[2], high[2];
};

__device__ __forceinline__ Pair make_pair(float first_scale, int first_sums, float second_scale, int second_sums) {
    Pair pair = {{first_scale, second_scale}, {0.0f, 0.0f}, {0.0f, 0.0f}};
    const int sums[2] = {first_sums, second_sums};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (Weight::MINIMUM) pair.low[i] = (float)(Weight::HALVES ? first_sum(sums[i]) : both_sums(sums[i]));
        if (Weight::MINIMUM && Weight::HALVES) pair.high[i] = (float)last_sum(sums[i]);
    }
    return pair;
}

// One tile of 16 x 8 and one sub-block: integers, then f32.
__device__ __forceinline__ void multiply(
    float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2], const float (&scale)[2][2], const float (&minimum)[2][2], const Pair &x
) {
    int low[4] = {MAGIC, MAGIC, MAGIC, MAGIC}, high[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
    if constexpr (Weight::HALVES) {
        ptx::mma_s8_k16(low, a[0], a[1], b[0]);
        ptx::mma_s8_k16(high, a[2], a[3], b[1]);
    } else {
        ptx::mma_s8_k32(low, a, b);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        add_sub_block<Weight>(
            scale[e / 2], minimum[e / 2], from_magic(low[e]), from_magic(high[e]), x.scale[e % 2], x.low[e % 2], x.high[e % 2], sum[e]
        );
    }
}

// A sub-block of the rows of a warp.
struct WeightRows {
    u32 a[DOWN][4];
    float scale[DOWN][2][2], minimum[DOWN][2][2];
};

__device__ __forceinline__ void load_rows(WeightRows &rows, const u8 *codes, const float *scales, const float *minima, int j) {
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
        ptx::load_matrices(rows.a[i], codes + i * 16 * PITCH + 32 * j);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = (i * 16 + half * 8) * SCALES;
            if constexpr (Weight::HALVES) {
                rows.scale[i][half][0] = scales[at + 2 * j], rows.scale[i][half][1] = scales[at + 2 * j + 1];
                if (Weight::MINIMUM) rows.minimum[i][half][0] = minima[at + 2 * j], rows.minimum[i][half][1] = minima[at + 2 * j + 1];
            } else {
                rows.scale[i][half][0] = scales[at + j];
                if (Weight::MINIMUM) rows.minimum[i][half][0] = minima[at + j];
            }
        }
    }
}

// Adds one group to the sums of a warp.
__device__ __forceinline__ void
multiply_group(float (&sums)[DOWN][ACROSS][4], const Input &x, int group, int groups, int stage, const u8 *shared) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int top = warp / WARPS_ACROSS * DOWN * 16, left = warp % WARPS_ACROSS * ACROSS * 8;
    const u8 *codes = shared + CODES_AT + (top + lane % 16) * PITCH + lane / 16 * 16;
    const u8 *x_codes = shared + X_AT + stage * COLUMNS * PITCH + (left + lane % 8 + (ACROSS > 1 ? lane / 16 * 8 : 0)) * PITCH + lane / 8 % 2 * 16;
    const u8 *x_blocks = shared + BLOCKS_AT + stage * COLUMNS * BLOCK_PITCH;
    const float *scales = (const float *)(shared + SCALES_AT) + (top + lane / 4) * SCALES;
    const float *minima = (const float *)(shared + MINIMA_AT) + (top + lane / 4) * SCALES;

    // Which sub-blocks are loud in any column of a tile: bit 8 i + j.
    u32 loud[(ACROSS + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < ACROSS; i++) {
        const u8 *at = x_blocks + (left + i * 8 + lane / 4) * BLOCK_PITCH + lane % 4 * 16;
        u32 bits = ((const XBlock *)at)->second_scale != 0.0f ? 1u << (lane % 4) : 0;
        bits |= ((const XBlock *)(at + 64))->second_scale != 0.0f ? 16u << (lane % 4) : 0;
        loud[i / 4] |= __reduce_or_sync(FULL_WARP, bits) << (8 * (i % 4));
    }

#pragma unroll 1
    for (int j = 0; j < 8; j++) {
        WeightRows rows;
        load_rows(rows, codes, scales, minima, j);
        u32 b[ACROSS][2];
#pragma unroll
        for (int i = 0; i < ACROSS; i += 2) {
            // Two tiles at once; where there is one, lanes 16 to 31 read it again.
            u32 both[4];
            ptx::load_matrices(both, x_codes + i * 8 * PITCH + 32 * j);
            b[i][0] = both[0], b[i][1] = both[1];
            if (i + 1 < ACROSS) b[i + 1][0] = both[2], b[i + 1][1] = both[3];
        }
#pragma unroll
        for (int i = 0; i < ACROSS; i++) {
            const XBlock *first = (const XBlock *)(x_blocks + (left + i * 8 + lane % 4 * 2) * BLOCK_PITCH + 16 * j);
            const XBlock *second = (const XBlock *)((const u8 *)first + BLOCK_PITCH);
            const Pair pair = make_pair(first->scale, first->sums, second->scale, second->sums);
#pragma unroll
            for (int k = 0; k < DOWN; k++) multiply(sums[k][i], rows.a[k], b[i], rows.scale[k], rows.minimum[k], pair);
        }
    }

    u32 any = 0;
#pragma unroll
    for (int i = 0; i < (ACROSS + 3) / 4; i++) any |= loud[i];
    if (any == 0) return;
    // Second terms. A column without one adds zeros, which changes nothing.
#pragma unroll 1
    for (int j = 0; j < 8; j++) {
        if ((any >> j & 0x01010101u) == 0) continue;
        WeightRows rows;
        load_rows(rows, codes, scales, minima, j);
#pragma unroll
        for (int i = 0; i < ACROSS; i++) {
            if (!(loud[i / 4] >> (8 * (i % 4) + j) & 1)) continue;
            const XBlock *first = (const XBlock *)(x_blocks + (left + i * 8 + lane % 4 * 2) * BLOCK_PITCH + 16 * j);
            const XBlock *second = (const XBlock *)((const u8 *)first + BLOCK_PITCH);
            const Pair pair = make_pair(first->second_scale, first->second_sums, second->second_scale, second->second_sums);
            const int column = left + i * 8 + lane / 4;
            u32 b[2] = {0, 0};
            if (((const XBlock *)(x_blocks + column * BLOCK_PITCH + 16 * j))->second_scale != 0.0f) {
                const i64 row = ((const int *)(shared + FROM_AT))[column];
                const u32 *from = (const u32 *)(x.second + (row * groups + group) * 256 + 32 * j) + lane % 4;
                b[0] = from[0], b[1] = from[4];
            }
#pragma unroll
            for (int k = 0; k < DOWN; k++) multiply(sums[k][i], rows.a[k], b, rows.scale[k], rows.minimum[k], pair);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) matmul(
    Matrices matrices, int count, int what, int cols, int groups, i64 row_bytes, Input x, const u32 *table, const Batch *batches,
    const int *order
) {
    extern __shared__ __align__(128) u8 shared[];
    Tile tile;
    tile.expert = 0;
    tile.glu = what >= GLU;
#if SLOTS
    const Batch batch = batches[blockIdx.x];
    if (batch.count == 0) return;
    tile.expert = batch.expert;
#endif
    // Which matrix, and which of its rows.
    const int step = tile.glu ? ROWS / 2 : ROWS;
    int rest = blockIdx.y;
    tile.matrix_index = 0;
    if (!tile.glu) {
#pragma unroll
        for (int i = 0; i < MATRICES - 1; i++) {
            const int tiles = (matrices.at[i].rows + step - 1) / step;
            if (tile.matrix_index == i && i + 1 < count && rest >= tiles) tile.matrix_index = i + 1, rest -= tiles;
        }
    }
    tile.matrix = &matrices.at[tile.matrix_index];
    tile.row = rest * step;

    // Which rows of x and of the output.
    int *from = (int *)(shared + FROM_AT), *to = from + COLUMNS;
    for (int c = threadIdx.x; c < COLUMNS; c += 256) {
#if SLOTS
        const int slot = order[batch.start + min(c, batch.count - 1)];
        from[c] = slot / x.share;
        to[c] = c < batch.count ? slot : -1;
#else
        const int row = blockIdx.x * COLUMNS + c;
        from[c] = min(row, x.rows - 1);
        to[c] = row < x.rows ? row : -1;
#endif
    }
    u32 *book = (u32 *)shared;
    for (int i = threadIdx.x; i < Weight::TABLE; i += 256) book[i] = table[i];
    __syncthreads();

    float totals[DOWN][ACROSS][4] = {};
    fetch(matrices, tile, x, 0, groups, row_bytes, 0, shared);
    copies_made();
    for (int group = 0; group < groups; group++) {
        copies_wait<0>();
        // Packed bytes have arrived, and nobody reads the group before any more.
        __syncthreads();
        if (group + 1 < groups) fetch(matrices, tile, x, group + 1, groups, row_bytes, (group + 1) % 2, shared);
        copies_made();
        unpack(matrices, tile, group, row_bytes, min(8, (cols - group * 256) / 32), group % 2, shared);
        __syncthreads();
        float sums[DOWN][ACROSS][4] = {};
        multiply_group(sums, x, group, groups, group % 2, shared);
#pragma unroll
        for (int k = 0; k < DOWN; k++) {
#pragma unroll
            for (int i = 0; i < ACROSS; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) totals[k][i][e] = __fadd_rn(totals[k][i][e], sums[k][i][e]);
            }
        }
    }

    // Results change hands in shared memory, so that rows are written as they lie.
    float *results = (float *)(shared + CODES_AT);
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int top = warp / WARPS_ACROSS * DOWN * 16, left = warp % WARPS_ACROSS * ACROSS * 8;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ACROSS; i++) {
#pragma unroll
        for (int k = 0; k < DOWN; k++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                results[(left + i * 8 + lane % 4 * 2 + e % 2) * RESULT_PITCH + top + k * 16 + e / 2 * 8 + lane / 4] = totals[k][i][e];
            }
        }
    }
    __syncthreads();
    const float scale = scale_of(*tile.matrix, tile.expert), up_scale = scale_of(matrices.at[1], tile.expert);
#pragma unroll 1
    for (int i = threadIdx.x; i < step * COLUMNS; i += 256) {
        const int c = i / step, r = i % step, row = tile.row + r;
        if (to[c] < 0 || row >= tile.matrix->rows) continue;
        const float *column = results + c * RESULT_PITCH;
        if (tile.glu) {
            const float gate = __fmul_rn(column[r / 8 * 16 + r % 8], scale);
            const float up = __fmul_rn(column[r / 8 * 16 + 8 + r % 8], up_scale);
            tile.matrix->out[to[c] * tile.matrix->out_stride + row] = gate_value(what - GLU, gate) * up;
        } else {
            finish(*tile.matrix, what, scale, row, to[c], column[r]);
        }
    }
}
