// Superblocks of `blocks.h` from the blocks of a file: a simdgroup each.
//: in ushort raw
//: out ushort packed
//: int n
//: const int T0
const size_t at = (size_t)threadgroup_position_in_grid.x * (threads_per_threadgroup.x / 32) +
                  simdgroup_index_in_threadgroup;
if (at >= (size_t)n) return;
constexpr int SIZE = superblock_bytes(T0) / 2;
constexpr int CODES = T0 == TYPE_Q8_0 ? 16 : 8;
const device ushort* source = raw + at * (T0 == TYPE_Q6_K ? 105 : 8 * (CODES + 1));
for (int i = int(thread_index_in_simdgroup); i < SIZE; i += 32) {
  ushort word = 0;
  if (T0 == TYPE_Q6_K) {
    if (i < 105) word = source[i];
  } else if (i < 8) {
    word = source[i * (CODES + 1)];
  } else {
    word = source[(i - 8) / CODES * (CODES + 1) + 1 + (i - 8) % CODES];
  }
  packed[at * SIZE + i] = word;
}
