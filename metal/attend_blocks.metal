// Attention of one query token over up to eight KV blocks, each an array of its own: split s takes 64
// keys, for all G query heads of one KV head, and leaves their maximum, sum and weighted values, as
// `attend_split` does. `length` is the number of keys in these blocks. 256 lanes.
//: in float q
//: in half k0
//: in half k1
//: in half k2
//: in half k3
//: in half k4
//: in half k5
//: in half k6
//: in half k7
//: in half v0
//: in half v1
//: in half v2
//: in half v3
//: in half v4
//: in half v5
//: in half v6
//: in half v7
//: out float part_o
//: out float part_ml
//: int length
//: const int D
//: const int NH
//: const int NKV
//: const float SCALE
constexpr int G = NH / NKV;
constexpr int E = D / 32;
constexpr int PARTS = 256 / D;
const int split = int(threadgroup_position_in_grid.x), g = int(threadgroup_position_in_grid.y);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup), block = split / 4;
threadgroup float weights[G][64];
threadgroup float gather[256];
const device half* keys = block == 0   ? k0
                          : block == 1 ? k1
                          : block == 2 ? k2
                          : block == 3 ? k3
                          : block == 4 ? k4
                          : block == 5 ? k5
                          : block == 6 ? k6
                                       : k7;
const device half* values = block == 0   ? v0
                            : block == 1 ? v1
                            : block == 2 ? v2
                            : block == 3 ? v3
                            : block == 4 ? v4
                            : block == 5 ? v5
                            : block == 6 ? v6
                                         : v7;
const int count = min(64, length - 64 * split);
const int offset = ((split % 4) * 64 * NKV + g) * D;
for (int i = simd; i < 64; i += 8) {
  float score[G];
  for (int r = 0; r < G; ++r) score[r] = 0.0f;
  if (i < count)
    for (int e = 0; e < E; ++e) {
      const float k = float(keys[offset + i * NKV * D + 32 * e + lane]);
      for (int r = 0; r < G; ++r) score[r] += q[(g * G + r) * D + 32 * e + lane] * SCALE * k;
    }
  for (int r = 0; r < G; ++r) {
    const float s = simd_sum(score[r]);
    if (lane == 0) weights[r][i] = i < count ? s : -3.0e38f;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int r = simd; r < G; r += 8) {
  const float s0 = weights[r][lane], s1 = weights[r][lane + 32];
  const float highest = simd_max(fmax(s0, s1));
  const float w0 = lane < count ? exp(s0 - highest) : 0.0f;
  const float w1 = lane + 32 < count ? exp(s1 - highest) : 0.0f;
  weights[r][lane] = w0;
  weights[r][lane + 32] = w1;
  const float sum = simd_sum(w0 + w1);
  if (lane == 0) {
    part_ml[2 * (split * NH + g * G + r)] = highest;
    part_ml[2 * (split * NH + g * G + r) + 1] = sum;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
float o[G];
for (int r = 0; r < G; ++r) o[r] = 0.0f;
const int dim = tid % D;
for (int i = tid / D; i < count; i += PARTS) {
  const float value = float(values[offset + i * NKV * D + dim]);
  for (int r = 0; r < G; ++r) o[r] += weights[r][i] * value;
}
for (int r = 0; r < G; ++r) {
  gather[tid] = o[r];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < D) {
    float sum = 0.0f;
    for (int p = 0; p < PARTS; ++p) sum += gather[p * D + tid];
    part_o[(size_t)(split * NH + g * G + r) * D + tid] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
