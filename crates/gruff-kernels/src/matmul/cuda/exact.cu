// Packed matrices times columns that are not rounded, in f32.
//
// A lane multiplies whole groups of 256 values: their codes, scales and minima are decoded in its registers once for all
// columns. A warp takes bundles of consecutive rows, which are consecutive bytes; it streams them through a ring of
// stages of 32 groups in shared memory, 16 bytes a copy whatever the type's alignment. Sums of groups meet in shared
// memory; when those of some bundles are there, rows are added up, a lane each.
//
// Constants: WEIGHT (the type), COLUMNS, ALIGNED (2: every group begins at a multiple of 16 bytes), SLOTS (1: blockIdx.y counts
// rows of the output, each with an expert of its own; one column).
#include "packed.cuh"

// Pieces of four floats a group; see `turn`.
constexpr int PIECES = 64;

// Stages of a ring, and the most threads. More of either leaves less of the memory that activations are cached in.
constexpr int STAGES = 2;
constexpr int THREADS = 512;

// How the work is cut.
struct Cut {
    int cols, groups;
    // Bytes of a row; 2^32 / groups, rounded up.
    int row_bytes;
    u32 inverse;
    // Rows of a bundle, stages that it takes a matrix.
    int bundle_rows, stages;
    // Bundles of all matrices; bundles whose sums are kept.
    int bundles, hold;
    // Bytes of a stage, sums of a bundle.
    int stage_bytes, sums;
    int matrices, what;
    // With SLOTS: rows of the output that share a row of x; experts of the stack; experts of a token; the first row of the
    // output; values from the ids of a token to the next's.
    int share, experts, used, first;
    i64 id_stride;
};

// A bundle: consecutive rows of a matrix.
struct Bundle {
    int matrix, row, rows;
};

__device__ __forceinline__ Bundle bundle_at(const Matrices &matrices, const Cut &cut, int bundle) {
    Bundle at;
    at.matrix = 0;
    if (cut.what < GLU && cut.matrices > 1) {
#pragma unroll
        for (int i = 0; i < MATRICES - 1; i++) {
            const int has = (matrices.at[i].rows + cut.bundle_rows - 1) / cut.bundle_rows;
            if (at.matrix == i && i + 1 < cut.matrices && bundle >= has) at.matrix = i + 1, bundle -= has;
        }
    }
    at.row = bundle * cut.bundle_rows;
    at.rows = min(cut.bundle_rows, matrices.at[at.matrix].rows - at.row);
    return at;
}

// Where a warp is: the bundle (of gate and, then, of up), and the first group of the stage in it.
struct Cursor {
    int bundle, part, first;
    // Rows of the matrix from the bundle on, and groups of the bundle.
    int left, total;
    const u8 *begin;
};

__device__ __forceinline__ void enter(Cursor &cursor, const Matrices &matrices, const Cut &cut, int expert) {
    if (cursor.bundle >= cut.bundles) {
        cursor.total = 0;
        return;
    }
    const Bundle at = bundle_at(matrices, cut, cursor.bundle);
    const Matrix &matrix = matrices.at[at.matrix + cursor.part];
    cursor.begin = matrix.weights + (i64)at.row * cut.row_bytes;
#if SLOTS
    cursor.begin += expert * matrix.matrix_bytes;
#endif
    cursor.left = matrix.rows - at.row;
    cursor.total = at.rows * cut.groups;
}

__device__ __forceinline__ void advance(Cursor &cursor, const Matrices &matrices, const Cut &cut, int stride, int expert) {
    cursor.first += 32;
    if (cursor.first < cut.stages * 32) return;
    cursor.first = 0;
    if (cut.what >= GLU) {
        cursor.bundle += cursor.part * stride;
        cursor.part ^= 1;
        enter(cursor, matrices, cut, expert);
        return;
    }
    cursor.bundle += stride;
    // Mostly it is a whole bundle further down the same matrix.
    cursor.left -= stride * cut.bundle_rows;
    cursor.begin += (i64)stride * cut.bundle_rows * cut.row_bytes;
    if (cursor.left < cut.bundle_rows) enter(cursor, matrices, cut, expert);
}

// Which row of a bundle a group is in.
__device__ __forceinline__ int row_of(const Cut &cut, int index) {
    return cut.groups == 1 ? index : (int)__umulhi((u32)index, cut.inverse);
}

__device__ __forceinline__ int group_offset(const Cut &cut, int index) {
    const int row = row_of(cut, index);
    return row * cut.row_bytes + (index - row * cut.groups) * Weight::BYTES;
}

__device__ __forceinline__ void fetch(const Cursor &cursor, const Cut &cut, u8 *stage) {
    if (cursor.first >= cursor.total) return;
    const int offset = group_offset(cut, cursor.first);
    const u8 *from = cursor.begin + offset;
    const int skew = (int)(size_t)from & 15, left = min(cursor.left, cut.bundle_rows) * cut.row_bytes - offset + skew;
    const int at = (threadIdx.x & 31) * 16;
    const u8 *base = from - skew + at;
    stage += at;
    constexpr int WHOLE = 32 * Weight::BYTES / 512;
    if (left >= (WHOLE + 1) * 512) {
#pragma unroll
        for (int i = 0; i < WHOLE; i++) copy_16(stage + 512 * i, base + 512 * i);
        // The rest, and what a misaligned begin moves behind.
        if (32 * Weight::BYTES % 512 != 0 || !WHOLE) {
            if (WHOLE * 512 + at < 32 * Weight::BYTES + skew) copy_16(stage + 512 * WHOLE, base + 512 * WHOLE);
        }
    } else {
        const int size = min(left, cut.stage_bytes) - at;
        for (int i = 0; i < size; i += 512) copy_16(stage + i, base + i, min(16, left - at - i));
    }
}

