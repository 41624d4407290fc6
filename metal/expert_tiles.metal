// Sorts the (token, rank) pairs of a prompt by expert and lists tiles of up to BM pairs: tiles[0] is
// their number, then expert, first place in `order` and count of each. One threadgroup. The order
// inside an expert is that of the atomics and changes no value. CUDA only.
//: in int chosen
//: out int order
//: out int tiles
//: out int cursor
//: int n_pairs
//: const int E
//: const int BM
const int tid = int(thread_index_in_threadgroup), n = int(threads_per_threadgroup.x);
threadgroup int counts[E];
for (int e = tid; e < E; e += n) cursor[e] = 0;
threadgroup_barrier(mem_flags::mem_device);
for (int p = tid; p < n_pairs; p += n) atomic_add(cursor + chosen[p], 1);
threadgroup_barrier(mem_flags::mem_device);
for (int e = tid; e < E; e += n) counts[e] = cursor[e];
threadgroup_barrier(mem_flags::mem_threadgroup);
if (tid == 0) {
  int first = 0, n_tiles = 0;
  for (int e = 0; e < E; ++e) {
    const int count = counts[e];
    for (int at = 0; at < count; at += BM) {
      device int* tile = tiles + 1 + 3 * n_tiles++;
      tile[0] = e;
      tile[1] = first + at;
      tile[2] = min(BM, count - at);
    }
    counts[e] = first;
    first += count;
  }
  tiles[0] = n_tiles;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int e = tid; e < E; e += n) cursor[e] = counts[e];
threadgroup_barrier(mem_flags::mem_device);
for (int p = tid; p < n_pairs; p += n) order[atomic_add(cursor + chosen[p], 1)] = p;
