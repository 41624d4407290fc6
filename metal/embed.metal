// Rows of the token embedding as float32. One threadgroup a token.
//: in int tokens
//: in uchar w
//: out float y
//: const int K
//: const int T0
const uint row = threadgroup_position_in_grid.x;
const device uchar* blocks = w + (size_t)tokens[row] * (K / 256) * superblock_bytes(T0);
for (int run = int(thread_index_in_threadgroup); run < K / 16; run += int(threads_per_threadgroup.x)) {
  float v[16];
  load_run<T0>(v, blocks + (run >> 4) * superblock_bytes(T0), run & 15);
  for (int i = 0; i < 16; ++i) y[(size_t)row * K + 16 * run + i] = v[i];
}
