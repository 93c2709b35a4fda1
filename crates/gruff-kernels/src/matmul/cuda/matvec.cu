// Packed matrices times few columns, at the speed of memory.
//
// A warp computes a tile of 16 rows (`rows.cuh`), or a share of its groups of 256 values, for up to 8 TILES columns. Where several
// warps share a tile, their sums of groups meet in shared memory, and one thread for each result adds them up in order.
//
// Constants: WEIGHT; TILES of 8 columns (1, 2 or 4); STAGES; TAIL; FLAT (x is flat, see `pieces.cuh`; 1: it comes to shared memory with
// the weights, 2: it is read where it is multiplied); EXACT (columns that are not rounded
// and multiplied in f32, 1, 4 or 8; or 0); SLOTS (1: blockIdx.y counts rows of the output, each with an expert of its own).
#include "rows.cuh"

// Results of a thread where warps share tiles, each of a row and the eighth behind it.
constexpr int RESULTS = TILES;

#if EXACT
constexpr float UP = 1.0f;

// Where the columns of x are, of which there are `count`.
struct Columns {
    const float *first;
    i64 stride;
    int count;
    bool aligned;
};

__device__ __forceinline__ float4 four_at(const Columns &x, const float *from) {
    if (x.aligned) return *(const float4 *)from;
    return make_float4(from[0], from[1], from[2], from[3]);
}

// The sums of a group in each column, in f32: of a lane's 64 values one after the other, then over the four lanes of a row.
__device__ __forceinline__ void
multiply(float (&sums)[TILES][4], const u8 *stage, const u32 *book, const Cut &cut, const Columns &x, int group) {
    Share shares[2];
    load_shares(cut.cols, group, stage, shares);
    const int t = threadIdx.x & 3, first = group * blocks::GROUP + t * blocks::RUN;
    float parts[2][EXACT] = {};
    each<0, 2>([&](auto s) {
        constexpr int S = decltype(s)::value;
        if (first + 32 * S >= cut.cols) return;
        float scale[2][2] = {}, minimum[2][2] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) Weight::template scales<S>(shares[r], t, scale[r], minimum[r]);
        each<0, 8>([&](auto word) {
            constexpr int I = decltype(word)::value, HALF = Weight::HALVES ? I / 4 : 0;
            float weights[2][4];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u32 codes = Weight::template word<S, I>(shares[r], book), signs = Weight::template signs<S>(shares[r]);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int code = (int)(codes >> (8 * (k / 2 + k % 2 * 2)) & 255) - Weight::OFFSET;
                    float weight = __fmul_rn(scale[r][HALF], (float)code);
                    if (Weight::MINIMUM) weight = __fadd_rn(weight, minimum[r][HALF]);
                    if (Weight::SIGNS && signs >> (15 - 2 * I - k / 2 + k % 2 * 16) & 1) weight = -weight;
                    weights[r][k] = weight;
                }
            }
#pragma unroll
            for (int c = 0; c < EXACT; c++) {
                if (c >= x.count) break;
                const float4 four = four_at(x, x.first + c * x.stride + first + 32 * S + 4 * I);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float &sum = parts[r][c];
                    sum = __fmaf_rn(four.x, weights[r][0], sum), sum = __fmaf_rn(four.y, weights[r][1], sum);
                    sum = __fmaf_rn(four.z, weights[r][2], sum), sum = __fmaf_rn(four.w, weights[r][3], sum);
                }
            }
        });
    });
#pragma unroll
    for (int c = 0; c < EXACT; c++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = parts[r][c];
            sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 1));
            sum = __fadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 2));
            // As `mma` leaves them.
            if (t == c / 2) sums[0][2 * r + c % 2] = sum;
        }
    }
}
#else
constexpr float UP = WEIGHT_UP;

// Where what a lane multiplies begins, of each tile of columns. Lanes of columns that there are none of read the last one, which is
// there already.
struct Columns {
    const u8 *at[TILES];
};

