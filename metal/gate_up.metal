// silu(gate x) * up x for every (token, chosen expert) and, as rank K_USED, the shared expert or the
// whole dense feed-forward. 32 / R simdgroups take 32 hidden values of one pair; pairs of a step stand side
// by side in the grid, so that an expert's rows are read from memory once.
//: in uint xq
//: in float xf
//: in int chosen
//: in uchar gate
//: in uchar up
//: in uchar shared_gate
//: in uchar shared_up
//: out float hf
//: out uint hq
//: const int K
//: const int K_USED
//: const int RANKS
//: const int F
//: const int FS
//: const int FMAX
//: const int TE
//: const int TS
//: const int EXPERT_ROWS
//: const int R
const int pair = int(threadgroup_position_in_grid.x), chunk = int(threadgroup_position_in_grid.y);
const int lane = int(thread_index_in_simdgroup), simd = int(simdgroup_index_in_threadgroup);
const int b = pair / RANKS, rank = pair % RANKS;
const bool shared = rank == K_USED;
threadgroup float hidden[32];
if (32 * chunk >= (shared ? FS : F)) return;
const device uint* rq = xq + (size_t)b * (K / 32) * 12;
const device float* rf = xf + (size_t)b * K;
float g[R][1], u[R][1];
for (int r = 0; r < R; ++r) g[r][0] = u[r][0] = 0.0f;
const int row = 32 * chunk + R * simd;
if (shared) {
  const int stride = K / 256 * superblock_bytes(TS);
  dot_rows<TS, R, 1, K>(shared_gate + (size_t)row * stride, stride, rq, rf, lane, g);
  dot_rows<TS, R, 1, K>(shared_up + (size_t)row * stride, stride, rq, rf, lane, u);
} else {
  const int stride = K / 256 * superblock_bytes(TE);
  const size_t at = ((size_t)chosen[b * K_USED + rank] * EXPERT_ROWS + row) * stride;
  dot_rows<TE, R, 1, K>(gate + at, stride, rq, rf, lane, g);
  dot_rows<TE, R, 1, K>(up + at, stride, rq, rf, lane, u);
}
for (int r = 0; r < R; ++r) {
  const float v = silu(simd_sum(g[r][0])) * simd_sum(u[r][0]);
  if (lane == 0) hidden[R * simd + r] = v;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (simd == 0) {
  hf[(size_t)pair * FMAX + 32 * chunk + lane] = hidden[lane];
  store_record(hq + ((size_t)pair * (FMAX / 32) + chunk) * 12, hidden[lane], lane);
}
