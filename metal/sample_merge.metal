// A token for each row out of the best of its slices: top-k, then top-p, min-p, temperature, and the
// inverse of the cumulated weights at the given number in [0, 1). -1 if the largest logit is not
// finite. A simdgroup takes one row, a lane one slice. knobs[3..6]: p of top-p, ln p of min-p (-inf
// without), temperature, the number.
//: in float values
//: in int ids
//: in int counts
//: in float knobs
//: out int picks
//: const int SLICES
//: const int K_MAX
//: const int BIASES
//: const int WINDOW
constexpr int NOBODY = 0x7fffffff;
constexpr float FLOAT_MAX = 3.4028234664e38f;
const int row = int(threadgroup_position_in_grid.x), lane = int(thread_index_in_simdgroup);
const device float* knob = knobs + row * (7 + BIASES);
const int k = counts[row * (3 + BIASES + WINDOW)];
threadgroup float value_of[K_MAX][SLICES];
threadgroup int id_of[K_MAX][SLICES];
threadgroup float kept[K_MAX];
threadgroup float weights[K_MAX];
threadgroup int tokens[K_MAX];
for (int i = 0; lane < SLICES && i < k; ++i) {
  const size_t at = ((size_t)row * K_MAX + i) * SLICES + lane;
  value_of[i][lane] = values[at];
  id_of[i][lane] = ids[at];
}
int head = 0, n = 0;
for (; n < k; ++n) {
  const bool has = lane < SLICES && head < k && id_of[head][lane] >= 0;
  const float value = has ? value_of[head][lane] : 0.0f;
  const int bits = value == 0.0f ? 0 : as_type<int>(value);
  const int key = has ? (bits >= 0 ? bits : bits ^ 0x7fffffff) : -NOBODY;
  const int id = has ? id_of[head][lane] : NOBODY;
  const int top = simd_max(key), winner = -simd_max(key == top ? -id : -NOBODY);
  if (winner == NOBODY) break;
  if (id == winner) {
    kept[n] = value;
    tokens[n] = id;
    ++head;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
const float peak = kept[0];
for (int i = lane; i < n; i += 32) weights[i] = exp(kept[i] - peak);
threadgroup_barrier(mem_flags::mem_threadgroup);
int keep = n;
if (knob[3] < 1.0f) {
  float total = 0.0f, sum = 0.0f;
  for (int i = 0; i < n; ++i) total += weights[i];
  keep = 0;
  // One rounding in all: with equal logits sum and p often differ by less than a product rounds.
  while (keep < n && (keep == 0 || fma(knob[3], total, -sum) > 0.0f)) sum += weights[keep++];
}
while (keep > 1 && kept[keep - 1] < peak + knob[4]) --keep;
threadgroup_barrier(mem_flags::mem_threadgroup);
// A quotient past float32 is shifted down, which the weights do not see.
const float t = knob[5];
const bool fits = fabs(peak / t) <= FLOAT_MAX;
for (int i = lane; i < keep; i += 32)
  weights[i] = exp(fits ? kept[i] / t - peak / t : (kept[i] - peak) / t);
threadgroup_barrier(mem_flags::mem_threadgroup);
if (lane == 0) {
  float total = 0.0f, sum = 0.0f;
  for (int i = 0; i < keep; ++i) total += weights[i];
  int at = 0;
  for (int i = 0; i < keep; ++i) {
    if (weights[i] > 0.0f) at = i;
    sum += weights[i];
    if (fma(knob[6], total, -sum) < 0.0f) break;
  }
  picks[row] = fabs(peak) <= FLOAT_MAX ? tokens[at] : -1;
}
