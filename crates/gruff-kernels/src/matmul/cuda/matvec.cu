// Packed matrices times few columns, at the speed of memory.
//
// A warp computes a tile of 16 rows (`rows.cuh`), or a share of its values, for up to 8 TILES columns. It takes pairs of groups of
// 256 values in turn. Where several warps share a tile, their sums of
// groups meet in shared memory after each round, and one thread for each result adds them up in order.
//
// Constants: WEIGHT; TILES of 8 columns (1, 2 or 4); ALIGNED (how rows begin, see `packed.cuh`); SLOTS (1: blockIdx.y counts rows
// of the output, each with an expert of its own).
#include "rows.cuh"

// Results of a thread where warps share tiles, each of a row and the eighth behind it.
constexpr int RESULTS = TILES;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matvec(Matrices matrices, Cut cut, const u8 *x, const u32 *table, const int *ids) {
    extern __shared__ __align__(16) u8 shared[];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    u32 *book = (u32 *)shared;
    for (int i = threadIdx.x; i < Weight::TABLE; i += blockDim.x) book[i] = table[i];
    u8 *packed = shared + Weight::TABLE * 4 + warp * WARP_BYTES, *factor_table = packed + STAGE;
    // Warps abreast have tiles side by side, and `shares` of them share one.
    const int abreast = cut.abreast, own = warp % abreast, share = warp / abreast, shares = warps / abreast;
    // [round % 2][share][group of the pair][tile abreast][column][row]
    float *all_sums = (float *)(shared + Weight::TABLE * 4 + warps * WARP_BYTES);
    const int tile_sums = cut.columns * SUM_PITCH, group_sums = abreast * tile_sums, round_sums = shares * 2 * group_sums;
    if (Weight::TABLE != 0) __syncthreads();

    int expert = 0;
    i64 to = 0;
    const u8 *columns[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        // Lanes of columns that there are none of read the last one, which is there already.
        columns[i] = pieces::step_at((u8 *)x, cut.groups, min(8 * i + lane / 4, cut.columns - 1), 0) + lane % 4 * 4;
    }
    ptx::let_next_kernel_begin();
#if SLOTS
    ptx::wait_for_kernel_before();
    to = cut.first + blockIdx.y;
    expert = ids[to / cut.used * cut.id_stride + to % cut.used];
    if ((u32)expert >= (u32)cut.experts) return;
    const int row = (int)(to / cut.share);
    // All columns are this one.
    columns[0] = pieces::step_at((u8 *)x, cut.groups, row, 0) + lane % 4 * 4;
#endif

    const int pairs = (cut.groups + 1) / 2, steps = (cut.tiles + abreast - 1) / abreast, r = lane / 4;
    // A warp beyond the last pair has nothing to bring, and adds up results only.
    int ahead_step = share < pairs ? blockIdx.x : steps, ahead_pair = share;
    LaneRows ahead = {};
    const auto fetch_next = [&] {
        if (ahead_step < steps) {
            const int tile = ahead_step * abreast + own;
            if (tile < cut.tiles) {
                if (ahead_pair == share) ahead = lane_rows(matrices, cut, tile, expert);
                fetch(ahead, ahead_pair, packed);
            }
            ahead_pair += shares;
            if (ahead_pair >= pairs) ahead_pair = share, ahead_step += gridDim.x;
        }
        copies_made();
    };
    fetch_next();
    // Weights are nobody's result.
    ptx::wait_for_kernel_before();

    int round = 0;
    for (int step = blockIdx.x; step < steps; step += gridDim.x) {
        const int tile = step * abreast + own;
        const bool there = tile < cut.tiles;
        u32 begins[2] = {}, begins_of_factors = 0;
        if (!WHOLE && there) {
            const LaneRows rows = lane_rows(matrices, cut, tile, expert);
            begins[0] = (u32)(size_t)rows.at[0], begins[1] = (u32)(size_t)rows.at[1];
            const u32 first = __shfl_sync(FULL_WARP, begins[0], lane % 8 * 4), second = __shfl_sync(FULL_WARP, begins[1], lane % 8 * 4);
            begins_of_factors = lane % 16 < 8 ? first : second;
        }
        // Of a tile that the warp has to itself.
        float whole[TILES][4] = {};
        // Of a shared one.
        float totals[RESULTS][2] = {};
        for (int first = 0; first < pairs; first += shares, round ^= 1) {
            const int pair = first + share;
            float *sums = all_sums + round * round_sums;
            if (pair < pairs) {
                copies_wait<0>();
                __syncwarp();
            }
            if (pair < pairs && there) {
                const u32 offset = pair * (2 * Weight::BYTES);
                const int skew = WHOLE ? 0 : (begins_of_factors + offset) & 15, count = cut.cols / 32 - pair * 16;
                if (count >= 16) decode_factors<false>(skew, count, packed, factor_table);
                else decode_factors<true>(skew, count, packed, factor_table);
                __syncwarp();
                const u8 *rows[2];
#pragma unroll
                for (int i = 0; i < 2; i++) rows[i] = packed + (r + 8 * i) * PITCH + (WHOLE ? 0 : (begins[i] + offset) & 15);
                // Groups that are multiplied side by side; of one that is not there nothing is kept.
                constexpr int ABREAST = TILES == 1 ? 2 : 1;
#pragma unroll 1
                for (int which = 0; which < 2 && 2 * pair + which < cut.groups; which += ABREAST) {
                    Group g[ABREAST][2];
                    const u8 *tables[ABREAST][2], *at[ABREAST][TILES];
#pragma unroll
                    for (int n = 0; n < ABREAST; n++) {
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            g[n][i] = {rows[i] + (which + n) * Weight::BYTES};
                            tables[n][i] = factor_table + ((which + n) * ROWS + r + 8 * i) * FACTORS_PITCH;
                        }
                        const int group = min(2 * pair + which + n, cut.groups - 1);
#pragma unroll
                        for (int i = 0; i < TILES; i++) at[n][i] = ptx::opaque(columns[i] + group * pieces::GROUP);
                    }
                    float group[ABREAST][TILES][4] = {};
                    multiply_groups<ABREAST>(group, g, book, tables, [&](int n, int i, int step, u32(&b)[2]) {
                        const u32 *words = (const u32 *)(at[n][i] + step * pieces::STEP);
                        b[0] = words[0], b[1] = words[pieces::HALF / 4];
                    });
#pragma unroll
                    for (int n = 0; n < ABREAST; n++) {
                        if (2 * pair + which + n >= cut.groups) break;
                        float *mine = sums + (2 * share + which + n) * group_sums + own * tile_sums;
#pragma unroll
                        for (int i = 0; i < TILES; i++) {
#pragma unroll
                            for (int e = 0; e < 4; e++) {
                                const int c = 8 * i + lane % 4 * 2 + e % 2;
                                if (shares == 1) whole[i][e] = __fadd_rn(whole[i][e], group[n][i][e]);
                                else if (c < cut.columns) mine[c * SUM_PITCH + e / 2 * 8 + r] = group[n][i][e];
                            }
                        }
                    }
                }
            }
            if (pair < pairs) {
                __syncwarp();
                fetch_next();
            }
            if (shares == 1) continue;
            __syncthreads();
            const int count = min(2 * shares, cut.groups - 2 * first);
#pragma unroll
            for (int i = 0; i < RESULTS; i++) {
                const int index = threadIdx.x + i * blockDim.x;
                if (index >= 8 * abreast * cut.columns) break;
                const float *from = sums + index / 8 * SUM_PITCH + index % 8;
                for (int k = 0; k < count; k++, from += group_sums) {
                    totals[i][0] = __fadd_rn(totals[i][0], from[0]), totals[i][1] = __fadd_rn(totals[i][1], from[8]);
                }
            }
        }
        if (shares == 1) {
            const Tile at = tile_at(matrices, cut, tile);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const int c = 8 * i + lane % 4 * 2 + odd;
                    if (there && c < cut.columns) put(matrices, cut, at, expert, r, to + c, whole[i][odd], whole[i][2 + odd]);
                }
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < RESULTS; i++) {
            const int index = threadIdx.x + i * blockDim.x, c = index / 8 % cut.columns, mine = step * abreast + index / 8 / cut.columns;
            if (index >= 8 * abreast * cut.columns || mine >= cut.tiles) break;
            put(matrices, cut, tile_at(matrices, cut, mine), expert, index % 8, to + c, totals[i][0], totals[i][1]);
        }
    }
}
