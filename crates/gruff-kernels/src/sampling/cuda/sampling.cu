// From logits to ids. Values are ordered by (value, lower id first), as one 64-bit number. Weights are summed in fixed
// point, so that the order of the sums changes nothing.

#include "common.cuh"

#define BINS 2048
// Bins that a factor of e in weight takes: the last one holds what weighs less than e^-31.
#define BINS_PER_E 64.0f
#define ONE 17592186044416.0 // 2^44
#define LISTED 2048
#define THREADS 1024

struct Spec {
    double uniform;
    float temperature, top_p, min_p, penalty;
    int top_k, first_penalized, penalized, unused;
};

// What a row's kernels leave for each other; zeroed before the first.
struct Work {
    u64 best;
    u64 list[LISTED];
    u64 masses[BINS];
    u32 counts[BINS];
    u32 listed, unused;
};

static __device__ __forceinline__ u64 order(float value, u32 id) {
    u32 bits = __float_as_uint(value);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (u32)~id;
}

static __device__ __forceinline__ float value_of(u64 place) {
    u32 bits = (u32)(place >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

static __device__ __forceinline__ int id_of(u64 place) { return (int)~(u32)place; }

static __device__ __forceinline__ int bin_of(float value, float top, float temperature) {
    return (int)fminf((top - value) * (BINS_PER_E / temperature), (float)(BINS - 1));
}

// e^((value - top) / temperature), in fixed point.
static __device__ __forceinline__ u64 weigh(float value, float top, float temperature) {
    return (u64)(exp(((double)value - (double)top) / (double)temperature) * ONE);
}

// A copy of the logits, some of which are penalised; a thread a value.
extern "C" __global__ void copy_rows(const float *logits, i64 stride, float *out, int width) {
    in_turn();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width) out[(i64)blockIdx.y * width + i] = logits[blockIdx.y * stride + i];
}

extern "C" __global__ void penalize(const Spec *specs, const u32 *ids, float *logits, int width) {
    in_turn();
    Spec spec = specs[blockIdx.y];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < spec.penalized; i += gridDim.x * blockDim.x) {
        float *logit = logits + (i64)blockIdx.y * width + ids[spec.first_penalized + i];
        *logit = *logit > 0.0f ? *logit / spec.penalty : *logit * spec.penalty;
    }
}

// Zeros to begin with: `Work` of all rows.
extern "C" __global__ void zero(u64 *at, i64 count) {
    in_turn();
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) at[i] = 0;
}

// The largest value of each row: block x is a part of the row. `work_stride` bytes from one row's result to the next.
extern "C" __global__ void largest(const float *logits, i64 stride, u8 *work, i64 work_stride, int width) {
    in_turn();
    const float *row = logits + blockIdx.y * stride;
    u64 best = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x) {
        float value = row[i];
        if (value > -INFINITE) best = max(best, order(value, i));
    }
    __shared__ u64 warps[32];
    for (int step = 16; step > 0; step >>= 1) best = max(best, __shfl_xor_sync(FULL_WARP, best, step));
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = best;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    best = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
    for (int step = 16; step > 0; step >>= 1) best = max(best, __shfl_xor_sync(FULL_WARP, best, step));
    if (threadIdx.x == 0 && best > 0) atomicMax((u64 *)(work + blockIdx.y * work_stride), best);
}

// The ids of the largest values. With a `place`, the address of the ids stands there.
extern "C" __global__ void take_largest(
    const u8 *work, i64 work_stride, int *ids, i64 id_stride, int *const *place, int rows
) {
    in_turn();
    if (place) ids = *place;
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    u64 best = *(const u64 *)(work + row * work_stride);
    ids[row * id_stride] = best > 0 ? id_of(best) : -1;
}

// How many values and how much weight each bin has; block x is a part of the row.
extern "C" __global__ void spread(const float *logits, i64 stride, const Spec *specs, Work *works, int width) {
    in_turn();
    Spec spec = specs[blockIdx.y];
    Work *work = works + blockIdx.y;
    if (spec.temperature == 0.0f || work->best == 0) return;
    __shared__ u64 masses[BINS];
    __shared__ u32 counts[BINS];
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        masses[bin] = 0;
        counts[bin] = 0;
    }
    __syncthreads();
    const float *row = logits + blockIdx.y * stride;
    float top = value_of(work->best);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x) {
        float value = row[i];
        if (isnan(value)) continue;
        int bin = bin_of(value, top, spec.temperature);
        atomicAdd(&masses[bin], weigh(value, top, spec.temperature));
        atomicAdd(&counts[bin], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        if (counts[bin] == 0) continue;
        atomicAdd(&work->masses[bin], masses[bin]);
        atomicAdd(&work->counts[bin], counts[bin]);
    }
}

