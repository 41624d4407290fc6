// Chunked gated delta rule, first part: what chunks of 64 tokens need beside the state. With G the sum
// of log decays inside the chunk, a threadgroup takes one chunk of one V head and solves
// (I + A) [U, W] = [rate V, -rate exp(G) K] for A[t][s] = rate_t (k_t k_s) exp(G_t - G_s), s < t, by
// substitution in float32, a lane a column. `parts` are f16 operands of `delta_chunk_state` as its
// lanes hold them: W, queries, keys, then the scores of the chunk. 256 lanes.
//: in float mixed
//: in float gates
//: out uint parts
//: out float values
//: out float decays
//: const int D
//: const int HK
//: const int HV
//: const int TILED
constexpr int C = 64;
constexpr int KS = D / 16;
constexpr int CONV = (2 * HK + HV) * D;
const int chunk = int(threadgroup_position_in_grid.x), h = int(threadgroup_position_in_grid.y);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup), g = lane / 4, t = lane % 4;
const int kh = TILED ? h % HK : h / (HV / HK);
const size_t place = (size_t)chunk * HV + h;
threadgroup uint k_tile[C][D / 2 + 4];
threadgroup float4 a_tile[C][C / 4 + 1];
threadgroup float gate[C];
threadgroup float total[C];
threadgroup float rate[C];
const device float* tokens = mixed + (size_t)chunk * C * CONV;
device uint4* part = (device uint4*)parts + place * (24 * D + 8 * C);
if (tid < C) {
  const size_t at = 2 * ((size_t)(chunk * C + tid) * HV + h);
  gate[tid] = gates[at];
  rate[tid] = gates[at + 1];
}
for (int at = tid; at < C * D / 2; at += 256) {
  const device float* k = tokens + (size_t)(at / (D / 2)) * CONV + (HK + kh) * D + at % (D / 2) * 2;
  k_tile[at / (D / 2)][at % (D / 2)] = two_halves(k[0], k[1]);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (tid < C) {
  float sum = 0.0f;
  for (int s = 0; s <= tid; ++s) sum += gate[s];
  total[tid] = sum;
  if (tid == C - 1) decays[place] = exp(sum);
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Products of all pairs of tokens: keys by keys in simdgroups 0 to 3, queries by keys in the others.
const bool is_query = simd >= 4;
const int m = simd % 4, low = 16 * m + g, high = low + 8;
const float scale = rsqrt(float(D));
float acc[8][4];
for (int n = 0; n < 8; ++n)
  for (int i = 0; i < 4; ++i) acc[n][i] = 0.0f;
for (int kk = 0; kk < KS; ++kk) {
  uint a[4];
  if (is_query) {
    const device float* q = tokens + kh * D + 16 * kk + 2 * t;
    const float scales[2] = {exp(total[low]) * scale, exp(total[high]) * scale};
    uint scaled[4];
    for (int i = 0; i < 4; ++i) {
      const device float* pair = q + (size_t)(i % 2 ? high : low) * CONV + i / 2 * 8;
      a[i] = two_halves(pair[0], pair[1]);
      scaled[i] = two_halves(pair[0] * scales[i % 2], pair[1] * scales[i % 2]);
    }
    uint4 words;
    words.x = scaled[0];
    words.y = scaled[1];
    words.z = scaled[2];
    words.w = scaled[3];
    part[8 * D + (m * KS + kk) * 32 + lane] = words;
  } else {
    for (int i = 0; i < 4; ++i) a[i] = k_tile[i % 2 ? high : low][8 * kk + i / 2 * 4 + t];
  }
  for (int n = 0; n < 8; ++n) {
    if (n > 2 * m + 1) continue;
    const uint b[2] = {k_tile[8 * n + g][8 * kk + t], k_tile[8 * n + g][8 * kk + 4 + t]};
    simd_mma(acc[n], a, b);
  }
}
in_threadgroup float* a_floats = (in_threadgroup float*)&a_tile[0][0];
for (int n = 0; n < 8; ++n)
  for (int i = 0; i < 4; ++i) {
    const int row = i < 2 ? low : high, s = 8 * n + 2 * t + i % 2;
    const float v = acc[n][i] * exp(total[row] - total[s]);
    if (is_query)
      acc[n][i] = s <= row ? v * scale : 0.0f;
    else
      a_floats[row * (C + 4) + s] = s < row ? v * rate[row] : 0.0f;
  }
if (is_query)
  for (int kk = 0; kk < 4; ++kk) {
    uint4 words;
    words.x = two_halves(acc[2 * kk][0], acc[2 * kk][1]);
    words.y = two_halves(acc[2 * kk][2], acc[2 * kk][3]);
    words.z = two_halves(acc[2 * kk + 1][0], acc[2 * kk + 1][1]);
    words.w = two_halves(acc[2 * kk + 1][2], acc[2 * kk + 1][3]);
    part[24 * D + (m * 4 + kk) * 32 + lane] = words;
  }
threadgroup_barrier(mem_flags::mem_threadgroup);
if (tid >= 2 * D) return;

const bool is_key = tid >= D;
const int c = tid % D;
const device float* column = tokens + (is_key ? HK + kh : 2 * HK + h) * D + c;
float x[C];
UNROLL_BY(64)
for (int s = 0; s < C; ++s) x[s] = column[(size_t)s * CONV];
if (is_key) {
  // Pairs of tokens as the second operand: pair 8 kk + 4 r + t is word 2 (kk % 2) + r of lane 4 g + t.
  UNROLL_BY(8)
  for (int i = 0; i < 8; ++i) {
    uint words[4];
    UNROLL_BY(4)
    for (int w = 0; w < 4; ++w) {
      const int s = 2 * (16 * (i / 4) + 4 * w + i % 4);
      words[w] = two_halves(x[s] * exp(total[C - 1] - total[s]),
                            x[s + 1] * exp(total[C - 1] - total[s + 1]));
    }
    uint4 packed;
    packed.x = words[0];
    packed.y = words[1];
    packed.z = words[2];
    packed.w = words[3];
    part[16 * D + (c / 8 * 2 + i / 4) * 32 + c % 8 * 4 + i % 4] = packed;
  }
}
UNROLL_BY(64)
for (int s = 0; s < C; ++s) x[s] *= is_key ? -rate[s] * exp(total[s]) : rate[s];
UNROLL_BY(64)
for (int row = 1; row < C; ++row) {
  float4 sum;
  sum.x = sum.y = sum.z = sum.w = 0.0f;
  UNROLL_BY(16)
  for (int i = 0; i < C / 4; ++i) {
    if (4 * i >= row) continue;
    const float4 a = a_tile[row][i];
    sum.x += a.x * x[4 * i];
    sum.y += a.y * x[4 * i + 1];
    sum.z += a.z * x[4 * i + 2];
    sum.w += a.w * x[4 * i + 3];
  }
  x[row] -= (sum.x + sum.y) + (sum.z + sum.w);
}
if (is_key) {
  device uint* out = (device uint*)part + (c / 16 * 32 + c % 8 / 2) * 4 + c % 16 / 8 * 2;
  UNROLL_BY(32)
  for (int i = 0; i < C; i += 2) {
    // Even lanes pack columns c, c + 1 of row i, odd ones c - 1, c of row i + 1.
    const float other = simd_shuffle_xor(lane % 2 ? x[i] : x[i + 1], 1);
    const int row = i + lane % 2;
    out[(row / 16 * KS * 32 + row % 8 * 4) * 4 + row % 16 / 8] =
        lane % 2 ? two_halves(other, x[i + 1]) : two_halves(x[i], other);
  }
} else {
  UNROLL_BY(64)
  for (int s = 0; s < C; ++s) values[(place * C + s) * D + c] = x[s];
}
