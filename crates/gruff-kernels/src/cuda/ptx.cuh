// Every instruction of PTX that kernels name themselves, one function each; all other sources are plain CUDA C++. Names of
// lanes' parts ("fragments") are those of the PTX ISA: with g = lane / 4 and t = lane % 4,
//
//     a, 16-bit (m16n8k16)  a[0]: row g, columns 2t and 2t + 1; a[1]: row g + 8; a[2], a[3]: the same, columns + 8
//     b, 16-bit (m16n8k16)  b[0]: rows 2t and 2t + 1 of column g; b[1]: rows + 8
//     a, 8-bit (m16n8k32)   a[0]: row g, columns 4t .. 4t + 4; a[1]: row g + 8; a[2], a[3]: the same, columns + 16
//     b, 8-bit (m16n8k32)   b[0]: rows 4t .. 4t + 4 of column g; b[1]: rows + 16
//     a, tf32 (m16n8k8)     a[0]: row g, column t; a[1]: row g + 8; a[2], a[3]: the same, columns + 4
//     b, tf32 (m16n8k8)     b[0]: row t of column g; b[1]: row t + 4
//     c of all              c[0], c[1]: row g, columns 2t and 2t + 1; c[2], c[3]: row g + 8
//
// The lower index lies in the lower bits. All 32 lanes of a warp call what is `.sync` together.
#pragma once

namespace ptx {

// A half as its bits, widened.
static __device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Rounded to the nearest half, ties to even.
static __device__ __forceinline__ u16 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Two halves in a word, rounded likewise.
static __device__ __forceinline__ u32 floats_to_half2(float low, float high) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// Two bfloat16 in a word, rounded likewise. From compute capability 8.0 on.
static __device__ __forceinline__ u32 floats_to_bf162(float low, float high) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// Rounded to 10 bits behind the point, ties away from zero: what products in tf32 take. From 8.0 on.
static __device__ __forceinline__ u32 float_to_tf32(float value) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// 2^x to about two units in the last place, denormals as zeros.
static __device__ __forceinline__ float exp2_approx(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// a b + c of two pairs of bfloat16, rounded once, denormals as they are. From 8.0 on.
static __device__ __forceinline__ u32 fma_bf162(u32 a, u32 b, u32 c) {
    u32 bits;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
    return bits;
}

// c += a b, in integers. From 8.0 on, as all products below.
static __device__ __forceinline__ void mma_s8_k32(int (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same over 16 columns of a: a[0], a[1] and b[0] of the above alone.
static __device__ __forceinline__ void mma_s8_k16(int (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// c += a b, halves, added up in f32.
static __device__ __forceinline__ void mma_f16_k16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b, bfloat16, added up in f32.
static __device__ __forceinline__ void mma_bf16_k16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b, tf32 (words of `float_to_tf32`), added up in f32.
static __device__ __forceinline__ void mma_tf32_k8(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four tiles of eight rows of 16 bytes in shared memory: lane l names row l % 8 of tile l / 8, and gets of each tile the
// 32-bit word l % 4 of row l / 4.
static __device__ __forceinline__ void load_matrices(u32 (&to)[4], const void *from) {
    u32 address = (u32)__cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

// Two tiles; what lanes from 16 on name is not looked at.
static __device__ __forceinline__ void load_matrices(u32 (&to)[2], const void *from) {
    u32 address = (u32)__cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
}

// Four tiles of 8 x 8 values of 16 bits, each turned: a lane gets rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4.
static __device__ __forceinline__ void load_matrices_turned(u32 (&to)[4], const void *from) {
    u32 address = (u32)__cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

// Two of them.
static __device__ __forceinline__ void load_matrices_turned(u32 (&to)[2], const void *from) {
    u32 address = (u32)__cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(address));
}

// Copies 16 bytes to shared memory without waiting, the last `16 - bytes` as zeros. From 8.0 on, as all copies below.
static __device__ __forceinline__ void copy_16(void *shared, const void *global, int bytes) {
    u32 to = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

// Copies all 16.
static __device__ __forceinline__ void copy_16(void *shared, const void *global) {
    u32 to = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// An address in shared memory, for copies that go on from one.
typedef u32 Shared;
static __device__ __forceinline__ Shared shared_at(const void *shared) { return (u32)__cvta_generic_to_shared(shared); }
static __device__ __forceinline__ void copy_16_to(Shared to, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// The same address, of which the compiler knows nothing: offsets from it stay in the loads.
static __device__ __forceinline__ const u8 *opaque(const u8 *address) {
    asm("" : "+l"(address));
    return address;
}

// The bytes of a and b (0 to 7) that the four lowest half bytes of `selectors` name, none of which is above 7.
static __device__ __forceinline__ u32 permute(u32 a, u32 b, u32 selectors) {
    u32 bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selectors));
    return bytes;
}

// Has bytes brought to the second-level cache, a multiple of 16 from a multiple of 16 on. Nothing before 9.0.
static __device__ __forceinline__ void bring_near(const void *global, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
#endif
}

// Ends a group of copies.
static __device__ __forceinline__ void copies_made() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups of copies are under way. Others see them behind a barrier.
template <int N>
static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Of compute capability 9.0 alone (sm_90a): products of four warps together, a 64 x 16 and b 16 x N both in shared memory, that run
// behind the program. `wgmma_begin` comes before the first and where registers were written, `wgmma_made` ends a group of them, and
// registers and shared memory are theirs until `wgmma_wait`.
#if __CUDA_ARCH_FEAT_SM90_ALL
static __device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_made() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// What this thread has written to shared memory, for what reads it behind the program; before a barrier.
static __device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A matrix of pieces of 8 rows of 16 bytes, `along` bytes from one to the next that has the next 8 values of the same rows, `across`
// bytes to the next 8 rows.
static __device__ __forceinline__ u64 matrix_at(const void *from, int along, int across) {
    return (u64)((u32)__cvta_generic_to_shared(from) >> 4 & 0x3fff) | (u64)(along >> 4) << 16 | (u64)(across >> 4) << 32;
}

// The same matrix so many bytes further on.
static __device__ __forceinline__ u64 next_step(u64 matrix, int bytes) { return matrix + (bytes >> 4); }

// c[4 i + e] of a lane: element e of the 16 fragments of 8 columns, of the 16 rows of its warp.
static __device__ __forceinline__ void wgmma_bf16(float (&c)[64], u64 a, u64 b, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},"
        "%64, %65, p, 1, 1, 0, 0; }"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
          "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
          "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
          "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
          "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
          "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
          "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
          "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
        : "l"(a), "l"(b), "r"((int)add)
    );
}

// c[4 i + e] of a lane: element e of the 8 fragments of 8 columns, of the 16 rows of its warp.
static __device__ __forceinline__ void wgmma_bf16(float (&c)[32], u64 a, u64 b, bool add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
        "%32, %33, p, 1, 1, 0, 0; }"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
          "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
          "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
          "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "l"(a), "l"(b), "r"((int)add)
    );
}
#endif

// In a kernel that was launched before the end of the one in front of it: waits until all that one has written is there.
// Nothing in others.
static __device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel begin as soon as every block has come here or ended.
static __device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A clock that runs on while nothing does.
static __device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

} // namespace ptx
