// Attention of single queries over their KV blocks: split s of S takes every S-th chunk of C keys of
// a row's own length, for all G query heads of one KV head, and leaves their maximum, sum and weighted
// values. Nothing depends on other rows. 256 lanes.
//: in float q
//: in half kv
//: in int lengths
//: in int blocks
//: out float part_o
//: out float part_ml
//: int table_stride
//: const int D
//: const int NH
//: const int NKV
//: const int S
//: const int C
//: const int BLOCK_STRIDE
//: const float SCALE
constexpr int G = NH / NKV;
constexpr int E = D / 32;
constexpr int PARTS = 256 / D;
const int split = int(threadgroup_position_in_grid.x), g = int(threadgroup_position_in_grid.y);
const int b = int(threadgroup_position_in_grid.z);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup);
threadgroup float weights[G][C];
threadgroup float top[G];
threadgroup float mass[G];
threadgroup float fade[G];
threadgroup float gather[256];
const int length = lengths[b];
const device int* table = blocks + (size_t)b * table_stride;
float query[G][E];
for (int r = 0; r < G; ++r)
  for (int e = 0; e < E; ++e)
    query[r][e] = q[((size_t)b * NH + g * G + r) * D + lane * E + e] * SCALE;
if (tid < G) {
  top[tid] = -3.0e38f;
  mass[tid] = 0.0f;
}
float o[G];
for (int r = 0; r < G; ++r) o[r] = 0.0f;
const int dim = tid % D, part = tid / D;
for (int first = C * split; first < length; first += C * S) {
  const device half* keys = kv + (size_t)table[first >> 8] * BLOCK_STRIDE;
  keys += ((first & 255) * NKV + g) * D;
  const device half* values = keys + 256 * NKV * D;
  const int count = min(C, length - first);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = simd; i < C; i += 8) {
    float score[G];
    for (int r = 0; r < G; ++r) score[r] = 0.0f;
    if (i < count) {
      const device half* key = keys + i * NKV * D + lane * E;
      float k[E];
      if (E == 8) {
        const uint4 words = *(const device uint4*)key;
        for (int e = 0; e < E; ++e)
          k[e] = half_bits(ushort(quad_word(words, e >> 1) >> (16 * (e & 1)) & 0xffffu));
      } else {
        for (int e = 0; e < E; ++e) k[e] = float(key[e]);
      }
      for (int r = 0; r < G; ++r)
        for (int e = 0; e < E; ++e) score[r] += query[r][e] * k[e];
    }
    for (int r = 0; r < G; ++r) {
      const float s = simd_sum(score[r]);
      if (lane == 0) weights[r][i] = i < count ? s : -3.0e38f;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int r = simd; r < G; r += 8) {
    const float before = top[r];
    float highest = before, sum = 0.0f;
    for (int i = lane; i < C; i += 32) highest = fmax(highest, weights[r][i]);
    highest = simd_max(highest);
    for (int i = lane; i < C; i += 32) {
      const float w = i < count ? exp(weights[r][i] - highest) : 0.0f;
      weights[r][i] = w;
      sum += w;
    }
    sum = simd_sum(sum);
    if (lane == 0) {
      fade[r] = exp(before - highest);
      mass[r] = mass[r] * fade[r] + sum;
      top[r] = highest;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int r = 0; r < G; ++r) o[r] *= fade[r];
  for (int i = part; i < count; i += PARTS) {
    const float value = float(values[i * NKV * D + dim]);
    for (int r = 0; r < G; ++r) o[r] += weights[r][i] * value;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int r = 0; r < G; ++r) {
  const size_t at = ((size_t)b * NH + g * G + r) * S + split;
  gather[tid] = o[r];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < D) {
    float sum = 0.0f;
    for (int p = 0; p < PARTS; ++p) sum += gather[p * D + tid];
    part_o[at * D + tid] = sum;
  }
  if (tid == 0) {
    part_ml[2 * at] = top[r];
    part_ml[2 * at + 1] = mass[r];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
