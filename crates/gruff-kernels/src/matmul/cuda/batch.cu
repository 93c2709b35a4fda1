// Packed matrices times up to 64 columns, which the warps of a block share.
//
// A warp computes a tile of 16 rows (`rows.cuh`), and those of a block go through the groups of 256 values together, so that columns
// come to shared memory once for all of them, a group ahead. Where tiles are too few to occupy the card so, blocks share rows by runs of
// groups and leave the sums of each group, which `batch_sums` adds up in order.
//
// Constants: WEIGHT; TILES of 8 columns (2, 4 or 8); STAGES; TAIL; SHARED (1: blockIdx.y counts runs of groups).
#include "rows.cuh"

// What is fetched while a group is multiplied may still be on its way when the next one is.
static_assert(STAGES >= 3, "two groups of weights are under way");

// Where the sums of a lane are, of a group of a tile of rows and tile `i` of columns.
__device__ __forceinline__ float4 *shared_sums(float4 *sums, const Cut &cut, int group, int tile, int i, int lane) {
    return sums + (((i64)group * cut.tiles + tile) * TILES + i) * 32 + lane;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
batch(Matrices matrices, Cut cut, const u8 *x, const u32 *table, float4 *group_sums) {
    extern __shared__ __align__(16) u8 shared[];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    u32 *book = (u32 *)shared;
    for (int i = threadIdx.x; i < Weight::TABLE; i += blockDim.x) book[i] = table[i];
    // Two groups of columns, [tile][step][half][column][8 values]; then the warps' own.
    u8 *columns = shared + Weight::TABLE * 4;
    constexpr int COLUMNS_BYTES = TILES * pieces::GROUP;
    u8 *ring = columns + 2 * COLUMNS_BYTES + warp * (STAGES * STAGE);
    const int steps = (cut.tiles + warps - 1) / warps, last = (cut.columns - 1) / 8;
    const int first_group = SHARED ? blockIdx.y * cut.run : 0, end_group = SHARED ? min(first_group + cut.run, cut.groups) : cut.groups;
    ptx::let_next_kernel_begin();

    // Of tiles of columns that there are none of, the last one is there already.
    const auto fetch_columns = [&](int group, int buffer) {
        const ptx::Shared to = ptx::shared_at(columns + buffer * COLUMNS_BYTES);
        for (int i = threadIdx.x; i < COLUMNS_BYTES / 16; i += blockDim.x) {
            const int tile = min(i / (pieces::GROUP / 16), last), word = i % (pieces::GROUP / 16);
            ptx::copy_16_to(to + 16 * i, x + ((i64)tile * cut.groups + group) * pieces::GROUP + 16 * word);
        }
    };
    int ahead_step = blockIdx.x, ahead_group = first_group, ahead_stage = 0;
    Copied ahead = {};
    const auto fetch_rows = [&] {
        const int tile = ahead_step * warps + warp;
        if (ahead_step < steps && tile < cut.tiles) {
            if (ahead_group == first_group) ahead = copied_by_lane(strips_of(matrices, cut, tile, 0), first_group);
            fetch(ahead, ring + ahead_stage * STAGE, cut.cols, ahead_group);
            ahead.at += CELL;
        }
        if (++ahead_group == end_group) ahead_group = first_group, ahead_step += gridDim.x;
        ahead_stage = ahead_stage + 1 == STAGES ? 0 : ahead_stage + 1;
    };
    // Columns are a group ahead, weights STAGES - 1. Copies of columns come before those of weights, so that these need not have come.
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) fetch_rows();
    copies_made();
    // Weights are nobody's result.
    ptx::wait_for_kernel_before();
    fetch_columns(first_group, 0);
    copies_made();
    copies_made();

    int stage = 0, buffer = 0;
    for (int step = blockIdx.x; step < steps; step += gridDim.x) {
        const int tile = step * warps + warp;
        const bool there = tile < cut.tiles;
        float totals[TILES][4] = {};
        for (int group = first_group; group < end_group; group++) {
            copies_wait<1>();
            __syncthreads();
            Share mine[2];
            load_shares(cut.cols, group, ring + stage * STAGE, mine);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            // There is another group, of this tile or, from the front, of the next.
            fetch_columns(group + 1 < end_group ? group + 1 : first_group, buffer ^ 1);
            copies_made();
            fetch_rows();
            copies_made();
            if (there) {
                float sums[TILES][4] = {};
                // Lanes name rows of pieces: both halves of two tiles at once, of which every other call has what is left.
                const u8 *at = columns + buffer * COLUMNS_BYTES + lane / 16 * pieces::GROUP + lane / 8 % 2 * pieces::HALF + lane % 8 * 16;
                u32 both[4];
                multiply_group(sums, mine, book, [&](int i, int step, u32(&b)[2]) {
                    if (i % 2 == 0) ptx::load_matrices(both, at + i * pieces::GROUP + step * pieces::STEP);
                    b[0] = both[i % 2 * 2], b[1] = both[i % 2 * 2 + 1];
                });
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    if (SHARED) {
                        *shared_sums(group_sums, cut, group, tile, i, lane) = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
                        continue;
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++) totals[i][e] = __fadd_rn(totals[i][e], sums[i][e]);
                }
            }
            buffer ^= 1;
        }
        if (there && !SHARED) put_sums(matrices, cut, tile_at(matrices, cut, tile), 0, 0, totals, WEIGHT_UP);
    }
    copies_wait<0>();
}

#if SHARED
// Sums of groups that a thread asks for before it adds the first of them: there are few threads, and memory is far.
constexpr int AT_ONCE = 18;

// Adds up the sums of groups that blocks have left, and puts them where they belong: a thread what a lane has of a tile of columns.
extern "C" __global__ void batch_sums(Matrices matrices, Cut cut, float4 *group_sums) {
    in_turn();
    const int lane = threadIdx.x & 31, index = (blockIdx.x * blockDim.x + threadIdx.x) / 32, tile = index / TILES, i = index % TILES;
    if (tile >= cut.tiles) return;
    const Tile at = tile_at(matrices, cut, tile);
    float before[2][2];
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        const int c = 8 * i + lane % 4 * 2 + odd;
        if (c < cut.columns) read_before(matrices, cut, at, lane / 4, c, before[odd]);
    }
    float total[4] = {};
    for (int first = 0; first < cut.groups; first += AT_ONCE) {
        float4 sums[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k < cut.groups) sums[k] = *shared_sums(group_sums, cut, first + k, tile, i, lane);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (first + k >= cut.groups) break;
            total[0] = __fadd_rn(total[0], sums[k].x), total[1] = __fadd_rn(total[1], sums[k].y);
            total[2] = __fadd_rn(total[2], sums[k].z), total[3] = __fadd_rn(total[3], sums[k].w);
        }
    }
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        const int c = 8 * i + lane % 4 * 2 + odd;
        if (c < cut.columns) put(matrices, cut, at, 0, lane / 4, c, before[odd], total[odd] * WEIGHT_UP, total[2 + odd] * WEIGHT_UP);
    }
}
#endif