// Sums before and with each thread's value over a block of THREADS threads, in the order of the threads.
template <typename T> static __device__ __forceinline__ T sum_before(T value, T &all) {
    __shared__ T warps[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    T with = value;
    for (int step = 1; step < 32; step <<= 1) {
        T other = __shfl_up_sync(FULL_WARP, with, step);
        if (lane >= step) with += other;
    }
    __syncthreads();
    if (lane == 31) warps[warp] = with;
    __syncthreads();
    T before = 0;
    all = 0;
    for (int w = 0; w < THREADS / 32; w++) {
        if (w < warp) before += warps[w];
        all += warps[w];
    }
    return before + with - value;
}

// The first bin with which the sum of `values` (in descending order of likelihood) reaches `target`, or is `beyond` it;
// the last bin that has any if it never is. Also the sum before that bin, and the sum of all. For all threads of a block.
template <typename T, typename V>
static __device__ int reach_bin(const V *values, T target, bool beyond, bool downward, T &before_bin, T &all) {
    __shared__ int found;
    __shared__ T found_before;
    if (threadIdx.x == 0) found = -1;
    int last = -1;
    T pair[2];
    for (int k = 0; k < 2; k++) {
        int bin = threadIdx.x * 2 + k;
        pair[k] = values[downward ? BINS - 1 - bin : bin];
    }
    T before = sum_before<T>(pair[0] + pair[1], all);
    __syncthreads();
    // At most one pair crosses.
    for (int k = 0; k < 2; k++) {
        T with = before + pair[k];
        bool reached = beyond ? with > target : with >= target, was = beyond ? before > target : before >= target;
        if (reached && !was && pair[k] > 0) {
            found = threadIdx.x * 2 + k;
            found_before = before;
        }
        before = with;
    }
    __syncthreads();
    if (found < 0) {
        // A target of nothing, or rounding: the first or the last bin that has any.
        __shared__ int first_any, last_any;
        if (threadIdx.x == 0) {
            first_any = BINS;
            last_any = -1;
        }
        __syncthreads();
        for (int k = 0; k < 2; k++)
            if (pair[k] > 0) {
                atomicMin(&first_any, (int)threadIdx.x * 2 + k);
                atomicMax(&last_any, (int)threadIdx.x * 2 + k);
            }
        __syncthreads();
        bool none = !beyond && target == 0;
        last = none ? first_any : last_any;
        if (last / 2 == (int)threadIdx.x) found_before = before - pair[1] - (last % 2 == 0 ? pair[0] : (T)0);
        __syncthreads();
        before_bin = found_before;
        int result = last;
        __syncthreads();
        return downward ? BINS - 1 - result : result;
    }
    before_bin = found_before;
    int result = found;
    __syncthreads();
    return downward ? BINS - 1 - result : result;
}

// A share of a sum, in fixed point.
static __device__ __forceinline__ u64 share(double part, u64 sum) { return (u64)(part * (double)sum); }

// How far down the row candidates reach: everything that any of the row's limits keeps, or the draw itself meets, lies in
// bins up to this one.
static __device__ int cutoff(const Spec &spec, const Work *work, int width) {
    u64 all, before;
    u32 all_count, before_count;
    int cut = BINS - 1;
    bool limited = false;
    if (spec.top_k > 0) {
        int bin = reach_bin<u32>(work->counts, (u32)min(spec.top_k, width), false, false, before_count, all_count);
        cut = min(cut, bin);
        limited = true;
    }
    if (spec.top_p < 1.0f && !limited) {
        reach_bin<u64>(work->masses, ~(u64)0, false, false, before, all);
        cut = min(cut, reach_bin<u64>(work->masses, share(spec.top_p, all), false, false, before, all));
        limited = true;
    }
    if (spec.min_p > 0.0f) {
        cut = min(cut, (int)fminf(-logf(fminf(spec.min_p, 1.0f)) * BINS_PER_E + 2.0f, (float)(BINS - 1)));
        limited = true;
    }
    if (!limited) {
        reach_bin<u64>(work->masses, ~(u64)0, false, false, before, all);
        cut = reach_bin<u64>(work->masses, share(spec.uniform, all), true, false, before, all);
    }
    return cut;
}

// Lists the candidates of each row; block x is a part of the row. More than fit are counted only.
extern "C" __global__ void __launch_bounds__(THREADS) list(
    const float *logits, i64 stride, const Spec *specs, Work *works, int width
) {
    in_turn();
    Spec spec = specs[blockIdx.y];
    Work *work = works + blockIdx.y;
    if (spec.temperature == 0.0f || work->best == 0) return;
    int cut = cutoff(spec, work, width);
    const float *row = logits + blockIdx.y * stride;
    float top = value_of(work->best);
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < width; i += gridDim.x * THREADS) {
        float value = row[i];
        if (isnan(value) || bin_of(value, top, spec.temperature) > cut) continue;
        u32 at = atomicAdd(&work->listed, 1u);
        if (at < LISTED) work->list[at] = order(value, i);
    }
}

