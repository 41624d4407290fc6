// y = residual + sum over ranks of weight * (down h), the shared expert last. A simdgroup takes R
// output rows of one token; its lanes take the units of all ranks in turn.
//: in uint hq
//: in float hf
//: in int chosen
//: in float weights
//: in uchar down
//: in uchar shared_down
//: alias float residual
//: out float y
//: const int N
//: const int R
//: const int K_USED
//: const int RANKS
//: const int F
//: const int FS
//: const int FMAX
//: const int TE
//: const int TS
const int b = int(threadgroup_position_in_grid.x);
const int lane = int(thread_index_in_simdgroup);
const int row = (int(threadgroup_position_in_grid.y) * int(threads_per_threadgroup.x / 32) +
                 int(simdgroup_index_in_threadgroup)) * R;
if (row >= N) return;
float acc[R];
for (int r = 0; r < R; ++r) acc[r] = 0.0f;
for (int i = lane; i < K_USED * (F / 32); i += 32) {
  const int rank = i / (F / 32), unit = i % (F / 32), stride = F / 256 * superblock_bytes(TE);
  const size_t pair = (size_t)b * RANKS + rank;
  const float weight = weights[b * (K_USED + 1) + rank];
  const device uchar* rows =
      down + ((size_t)chosen[b * K_USED + rank] * N + row) * stride;
  const device uint* xq = hq + pair * (FMAX / 32) * 12;
  for (int r = 0; r < R; ++r)
    acc[r] += weight * unit_product<TE>(rows + r * stride, xq, hf + pair * FMAX, unit);
}
if (RANKS > K_USED) {
  const int stride = FS / 256 * superblock_bytes(TS);
  const size_t pair = (size_t)b * RANKS + K_USED;
  const float weight = weights[b * (K_USED + 1) + K_USED];
  const device uint* xq = hq + pair * (FMAX / 32) * 12;
  for (int unit = lane; unit < FS / 32; unit += 32)
    for (int r = 0; r < R; ++r)
      acc[r] += weight * unit_product<TS>(shared_down + (size_t)(row + r) * stride, xq,
                                          hf + pair * FMAX, unit);
}
for (int r = 0; r < R; ++r) {
  const float v = simd_sum(acc[r]);
  const size_t at = (size_t)b * N + row + r;
  if (lane == 0) y[at] = residual[at] + v;
}
