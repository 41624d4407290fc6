// Chunked gated delta rule, second part: the state S goes through the chunks of one row,
// new = U + W S^T, o = Q S^T + scores new, S = decay S + new^T K, on the tensor units with f16 operands
// and float32 sums; S stays float32 in registers. A threadgroup of 128 lanes takes 32 rows of the state
// of one V head; each simdgroup 16 tokens of a product by tokens, D / 4 columns of the state.
//: in uint parts
//: in float values
//: in float decays
//: in int read_row
//: in int write_row
//: alias float states_in
//: out float states_out
//: out float y
//: int n_chunks
//: const int D
//: const int HK
//: const int HV
//: const int KC
//: const int ROW_FLOATS
constexpr int C = 64;
constexpr int KS = D / 16;
constexpr int NK = D / 32;
constexpr int PART = 24 * D + 8 * C;
constexpr int CONV = (2 * HK + HV) * D;
const int h = int(threadgroup_position_in_grid.x), j0 = int(threadgroup_position_in_grid.y) * 32;
const int simd = int(simdgroup_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int g = lane / 4, t = lane % 4;
threadgroup uint s_tile[32][D / 2 + 4];
threadgroup half new_tile[32][C + 8];
const in_threadgroup uint* new_words = (const in_threadgroup uint*)&new_tile[0][0];
const bool empty = read_row[0] < 0;
const size_t own = (size_t)(KC - 1) * CONV + ((size_t)h * D + j0 + g) * D + simd * 8 * NK + 2 * t;
const device float* old = states_in + (size_t)(empty ? 0 : read_row[0]) * ROW_FLOATS + own;
float s[2][NK][4];
for (int i = 0; i < 2; ++i)
  for (int n = 0; n < NK; ++n)
    for (int r = 0; r < 4; ++r)
      s[i][n][r] = empty ? 0.0f : old[(16 * i + r / 2 * 8) * D + 8 * n + r % 2];
const device uint4* mine = (const device uint4*)parts + (size_t)h * PART + simd * KS * 32 + lane;
uint4 w[KS], q[KS];
load_fragments<KS>(w, mine);
load_fragments<KS>(q, mine + 8 * D);
for (int chunk = 0; chunk < n_chunks; ++chunk) {
  const size_t place = (size_t)chunk * HV + h;
  const device uint4* part = (const device uint4*)parts + place * PART + lane;
  uint4 scores[4], keys[2 * NK];
  load_fragments<4>(scores, part + 24 * D + simd * 4 * 32);
  load_fragments<2 * NK>(keys, part + 16 * D + simd * NK * 2 * 32);
  const device float* value = values + (place * C + 16 * simd + g) * D + j0 + 2 * t;
  float u[4][4], fresh[4][4], o[4][4];
  for (int n = 0; n < 4; ++n)
    for (int r = 0; r < 4; ++r) {
      u[n][r] = value[r / 2 * 8 * D + 8 * n + r % 2];
      fresh[n][r] = o[n][r] = 0.0f;
    }
  for (int i = 0; i < 2; ++i)
    for (int n = 0; n < NK; ++n)
      for (int r = 0; r < 2; ++r)
        s_tile[16 * i + 8 * r + g][simd * 4 * NK + 4 * n + t] =
            two_halves(s[i][n][2 * r], s[i][n][2 * r + 1]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int kk = 0; kk < KS; ++kk) {
    const uint wa[4] = {w[kk].x, w[kk].y, w[kk].z, w[kk].w};
    const uint qa[4] = {q[kk].x, q[kk].y, q[kk].z, q[kk].w};
    for (int n = 0; n < 4; ++n) {
      const uint b[2] = {s_tile[8 * n + g][8 * kk + t], s_tile[8 * n + g][8 * kk + 4 + t]};
      simd_mma(fresh[n], wa, b);
      simd_mma(o[n], qa, b);
    }
  }
  const device uint4* next = mine + (size_t)min(chunk + 1, n_chunks - 1) * HV * PART;
  load_fragments<KS>(w, next);
  load_fragments<KS>(q, next + 8 * D);
  for (int n = 0; n < 4; ++n)
    for (int r = 0; r < 4; ++r)
      new_tile[8 * n + 2 * t + r % 2][16 * simd + r / 2 * 8 + g] = to_half(u[n][r] + fresh[n][r]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int kk = 0; kk < 4; ++kk) {
    if (kk > simd) continue;
    const uint a[4] = {scores[kk].x, scores[kk].y, scores[kk].z, scores[kk].w};
    for (int n = 0; n < 4; ++n) {
      const int at = (8 * n + g) * (C / 2 + 4) + 8 * kk + t;
      const uint b[2] = {new_words[at], new_words[at + 4]};
      simd_mma(o[n], a, b);
    }
  }
  for (int n = 0; n < 4; ++n)
    for (int r = 0; r < 4; ++r) {
      const size_t token = (size_t)chunk * C + 16 * simd + r / 2 * 8 + g;
      y[(token * HV + h) * D + j0 + 8 * n + 2 * t + r % 2] = o[n][r];
    }
  const float decay = decays[place];
  for (int i = 0; i < 2; ++i) {
    for (int n = 0; n < NK; ++n)
      for (int r = 0; r < 4; ++r) s[i][n][r] *= decay;
    for (int kk = 0; kk < 4; ++kk) {
      const int at = (16 * i + g) * (C / 2 + 4) + 8 * kk + t, below = at + 8 * (C / 2 + 4);
      const uint a[4] = {new_words[at], new_words[below], new_words[at + 4], new_words[below + 4]};
      for (int n = 0; n < NK; ++n) {
        const uint4 two = keys[2 * n + kk / 2];
        const uint b[2] = {kk % 2 ? two.z : two.x, kk % 2 ? two.w : two.y};
        simd_mma(s[i][n], a, b);
      }
    }
  }
}
device float* left = states_out + (size_t)write_row[0] * ROW_FLOATS + own;
for (int i = 0; i < 2; ++i)
  for (int n = 0; n < NK; ++n)
    for (int r = 0; r < 4; ++r) left[(16 * i + r / 2 * 8) * D + 8 * n + r % 2] = s[i][n][r];
