// A gated delta net between its projections, for one token of every sequence: convolution and SiLU, the norms of query and
// key, gates, one row of the chunk's forward substitution (`row.cuh`) and the gated norm. Bit for bit `causal_conv`, `l2_norm`,
// `delta_gates`, `token` and `gated_rms_norm` one after the other. A block has a sequence and a value head, a warp eight
// columns of the head's state.
//
// Constants: DK and DV, multiples of 16 up to 128; TAPS of the convolution.

#include "pieces.cuh"
#include "row.cuh"

constexpr int WARPS = DV / 8;
constexpr int THREADS = 32 * WARPS;
constexpr int TERM_PITCH = pitch_of(DV);

// Where things lie in shared memory, in floats; both terms of the updates come first, or first the updates as the slot has them.
constexpr int FLOATS_AT = 2 * CHUNK * TERM_PITCH;
constexpr int KEYS = 0;                            // [CHUNK][ROW]
constexpr int UPDATES = KEYS + CHUNK * ROW;        // [BLOCK][DV]: those of the token's own block of tokens
constexpr int KEY = UPDATES + BLOCK * DV;          // [DK]
constexpr int QUERY = KEY + DK;                    // [DK]
constexpr int VALUE = QUERY + DK;                  // [DV], then the result
constexpr int GATES = VALUE + DV;                  // [DV]: SiLU of z
constexpr int NORMS = GATES + DV;                  // [DV]: weights of the gated norm
constexpr int SUM = NORMS + DV;                    // [CHUNK]: G
constexpr int ON_KEY = SUM + CHUNK;                // [CHUNK]: f
constexpr int INPUTS = ON_KEY + CHUNK;             // Pairs of the key, then of the query
constexpr int FACTORS = INPUTS + 4 * pairs_of(DK); // Pairs of -f, then of a, zeros behind the token

// Channels of a head, and how many a thread has.
constexpr int CHANNELS = 2 * DK + DV;
constexpr int ROUNDS = (CHANNELS + THREADS - 1) / THREADS;

// Channel i of a head: query, key and value lie one behind the other.
static __device__ __forceinline__ i64 channel_of(int i, int head, int key_heads) {
    return i >= 2 * DK ? 2 * key_heads * DK + head * DV + (i - 2 * DK) : (i / DK * key_heads + head % key_heads) * DK + i % DK;
}

// A row of up to 128 values by one warp, scaled to length `scale`, as `l2_norm` of norm.cu does it.
static __device__ __forceinline__ void scale_to_length(float *x, float eps, float scale) {
    const int lane = threadIdx.x & 31;
    float squares = 0.0f;
    for (int i = lane; i < DK; i += 32) squares = fmaf(x[i], x[i], squares);
    const float factor = scale / sqrtf(warp_sum(squares) + eps);
    for (int i = lane; i < DK; i += 32) x[i] *= factor;
    __syncwarp();
}

// Such a row as products take it.
static __device__ __forceinline__ void put_pairs(uint2 *pairs, const float *x) {
    for (int i = threadIdx.x & 31; i < DK / 2; i += 32) pairs[i] = pair_of(x[2 * i], x[2 * i + 1]);
}

