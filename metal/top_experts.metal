// Router: softmax over E logits, the K_USED largest in rank order (ties to the lower index), their
// weights, and the weight of the shared expert behind them. A simdgroup takes one token.
//: in float logits
//: in float shared
//: out int chosen
//: out float weights
//: const int E
//: const int K_USED
//: const int SHARED_GATE
//: const float W_SCALE
const size_t t = threadgroup_position_in_grid.x;
const int lane = int(thread_index_in_simdgroup);
constexpr int PER = (E + 31) / 32;
float p[PER];
float highest = -3.0e38f;
for (int i = 0; i < PER; ++i) {
  const int e = 32 * i + lane;
  p[i] = e < E ? logits[t * E + e] : -3.0e38f;
  highest = fmax(highest, p[i]);
}
highest = simd_max(highest);
float total = 0.0f;
for (int i = 0; i < PER; ++i) {
  p[i] = 32 * i + lane < E ? exp(p[i] - highest) : -1.0f;
  total += fmax(p[i], 0.0f);
}
total = simd_sum(total);
float picked[K_USED];
float sum = 0.0f;
for (int rank = 0; rank < K_USED; ++rank) {
  float best = -1.0f;
  int at = E;
  for (int i = 0; i < PER; ++i)
    if (p[i] > best) {
      best = p[i];
      at = 32 * i + lane;
    }
  // Probabilities are not negative, so their bits are ordered as they are.
  const float value = as_type<float>(simd_max(as_type<int>(best)));
  const int winner = -simd_max(best == value ? -at : -E);
  for (int i = 0; i < PER; ++i)
    if (32 * i + lane == winner) p[i] = -1.0f;
  picked[rank] = value / total;
  sum += picked[rank];
  if (lane == 0) chosen[t * K_USED + rank] = winner;
}
sum = fmax(sum, 6.103515625e-5f);
if (lane == 0) {
  for (int rank = 0; rank < K_USED; ++rank)
    weights[t * (K_USED + 1) + rank] = picked[rank] / sum * W_SCALE;
  weights[t * (K_USED + 1) + K_USED] = SHARED_GATE ? sigmoid(shared[t]) : 1.0f;
}