__device__ __forceinline__ void
multiply(float (&sums)[TILES][4], const u8 *stage, const u32 *book, const Cut &cut, const Columns &x, int group) {
    Share shares[2];
    load_shares(cut.cols, group, stage, shares);
#if FLAT
    const uint4 *from = (const uint4 *)(x.at[0] + (FLAT == 2 ? group * pieces::FLAT_GROUP : 0));
    uint4 run[8];
#pragma unroll
    for (int i = 0; i < 8; i++) run[i] = from[4 * i];
    multiply_group(sums, shares, book, [&](int, int step, u32(&b)[2]) {
        const uint4 &two = run[step / 2];
        b[0] = step % 2 == 0 ? two.x : two.z, b[1] = step % 2 == 0 ? two.y : two.w;
    });
#else
    const u8 *from[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) from[i] = ptx::opaque(x.at[i] + group * pieces::GROUP);
    multiply_group(sums, shares, book, [&](int i, int step, u32(&b)[2]) {
        const u32 *words = (const u32 *)(from[i] + step * pieces::STEP);
        b[0] = words[0], b[1] = words[pieces::HALF / 4];
    });
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matvec(Matrices matrices, Cut cut, const u8 *x, const u32 *table, const int *ids) {
    extern __shared__ __align__(16) u8 shared[];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    u32 *book = (u32 *)shared;
    for (int i = threadIdx.x; i < Weight::TABLE; i += blockDim.x) book[i] = table[i];
    // A stage has a group of the tile and, with FLAT = 1, of x.
    const int stage_bytes = STAGE + (FLAT == 1 ? cut.columns * pieces::FLAT_GROUP : 0);
    u8 *ring = shared + Weight::TABLE * 4 + warp * STAGES * stage_bytes;
    // Warps abreast have tiles side by side, and `shares` of them share one.
    const int abreast = cut.abreast, own = warp % abreast, share = warp / abreast, shares = warps / abreast;
    // [round % 2][group of the round][tile abreast][column][row]
    float *all_sums = (float *)(shared + Weight::TABLE * 4 + warps * STAGES * stage_bytes);
    const int tile_sums = cut.columns * SUM_PITCH, group_sums = abreast * tile_sums, round_groups = shares * cut.run;
    if (Weight::TABLE != 0) __syncthreads();

    int expert = 0;
    i64 to = 0;
    int row = 0;
    ptx::let_next_kernel_begin();
#if SLOTS
    ptx::wait_for_kernel_before();
    to = cut.first + blockIdx.y;
    expert = ids[to / cut.used * cut.id_stride + to % cut.used];
    if ((u32)expert >= (u32)cut.experts) return;
    row = (int)(to / cut.share);
#endif

    const int steps = (cut.tiles + abreast - 1) / abreast;
    // What is fetched next. A warp beyond the last group, or whose tile there is not, has nothing to bring.
    int ahead_step = share < cut.groups ? blockIdx.x : steps, ahead_group = share;
    Copied ahead = {};
    const auto enter_tile = [&] {
        const int tile = ahead_step * abreast + own;
        if (tile >= cut.tiles) ahead_step = steps;
        if (ahead_step < steps) ahead = copied_by_lane(strips_of(matrices, cut, tile, expert), share);
    };
    const auto next_group = [&] {
        ahead_group += shares, ahead.at += shares * CELL;
        if (ahead_group >= cut.groups) ahead_group = share, ahead_step += gridDim.x, enter_tile();
    };
#if FLAT
    const u8 *flat = pieces::flat_row((u8 *)x, cut.groups, row);
    const auto fetch_x = [&](const u8 *stage, int group) {
        if (FLAT != 1) return;
        const ptx::Shared at = ptx::shared_at(stage + STAGE) + 16 * lane;
        const u8 *from = flat + group * pieces::FLAT_GROUP + 16 * lane;
        ptx::copy_16_to(at, from);
#pragma unroll 1
        for (int c = 1; c < cut.columns; c++) {
            ptx::copy_16_to(at + c * pieces::FLAT_GROUP, from + c * cut.groups * pieces::FLAT_GROUP);
        }
    };
#else
    const auto fetch_x = [](const u8 *, int) {};
#endif
    enter_tile();
    int begun = share;
#pragma unroll 1
    for (int i = 0; i < STAGES && ahead_step < steps; i++) {
        fetch(ahead, ring + i * stage_bytes, cut.cols, ahead_group);
        next_group();
    }
    // Weights are nobody's result.
    ptx::wait_for_kernel_before();
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) {
        if (begun < cut.groups) fetch_x(ring + i * stage_bytes, begun);
        copies_made();
        begun += shares;
        if (begun >= cut.groups) begun = share;
    }
    Columns columns;
#if EXACT
    columns = {(const float *)x + row * cut.x_stride, cut.x_stride, cut.columns, (((size_t)x | cut.x_stride * 4) & 15) == 0};
#elif FLAT
    const int column = min(lane / 4, cut.columns - 1), in_column = lane % 4 * 16;
    columns.at[0] = flat + column * cut.groups * pieces::FLAT_GROUP + in_column;
#else
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        columns.at[i] = pieces::step_at((u8 *)x, cut.groups, SLOTS ? row : min(8 * i + lane / 4, cut.columns - 1), 0) + lane % 4 * 4;
    }
