// Prompt form, second part: the gated delta rule over the n tokens of one row, one token after
// another with the state in registers. Rows of the state matrix do not depend on each other: a
// threadgroup of 128 lanes takes 16 of them, eight lanes a row. TT tokens are staged at a time.
//: in float mixed
//: in float gates
//: in int read_rows
//: in int write_rows
//: alias float states_in
//: out float states_out
//: out float y
//: int n
//: int n_writes
//: const int D
//: const int HK
//: const int HV
//: const int KC
//: const int TILED
//: const int ROW_FLOATS
constexpr int TT = 16;
constexpr int Q = D / 32;
constexpr int CONV = (2 * HK + HV) * D;
const int h = int(threadgroup_position_in_grid.x), slice = int(threadgroup_position_in_grid.y);
const int tid = int(thread_index_in_threadgroup);
const int kh = TILED ? h % HK : h / (HV / HK);
const int j = slice * 16 + tid / 8, c = tid % 8;
threadgroup float q_tile[TT][D];
threadgroup float k_tile[TT][D];
threadgroup float v_tile[TT][16];
threadgroup float gate_tile[2 * TT];
const bool empty = read_rows[0] < 0;
const size_t matrix = (size_t)(KC - 1) * CONV + (size_t)(h * D + j) * D;
const device float4* old4 =
    (const device float4*)(states_in + (size_t)(empty ? 0 : read_rows[0]) * ROW_FLOATS + matrix);
float4 m[Q];
for (int i = 0; i < Q; ++i) {
  m[i].x = m[i].y = m[i].z = m[i].w = 0.0f;
  if (!empty) m[i] = old4[c + 8 * i];
}
for (int first = 0; first < n; first += TT) {
  const int count = min(TT, n - first);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int at = tid; at < count * D; at += 128) {
    const device float* token = mixed + (size_t)(first + at / D) * CONV;
    q_tile[at / D][at % D] = token[kh * D + at % D];
    k_tile[at / D][at % D] = token[(HK + kh) * D + at % D];
  }
  for (int at = tid; at < count * 16; at += 128)
    v_tile[at / 16][at % 16] =
        mixed[(size_t)(first + at / 16) * CONV + (2 * HK + h) * D + slice * 16 + at % 16];
  if (tid < 2 * count) {
    const float gate = gates[2 * ((size_t)(first + tid / 2) * HV + h) + tid % 2];
    gate_tile[tid] = tid % 2 ? gate : exp(gate);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int t = 0; t < count; ++t) {
    const float decay = gate_tile[2 * t], rate = gate_tile[2 * t + 1];
    float seen = 0.0f;
    for (int i = 0; i < Q; ++i) {
      const int at = 4 * (c + 8 * i);
      m[i].x *= decay;
      m[i].y *= decay;
      m[i].z *= decay;
      m[i].w *= decay;
      seen += m[i].x * k_tile[t][at] + m[i].y * k_tile[t][at + 1] + m[i].z * k_tile[t][at + 2] +
              m[i].w * k_tile[t][at + 3];
    }
    for (ushort o = 4; o > 0; o >>= 1) seen += simd_shuffle_xor(seen, o);
    const float d = rate * (v_tile[t][tid / 8] - seen);
    float read = 0.0f;
    for (int i = 0; i < Q; ++i) {
      const int at = 4 * (c + 8 * i);
      m[i].x += d * k_tile[t][at];
      m[i].y += d * k_tile[t][at + 1];
      m[i].z += d * k_tile[t][at + 2];
      m[i].w += d * k_tile[t][at + 3];
      read += m[i].x * q_tile[t][at] + m[i].y * q_tile[t][at + 1] + m[i].z * q_tile[t][at + 2] +
              m[i].w * q_tile[t][at + 3];
    }
    for (ushort o = 4; o > 0; o >>= 1) read += simd_shuffle_xor(read, o);
    if (c == 0) y[((size_t)(first + t) * HV + h) * D + j] = read * rsqrt(float(D));
    const int age = n - 1 - (first + t);
    if (age < n_writes) {
      device float* fresh = states_out + (size_t)write_rows[age] * ROW_FLOATS + matrix;
      for (int i = 0; i < Q; ++i) ((device float4*)fresh)[c + 8 * i] = m[i];
    }
  }
}
