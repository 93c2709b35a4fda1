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

// Where things lie in shared memory, in floats; both terms of the updates come first.
constexpr int FLOATS_AT = 2 * CHUNK * TERM_PITCH;
constexpr int KEYS = 0;                      // [CHUNK][ROW]
constexpr int UPDATES = KEYS + CHUNK * ROW;  // [BLOCK][DV]: those of the token's own block of tokens
constexpr int KEY = UPDATES + BLOCK * DV;    // [DK]
constexpr int QUERY = KEY + DK;              // [DK]
constexpr int VALUE = QUERY + DK;            // [DV], then the result
constexpr int SUM = VALUE + DV;              // [CHUNK]: G
constexpr int ON_KEY = SUM + CHUNK;          // [CHUNK]: f
constexpr int ON_QUERY = ON_KEY + CHUNK;     // [CHUNK]: a, zeros behind the token

// A row of up to 128 values by one warp, scaled to length `scale`, as `l2_norm` of norm.cu does it.
static __device__ __forceinline__ void scale_to_length(float *x, float eps, float scale) {
    const int lane = threadIdx.x & 31;
    float squares = 0.0f;
    for (int i = lane; i < DK; i += 32) squares = fmaf(x[i], x[i], squares);
    const float factor = scale / sqrtf(warp_sum(squares) + eps);
    for (int i = lane; i < DK; i += 32) x[i] *= factor;
}

// Block x is a sequence of one token, y the value head. The result is left in pieces for products too, unless `pieces` is 0.
extern "C" __global__ void __launch_bounds__(THREADS, 2) gated_delta_net(
    const float *qkv, i64 qkv_token, const float *z, i64 z_token, i64 z_head, const float *a, i64 a_token, const float *b, i64 b_token,
    const float *conv, const float *dt_bias, const float *a_neg, const float *norm, float *out, i64 out_token, float *inputs,
    float *matrix, float *key_rows, float *update_rows, float *decay_rows, const int *sequences, int key_heads, int value_heads,
    int input_rows, int rows, int matrices, float l2_eps, float query_length, float norm_eps, u8 *pieces, int groups
) {
    in_turn();
    extern __shared__ __align__(128) u8 shared[];
    u8 *terms = shared; // [2][CHUNK][TERM_PITCH]
    float *floats = (float *)(shared + FLOATS_AT);
    float *chunk_keys = floats + KEYS, *updates = floats + UPDATES, *key = floats + KEY, *query = floats + QUERY;
    float *value = floats + VALUE, *sum = floats + SUM, *on_key = floats + ON_KEY, *on_query = floats + ON_QUERY;

    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane / 4, t = lane % 4;
    const int head = blockIdx.y, from_key_head = head % key_heads;
    const int *sequence = sequences + blockIdx.x * 8;
    const int past = sequence[2], chunk = past / CHUNK, row = past % CHUNK, own_block = row / BLOCK;
    const i64 token = sequence[0], slot = sequence[3];
    float *own_keys = key_rows + (slot * key_heads + from_key_head) * rows * DK;
    float *own_updates = update_rows + (slot * value_heads + head) * rows * DV;
    float *own_sums = decay_rows + (slot * value_heads + head) * rows;
    auto matrix_of = [&](int chunk) {
        return matrix + ((slot * matrices + chunk % matrices) * value_heads + head) * DK * DV + 8 * warp;
    };
    const int own_column = 8 * warp + 2 * t;

    // What the slot holds, all of it asked for before any is used: rows of keys since the chunk's border, S there, and updates.
#pragma unroll 4
    for (int i = thread; i < row * (DK / 4); i += THREADS) {
        const int j = i / (DK / 4), dim = i % (DK / 4) * 4;
        ptx::copy_16(chunk_keys + j * ROW + dim, own_keys + (chunk * CHUNK + j) % rows * DK + dim);
    }
    ptx::copies_made();
    float s[STEPS][4];
    ask_state(s, matrix_of(chunk), chunk > 0);
    if (thread < row) sum[thread] = own_sums[(chunk * CHUNK + thread) % rows];

    // The convolution, of the channels of this head's query, key and value. What it keeps takes the place of an input that no
    // other block reads.
    const i64 channels = (i64)2 * key_heads * DK + value_heads * DV;
    const bool first_of_key = head < key_heads;
    float *slot_inputs = inputs + slot * input_rows * channels;
    for (int i = thread; i < 2 * DK + DV; i += THREADS) {
        const bool of_value = i >= 2 * DK;
        const i64 channel = of_value ? 2 * key_heads * DK + head * DV + (i - 2 * DK)
                                     : (i / DK * key_heads + from_key_head) * DK + i % DK;
        float before[TAPS], weight[TAPS];
        const float own = qkv[token * qkv_token + channel];
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            const int at = past + j + 1 - TAPS;
            weight[j] = conv[channel * TAPS + j];
            before[j] = j == TAPS - 1 ? own : at < 0 ? 0.0f : slot_inputs[at % input_rows * channels + channel];
        }
        float mixed = 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            if (past + j + 1 >= TAPS) mixed = fmaf(weight[j], before[j], mixed);
        if (of_value || first_of_key) slot_inputs[past % input_rows * channels + channel] = own;
        // Query, key and value lie one behind the other.
        (i < DK ? query : i < 2 * DK ? key - DK : value - 2 * DK)[i] = silu(mixed);
    }

    // Updates, of whole blocks of tokens: zeros behind the row.
