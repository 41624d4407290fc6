// The common kernel dialect on a CPU, for tests: the lanes of a threadgroup are coroutines of one
// thread. Every collective waits for all lanes it spans, so a lane that skips a barrier or leaves a
// simdgroup early is a deadlock, which `run` reports instead of hanging.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#define device
#define constant
#define thread
#define threadgroup static
#define in_threadgroup
#define INLINE inline
#define UNROLL_BY(n)

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using half = _Float16;
using std::fabs;
using std::fma;
using std::fmax;

struct alignas(8) uint2 { uint x, y; };
struct alignas(16) uint4 { uint x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint3 { uint x, y, z; };

namespace shim {

struct Lane {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  long barriers = 0, collectives = 0;
};

struct Group {
  std::vector<Lane> lanes;
  std::vector<long> arrived;                     // collectives, lanes of each simdgroup added up
  std::vector<uint64_t> slots[2];                // values in flight, by parity of the collective
  long at_barrier = 0;
  uint current = 0;
  long progress = 0;
  ucontext_t home;
  uint3 position{}, count{};
};

inline Group group;

inline Lane& self() { return group.lanes[group.current]; }
inline void yield() { swapcontext(&self().context, &group.home); }

inline void barrier() {
  const long wanted = ++self().barriers * long(group.lanes.size());
  group.at_barrier++;
  group.progress++;
  while (group.at_barrier < wanted) yield();
  group.progress++;
}

// Gives every lane the 32 values of its simdgroup.
template <class T> void exchange(T value, T (&all)[32]) {
  static_assert(sizeof(T) <= 8, "a lane exchanges at most eight bytes");
  const uint simd = group.current / 32;
  auto& slots = group.slots[self().collectives % 2];
  std::memcpy(&slots[group.current], &value, sizeof(T));
  const long wanted = 32 * ++self().collectives;
  group.arrived[simd]++;
  group.progress++;
  while (group.arrived[simd] < wanted) yield();
  group.progress++;
  for (int i = 0; i < 32; ++i) std::memcpy(&all[i], &slots[32 * simd + i], sizeof(T));
}

inline void (*kernel)() = nullptr;
inline void entry() {
  kernel();
  self().done = true;
  group.progress++;
  for (;;) yield();
}

inline bool run_group(uint n) {
  group.lanes.resize(n);
  group.arrived.assign(n / 32, 0);
  for (auto& slots : group.slots) slots.assign(n, 0);
  group.at_barrier = 0;
  for (auto& lane : group.lanes) {
    lane.done = false;
    lane.barriers = lane.collectives = 0;
    lane.stack.resize(1 << 16);
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.data();
    lane.context.uc_stack.ss_size = lane.stack.size();
    lane.context.uc_link = nullptr;
    makecontext(&lane.context, entry, 0);
  }
  for (;;) {
    const long before = group.progress;
    bool all_done = true;
    for (group.current = 0; group.current < n; ++group.current) {
      if (self().done) continue;
      all_done = false;
      swapcontext(&group.home, &self().context);
    }
    if (all_done) return true;
    if (group.progress == before) return false;
  }
}

// 0, or 1 if lanes wait for each other for ever.
inline int run(void (*body)(), uint3 grid, uint n) {
  kernel = body;
  group.count = grid;
  for (uint z = 0; z < grid.z; ++z)
    for (uint y = 0; y < grid.y; ++y)
      for (uint x = 0; x < grid.x; ++x) {
        group.position = {x, y, z};
        if (!run_group(n)) return 1;
      }
  return 0;
}

}  // namespace shim

#define threadgroup_position_in_grid (shim::group.position)
#define threadgroups_per_grid (shim::group.count)
#define thread_index_in_threadgroup (shim::group.current)
#define threads_per_threadgroup (uint3{uint(shim::group.lanes.size()), 1, 1})
#define thread_index_in_simdgroup (shim::group.current & 31u)
#define simdgroup_index_in_threadgroup (shim::group.current >> 5)

enum class mem_flags { mem_none, mem_threadgroup, mem_device };
inline void threadgroup_barrier(mem_flags) { shim::barrier(); }

template <class T> T simd_shuffle_xor(T v, ushort mask) {
  T all[32];
  const uint lane = thread_index_in_simdgroup;
  shim::exchange(v, all);
  return all[lane ^ mask];
}
template <class T> T simd_sum(T v) {
  for (ushort o = 16; o > 0; o >>= 1) v += simd_shuffle_xor(v, o);
  return v;
}
template <class T> T simd_max(T v) {
  T all[32];
  shim::exchange(v, all);
  for (T other : all) v = other > v ? other : v;
  return v;
}
template <class D, class S> D as_type(S s) {
  static_assert(sizeof(D) == sizeof(S), "as_type keeps the size");
  D d;
  std::memcpy(&d, &s, sizeof(D));
  return d;
}
inline float as_float(uint bits) { return as_type<float>(bits); }
inline float half_bits(ushort bits) { return float(as_type<half>(bits)); }
inline half to_half(float v) { return half(std::fmin(std::fmax(v, -65504.f), 65504.f)); }
inline int dot4(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += int(int8_t(a >> i)) * int(int8_t(b >> i));
  return c;
}
inline int rounded(float v) { return int(std::nearbyint(v)); }
inline int atomic_add(int* p, int v) {
  const int old = *p;
  *p += v;
  return old;
}
inline float rsqrt(float v) { return 1.0f / std::sqrt(v); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

inline float half_of(uint64_t pair, int i) { return half_bits(ushort(pair >> (16 * i))); }

// As in cuda.h, with every lane given the others' operands.
inline void simd_mma(float (&acc)[4], const uint (&a)[4], const uint (&b)[2]) {
  uint64_t upper[32], lower[32], right[32];        // a rows g, rows g + 8, and b
  const uint lane = thread_index_in_simdgroup, g = lane / 4, t = lane % 4;
  shim::exchange(a[0] | uint64_t(a[2]) << 32, upper);
  shim::exchange(a[1] | uint64_t(a[3]) << 32, lower);
  shim::exchange(b[0] | uint64_t(b[1]) << 32, right);
  for (uint c = 0; c < 2; ++c)
    for (uint k = 0; k < 4; ++k)
      for (int i = 0; i < 4; ++i) {
        const float w = half_of(right[4 * (2 * t + c) + k], i);
        acc[c] += half_of(upper[4 * g + k], i) * w;
        acc[2 + c] += half_of(lower[4 * g + k], i) * w;
      }
}

inline void simd_mma(int (&acc)[4], const uint (&a)[2], const uint (&b)[1]) {
  uint64_t left[32];
  uint right[32];
  const uint lane = thread_index_in_simdgroup, g = lane / 4, t = lane % 4;
  shim::exchange(a[0] | uint64_t(a[1]) << 32, left);
  shim::exchange(b[0], right);
  for (uint c = 0; c < 2; ++c)
    for (uint k = 0; k < 4; ++k) {
      const int w = int(right[4 * (2 * t + c) + k]);
      acc[c] = dot4(int(left[4 * g + k] & 0xffffffffu), w, acc[c]);
      acc[2 + c] = dot4(int(left[4 * g + k] >> 32), w, acc[2 + c]);
    }
}
inline void simd_mma(int (&acc)[4], const uint (&a)[4], const uint (&b)[2]) {
  const uint a0[2] = {a[0], a[1]}, a1[2] = {a[2], a[3]}, b0[1] = {b[0]}, b1[1] = {b[1]};
  simd_mma(acc, a0, b0);
  simd_mma(acc, a1, b1);
}
