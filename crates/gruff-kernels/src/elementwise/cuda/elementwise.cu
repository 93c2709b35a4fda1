// Value by value, a thread a value.

#include "common.cuh"

#define EACH_VALUE(i, values)                                                                                          \
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;                                                                \
    if (i >= values) return;

extern "C" __global__ void add(float *x, Rows x_rows, const float *y, Rows y_rows, i64 values, i64 width) {
    in_turn();
    EACH_VALUE(i, values)
    x[value_offset(x_rows, i, width)] += y[value_offset(y_rows, i, width)];
}

extern "C" __global__ void glu(
    const float *gate, Rows gate_rows, const float *up, Rows up_rows, float *out, Rows out_rows, i64 values, i64 width,
    int kind
) {
    in_turn();
    EACH_VALUE(i, values)
    float value = gate_value(kind, gate[value_offset(gate_rows, i, width)]);
    out[value_offset(out_rows, i, width)] = value * up[value_offset(up_rows, i, width)];
}

// One gate a value, or with `shared` one a row.
extern "C" __global__ void sigmoid_mul(
    float *x, Rows x_rows, const float *gate, Rows gate_rows, i64 values, i64 width, int shared
) {
    in_turn();
    EACH_VALUE(i, values)
    i64 at = shared ? row_offset(gate_rows, i / width) : value_offset(gate_rows, i, width);
    float *value = x + value_offset(x_rows, i, width);
    *value = *value / (1.0f + expf(-gate[at]));
}

extern "C" __global__ void scale(float *x, Rows x_rows, i64 values, i64 width, float factor) {
    in_turn();
    EACH_VALUE(i, values)
    x[value_offset(x_rows, i, width)] *= factor;
}

extern "C" __global__ void softcap(float *x, Rows x_rows, i64 values, i64 width, float cap) {
    in_turn();
    EACH_VALUE(i, values)
    float *value = x + value_offset(x_rows, i, width);
    *value = cap * tanhf(*value / cap);
}

extern "C" __global__ void copy(const float *x, Rows x_rows, float *out, Rows out_rows, i64 values, i64 width) {
    in_turn();
    EACH_VALUE(i, values)
    out[value_offset(out_rows, i, width)] = x[value_offset(x_rows, i, width)];
}

extern "C" __global__ void gather_rows(
    const float *x, i64 x_stride, const u32 *chosen, float *out, i64 out_stride, i64 values, i64 width
) {
    in_turn();
    EACH_VALUE(i, values)
    i64 row = i / width, column = i - row * width;
    out[row * out_stride + column] = x[chosen[row] * x_stride + column];
}
