// silu(gate x) * up x for every (row, chosen expert) and, as rank K_USED, the shared expert or the
// whole dense feed-forward. A threadgroup takes 32 hidden values of one expert for all the rows that
// chose it (`route` lists them), so that its weights are read and decoded once; the last x of the grid
// is the shared expert. 4 KS simdgroups: two tiles of 16 weight rows of gate and of up, each in KS parts
// of the columns that are added in order.
//: in uint xq
//: in float xf
//: in int groups
//: in int lists
//: in uchar gate
//: in uchar up
//: in uchar shared_gate
//: in uchar shared_up
//: out float hf
//: out uint hq
//: int n_rows
//: const int K
//: const int K_USED
//: const int RANKS
//: const int F
//: const int FS
//: const int FMAX
//: const int TE
//: const int TS
//: const int EXPERT_ROWS
//: const int NT
//: const int KS
//: const int LANES
//: const int RESIDENT
constexpr int STRIDE = 8 * NT + 1;
constexpr bool alike = TE == TS;
const int group = int(threadgroup_position_in_grid.x), chunk = int(threadgroup_position_in_grid.y);
const int lane = int(thread_index_in_simdgroup), simd = int(simdgroup_index_in_threadgroup);
const bool shared = group == int(threadgroups_per_grid.x) - 1 && RANKS > K_USED;
threadgroup float parts[4 * KS][16 * STRIDE];
if (32 * chunk >= (shared ? FS : F)) return;
if (!shared && group >= groups[0]) return;
const int expert = shared ? 0 : groups[1 + 2 * group];
Members members = {nullptr, n_rows, RANKS};
if (!shared) {
  members.list = lists + 64 * expert;
  members.count = groups[2 + 2 * group];
}
const int count = members.count;
const int tile = simd % 4, part = simd / 4;
const int row = 32 * chunk + tile % 2 * 16, stride = K / 256 * superblock_bytes(shared ? TS : TE);
const device uchar* matrix = shared ? (tile < 2 ? shared_gate : shared_up) : tile < 2 ? gate : up;
const device uchar* w = matrix + ((size_t)expert * EXPERT_ROWS + row) * stride;
for (int at = 0; at < count; at += 8 * NT) {
  const bool few = count - at <= 8;
  if ((alike || shared) && few)
    member_tile<TS, 1, K, K, RANKS>(w, stride, xq, xf, members, at, part, KS, lane, parts[simd],
                                    STRIDE);
  if ((alike || shared) && !few)
    member_tile<TS, NT, K, K, RANKS>(w, stride, xq, xf, members, at, part, KS, lane, parts[simd],
                                     STRIDE);
  if (!alike && !shared && few)
    member_tile<TE, 1, K, K, RANKS>(w, stride, xq, xf, members, at, part, KS, lane, parts[simd],
                                    STRIDE);
  if (!alike && !shared && !few)
    member_tile<TE, NT, K, K, RANKS>(w, stride, xq, xf, members, at, part, KS, lane, parts[simd],
                                     STRIDE);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int column = simd; column < min(8 * NT, count - at); column += 4 * KS) {
    const int value = lane % 16 * STRIDE + column, place = member(members, at + column);
    float g = 0.0f, u = 0.0f;
    for (int s = 0; s < KS; ++s) {
      g += parts[4 * s + lane / 16][value];
      u += parts[4 * s + 2 + lane / 16][value];
    }
    const float v = silu(g) * u;
    hf[(size_t)place * FMAX + 32 * chunk + lane] = v;
    store_record(hq, place, chunk, FMAX / 32, v, lane);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
