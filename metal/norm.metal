// RMS norm of rows, as float32, as activation records and as f16. One threadgroup a row.
//: in float x
//: in float weight
//: out float yf
//: out uint yq
//: out half yh
//: const int K
//: const int RECORDS
//: const int HALVES
//: const float EPS
const uint row = threadgroup_position_in_grid.x;
const uint tid = thread_index_in_threadgroup;
const int lane = int(thread_index_in_simdgroup);
const int n_simds = int(threads_per_threadgroup.x / 32);
threadgroup float partial[32];
const device float* in = x + (size_t)row * K;
float sum = 0.0f;
for (int k = int(tid); k < K; k += 32 * n_simds) sum += in[k] * in[k];
sum = simd_sum(sum);
if (lane == 0) partial[simdgroup_index_in_threadgroup] = sum;
threadgroup_barrier(mem_flags::mem_threadgroup);
float total = 0.0f;
for (int s = 0; s < n_simds; ++s) total += partial[s];
const float scale = rsqrt(total / float(K) + EPS);
for (int g = int(simdgroup_index_in_threadgroup); g < K / 32; g += n_simds) {
  const int k = 32 * g + lane;
  const float v = in[k] * scale * weight[k];
  const size_t at = (size_t)row * K + k;
  yf[at] = v;
  if (HALVES) yh[at] = to_half(v);
  if (RECORDS) store_record(yq + ((size_t)row * (K / 32) + g) * 12, v, lane);
}
