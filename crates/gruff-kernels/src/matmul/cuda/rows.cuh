// Tiles of 16 rows, a warp each, of products with few columns: from packed bytes in shared memory to `mma`.
//
// The packed bytes of a pair of groups of 256 values come to shared memory, 16 bytes a copy whatever the type's alignment; warps are
// many enough to wait for them behind each other's products, and more of them fit where none has a second pair under way. Each lane
// decodes the scales of one row and group; then codes go from shared memory to `mma` in registers: of each half of a sub-block the
// four lanes that share a row take a word each.
//
// Constants: those of `packed.cuh` and TILES of 8 columns.
#pragma once

#include "packed.cuh"

// The most threads: registers are for no more.
constexpr int THREADS = 512;
// Rows of a tile.
constexpr int ROWS = 16;

// Words of 16 bytes of a row's pair of groups, and bytes from a row to the next: an odd number of such words, so that eight
// rows meet all banks.
constexpr int PACKED_WORDS = (2 * Weight::BYTES + (WHOLE ? 0 : 15) + 15) / 16;
constexpr int PITCH = 16 * (PACKED_WORDS | 1);
constexpr int STAGE = ROWS * PITCH;
// Factors of a row and group, and bytes from one to the next; likewise.
constexpr int FACTORS = Weight::HALVES ? 16 : 8;
constexpr int FACTORS_PITCH = FACTORS * 8 + 16;
constexpr int WARP_BYTES = STAGE + 2 * ROWS * FACTORS_PITCH;
// Sums from one column of a tile and group to the next, so that a warp's sums meet all banks.
constexpr int SUM_PITCH = 20;
// How the work is cut.
struct Cut {
    int cols, groups;
    i64 row_bytes;
    // Tiles of all matrices; columns; tiles side by side of a block.
    int tiles, columns, abreast, unused;
    int matrices, what;
    // With SLOTS: rows of the output that share a row of x; experts of the stack; experts of a token; the first row of the output;
    // values from the ids of a token to the next's.
    int share, experts, used, first;
    i64 id_stride;
};

// Where a tile is. Of gated units it has eight rows of the gate and the same eight of up.
struct Tile {
    int matrix, row;
};

__device__ __forceinline__ Tile tile_at(const Matrices &matrices, const Cut &cut, int tile) {
    Tile at;
    const bool glu = cut.what >= GLU;
    at.matrix = glu ? 0 : matrix_of(matrices, cut.matrices, ROWS, tile);
    at.row = tile * (glu ? ROWS / 2 : ROWS);
    return at;
}

// The two rows of a tile that a lane copies from and multiplies, four lanes a row: where they begin, and the bytes from there to the
// end of the matrix, if they are few.
struct LaneRows {
    const u8 *at[2];
    int left[2];
};

__device__ __forceinline__ LaneRows lane_rows(const Matrices &matrices, const Cut &cut, int tile, int expert) {
    const Tile at = tile_at(matrices, cut, tile);
    const bool glu = cut.what >= GLU;
    LaneRows rows;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const Matrix &matrix = matrices.at[glu ? i : at.matrix];
        const int row = min(at.row + (glu ? 0 : 8 * i) + (int)(threadIdx.x & 31) / 4, matrix.rows - 1);
        rows.at[i] = matrix.weights + expert * matrix.matrix_bytes + row * cut.row_bytes;
        const i64 left = (matrix.rows - row) * cut.row_bytes;
        rows.left[i] = left < 0x40000000 ? (int)left : 0x40000000;
    }
    return rows;
}

__device__ __forceinline__ void fetch(const LaneRows &rows, int pair, u8 *stage) {
    const int lane = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u8 *from = rows.at[i] + (i64)pair * (2 * Weight::BYTES);
        const int skew = WHOLE ? 0 : (int)(size_t)from & 15;
        from += 16 * lane - skew;
        u8 *to = stage + ((threadIdx.x & 31) / 4 + 8 * i) * PITCH + 16 * lane;
        const int left = rows.left[i] - pair * (2 * Weight::BYTES) - 16 * lane + skew;
        if (left >= 16 * (PACKED_WORDS + 4)) {
            const ptx::Shared at = ptx::shared_at(to);
#pragma unroll
            for (int k = 0; 4 * k < PACKED_WORDS; k++) {
                if (4 * k + 4 <= PACKED_WORDS || 4 * k + lane < PACKED_WORDS) ptx::copy_16_to(at + 64 * k, from + 64 * k);
            }
        } else {
#pragma unroll 1
            for (int k = 0; 4 * k + lane < PACKED_WORDS; k++) {
                if (left > 64 * k) copy_16(to + 64 * k, from + 64 * k, clamp_bytes(left - 64 * k));
            }
        }
    }
}