// Descends to the value with which a sum over the row, in order, reaches its target, eleven bits at a time; `least` is
// the lowest place that counts. For rows with more candidates than are listed. `by_count` sums values instead of weights.
struct Descent {
    u64 place, before;
};

static __device__ Descent descend(
    const float *row, int width, float top, float temperature, u64 least, u64 target, bool beyond, bool by_count
) {
    __shared__ u64 masses[BINS];
    u64 prefix = 0, before = 0;
    int known = 0;
    while (known < 64) {
        int digit = min(11, 64 - known), shift = 64 - known - digit;
        __syncthreads();
        for (int bin = threadIdx.x; bin < BINS; bin += THREADS) masses[bin] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < width; i += THREADS) {
            float value = row[i];
            u64 place = order(value, i);
            if (isnan(value) || place < least) continue;
            if (known > 0 && place >> (64 - known) != prefix) continue;
            int bin = (int)(place >> shift & ((1u << digit) - 1));
            atomicAdd(&masses[bin], by_count ? 1 : weigh(value, top, temperature));
        }
        __syncthreads();
        u64 bin_before, all;
        u64 rest = target > before ? target - before : 0;
        int bin = reach_bin<u64>(masses, rest, beyond, true, bin_before, all);
        before += bin_before;
        prefix = prefix << digit | (u64)bin;
        known += digit;
    }
    return {prefix, before};
}

static __device__ u64 mass_from(const float *row, int width, float top, float temperature, u64 least) {
    u64 sum = 0, all;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float value = row[i];
        if (!isnan(value) && order(value, i) >= least) sum += weigh(value, top, temperature);
    }
    __syncthreads();
    sum_before<u64>(sum, all);
    __syncthreads();
    return all;
}

