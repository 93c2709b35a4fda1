// The gated delta rule on tensor cores: what prompts (`scan.cu`) and single tokens (`token.cu`) share. Both compute a token
// by the same operations in the same order, so that its bits do not depend on how it came:
//
//     f_j  = exp(G_i - G_j) * (k_j . k_i),  a_j = exp(G_i - G_j) * (k_j . q_i)             f32, `dot`'s order
//     p, r = S0^T k_i, S0^T q_i                                                            `multiply`, 16 dimensions a step
//     u    = fma(-exp(G_i), p, v_i); for each whole block of 16 tokens before i's: u -= f u_j      `multiply_one`
//            for each j of i's block, in order: u = fma(-f_j, u_j, u)
//     u_i  = beta_i * u
//     o_i  = exp(G_i) * r; for each block of 16 tokens to i's, zeros behind i: o += a u_j          `multiply_one`
//     S1   = fma(exp(G_C), S0, sum over blocks of 16 tokens of k_j (exp(G_C - G_j) u_j))           `multiply_one`
//
// Tensor cores take two terms of bfloat16 for each factor (16 bits) and leave out the product of both second terms; a row
// of their result does not depend on the other rows.

#pragma once

#include "common.cuh"
#include "ptx.cuh"

constexpr int CHUNK = 64;
// Tokens of a chunk that are multiplied at once.
constexpr int BLOCK = 16;

// Bytes from a row of so many bfloat16, a multiple of 16, to the next in shared memory: an odd number of 16-byte words, so that
// eight rows meet all banks.
static __device__ constexpr int pitch_of(int values) { return 2 * values + 16; }
constexpr int KEY_PITCH = pitch_of(DK);

// A word of two bfloat16, and the word of what they lack, rounded likewise.
struct Split {
    u32 high, low;
};

static __device__ __forceinline__ Split split(float first, float second) {
    Split of;
    of.high = ptx::floats_to_bf162(first, second);
    float rounded_first = bf16_to_float((u16)of.high), rounded_second = bf16_to_float((u16)(of.high >> 16));
    of.low = ptx::floats_to_bf162(__fadd_rn(first, -rounded_first), __fadd_rn(second, -rounded_second));
    return of;
}

// c += a b, with both terms of a and b.
static __device__ __forceinline__ void multiply_one(
    float (&c)[4], const u32 (&a)[4], const u32 (&a_rest)[4], const u32 (&b)[2], const u32 (&b_rest)[2]
) {
    ptx::mma_bf16_k16(c, a, b);
    ptx::mma_bf16_k16(c, a, b_rest);
    ptx::mma_bf16_k16(c, a_rest, b);
}

// The same with a sum of its own for the second terms, which shortens the chain; the result is the sum of both.
static __device__ __forceinline__ void multiply(
    float (&c)[4], float (&small)[4], const u32 (&a)[4], const u32 (&a_rest)[4], const u32 (&b)[2], const u32 (&b_rest)[2]
) {
    ptx::mma_bf16_k16(c, a, b);
    ptx::mma_bf16_k16(small, a, b_rest);
    ptx::mma_bf16_k16(small, a_rest, b);
}

// b of two neighbouring tiles of eight columns: 16 rows from `from` on, which is the lane's own place
// (`turned_at`).
static __device__ __forceinline__ void load_two(u32 (&first)[2], u32 (&second)[2], const u8 *from) {
    u32 both[4];
    ptx::load_matrices_turned(both, from);
    first[0] = both[0], first[1] = both[1], second[0] = both[2], second[1] = both[3];
}

// Four sums, by dimension mod 4.
static __device__ __forceinline__ float sum_of_four(const float (&s)[4]) {
    return __fadd_rn(__fadd_rn(s[0], s[1]), __fadd_rn(s[2], s[3]));
}
