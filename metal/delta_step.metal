// One token of a Gated DeltaNet layer for each row: causal convolution with its state, gated delta
// rule over the state pool, gated norm. A threadgroup of 8 D lanes takes one V head of one row, eight
// lanes a row of the state matrix. The state row read (-1: zeros) is never the one written.
//: in float qkv
//: in float z
//: in float alpha
//: in float beta
//: in float taps
//: in float dt_bias
//: in float ssm_a
//: in float norm
//: in int read_rows
//: in int write_rows
//: alias float states_in
//: out float states_out
//: out float yf
//: out uint yq
//: const int D
//: const int HK
//: const int HV
//: const int KC
//: const int TILED
//: const int ROW_FLOATS
//: const float EPS
const int h = int(threadgroup_position_in_grid.x), b = int(threadgroup_position_in_grid.y);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup);
constexpr int CONV = (2 * HK + HV) * D;
constexpr int Q = D / 32;
threadgroup float mixed[3 * D];
threadgroup float inverse[2];
threadgroup float out[D];
const int kh = TILED ? h % HK : h / (HV / HK);
const bool owner = TILED ? h < HK : h % (HV / HK) == 0;
const bool empty = read_rows[b] < 0;
const device float* old = states_in + (size_t)(empty ? 0 : read_rows[b]) * ROW_FLOATS;
device float* fresh = states_out + (size_t)write_rows[b] * ROW_FLOATS;

const int j = tid / 8, c = tid % 8;
const size_t matrix = (size_t)(KC - 1) * CONV + (size_t)(h * D + j) * D;
const device float4* old4 = (const device float4*)(old + matrix);
float4 m[Q];
for (int i = 0; i < Q; ++i) {
  m[i].x = m[i].y = m[i].z = m[i].w = 0.0f;
  if (!empty) m[i] = old4[c + 8 * i];
}

for (int t = tid; t < 3 * D; t += 8 * D) {
  const int part = t / D;
  const int channel = t % D + (part == 0 ? kh : part == 1 ? HK + kh : 2 * HK + h) * D;
  const float value = qkv[(size_t)b * CONV + channel];
  float sum = 0.0f;
  for (int i = 0; i < KC - 1; ++i) {
    const float past = empty ? 0.0f : old[i * CONV + channel];
    sum += past * taps[channel * KC + i];
    if (i > 0 && (part == 2 || owner)) fresh[(i - 1) * CONV + channel] = past;
  }
  sum += value * taps[channel * KC + KC - 1];
  if (part == 2 || owner) fresh[(KC - 2) * CONV + channel] = value;
  mixed[t] = silu(sum);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (simd < 2) {
  float squares = 0.0f;
  for (int i = 0; i < Q; ++i) {
    const float v = mixed[simd * D + 32 * i + lane];
    squares += v * v;
  }
  squares = simd_sum(squares);
  if (lane == 0) inverse[simd] = rsqrt(squares + EPS);
}
threadgroup_barrier(mem_flags::mem_threadgroup);

const float decay = exp(softplus(alpha[b * HV + h] + dt_bias[h]) * ssm_a[h]);
const float rate = sigmoid(beta[b * HV + h]);
const float iq = inverse[0], ik = inverse[1];
float seen = 0.0f;
for (int i = 0; i < Q; ++i) {
  const int at = D + 4 * (c + 8 * i);
  m[i].x *= decay;
  m[i].y *= decay;
  m[i].z *= decay;
  m[i].w *= decay;
  seen += m[i].x * (mixed[at] * ik) + m[i].y * (mixed[at + 1] * ik) +
          m[i].z * (mixed[at + 2] * ik) + m[i].w * (mixed[at + 3] * ik);
}
for (ushort o = 4; o > 0; o >>= 1) seen += simd_shuffle_xor(seen, o);
const float d = rate * (mixed[2 * D + j] - seen);
float read = 0.0f;
for (int i = 0; i < Q; ++i) {
  const int at = 4 * (c + 8 * i);
  m[i].x += d * (mixed[D + at] * ik);
  m[i].y += d * (mixed[D + at + 1] * ik);
  m[i].z += d * (mixed[D + at + 2] * ik);
  m[i].w += d * (mixed[D + at + 3] * ik);
  read += m[i].x * (mixed[at] * iq) + m[i].y * (mixed[at + 1] * iq) +
          m[i].z * (mixed[at + 2] * iq) + m[i].w * (mixed[at + 3] * iq);
  ((device float4*)(fresh + matrix))[c + 8 * i] = m[i];
}
for (ushort o = 4; o > 0; o >>= 1) read += simd_shuffle_xor(read, o);
if (c == 0) out[j] = read * rsqrt(float(D));
threadgroup_barrier(mem_flags::mem_threadgroup);
if (simd < Q) {
  float squares = 0.0f;
  for (int i = 0; i < Q; ++i) squares += out[32 * i + lane] * out[32 * i + lane];
  const float scale = rsqrt(simd_sum(squares) / float(D) + EPS);
  const size_t at = ((size_t)b * HV + h) * D + tid;
  const float v = out[tid] * scale * norm[tid] * silu(z[at]);
  yf[at] = v;
  store_record(yq, b, h * Q + simd, HV * Q, v, lane);
}
