// The common kernel dialect on CUDA: MSL's words for what CUDA has under other names.
// SIMD width is 32 on both. `threadgroup` can only open a variable declaration here, so no
// function of the dialect takes a pointer to threadgroup memory.
// Compiled by NVRTC without any include path, so f16 is spelt in PTX; and with -default-device,
// because the empty macro `device` would eat the word inside `__device__`.

#define device
#define constant
#define thread
#define threadgroup __shared__
#define in_threadgroup
#define INLINE __forceinline__

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;

#define threadgroup_position_in_grid blockIdx
#define threadgroups_per_grid gridDim
#define thread_index_in_threadgroup threadIdx.x
#define threads_per_threadgroup blockDim
#define thread_index_in_simdgroup (threadIdx.x & 31u)
#define simdgroup_index_in_threadgroup (threadIdx.x >> 5)
#define FULL 0xffffffffu
#define PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(n) PRAGMA(unroll n)

// The first thing a kernel does: it was launched before its predecessor ended, and lets its own
// successor be launched now. (Asking for weights ahead of the wait was slower, see docs/LOG.md.)
INLINE void await_inputs() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

enum class mem_flags { mem_none, mem_threadgroup, mem_device };
#define threadgroup_barrier(flags) __syncthreads()

template <class T> INLINE T simd_shuffle_xor(T v, ushort m) { return __shfl_xor_sync(FULL, v, m); }
template <class T> INLINE T simd_sum(T v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(FULL, v, o);
  return v;
}
template <class T> INLINE T simd_max(T v) {
  for (int o = 16; o > 0; o >>= 1) {
    T w = __shfl_xor_sync(FULL, v, o);
    v = w > v ? w : v;
  }
  return v;
}
INLINE int simd_max(int v) { return __reduce_max_sync(FULL, v); }
template <class D, class S> INLINE D as_type(S s) {
  static_assert(sizeof(D) == sizeof(S), "as_type keeps the size");
  union { S s; D d; } u = {s};
  return u.d;
}
INLINE float as_float(uint bits) { return __uint_as_float(bits); }
INLINE float half_bits(ushort bits) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  return v;
}
struct half {
  ushort bits;
  INLINE operator float() const { return half_bits(bits); }
};
INLINE half to_half(float v) {
  half h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(fminf(fmaxf(v, -65504.f), 65504.f)));
  return h;
}
INLINE int dot4(int a, int b, int c) { return __dp4a(a, b, c); }
INLINE int rounded(float v) { return __float2int_rn(v); }
INLINE int atomic_add(device int* p, int v) { return atomicAdd(p, v); }

// acc[16 x 8] += a[16 x 16] b[16 x 8], f16 operands and float sums, over the lanes of a simdgroup.
// Lane l holds, with g = l / 4 and t = l % 4: a rows g, g + 8 and columns 2t, 2t + 1, 2t + 8, 2t + 9
// in the order (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8); b rows 2t.. and 2t + 8.. of column
// g; acc (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). PTX ISA, mma.m16n8k16.
INLINE void simd_mma(float (&acc)[4], const uint (&a)[4], const uint (&b)[2]) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
      " {%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same with int8 operands and int sums. acc[16 x 8] += a[16 x 32] b[32 x 8]: a rows g, g + 8 and
// columns 4t..4t + 3 in a[0], a[1], 16 + 4t.. in a[2], a[3]; b rows 4t.. and 16 + 4t.. of column g.
INLINE void simd_mma(int (&acc)[4], const uint (&a)[4], const uint (&b)[2]) {
  asm(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
      " {%0,%1,%2,%3};"
      : "+r"(acc[0]), "+r"(acc[1]), "+r"(acc[2]), "+r"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// One 16-wide half of it.
INLINE void simd_mma(int (&acc)[4], const uint (&a)[2], const uint (&b)[1]) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6},"
      " {%0,%1,%2,%3};"
      : "+r"(acc[0]), "+r"(acc[1]), "+r"(acc[2]), "+r"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