// The sum of one group in each column.
__device__ __forceinline__ void
multiply_group(const u8 *from, const u32 *book, int count, const float4 *x, int x_row, float (&sum)[COLUMNS]) {
    u32 words[GROUP_WORDS<Weight>];
    load_group<Weight, WHOLE>(from, words);
    each_sub_block<0, 8>([&](auto j) {
        constexpr int J = decltype(j)::value;
        if (J >= count) return;
        u32 codes[8];
        float scale[2], minimum[2];
        blocks::decode<Weight, J>(blocks::Registers{words}, book, codes, scale, minimum);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int half = Weight::HALVES ? i / 4 : 0;
            const u32 word = blocks::signed_codes<Weight::OFFSET>(codes[i]);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const float4 four = x[c * x_row + (8 * J + i) * 32];
                const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    float weight = __fmul_rn(scale[half], (float)(int)(signed char)(word >> (8 * k)));
                    if (Weight::MINIMUM) weight = __fadd_rn(weight, minimum[half]);
                    sum[c] = __fmaf_rn(values[k], weight, sum[c]);
                }
            }
        }
    });
}

__device__ __forceinline__ float add_groups(const float *sums, int groups) {
    float sum = 0.0f;
#pragma unroll 4
    for (int g = 0; g < groups; g++) sum = __fadd_rn(sum, sums[g]);
    return sum;
}

// The rows of `count` bundles from `bundle` on, in strides.
__device__ __forceinline__ void
finish_bundles(const Matrices &matrices, const Cut &cut, int bundle, int stride, int count, const float *sums, int expert, i64 to) {
    const int parts = cut.what >= GLU ? 2 : 1, each = cut.bundle_rows * COLUMNS;
    for (int index = threadIdx.x & 31; index < count * each; index += 32) {
        const int held = index / each, row = index % each % cut.bundle_rows, column = index % each / cut.bundle_rows;
        const Bundle at = bundle_at(matrices, cut, bundle + held * stride);
        if (row >= at.rows) continue;
        const Matrix &matrix = matrices.at[at.matrix];
        const float *mine = sums + (held * COLUMNS + column) * parts * cut.sums + row * cut.groups;
        const float sum = add_groups(mine, cut.groups);
        if (parts == 2) {
            const float gate = __fmul_rn(sum, scale_of(matrix, expert));
            const float up = __fmul_rn(add_groups(mine + cut.sums, cut.groups), scale_of(matrices.at[1], expert));
            matrix.out[(to + column) * matrix.out_stride + at.row + row] = gate_value(cut.what - GLU, gate) * up;
        } else {
            finish(matrix, cut.what, scale_of(matrix, expert), at.row + row, to + column, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
exact(Matrices matrices, Cut cut, const float4 *x, const u32 *table, const int *ids) {
    in_turn();
    extern __shared__ __align__(16) u8 shared[];
    u32 *book = (u32 *)shared;
    for (int i = threadIdx.x; i < Weight::TABLE; i += blockDim.x) book[i] = table[i];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int parts = cut.what >= GLU ? 2 : 1;
    u8 *behind = shared + Weight::TABLE * 4;
    u8 *ring = behind + warp * STAGES * cut.stage_bytes;
    float *sums = (float *)(behind + warps * STAGES * cut.stage_bytes) + warp * cut.hold * COLUMNS * parts * cut.sums;
    if (Weight::TABLE != 0) __syncthreads();

    int expert = 0;
    i64 to = 0;
    const int x_row = (cut.groups + 31) / 32 * PIECES * 32;
#if SLOTS
    to = cut.first + blockIdx.y;
    expert = ids[to / cut.used * cut.id_stride + to % cut.used];
    if ((u32)expert >= (u32)cut.experts) return;
    x += to / cut.share * x_row;
#endif

    // Bundles left over spread over all multiprocessors.
    const int stride = warps * gridDim.x;
    Cursor here, ahead;
    here.bundle = warp * gridDim.x + blockIdx.x, here.part = here.first = 0;
    enter(here, matrices, cut, expert);
    ahead = here;
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) {
        fetch(ahead, cut, ring + stage * cut.stage_bytes);
        advance(ahead, matrices, cut, stride, expert);
        copies_made();
    }
    int stage = 0, held = 0, oldest = here.bundle;
    while (here.bundle < cut.bundles) {
        fetch(ahead, cut, ring + (stage == 0 ? STAGES - 1 : stage - 1) * cut.stage_bytes);
        advance(ahead, matrices, cut, stride, expert);
        copies_made();
        copies_wait<STAGES - 1>();
        __syncwarp();
        const int index = here.first + lane;
        if (index < here.total) {
            const int row = row_of(cut, index), group = index - row * cut.groups, begin = group_offset(cut, here.first);
            const int skew = (int)(size_t)(here.begin + begin) & 15;
            const u8 *from = ring + stage * cut.stage_bytes + skew + (row * cut.row_bytes + group * Weight::BYTES - begin);
            const int count = (cut.cols - group * 256) / 32;
            float sum[COLUMNS] = {};
            multiply_group(from, book, count, x + (group & 31) + (group >> 5) * (32 * PIECES), x_row, sum);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sums[((held * COLUMNS + c) * parts + here.part) * cut.sums + index] = sum[c];
        }
        __syncwarp();
        const int before = here.bundle;
        advance(here, matrices, cut, stride, expert);
        if (here.bundle != before) held++;
        if (held == cut.hold || (here.bundle >= cut.bundles && held > 0)) {
            finish_bundles(matrices, cut, oldest, stride, held, sums, expert, to);
            __syncwarp();
            oldest = here.bundle, held = 0;
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}
