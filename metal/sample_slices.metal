// The k best logits of a slice of one row, bias and penalties applied, in falling order and equal ones
// by rising id. NaN and +inf count as +inf, so they come first. `counts` holds for each row k, the
// number of biases, the length of the penalty window (the row's own token with it, 0 without
// penalties), then the biased tokens and the window without that token. `knobs` holds repeat,
// frequency and presence penalty, four numbers for sample_merge, then the biases.
//: in float logits
//: in int tokens
//: in int counts
//: in float knobs
//: out float values
//: out int ids
//: const int V
//: const int SLICES
//: const int LANES
//: const int K_MAX
//: const int BIASES
//: const int WINDOW
constexpr int SIZE = (V + SLICES - 1) / SLICES;
constexpr int PER = (SIZE + LANES - 1) / LANES;
constexpr int NOBODY = 0x7fffffff;
constexpr int TAKEN = -0x7fffffff - 1;
constexpr float FLOAT_MAX = 3.4028234664e38f;
const int slice = int(threadgroup_position_in_grid.x), row = int(threadgroup_position_in_grid.y);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int first = slice * SIZE, size = min(SIZE, V - first);
const device int* count = counts + row * (3 + BIASES + WINDOW);
const device float* knob = knobs + row * (7 + BIASES);
const int k = count[0], n_window = count[2];
threadgroup int keys_of[2][LANES / 32];
threadgroup int ids_of[2][LANES / 32];

float v[PER];
for (int j = 0; j < PER; ++j) {
  const int at = j * LANES + tid;
  v[j] = at < size ? logits[(size_t)row * V + first + at] : -as_float(0x7f800000u);
  if (!(v[j] <= FLOAT_MAX)) v[j] = as_float(0x7f800000u);
}
for (int i = 0; i < count[1]; ++i) {
  const int at = count[3 + i] - first;
  if (at >= 0 && at < SIZE && at % LANES == tid)
    for (int j = 0; j < PER; ++j)
      if (at / LANES == j && v[j] <= FLOAT_MAX) v[j] = fmin(v[j] + knob[7 + i], FLOAT_MAX);
}
if (n_window > 0) {
  int seen[PER];
  for (int j = 0; j < PER; ++j) seen[j] = 0;
  for (int i = 0; i < n_window; ++i) {
    const int at = (i < n_window - 1 ? count[3 + BIASES + i] : tokens[row]) - first;
    if (at >= 0 && at < SIZE && at % LANES == tid)
      for (int j = 0; j < PER; ++j) seen[j] += int(at / LANES == j);
  }
  for (int j = 0; j < PER; ++j) {
    if (seen[j] == 0 || !(fabs(v[j]) <= FLOAT_MAX)) continue;
    const float moved = v[j] <= 0.0f ? v[j] * knob[0] : v[j] / knob[0];
    v[j] = fmin(fmax(moved - (seen[j] * knob[1] + knob[2]), -FLOAT_MAX), FLOAT_MAX);
  }
}
// Integers in the order of the floats.
int key[PER];
for (int j = 0; j < PER; ++j) {
  const int bits = v[j] == 0.0f ? 0 : as_type<int>(v[j]);
  key[j] = j * LANES + tid < size ? (bits >= 0 ? bits : bits ^ 0x7fffffff) : TAKEN;
}
int best = TAKEN, id = NOBODY;
for (int j = 0; j < PER; ++j)
  if (key[j] > best) {
    best = key[j];
    id = first + j * LANES + tid;
  }
for (int rank = 0; rank < k; ++rank) {
  const int mine = simd_max(best), side = rank & 1;
  const int its_id = -simd_max(best == mine ? -id : -NOBODY);
  if (lane == 0) {
    keys_of[side][tid / 32] = mine;
    ids_of[side][tid / 32] = its_id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int theirs = lane < LANES / 32 ? keys_of[side][lane] : TAKEN;
  const int top = simd_max(theirs);
  const int winner = -simd_max(lane < LANES / 32 && theirs == top ? -ids_of[side][lane] : -NOBODY);
  if (tid == 0) {
    const size_t at = ((size_t)row * K_MAX + rank) * SLICES + slice;
    values[at] = as_type<float>(top >= 0 ? top : top ^ 0x7fffffff);
    ids[at] = top == TAKEN ? -1 : winner;
  }
  if (id == winner && best != TAKEN) {
    const int taken = (id - first) / LANES;
    best = TAKEN;
    id = NOBODY;
    for (int j = 0; j < PER; ++j) {
      if (j == taken) key[j] = TAKEN;
      if (key[j] > best) {
        best = key[j];
        id = first + j * LANES + tid;
      }
    }
  }
}
