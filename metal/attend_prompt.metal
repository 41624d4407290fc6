// Causal attention of a prompt row on the tensor units: 64 (query, head) pairs of one KV head at a time
// go through the keys in blocks of 64, scores stay in registers. Then times sigmoid(gate). Queries and
// probabilities are f16, sums float32. A pair's sums run over its own keys in order: blocks behind them,
// there for longer pairs, add nothing. `q_parts` is room for the queries as first operands, which only
// the lane that wrote them reads. 128 lanes.
//: in float q
//: in half kv
//: in int lengths
//: in int blocks
//: in float qg
//: out uint q_parts
//: out float yf
//: out half yh
//: int n_pairs
//: const int D
//: const int NH
//: const int NKV
//: const int BLOCK_STRIDE
//: const float SCALE
constexpr int G = NH / NKV;
constexpr int KS = D / 16;
constexpr int K_WORDS = D / 2 + 4;
constexpr int V_WORDS = 36;
const int tile = int(threadgroups_per_grid.x - 1 - threadgroup_position_in_grid.x);
const int head = int(threadgroup_position_in_grid.y);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup), g = lane / 4, t = lane % 4;
threadgroup uint4 staged[D * V_WORDS / 4];
in_threadgroup uint* words = (in_threadgroup uint*)&staged[0];
const int longest = lengths[min(64 * tile + 63, n_pairs - 1) / G];
int limit[2];
size_t place[2];
for (int i = 0; i < 2; ++i) {
  const int pair = min(64 * tile + 16 * simd + 8 * i + g, n_pairs - 1);
  limit[i] = lengths[pair / G];
  place[i] = (size_t)(pair / G) * NH + head * G + pair % G;
}
device uint4* own = (device uint4*)q_parts + ((size_t)(tile * NKV + head) * 4 + simd) * KS * 32 + lane;
for (int kk = 0; kk < KS; ++kk) {
  const device float* low = q + place[0] * D + 16 * kk + 2 * t;
  const device float* high = q + place[1] * D + 16 * kk + 2 * t;
  uint4 packed;
  packed.x = two_halves(low[0] * SCALE, low[1] * SCALE);
  packed.y = two_halves(high[0] * SCALE, high[1] * SCALE);
  packed.z = two_halves(low[8] * SCALE, low[9] * SCALE);
  packed.w = two_halves(high[8] * SCALE, high[9] * SCALE);
  own[32 * kk] = packed;
}
float o[D / 8][4];
UNROLL_BY(32)
for (int n = 0; n < D / 8; ++n)
  for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;
float top[2] = {-3.0e38f, -3.0e38f}, mass[2] = {0.0f, 0.0f};
for (int first = 0; first < longest; first += 64) {
  const device half* keys = kv + (size_t)blocks[first >> 8] * BLOCK_STRIDE;
  keys += ((first & 255) * NKV + head) * D;
  const device half* values = keys + 256 * NKV * D;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int at = tid; at < 8 * D; at += 128) {
    const int key = at / (D / 8), c = at % (D / 8);
    staged[key * (K_WORDS / 4) + c] = ((const device uint4*)(keys + key * NKV * D))[c];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float score[8][4];
  for (int n = 0; n < 8; ++n)
    for (int i = 0; i < 4; ++i) score[n][i] = 0.0f;
  for (int kk = 0; kk < KS; ++kk) {
    const uint4 packed = own[32 * kk];
    const uint a[4] = {packed.x, packed.y, packed.z, packed.w};
    for (int n = 0; n < 8; ++n) {
      const int at = (8 * n + g) * K_WORDS + 8 * kk + t;
      const uint b[2] = {words[at], words[at + 4]};
      simd_mma(score[n], a, b);
    }
  }
  UNROLL_BY(2)
  for (int i = 0; i < 2; ++i) {
    const int left = limit[i] - first - 2 * t;
    float highest = top[i];
    for (int n = 0; n < 8; ++n)
      for (int j = 0; j < 2; ++j)
        if (8 * n + j < left) highest = fmax(highest, score[n][2 * i + j]);
    for (ushort m = 1; m < 4; m *= 2) highest = fmax(highest, simd_shuffle_xor(highest, m));
    const float fade = exp(top[i] - highest);
    float sum = 0.0f;
    for (int n = 0; n < 8; ++n)
      for (int j = 0; j < 2; ++j) {
        const float w = 8 * n + j < left ? exp(score[n][2 * i + j] - highest) : 0.0f;
        score[n][2 * i + j] = w;
        sum += w;
      }
    for (ushort m = 1; m < 4; m *= 2) sum += simd_shuffle_xor(sum, m);
    mass[i] = mass[i] * fade + sum;
    top[i] = highest;
    UNROLL_BY(32)
    for (int n = 0; n < D / 8; ++n) {
      o[n][2 * i] *= fade;
      o[n][2 * i + 1] *= fade;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Values with pairs of keys in a word, as second operands want them; none behind the last key.
  for (int at = tid; at < 4 * D; at += 128) {
    const int pair = at % 32, c = at / 32, count = longest - first - 2 * pair;
    const device uint4* even = (const device uint4*)(values + 2 * pair * NKV * D) + c;
    uint4 v0, v1;
    v0.x = v0.y = v0.z = v0.w = v1.x = v1.y = v1.z = v1.w = 0u;
    if (count > 0) v0 = *even;
    if (count > 1) v1 = even[NKV * D / 8];
    for (int e = 0; e < 4; ++e) {
      const uint x = quad_word(v0, e), y = quad_word(v1, e);
      words[(8 * c + 2 * e) * V_WORDS + pair] = (x & 0xffffu) | y << 16;
      words[(8 * c + 2 * e + 1) * V_WORDS + pair] = x >> 16 | (y & 0xffff0000u);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  UNROLL_BY(4)
  for (int kk = 0; kk < 4; ++kk) {
    uint a[4];
    for (int i = 0; i < 4; ++i)
      a[i] = two_halves(score[2 * kk + i / 2][i % 2 * 2], score[2 * kk + i / 2][i % 2 * 2 + 1]);
    UNROLL_BY(32)
    for (int n = 0; n < D / 8; ++n) {
      const int at = (8 * n + g) * V_WORDS + 8 * kk + t;
      const uint b[2] = {words[at], words[at + 4]};
      simd_mma(o[n], a, b);
    }
  }
}
UNROLL_BY(2)
for (int i = 0; i < 2; ++i) {
  if (64 * tile + 16 * simd + 8 * i + g >= n_pairs) continue;
  UNROLL_BY(32)
  for (int n = 0; n < D / 8; ++n)
    for (int j = 0; j < 2; ++j) {
      const int d = 8 * n + 2 * t + j;
      const float v = o[n][2 * i + j] / mass[i] * sigmoid(qg[(2 * place[i] + 1) * D + d]);
      yf[place[i] * D + d] = v;
      yh[place[i] * D + d] = to_half(v);
    }
}
