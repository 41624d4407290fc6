// h = silu(gate x) * up x of chosen experts, float32 activations. A simdgroup takes R hidden rows of
// one (token, rank) pair; `order` lists the pairs by expert, so that threadgroups that run side by
// side read the same weights. Experts are ROWS rows apart, `up` starts UP_AT rows into each.
//: in float x
//: in int chosen
//: in int order
//: in uchar gate
//: in uchar up
//: out float h
//: const int K
//: const int F
//: const int K_USED
//: const int T0
//: const int T1
//: const int ROWS
//: const int UP_AT
//: const int R
const int pair = order[threadgroup_position_in_grid.x];
const int lane = int(thread_index_in_simdgroup);
const int simds = int(threads_per_threadgroup.x / 32);
const int row = (int(threadgroup_position_in_grid.y) * simds +
                 int(simdgroup_index_in_threadgroup)) * R;
const size_t expert = (size_t)chosen[pair] * ROWS;
const device uchar* gates[R];
const device uchar* ups[R];
float g[R][1], u[R][1];
for (int r = 0; r < R; ++r) {
  const size_t at = expert + min(row + r, F - 1);
  gates[r] = gate + at * (K / 256 * superblock_bytes(T0));
  ups[r] = up + (at + UP_AT) * (K / 256 * superblock_bytes(T1));
  g[r][0] = u[r][0] = 0.0f;
}
const device float* values[1];
values[0] = x + (size_t)(pair / K_USED) * K;
float_rows<T0, R, 1, K>(gates, values, lane, g);
float_rows<T1, R, 1, K>(ups, values, lane, u);
for (int r = 0; r < R; ++r) {
  const float v = silu(simd_sum(g[r][0])) * simd_sum(u[r][0]);
  if (lane == 0 && row + r < F) h[(size_t)pair * F + row + r] = v;
}
