// What the kernels of packed products share: from codes to weights, and the one order in which products are added up.
//
// A weight is rounded to bfloat16 from bfloat16 factors, and meets activations that are rounded likewise:
//
//     weight = bf16(bf16(scale) * code + bf16(minimum))
//
// Sums over a group of 256 values are a chain of 16 `mma` of 16 values each, from zero on. The sums of groups are added in f32, in
// order; then come the scale beside the matrix, and the bias. So one column and a batch, `matvec.cu` and `matmul.cu`, have the
// same bits.
#pragma once

#include "blocks.cuh"
#include "pieces.cuh"
#include "product.cuh"

// A number that the compiler knows.
template <int N>
struct Index {
    static constexpr int value = N;
};

// Calls f(Index<J>) for COUNT sub-blocks from FIRST on.
template <int FIRST, int COUNT, class F>
__device__ __forceinline__ void each_sub_block(F &&f) {
    if constexpr (COUNT > 0) {
        f(Index<FIRST>());
        each_sub_block<FIRST + 1, COUNT - 1>(f);
    }
}

// Codes are taken for the denormal numbers that their bits are in bfloat16, code * 2^-133 (up to 255: the next exponent goes on in
// the same steps), so that one multiplication and addition makes weights of them: of the scale times 2^101 and the minimum times
// 2^-32, a weight times 2^-32. Scales of files are far below 2^27, where that would overflow.
constexpr float SCALE_UP = 2535301200456458802993406410752.0f;  // 2^101
constexpr float SCALE_DOWN = 3.944304526105059e-31f;            // 2^-101
constexpr float WEIGHT_DOWN = 2.3283064365386963e-10f;          // 2^-32
constexpr float WEIGHT_UP = 4294967296.0f;

// How rows begin, ALIGNED: 0 anywhere, 1 at a multiple of what the type's blocks allow, 2 (which says that groups are whole words of
// 16 bytes besides) at one of 16.
constexpr bool WHOLE = ALIGNED == 2;
static_assert(!WHOLE || Weight::BYTES % 16 == 0, "groups are whole words");
using Group = blocks::Bytes<ALIGNED == 0 ? 1 : WHOLE ? 16 : Weight::ALIGNMENT>;

// A group whose words are read in turn. Types whose blocks are smaller have fields that begin within words.
template <class T>
struct InTurn {
    using Type = Group;
};
#if ALIGNED == 2
template <>
struct InTurn<blocks::Q4_K> {
    using Type = blocks::Vectors;
};
template <>
struct InTurn<blocks::Q5_K> {
    using Type = blocks::Vectors;
};
#endif
using GroupInTurn = InTurn<Weight>::Type;

// Signed codes are moved by 128.
template <class W>
constexpr bool SIGNED = W::OFFSET == 0 && !W::MINIMUM;

// Both factors of 16 or 32 codes, each twice in a word.
struct Factors {
    u32 scale, minimum;
};

template <class W>
__device__ __forceinline__ Factors factors(float scale, float minimum) {
    Factors made;
    made.scale = ptx::floats_to_bf162(scale * SCALE_UP, scale * SCALE_UP);
    if constexpr (!W::MINIMUM) {
        // Exact: offsets are powers of two.
        constexpr float offset = SIGNED<W> ? 128.0f : (float)W::OFFSET;
        minimum = -offset * (__uint_as_float(made.scale & 0xffff0000u) * SCALE_DOWN);
    }
    made.minimum = ptx::floats_to_bf162(minimum * WEIGHT_DOWN, minimum * WEIGHT_DOWN);
    return made;
}

// The four weights of a word of codes.
template <class W>
__device__ __forceinline__ void weights_of(u32 codes, const Factors &by, u32 &first, u32 &second) {
    if (SIGNED<W>) codes ^= 0x80808080u;
    first = ptx::fma_bf162(__byte_perm(codes, 0, 0x4140), by.scale, by.minimum);
    second = ptx::fma_bf162(__byte_perm(codes, 0, 0x4342), by.scale, by.minimum);
}

// Stores what a gated unit gives in row `row` for row `to` of x.
__device__ __forceinline__ void finish_glu(const Matrices &matrices, int what, int expert, int row, i64 to, float gate, float up) {
    const Matrix &matrix = matrices.at[0];
    gate = __fmul_rn(gate, scale_of(matrix, expert)), up = __fmul_rn(up, scale_of(matrices.at[1], expert));
    const float value = gate_value(what - GLU, gate) * up;
    matrix.out[to * matrix.out_stride + row] = value;
    if (matrices.pieces) pieces::store_value(matrices.pieces, (int)matrices.groups, (int)to, row, value);
}