#pragma unroll 2
    for (int i = thread; i < (own_block + 1) * BLOCK * (DV / 4); i += THREADS) {
        const int j = i / (DV / 4), column = i % (DV / 4) * 4;
        float4 u = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (j < row) u = *(const float4 *)(own_updates + (chunk * CHUNK + j) % rows * DV + column);
        const Split low = split(u.x, u.y), high = split(u.z, u.w);
        u8 *to = terms + j * TERM_PITCH + 2 * column;
        *(uint2 *)to = make_uint2(low.high, high.high);
        *(uint2 *)(to + CHUNK * TERM_PITCH) = make_uint2(low.low, high.low);
        if (j / BLOCK == own_block) *(float4 *)(updates + j % BLOCK * DV + column) = u;
    }
    const float x = a[token * a_token + head] + dt_bias[head];
    const float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    const float decay = __fmul_rn(a_neg[head], softplus), beta = sigmoid(b[token * b_token + head]);
    State state;
    split_state(state, s);
    __syncthreads();

    if (warp == 0) scale_to_length(query, l2_eps, query_length);
    if (warp == 1) {
        scale_to_length(key, l2_eps, 1.0f);
        for (int dim = lane; dim < DK; dim += 32) {
            chunk_keys[row * ROW + dim] = key[dim];
            if (first_of_key) own_keys[past % rows * DK + dim] = key[dim];
        }
    }
    const float total = __fadd_rn(row > 0 ? sum[row - 1] : 0.0f, decay);
    float own_value[2] = {0.0f, 0.0f};
    if (g == 0)
        for (int e = 0; e < 2; e++) own_value[e] = value[own_column + e];
    ptx::copies_wait<0>();
    __syncthreads();
    if (thread == 0) own_sums[past % rows] = total;

    // Two rows of the substitution's matrix, four threads a value: each has one of `dot`'s sums.
    for (int i = thread; i < 2 * CHUNK * 4; i += THREADS) {
        const int j = i / 4 % CHUNK, e = i % 4;
        const bool of_key = i < CHUNK * 4;
        const float *x = chunk_keys + j * ROW + e, *y = (of_key ? key : query) + e;
        float dot = 0.0f;
        if (j <= row) {
#pragma unroll 8
            for (int dim = 0; dim < DK; dim += 4) dot = fmaf(x[dim], y[dim], dot);
        }
        dot = __fadd_rn(dot, __shfl_xor_sync(FULL_WARP, dot, 1));
        dot = __fadd_rn(dot, __shfl_xor_sync(FULL_WARP, dot, 2));
        if (e == 0) (of_key ? on_key : on_query)[j] = j <= row ? __fmul_rn(expf(__fsub_rn(total, j < row ? sum[j] : total)), dot) : 0.0f;
    }
    float c[4];
    const float decayed = expf(total);
    begin_row(c, state, key, query, decayed, own_value);
    __syncthreads();
    if (thread == 0) sum[row] = total;
    u8 *own_terms = terms + 16 * warp;
    for (int block = 0; block < own_block; block++) take_in<TERM_PITCH>(c, own_terms, block, on_key, on_query);
    if (g == 0) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float u = __fmul_rn(beta, without_own_block(c[e], row, on_key, updates + own_column + e, DV));
            const Split of = split(u, 0.0f);
            u8 *to = own_terms + row * TERM_PITCH + 2 * (2 * t + e);
            *(u16 *)to = (u16)of.high;
            *(u16 *)(to + CHUNK * TERM_PITCH) = (u16)of.low;
            own_updates[past % rows * DV + own_column + e] = u;
        }
    }
    // A warp reads only its own columns.
    __syncwarp();
    take_in<TERM_PITCH>(c, own_terms, own_block, on_key, on_query);
    if (g == 1)
        for (int e = 0; e < 2; e++) value[own_column + e] = c[e];
    __syncthreads();
    if (row == CHUNK - 1)
        fold(
            matrix_of(chunk + 1), matrix_of(chunk), chunk > 0, true, chunk_keys, sum, total, decayed,
            [&](int j, int column) { return own_updates[(chunk * CHUNK + j) % rows * DV + 8 * warp + column]; }
        );

    // The gated norm, as norm.cu does it: a warp's sum, in every warp, and four values a thread.
    float squares = 0.0f;
    for (int i = lane; i < DV; i += 32) squares = fmaf(value[i], value[i], squares);
    const float factor = 1.0f / sqrtf(warp_sum(squares) / (float)DV + norm_eps);
    if (thread < DV / 4) {
        const float *gate = z + token * z_token + head * z_head;
        float *to = out + token * out_token + (i64)head * DV, values[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int i = 4 * thread + k;
            to[i] = values[k] = value[i] * factor * norm[i] * silu(gate[i]);
        }
        if (pieces) pieces::store_word(pieces, groups, token, head * (DV / 4) + thread, values[0], values[1], values[2], values[3]);
    }
    if (pieces && head == 0) pieces::complete(pieces, groups, token, value_heads * DV);
}
