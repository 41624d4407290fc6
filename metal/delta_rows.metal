// One token of a Gated DeltaNet layer for each row, from state arrays into new ones: causal
// convolution with its state, unit q and k, gated delta rule. A threadgroup of 256 lanes takes 32 rows
// of the state matrix of one V head, eight lanes a row; q and k are convolved by each of them.
//: in float qkv
//: in float alpha
//: in float beta
//: in float taps
//: in float dt_bias
//: in float ssm_a
//: in float conv_in
//: in float delta_in
//: out float conv_out
//: out float delta_out
//: out float y
//: const int D
//: const int HK
//: const int HV
//: const int KC
//: const int TILED
//: const float EPS
const int h = int(threadgroup_position_in_grid.x), slice = int(threadgroup_position_in_grid.y);
const int b = int(threadgroup_position_in_grid.z);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup);
constexpr int CONV = (2 * HK + HV) * D;
constexpr int Q = D / 32;
threadgroup float mixed[2 * D + 32];
threadgroup float inverse[2];
const int kh = TILED ? h % HK : h / (HV / HK);
const bool owner = slice == 0 && (TILED ? h < HK : h % (HV / HK) == 0);
const device float* past = conv_in + (size_t)b * (KC - 1) * CONV;
device float* kept = conv_out + (size_t)b * (KC - 1) * CONV;
for (int t = tid; t < 2 * D + 32; t += 256) {
  const bool is_value = t >= 2 * D;
  const int channel = is_value  ? (2 * HK + h) * D + 32 * slice + t - 2 * D
                      : t >= D ? (HK + kh) * D + t - D
                               : kh * D + t;
  const bool writes = is_value || owner;
  const float value = qkv[(size_t)b * CONV + channel];
  float sum = 0.0f;
  for (int i = 0; i < KC - 1; ++i) {
    const float before = past[i * CONV + channel];
    sum += before * taps[channel * KC + i];
    if (i > 0 && writes) kept[(i - 1) * CONV + channel] = before;
  }
  sum += value * taps[channel * KC + KC - 1];
  if (writes) kept[(KC - 2) * CONV + channel] = value;
  mixed[t] = silu(sum);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (simd < 2) {
  float squares = 0.0f;
  for (int i = 0; i < Q; ++i) squares += mixed[simd * D + 32 * i + lane] * mixed[simd * D + 32 * i + lane];
  squares = simd_sum(squares);
  if (lane == 0) inverse[simd] = rsqrt(squares + EPS);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
const float decay = exp(softplus(alpha[b * HV + h] + dt_bias[h]) * ssm_a[h]);
const float rate = sigmoid(beta[b * HV + h]);
const float iq = inverse[0], ik = inverse[1];
const int j = 32 * slice + tid / 8, c = tid % 8;
const size_t at_row = (((size_t)b * HV + h) * D + j) * D;
const device float* old = delta_in + at_row;
float m[D / 8];
float seen = 0.0f;
for (int i = 0; i < D / 8; ++i) {
  m[i] = old[c + 8 * i] * decay;
  seen += m[i] * (mixed[D + c + 8 * i] * ik);
}
for (ushort o = 4; o > 0; o >>= 1) seen += simd_shuffle_xor(seen, o);
const float d = rate * (mixed[2 * D + tid / 8] - seen);
float read = 0.0f;
for (int i = 0; i < D / 8; ++i) {
  m[i] += d * (mixed[D + c + 8 * i] * ik);
  read += m[i] * (mixed[c + 8 * i] * iq);
  delta_out[at_row + c + 8 * i] = m[i];
}
for (ushort o = 4; o > 0; o >>= 1) read += simd_shuffle_xor(read, o);
if (c == 0) y[((size_t)b * HV + h) * D + j] = read * rsqrt(float(D));