// Block x is a sequence of one token, y the value head. The result is left in pieces for products too, unless `pieces` is 0.
extern "C" __global__ void __launch_bounds__(THREADS, 2) gated_delta_net(
    const float *qkv, i64 qkv_token, const float *z, i64 z_token, i64 z_head, const float *a, i64 a_token, const float *b, i64 b_token,
    const float *conv, const float *dt_bias, const float *a_neg, const float *norm, float *out, i64 out_token, float *inputs,
    float *matrix, float *key_rows, float *update_rows, float *decay_rows, const int *sequences, int key_heads, int value_heads,
    int input_rows, int rows, int matrices, float l2_eps, float query_length, float norm_eps, u8 *pieces, int groups
) {
    ptx::let_next_kernel_begin();
    extern __shared__ __align__(128) u8 shared[];
    u8 *terms = shared; // [2][CHUNK][TERM_PITCH]
    float *from_slot = (float *)shared; // [CHUNK][DV]
    float *floats = (float *)(shared + FLOATS_AT);
    float *chunk_keys = floats + KEYS, *updates = floats + UPDATES, *key = floats + KEY, *query = floats + QUERY;
    float *value = floats + VALUE, *gates = floats + GATES, *norms = floats + NORMS, *sum = floats + SUM, *on_key = floats + ON_KEY;
    uint2 *input_pairs = (uint2 *)(floats + INPUTS), *factors = (uint2 *)(floats + FACTORS);

    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane / 4, t = lane % 4;
    const int head = blockIdx.y, from_key_head = head % key_heads;
    const i64 channels = (i64)2 * key_heads * DK + value_heads * DV;

    // Weights are nobody's result.
    float taps[ROUNDS][TAPS];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const i64 own = channel_of(min(thread + round * THREADS, CHANNELS - 1), head, key_heads);
#pragma unroll
        for (int j = 0; j < TAPS; j++) taps[round][j] = conv[own * TAPS + j];
    }
    const float own_bias = dt_bias[head], own_a_neg = a_neg[head];
    if (thread < DV) norms[thread] = norm[thread];
    ptx::wait_for_kernel_before();

    const int *sequence = sequences + blockIdx.x * 8;
    const int past = sequence[2], chunk = past / CHUNK, row = past % CHUNK, own_block = row / BLOCK;
    const i64 token = sequence[0], slot = sequence[3];
    float *own_keys = key_rows + (slot * key_heads + from_key_head) * rows * DK;
    float *own_updates = update_rows + (slot * value_heads + head) * rows * DV;
    float *own_sums = decay_rows + (slot * value_heads + head) * rows;
    float *slot_inputs = inputs + slot * input_rows * channels;
    auto matrix_of = [&](int chunk) {
        return matrix + ((slot * matrices + chunk % matrices) * value_heads + head) * DK * DV + 8 * warp;
    };
    const int own_column = 8 * warp + 2 * t;

    // All that is read is asked for before any of it is used, what is used first before the others: inputs of the convolution
    // and of the gates; rows of keys and updates since the chunk's border; S there.
    float before[ROUNDS][TAPS];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const i64 own = channel_of(min(thread + round * THREADS, CHANNELS - 1), head, key_heads);
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            const int at = past + j + 1 - TAPS;
            before[round][j] = j == TAPS - 1 ? qkv[token * qkv_token + own]
                               : at < 0      ? 0.0f
                                             : slot_inputs[at % input_rows * channels + own];
        }
    }
    const float own_a = a[token * a_token + head], own_b = b[token * b_token + head];
    const float own_z = thread < DV ? z[token * z_token + head * z_head + thread] : 0.0f;
    const float own_sum = thread < row ? own_sums[(chunk * CHUNK + thread) % rows] : 0.0f;
    const int border = chunk * CHUNK % rows;
    // Where row j since the border is in a ring.
    const auto ring_row = [&](int j) { return border + j < rows ? border + j : border + j - rows; };
#pragma unroll 1
    for (int i = thread; i < row * (DK / 4); i += THREADS) {
        const int j = i / (DK / 4), dim = i % (DK / 4) * 4;
        ptx::copy_16(chunk_keys + j * ROW + dim, own_keys + ring_row(j) * DK + dim);
    }
#pragma unroll 1
    for (int i = thread; i < row * (DV / 4); i += THREADS) {
        const int j = i / (DV / 4), column = i % (DV / 4) * 4;
        ptx::copy_16(from_slot + j * DV + column, own_updates + ring_row(j) * DV + column);
    }
    ptx::copies_made();
    float s[STEPS][4];
    ask_state(s, matrix_of(chunk), chunk > 0);

    // The convolution. What it keeps takes the place of an input that no other block reads.
    const bool first_of_key = head < key_heads;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int i = thread + round * THREADS;
        if (i >= CHANNELS) break;
        float mixed = 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            if (past + j + 1 >= TAPS) mixed = fmaf(taps[round][j], before[round][j], mixed);
        if (i >= 2 * DK || first_of_key) slot_inputs[past % input_rows * channels + channel_of(i, head, key_heads)] = before[round][TAPS - 1];
        (i < DK ? query : i < 2 * DK ? key - DK : value - 2 * DK)[i] = silu(mixed);
    }
    if (thread < DV) gates[thread] = silu(own_z);
    if (thread < row) sum[thread] = own_sum;
    const float x = own_a + own_bias;
    const float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    const float decay = __fmul_rn(own_a_neg, softplus), beta = sigmoid(own_b);
    State state;
    split_state(state, s);
    ptx::copies_wait<0>();
    __syncthreads();

    // Updates, of whole blocks of tokens: zeros behind the row. Their terms take their place.
    float4 own[CHUNK / BLOCK];
