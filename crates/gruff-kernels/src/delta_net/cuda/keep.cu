// What the delta rule keeps of a step, behind it. DK is the width of a key head.

#include "common.cuh"

// Keys and decay sums of each sequence's last tokens into their rings: block x is a sequence (an entry of the list, where there
// is one) and how far from the end, y a value head. Follows the kernels of the delta rule where rows of a ring are needed after
// their place was taken in the same step.
extern "C" __global__ void keep_rows(
    const float *keys, i64 key_token, i64 key_head, float *key_rows, const float *sums, float *decay_rows,
    const int *sequences, const int2 *list, int key_heads, int value_heads, int rows
) {
    in_turn();
    const int *sequence = sequences + (list ? list[blockIdx.x / rows].x : blockIdx.x / rows) * 8;
    const int back = blockIdx.x % rows, len = sequence[1], head = blockIdx.y;
    if (back >= len) return;
    const int i = len - 1 - back, ring = (sequence[2] + i) % rows;
    const i64 token = sequence[0] + i, slot = sequence[3];
    if (head < key_heads)
        for (int dim = threadIdx.x; dim < DK; dim += blockDim.x)
            key_rows[((slot * key_heads + head) * rows + ring) * DK + dim] = keys[token * key_token + head * key_head + dim];
    if (threadIdx.x == 0) decay_rows[(slot * value_heads + head) * rows + ring] = sums[token * value_heads + head];
}