#endif

    // Calls f(i, tile, row, column) for what result i of this thread is, of tiles that several warps share.
    const auto each_result = [&](int step, auto f) {
        if (shares == 1) return;
#pragma unroll
        for (int i = 0; i < RESULTS; i++) {
            const int index = threadIdx.x + i * blockDim.x;
            if (index >= 8 * abreast * cut.columns) break;
            int c = index / 8, tile = step * abreast;
            while (c >= cut.columns) c -= cut.columns, tile++;
            if (tile < cut.tiles) f(i, tile_at(matrices, cut, tile), index % 8, c);
        }
    };

    int round = 0;
    u8 *stage = ring;
    for (int step = blockIdx.x; step < steps; step += gridDim.x) {
        const int tile = step * abreast + own;
        const bool there = tile < cut.tiles;
        // Of a tile that the warp has to itself.
        float whole[TILES][4] = {};
        // Of a shared one, and what its sums may be added to.
        float totals[RESULTS][2] = {}, before[RESULTS][2];
        each_result(step, [&](int i, const Tile &at, int row, int c) { read_before(matrices, cut, at, row, to + c, before[i]); });
        for (int first = 0; first < cut.groups; first += round_groups, round ^= 1) {
            float *sums = all_sums + round * round_groups * group_sums;
            const int end = there ? min(first + round_groups, cut.groups) : 0;
            float *put_at = sums + share * group_sums + own * tile_sums + lane % 4 * 2 * SUM_PITCH + lane / 4;
            for (int group = first + share; group < end; group += shares, put_at += shares * group_sums) {
                copies_wait<STAGES - 1>();
                __syncwarp();
#if FLAT == 1
                columns.at[0] = stage + STAGE + column * pieces::FLAT_GROUP + in_column;
#endif
                float group_sum[TILES][4] = {};
                multiply(group_sum, stage, book, cut, columns, group);
                __syncwarp();
                if (ahead_step < steps) {
                    fetch(ahead, stage, cut.cols, ahead_group);
                    fetch_x(stage, ahead_group);
                    next_group();
                }
                copies_made();
                stage = stage == ring + (STAGES - 1) * stage_bytes ? ring : stage + stage_bytes;
#pragma unroll
                for (int i = 0; i < TILES; i++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        if (shares == 1) whole[i][e] = __fadd_rn(whole[i][e], group_sum[i][e]);
                        else if (8 * i + lane % 4 * 2 + e % 2 < cut.columns) put_at[(8 * i + e % 2) * SUM_PITCH + e / 2 * 8] = group_sum[i][e];
                    }
                }
            }
            if (shares == 1) continue;
            __syncthreads();
            const int count = min(round_groups, cut.groups - first);
#pragma unroll
            for (int i = 0; i < RESULTS; i++) {
                const int index = threadIdx.x + i * blockDim.x;
                if (index >= 8 * abreast * cut.columns) break;
                const float *from = sums + index / 8 * SUM_PITCH + index % 8;
#pragma unroll 8
                for (int k = 0; k < count; k++, from += group_sums) {
                    totals[i][0] = __fadd_rn(totals[i][0], from[0]), totals[i][1] = __fadd_rn(totals[i][1], from[8]);
                }
            }
        }
        if (shares == 1) {
            if (there) put_sums(matrices, cut, tile_at(matrices, cut, tile), expert, to, whole, UP);
            continue;
        }
        each_result(step, [&](int i, const Tile &at, int row, int c) {
            put(matrices, cut, at, expert, row, to + c, before[i], totals[i][0] * UP, totals[i][1] * UP);
        });
    }
    copies_wait<0>();
}
