// y = sum over the chosen experts of weight * (down h), float32 activations. A simdgroup takes R
// output rows of one token; its lanes take the units of all ranks in turn, whatever else there is.
//: in float h
//: in int chosen
//: in float weights
//: in uchar down
//: out float y
//: const int F
//: const int N
//: const int K_USED
//: const int T0
//: const int R
const int token = int(threadgroup_position_in_grid.x);
const int lane = int(thread_index_in_simdgroup);
const int simds = int(threads_per_threadgroup.x / 32);
const int row = (int(threadgroup_position_in_grid.y) * simds +
                 int(simdgroup_index_in_threadgroup)) * R;
float acc[R];
for (int r = 0; r < R; ++r) acc[r] = 0.0f;
for (int i = lane; i < K_USED * (F / 32); i += 32) {
  const int rank = i / (F / 32), unit = i % (F / 32);
  const size_t pair = (size_t)token * K_USED + rank;
  const device uchar* blocks[R];
  float part[R][1];
  for (int r = 0; r < R; ++r) {
    const size_t at = (size_t)chosen[pair] * N + min(row + r, N - 1);
    blocks[r] = down + (at * (F / 256) + (unit >> 3)) * superblock_bytes(T0);
    part[r][0] = 0.0f;
  }
  const device float* values[1];
  values[0] = h + pair * F + (unit >> 3) * 256;
  float_unit<T0, R, 1>(blocks, values, unit & 7, part);
  for (int r = 0; r < R; ++r) acc[r] += weights[pair] * part[r][0];
}
for (int r = 0; r < R; ++r) {
  const float v = simd_sum(acc[r]);
  if (lane == 0 && row + r < N) y[(size_t)token * N + row + r] = v;
}