#pragma unroll
    for (int block = 0; block < CHUNK / BLOCK; block++) {
        const int j = BLOCK * block + thread / (DV / 4), column = thread % (DV / 4) * 4;
        own[block] = j < row ? *(const float4 *)(from_slot + j * DV + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (block == own_block) *(float4 *)(updates + j % BLOCK * DV + column) = own[block];
    }
    if (warp == 0) {
        scale_to_length(query, l2_eps, query_length);
        put_pairs(input_pairs + pairs_of(DK), query);
    }
    if (warp == 1) {
        scale_to_length(key, l2_eps, 1.0f);
        put_pairs(input_pairs, key);
        for (int dim = lane; dim < DK; dim += 32) {
            chunk_keys[row * ROW + dim] = key[dim];
            if (first_of_key) own_keys[past % rows * DK + dim] = key[dim];
        }
    }
    const float total = __fadd_rn(row > 0 ? sum[row - 1] : 0.0f, decay);
    float own_value[2] = {0.0f, 0.0f};
    if (g == 0)
        for (int e = 0; e < 2; e++) own_value[e] = value[own_column + e];
    __syncthreads();
#pragma unroll
    for (int block = 0; block < CHUNK / BLOCK; block++) {
        if (block > own_block) break;
        const Split low = split(own[block].x, own[block].y), high = split(own[block].z, own[block].w);
        u8 *to = terms + (BLOCK * block + thread / (DV / 4)) * TERM_PITCH + thread % (DV / 4) * 8;
        *(uint2 *)to = make_uint2(low.high, high.high);
        *(uint2 *)(to + CHUNK * TERM_PITCH) = make_uint2(low.low, high.low);
    }
    if (thread == 0) own_sums[past % rows] = total;

    put_factors<THREADS>(factors, on_key, chunk_keys, query, sum, row, total);
    float c[4];
    const float decayed = expf(total);
    begin_row(c, state, input_pairs, decayed, own_value);
    __syncthreads();
    if (thread == 0) sum[row] = total;
    u8 *own_terms = terms + 16 * warp;
    for (int block = 0; block < own_block; block++) take_in<TERM_PITCH>(c, own_terms, block, factors);
    if (g == 0) {
        const float2 rest = without_own_block(c, row, on_key, updates + own_column, DV);
        const float u[2] = {__fmul_rn(beta, rest.x), __fmul_rn(beta, rest.y)};
        const Split of = split(u[0], u[1]);
        u8 *to = own_terms + row * TERM_PITCH + 4 * t;
        *(u32 *)to = of.high;
        *(u32 *)(to + CHUNK * TERM_PITCH) = of.low;
        float *kept = own_updates + past % rows * DV + own_column;
        kept[0] = u[0], kept[1] = u[1];
    }
    // A warp reads only its own columns.
    __syncwarp();
    take_in<TERM_PITCH>(c, own_terms, own_block, factors);
    if (g == 1)
        for (int e = 0; e < 2; e++) value[own_column + e] = c[e];
    __syncthreads();
    if (row == CHUNK - 1)
        fold(
            matrix_of(chunk + 1), matrix_of(chunk), chunk > 0, true, chunk_keys, sum, total, decayed,
            [&](int j, int column) { return own_updates[ring_row(j) * DV + 8 * warp + column]; }
        );

    // The gated norm, as norm.cu does it: a warp's sum, in every warp, and four values a thread.
    float squares = 0.0f;
    for (int i = lane; i < DV; i += 32) squares = fmaf(value[i], value[i], squares);
    const float factor = 1.0f / sqrtf(warp_sum(squares) / (float)DV + norm_eps);
    if (thread < DV / 4) {
        float *to = out + token * out_token + (i64)head * DV, values[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int i = 4 * thread + k;
            to[i] = values[k] = value[i] * factor * norms[i] * gates[i];
        }
        if (pieces) pieces::store_word(pieces, groups, token, head * (DV / 4) + thread, values[0], values[1], values[2], values[3]);
    }
    if (pieces && head == 0) pieces::complete(pieces, groups, token, value_heads * DV);
}
