// The results of a tile on their way out.
#pragma once

#include "tile.cuh"

// Where results go, behind a sigmoid of their gates where there are any: as they are, and in pieces for products besides unless
// `pieces` is 0.
struct Results {
    float *out;
    i64 out_token, out_head;
    const float *gate;
    i64 gate_token, gate_head;
    u8 *pieces;
    int groups;

    // The gates of four neighbouring results, to be asked for before the first of some results is stored.
    __device__ __forceinline__ float4 gates(i64 token, int head, int dim) const {
        return gate ? load_four(gate + token * gate_token + head * gate_head + dim) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    // Four neighbouring results of a token's head, from dimension `dim` on, and their gates.
    __device__ __forceinline__ void put(i64 token, int head, int dim, float4 four, const float4 &by) const {
        if (gate) {
            four.x = four.x / (1.0f + expf(-by.x)), four.y = four.y / (1.0f + expf(-by.y));
            four.z = four.z / (1.0f + expf(-by.z)), four.w = four.w / (1.0f + expf(-by.w));
        }
        store_four(out + token * out_token + head * out_head + dim, four);
        if (pieces) pieces::store_word(pieces, groups, (int)token, (head * DV + dim) / 4, four.x, four.y, four.z, four.w);
    }

    // The zeros behind the last head of the tokens that begin in a tile; every thread of one of its blocks comes here.
    __device__ __forceinline__ void complete(int4 entry, int start, int group, int heads) const {
        if (!pieces) return;
        for (int row = (entry.y + group - 1) / group * group; row < entry.y + entry.z; row += group)
            pieces::complete(pieces, groups, start + row / group, heads * DV);
    }
};

// The results of a tile on their way from shared memory, four neighbours a thread at a time. What runs once waits for its own
// instructions: the loop is short.
constexpr int AT_ONCE = DOWN == 1 ? 2 : 4;

struct Leaving {
    const Results &results;
    int4 entry;
    int start, first_head, group;

    __device__ __forceinline__ int count() const { return entry.z * (DV / 4); }

    // Calls f(token, head, dim) for what number i is.
    template <class F>
    __device__ __forceinline__ auto at(int i, F &&f) const {
        const int row = entry.y + i / (DV / 4);
        return f((i64)(start + row / group), first_head + row % group, i % (DV / 4) * 4);
    }

    // Asks for the gates of a thread's results from number `first` on.
    __device__ __forceinline__ void ask_gates(float4 (&gates)[AT_ONCE], int first) const {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * THREADS < count())
                gates[k] = at(first + k * THREADS, [&](i64 token, int head, int dim) { return results.gates(token, head, dim); });
    }

    // Stores all, by all threads of the block, which have the gates of their first.
    __device__ __forceinline__ void put(const float *all, float4 (&gates)[AT_ONCE]) const {
#pragma unroll 1
        for (int first = threadIdx.x; first < count(); first += AT_ONCE * THREADS) {
            if (first != threadIdx.x) ask_gates(gates, first);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int i = first + k * THREADS;
                if (i >= count()) break;
                at(i, [&](i64 token, int head, int dim) {
                    results.put(token, head, dim, *(const float4 *)(all + i / (DV / 4) * RESULT_PITCH + dim), gates[k]);
                });
            }
        }
    }
};
