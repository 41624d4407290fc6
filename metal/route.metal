// The router for all rows of a step, and who chose whom: `top_experts` for each row, one simdgroup a
// row at a time, then groups[0] experts that were chosen, as (expert, rows) from groups[1] on, and each
// expert's rows as places row * RANKS + rank in `members`, 64 places an expert. One threadgroup. The
// order of experts and of an expert's rows is that of the atomics and changes no value.
//: in float logits
//: in float shared
//: out float weights
//: out int groups
//: out int members
//: int n_rows
//: const int E
//: const int K_USED
//: const int RANKS
//: const int SHARED_GATE
//: const float W_SCALE
const int lane = int(thread_index_in_simdgroup), tid = int(thread_index_in_threadgroup);
const int n = int(threads_per_threadgroup.x);
threadgroup int counts[E];
threadgroup int n_groups;
for (int e = tid; e < E; e += n) counts[e] = 0;
if (tid == 0) n_groups = 0;
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int row = int(simdgroup_index_in_threadgroup); row < n_rows; row += n / 32) {
  int picked[K_USED];
  float share[K_USED];
  choose_experts<E, K_USED>(logits + (size_t)row * E, lane, picked, share);
  UNROLL_BY(K_USED)
  for (int rank = 0; rank < K_USED; ++rank) {
    if (lane != rank % 32) continue;
    weights[row * (K_USED + 1) + rank] = share[rank] * W_SCALE;
    members[picked[rank] * 64 + atomic_add(counts + picked[rank], 1)] = row * RANKS + rank;
  }
  if (lane == 0) weights[row * (K_USED + 1) + K_USED] = SHARED_GATE ? sigmoid(shared[row]) : 1.0f;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int e = tid; e < E; e += n) {
  if (counts[e] == 0) continue;
  const int at = 1 + 2 * atomic_add(&n_groups, 1);
  groups[at] = e;
  groups[at + 1] = counts[e];
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (tid == 0) groups[0] = n_groups;