// Draws one id a row; a block a row. With a `place`, the address of the ids stands there.
extern "C" __global__ void __launch_bounds__(THREADS) draw(
    const float *logits, i64 stride, const Spec *specs, Work *works, int *ids, i64 id_stride, int *const *place, int width
) {
    in_turn();
    if (place) ids = *place;
    Spec spec = specs[blockIdx.x];
    Work *work = works + blockIdx.x;
    int *id = ids + blockIdx.x * id_stride;
    u64 best = work->best;
    if (best == 0 || spec.temperature == 0.0f) {
        if (threadIdx.x == 0) *id = best == 0 ? -1 : id_of(best);
        return;
    }
    float top = value_of(best), temperature = spec.temperature;
    double least_weight = (double)spec.min_p;
    u32 listed = work->listed;
    if (listed > LISTED) {
        // All of the row, bit by bit.
        const float *row = logits + blockIdx.x * stride;
        u64 least = 0;
        if (spec.top_k > 0 && spec.top_k < width) {
            // Ties with the last one are kept.
            Descent k = descend(row, width, top, temperature, 0, (u64)spec.top_k, false, true);
            least = k.place >> 32 << 32;
        }
        if (spec.top_p < 1.0f) {
            u64 mass = mass_from(row, width, top, temperature, least);
            least = max(least, descend(row, width, top, temperature, least, share(spec.top_p, mass), false, false).place);
        }
        if (spec.min_p > 0.0f) {
            // The lowest value that weighs enough, by its logarithm.
            float bound = (float)((double)top + log(least_weight) * (double)temperature);
            least = max(least, order(bound, 0xffffffffu));
        }
        least = min(least, best);
        u64 mass = mass_from(row, width, top, temperature, least);
        u64 place = descend(row, width, top, temperature, least, share(spec.uniform, mass), true, false).place;
        if (threadIdx.x == 0) *id = id_of(place);
        return;
    }
    __shared__ u64 places[LISTED];
    for (int i = threadIdx.x; i < LISTED; i += THREADS) places[i] = i < listed ? work->list[i] : 0;
    int size = 2;
    while (size < (int)listed) size <<= 1;
    __syncthreads();
    // Bitonic sort, the largest first.
    for (int run = 2; run <= size; run <<= 1)
        for (int step = run >> 1; step > 0; step >>= 1) {
            for (int pair = threadIdx.x; pair < size / 2; pair += THREADS) {
                int i = pair / step * 2 * step + pair % step, j = i + step;
                u64 a = places[i], b = places[j];
                if ((a < b) == ((i & run) == 0)) {
                    places[i] = b;
                    places[j] = a;
                }
            }
            __syncthreads();
        }
    // Two candidates a thread, with the sums of weights before them.
    u64 weights[2], before[2], all;
    for (int k = 0; k < 2; k++) {
        int i = threadIdx.x * 2 + k;
        weights[k] = i < listed ? weigh(value_of(places[i]), top, temperature) : 0;
    }
    before[0] = sum_before<u64>(weights[0] + weights[1], all);
    before[1] = before[0] + weights[0];
    int kept = (int)listed;
    if (spec.top_k > 0 && spec.top_k < (int)listed) {
        // Ties with the last one are kept.
        u32 last = (u32)(places[spec.top_k - 1] >> 32);
        int above = 0;
        for (int k = 0; k < 2; k++) {
            int i = threadIdx.x * 2 + k;
            above += i < (int)listed && (u32)(places[i] >> 32) >= last;
        }
        __syncthreads();
        u64 total;
        sum_before<u64>((u64)above, total);
        kept = (int)total;
    }
    __shared__ int row_kept;
    if (spec.top_p < 1.0f || (spec.top_k <= 0 && spec.min_p <= 0.0f)) {
        // The mass that shares are taken of: of what top-k keeps, or of the whole row.
        u64 mass;
        if (spec.top_k > 0) {
            u64 own = 0;
            for (int k = 0; k < 2; k++)
                if (threadIdx.x * 2 + k < kept) own += weights[k];
            u64 total;
            sum_before<u64>(own, total);
            mass = total;
        } else {
            u64 own = work->masses[threadIdx.x * 2] + work->masses[threadIdx.x * 2 + 1], total;
            __syncthreads();
            sum_before<u64>(own, total);
            mass = total;
        }
        if (spec.top_p < 1.0f) {
            u64 target = share(spec.top_p, mass), own = 0, total;
            for (int k = 0; k < 2; k++)
                own += threadIdx.x * 2 + k < kept && before[k] < target;
            __syncthreads();
            sum_before<u64>(own, total);
            kept = max((int)total, 1);
        } else {
            // No limit at all: the draw goes over the whole row, of which the list holds what it can meet.
            __syncthreads();
            if (threadIdx.x == 0) row_kept = (int)listed - 1;
            __syncthreads();
            u64 target = share(spec.uniform, mass);
            for (int k = 0; k < 2; k++) {
                int i = threadIdx.x * 2 + k;
                if (i < (int)listed && before[k] + weights[k] > target) atomicMin(&row_kept, i);
            }
            __syncthreads();
            if (threadIdx.x == 0) *id = id_of(places[row_kept]);
            return;
        }
    }
    if (spec.min_p > 0.0f) {
        u64 own = 0, total;
        for (int k = 0; k < 2; k++) {
            int i = threadIdx.x * 2 + k;
            if (i >= kept) continue;
            double weight = exp(((double)value_of(places[i]) - (double)top) / (double)temperature);
            own += weight >= least_weight;
        }
        __syncthreads();
        sum_before<u64>(own, total);
        kept = max((int)total, 1);
    }
    u64 own = 0, mass;
    for (int k = 0; k < 2; k++)
        if (threadIdx.x * 2 + k < kept) own += weights[k];
    __syncthreads();
    sum_before<u64>(own, mass);
    u64 target = share(spec.uniform, mass);
    __syncthreads();
    if (threadIdx.x == 0) row_kept = kept - 1;
    __syncthreads();
    for (int k = 0; k < 2; k++) {
        int i = threadIdx.x * 2 + k;
        if (i < kept && before[k] + weights[k] > target) atomicMin(&row_kept, i);
    }
    __syncthreads();
    if (threadIdx.x == 0) *id = id_of(places[row_kept]);
}
