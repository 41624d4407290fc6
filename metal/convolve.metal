// Prompt form, first part: causal convolution of the n tokens of one row, unit q and k, log decay
// and rate of each V head. A threadgroup takes one head-wide group of D channels of one token.
//: in float qkv
//: in float alpha
//: in float beta
//: in float taps
//: in float dt_bias
//: in float ssm_a
//: in int read_rows
//: in int write_rows
//: alias float states_in
//: out float states_out
//: out float mixed
//: out float gates
//: int n
//: int n_writes
//: const int D
//: const int HK
//: const int HV
//: const int KC
//: const int ROW_FLOATS
//: const float EPS
const int head = int(threadgroup_position_in_grid.x), t = int(threadgroup_position_in_grid.y);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
constexpr int CONV = (2 * HK + HV) * D;
threadgroup float partial[D / 32];
const bool empty = read_rows[0] < 0;
const device float* old = states_in + (size_t)(empty ? 0 : read_rows[0]) * ROW_FLOATS;
const int channel = head * D + tid;
float sum = 0.0f;
for (int i = 0; i < KC; ++i) {
  const int at = t - (KC - 1) + i;
  const float past = at >= 0 ? qkv[(size_t)at * CONV + channel]
                     : empty ? 0.0f
                             : old[(at + KC - 1) * CONV + channel];
  sum += past * taps[channel * KC + i];
  const int age = n - 1 - t;
  if (i > 0 && age < n_writes)
    states_out[(size_t)write_rows[age] * ROW_FLOATS + (i - 1) * CONV + channel] = past;
}
float v = silu(sum);
if (head < 2 * HK) {
  const float squares = simd_sum(v * v);
  if (lane == 0) partial[simdgroup_index_in_threadgroup] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (int s = 0; s < D / 32; ++s) total += partial[s];
  v *= rsqrt(total + EPS);
}
mixed[(size_t)t * CONV + channel] = v;
if (head >= 2 * HK && tid == 0) {
  const int h = head - 2 * HK;
  const size_t at = (size_t)t * HV + h;
  gates[2 * at] = softplus(alpha[at] + dt_bias[h]) * ssm_a[h];
  gates[2 * at + 1] = sigmoid(beta[at]);
}
