// RMS norm of rows, as float32, as activation records and as f16. One threadgroup a row. With RANKS the
// outputs of a feed-forward's experts (`down`) join the residual stream x first, in rank order.
//: alias float x
//: in float routed
//: in float weights
//: in float weight
//: out float joined
//: out float yf
//: out uint yq
//: out half yh
//: const int K
//: const int RECORDS
//: const int HALVES
//: const int LANES
//: const int RANKS
//: const int K_USED
//: const float EPS
const uint row = threadgroup_position_in_grid.x;
const int lane = int(thread_index_in_simdgroup);
threadgroup float partial[32];
constexpr int GROUPS = K / 32;
constexpr int PER = (GROUPS + LANES / 32 - 1) / (LANES / 32);
const device float* in = x + (size_t)row * K;
const int simd = int(simdgroup_index_in_threadgroup);
float v[PER], w[PER];
float sum = 0.0f;
for (int i = 0; i < PER; ++i) {
  const int g = simd + i * (LANES / 32);
  v[i] = g < GROUPS ? in[32 * g + lane] : 0.0f;
  if (RANKS > 0 && g < GROUPS) {
    float expert = 0.0f;
    for (int rank = 0; rank < RANKS; ++rank)
      expert = fma(weights[row * (K_USED + 1) + rank],
                   routed[((size_t)row * RANKS + rank) * K + 32 * g + lane], expert);
    v[i] += expert;
    joined[(size_t)row * K + 32 * g + lane] = v[i];
  }
  w[i] = g < GROUPS ? weight[32 * g + lane] : 0.0f;
  sum += v[i] * v[i];
}
sum = simd_sum(sum);
if (lane == 0) partial[simd] = sum;
threadgroup_barrier(mem_flags::mem_threadgroup);
const float total = simd_sum(lane < LANES / 32 ? partial[lane] : 0.0f);
const float scale = rsqrt(total / float(K) + EPS);
for (int i = 0; i < PER; ++i) {
  const int g = simd + i * (LANES / 32);
  if (g >= GROUPS) break;
  const float y = v[i] * scale * w[i];
  const size_t at = (size_t)row * K + 32 * g + lane;
  yf[at] = y;
  if (HALVES) yh[at] = to_half(y);
  if (RECORDS) store_record(yq, int(row), g, GROUPS, y, lane);
}
