// Packed matrices times up to 64 columns, which the warps of a block share.
//
// A warp computes a tile of 16 rows (`rows.cuh`), and those of a block go through the groups of 256 values together, so that columns
// come to shared memory once for all of them, a group ahead.
//
// Constants: WEIGHT; TILES of 8 columns (2, 4 or 8); ALIGNED (how rows begin, see `packed.cuh`).
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) batch(Matrices matrices, Cut cut, const u8 *x, const u32 *table) {
    extern __shared__ __align__(16) u8 shared[];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x & 31, r = lane / 4;
    u32 *book = (u32 *)shared;
    for (int i = threadIdx.x; i < Weight::TABLE; i += blockDim.x) book[i] = table[i];
    // Two groups of columns, [tile][step][half][column][8 values]; then the warps' own.
    u8 *columns = shared + Weight::TABLE * 4;
    constexpr int COLUMNS_BYTES = TILES * pieces::GROUP;
    u8 *packed = columns + 2 * COLUMNS_BYTES + warp * WARP_BYTES, *factor_table = packed + STAGE;
    const int steps = (cut.tiles + warps - 1) / warps, pairs = (cut.groups + 1) / 2, last = (cut.columns - 1) / 8;
    ptx::let_next_kernel_begin();

    // Of tiles of columns that there are none of, the last one is there already.
    const auto fetch_columns = [&](int group, int buffer) {
        const ptx::Shared to = ptx::shared_at(columns + buffer * COLUMNS_BYTES);
        for (int i = threadIdx.x; i < COLUMNS_BYTES / 16; i += blockDim.x) {
            const int tile = min(i / (pieces::GROUP / 16), last), word = i % (pieces::GROUP / 16);
            ptx::copy_16_to(to + 16 * i, x + ((i64)tile * cut.groups + group) * pieces::GROUP + 16 * word);
        }
        copies_made();
    };
    int ahead_step = blockIdx.x, ahead_pair = 0, buffer = 0;
    LaneRows ahead = {};
    const auto fetch_rows = [&] {
        const int tile = ahead_step * warps + warp;
        if (ahead_step < steps && tile < cut.tiles) {
            if (ahead_pair == 0) ahead = lane_rows(matrices, cut, tile, 0);
            fetch(ahead, ahead_pair, packed);
        }
        if (++ahead_pair == pairs) ahead_pair = 0, ahead_step += gridDim.x;
        copies_made();
    };
    fetch_rows();
    // Weights are nobody's result.
    ptx::wait_for_kernel_before();
    fetch_columns(0, 0);

    for (int step = blockIdx.x; step < steps; step += gridDim.x) {
        const int tile = step * warps + warp;
        const bool there = tile < cut.tiles;
        u32 begins[2] = {}, begins_of_factors = 0;
        if (!WHOLE && there) {
            const LaneRows rows = lane_rows(matrices, cut, tile, 0);
            begins[0] = (u32)(size_t)rows.at[0], begins[1] = (u32)(size_t)rows.at[1];
            const u32 first = __shfl_sync(FULL_WARP, begins[0], lane % 8 * 4), second = __shfl_sync(FULL_WARP, begins[1], lane % 8 * 4);
            begins_of_factors = lane % 16 < 8 ? first : second;
        }
        float totals[TILES][4] = {};
        for (int pair = 0; pair < pairs; pair++) {
            const u32 offset = pair * (2 * Weight::BYTES);
            const u8 *rows[2];
#pragma unroll
            for (int i = 0; i < 2; i++) rows[i] = packed + (r + 8 * i) * PITCH + (WHOLE ? 0 : (begins[i] + offset) & 15);
#pragma unroll 1
            for (int which = 0; which < 2 && 2 * pair + which < cut.groups; which++) {
                const int group = 2 * pair + which;
                copies_wait<0>();
                __syncthreads();
                // There is another group, of this tile or, from the front, of the next.
                fetch_columns(group + 1 < cut.groups ? group + 1 : 0, buffer ^ 1);
                if (which == 0 && there) {
                    const int skew = WHOLE ? 0 : (begins_of_factors + offset) & 15, count = cut.cols / 32 - pair * 16;
                    if (count >= 16) decode_factors<false>(skew, count, packed, factor_table);
                    else decode_factors<true>(skew, count, packed, factor_table);
                    __syncwarp();
                }
                if (there) {
                    const Group g[1][2] = {{{rows[0] + which * Weight::BYTES}, {rows[1] + which * Weight::BYTES}}};
                    const u8 *const tables[1][2] = {
                        {factor_table + (which * ROWS + r) * FACTORS_PITCH, factor_table + (which * ROWS + r + 8) * FACTORS_PITCH}
                    };
                    float sums[1][TILES][4] = {};
                    // Lanes name rows of pieces: both halves of two tiles at once, of which every other call has what is left.
                    const u8 *at = columns + buffer * COLUMNS_BYTES + lane / 16 * pieces::GROUP + lane / 8 % 2 * pieces::HALF + lane % 8 * 16;
                    u32 both[4];
                    multiply_groups<1>(sums, g, book, tables, [&](int, int i, int step, u32(&b)[2]) {
                        if (i % 2 == 0) ptx::load_matrices(both, at + i * pieces::GROUP + step * pieces::STEP);
                        b[0] = both[i % 2 * 2], b[1] = both[i % 2 * 2 + 1];
                    });
#pragma unroll
                    for (int i = 0; i < TILES; i++) {
#pragma unroll
                        for (int e = 0; e < 4; e++) totals[i][e] = __fadd_rn(totals[i][e], sums[0][i][e]);
                    }
                }
                buffer ^= 1;
            }
            __syncwarp();
            fetch_rows();
        }
        if (!there) continue;
        const Tile at = tile_at(matrices, cut, tile);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const int c = 8 * i + lane % 4 * 2 + odd;
                if (c < cut.columns) put(matrices, cut, at, 0, r, c, totals[i][odd], totals[i][2 + odd]);
            }
        }
    }
    copies_wait<0>();
}
