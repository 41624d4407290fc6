// routed[row, rank] = down h of every (row, chosen expert) and, as rank K_USED, of the shared expert;
// `norm` adds them up. As in `gate_up` a threadgroup works for all rows of an expert. Eight simdgroups
// take 8 / KS tiles of 16 outputs, each in KS parts of the columns that are added in order.
//: in uint hq
//: in float hf
//: in int groups
//: in int lists
//: in uchar down
//: in uchar shared_down
//: out float routed
//: int n_rows
//: const int N
//: const int K_USED
//: const int RANKS
//: const int F
//: const int FS
//: const int FMAX
//: const int TE
//: const int TS
//: const int NT
//: const int KS
//: const int LANES
//: const int RESIDENT
constexpr int STRIDE = 8 * NT + 1;
constexpr bool alike = TE == TS && F == FS;
constexpr int ROWS = 128 / KS;
const int group = int(threadgroup_position_in_grid.x);
const int lane = int(thread_index_in_simdgroup), simd = int(simdgroup_index_in_threadgroup);
const int first = int(threadgroup_position_in_grid.y) * ROWS;
const bool shared = group == int(threadgroups_per_grid.x) - 1 && RANKS > K_USED;
threadgroup float parts[8][16 * STRIDE];
if (!shared && group >= groups[0]) return;
const int expert = shared ? 0 : groups[1 + 2 * group];
Members members = {nullptr, n_rows, RANKS};
if (!shared) {
  members.list = lists + 64 * expert;
  members.count = groups[2 + 2 * group];
}
const int count = members.count;
const int row = first + simd / KS * 16, part = simd % KS;
const int stride = (shared ? FS : F) / 256 * superblock_bytes(shared ? TS : TE);
const device uchar* w =
    (shared ? shared_down : down) + ((size_t)expert * N + row) * stride;
for (int at = 0; at < count; at += 8 * NT) {
  const bool few = count - at <= 8;
  if (row < N) {
    if ((alike || shared) && few)
      member_tile<TS, 1, FS, FMAX, 1>(w, stride, hq, hf, members, at, part, KS, lane,
                                      parts[simd], STRIDE);
    if ((alike || shared) && !few)
      member_tile<TS, NT, FS, FMAX, 1>(w, stride, hq, hf, members, at, part, KS, lane,
                                       parts[simd], STRIDE);
    if (!alike && !shared && few)
      member_tile<TE, 1, F, FMAX, 1>(w, stride, hq, hf, members, at, part, KS, lane,
                                     parts[simd], STRIDE);
    if (!alike && !shared && !few)
      member_tile<TE, NT, F, FMAX, 1>(w, stride, hq, hf, members, at, part, KS, lane,
                                      parts[simd], STRIDE);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = int(thread_index_in_threadgroup); i < ROWS * min(8 * NT, count - at); i += 256) {
    const int r = i % ROWS, column = i / ROWS;
    if (first + r >= N) continue;
    float v = 0.0f;
    for (int s = 0; s < KS; ++s) v += parts[r / 16 * KS + s][r % 16 * STRIDE + column];
    routed[(size_t)member(members, at + column) * N + first + r] = v;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