// A lane decodes the factors of one row and group; PART of a pair at the end of a row.
template <bool PART>
__device__ __forceinline__ void decode_factors(int skew, int count, const u8 *stage, u8 *table) {
    const int lane = threadIdx.x & 31, r = lane % ROWS, which = lane / ROWS;
    const GroupInTurn g = {stage + r * PITCH + skew + which * Weight::BYTES};
    // Behind the end of a row lies another's data.
    count -= 8 * which;
    uint4 *to = (uint4 *)(table + lane * FACTORS_PITCH);
    Factors before;
    each_sub_block<0, 8>([&](auto j) {
        constexpr int J = decltype(j)::value;
        float scale[2] = {}, minimum[2] = {};
        Weight::template scales<J>(g, scale, minimum);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (PART && J >= count) scale[half] = 0.0f, minimum[half] = 0.0f;
        }
        const Factors first = factors<Weight>(scale[0], minimum[0]);
        if constexpr (Weight::HALVES) {
            const Factors last = factors<Weight>(scale[1], minimum[1]);
            to[J] = make_uint4(first.scale, first.minimum, last.scale, last.minimum);
        } else if constexpr (J % 2 == 0) {
            before = first;
        } else {
            to[J / 2] = make_uint4(before.scale, before.minimum, first.scale, first.minimum);
        }
    });
}

// The sums of GROUPS groups, side by side, in each column. `load(group, i, step, b)` brings what stands against a step of a group in
// tile i of columns.
template <int GROUPS, class F>
__device__ __forceinline__ void multiply_groups(
    float (&sums)[GROUPS][TILES][4], const Group (&g)[GROUPS][2], const u32 *book, const u8 *const (&table)[GROUPS][2], F &&load
) {
    const int t = threadIdx.x & 3;
    uint4 by[GROUPS][2];
    each_sub_block<0, 8>([&](auto j) {
        constexpr int J = decltype(j)::value;
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            u32 a[2][4];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                Factors of[2];
                if constexpr (Weight::HALVES) {
                    by[n][r] = ((const uint4 *)table[n][r])[J];
                    of[0] = {by[n][r].x, by[n][r].y}, of[1] = {by[n][r].z, by[n][r].w};
                } else {
                    if constexpr (J % 2 == 0) by[n][r] = ((const uint4 *)table[n][r])[J / 2];
                    of[0] = of[1] = J % 2 == 0 ? Factors{by[n][r].x, by[n][r].y} : Factors{by[n][r].z, by[n][r].w};
                }
                weights_of<Weight>(Weight::template word<J, 0>(g[n][r], book, t), of[0], a[0][r], a[0][2 + r]);
                weights_of<Weight>(Weight::template word<J, 1>(g[n][r], book, t), of[1], a[1][r], a[1][2 + r]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    u32 b[2];
                    load(n, i, 2 * J + half, b);
                    ptx::mma_bf16_k16(sums[n][i], a[half], b);
                }
            }
        }
    });
}

// Puts two results of a column where they belong: of row `row` of a tile, below 8, and of the eighth behind it.
__device__ __forceinline__ void
put(const Matrices &matrices, const Cut &cut, const Tile &at, int expert, int row, i64 column, float first, float second) {
    const Matrix &matrix = matrices.at[at.matrix];
    const float scale = scale_of(matrix, expert);
    first *= WEIGHT_UP, second *= WEIGHT_UP, row += at.row;
    if (cut.what >= GLU) {
        if (row < matrix.rows) finish_glu(matrices, cut.what, expert, row, column, first, second);
    } else {
        if (row < matrix.rows) finish(matrix, cut.what, scale, row, column, first);
        if (row + 8 < matrix.rows) finish(matrix, cut.what, scale, row + 8, column, second);
    }
}
