// Many rows times a quantised matrix on the tensor units: y = x w^T (+ residual), f16 operands and
// float32 sums; weights are decoded on the way into threadgroup memory. 256 lanes compute BM rows by
// 64 outputs. GROUPED: x rows are chosen (token, expert) pairs sorted by expert, tile by tile; pair p
// reads row p / SOURCE_DIV of x.
//: in half x
//: in uchar w
//: in int tiles
//: in int order
//: alias float residual
//: out float y
//: int n_rows
//: const int K
//: const int N
//: const int T0
//: const int BM
//: const int GROUPED
//: const int SOURCE_DIV
//: const int EXPERT_ROWS
//: const int ADD
constexpr int WM = BM / 32;
constexpr int WN = 8 / WM;
constexpr int NT = 8 / WN;
constexpr int LOADS = BM / 32;
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int simd = int(simdgroup_index_in_threadgroup);
const int n0 = int(threadgroup_position_in_grid.x) * 64;
threadgroup uint4 x_tile[BM][9];
threadgroup uint4 w_tile[64][9];
int first = int(threadgroup_position_in_grid.y) * BM, count = min(BM, n_rows - first), expert = 0;
if (GROUPED) {
  if (int(threadgroup_position_in_grid.y) >= tiles[0]) return;
  const device int* tile = tiles + 1 + 3 * threadgroup_position_in_grid.y;
  expert = tile[0];
  first = tile[1];
  count = tile[2];
}
const int w_row = min(n0 + tid / 4, N - 1);
const device uchar* blocks =
    w + ((size_t)expert * EXPERT_ROWS + w_row) * (K / 256) * superblock_bytes(T0);
const device uint4* sources[LOADS];
for (int i = 0; i < LOADS; ++i) {
  const int row = first + min(tid / 8 + 32 * i, count - 1);
  const int source = GROUPED ? order[row] / SOURCE_DIV : row;
  sources[i] = (const device uint4*)(x + (size_t)source * K) + tid % 8;
}
float acc[2][NT][4];
for (int a = 0; a < 2; ++a)
  for (int c = 0; c < NT; ++c)
    for (int i = 0; i < 4; ++i) acc[a][c][i] = 0.0f;
const int m_base = simd % WM * 32, n_base = simd / WM * (8 * NT), g = lane / 4, t = lane % 4;
const in_threadgroup uint* x_words = (const in_threadgroup uint*)&x_tile[0][0];
const in_threadgroup uint* w_words = (const in_threadgroup uint*)&w_tile[0][0];
for (int kb = 0; kb < K / 64; ++kb) {
  uint4 x_next[LOADS];
  for (int i = 0; i < LOADS; ++i) x_next[i] = sources[i][8 * kb];
  float run[16];
  load_run<T0>(run, blocks + (kb >> 2) * superblock_bytes(T0), (kb & 3) * 4 + tid % 4);
  uint4 w_next[2];
  for (int i = 0; i < 2; ++i) {
    w_next[i].x = two_halves(run[8 * i], run[8 * i + 1]);
    w_next[i].y = two_halves(run[8 * i + 2], run[8 * i + 3]);
    w_next[i].z = two_halves(run[8 * i + 4], run[8 * i + 5]);
    w_next[i].w = two_halves(run[8 * i + 6], run[8 * i + 7]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 0; i < LOADS; ++i) x_tile[tid / 8 + 32 * i][tid % 8] = x_next[i];
  for (int i = 0; i < 2; ++i) w_tile[tid / 4][2 * (tid % 4) + i] = w_next[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (m_base >= count) continue;
  for (int k16 = 0; k16 < 4; ++k16) {
    uint a[2][4];
    for (int i = 0; i < 2; ++i) {
      const int at = (m_base + 16 * i + g) * 36 + 8 * k16 + t;
      a[i][0] = x_words[at];
      a[i][1] = x_words[at + 8 * 36];
      a[i][2] = x_words[at + 4];
      a[i][3] = x_words[at + 8 * 36 + 4];
    }
    for (int c = 0; c < NT; ++c) {
      const int at = (n_base + 8 * c + g) * 36 + 8 * k16 + t;
      const uint b[2] = {w_words[at], w_words[at + 4]};
      simd_mma(acc[0][c], a[0], b);
      if (m_base + 16 < count) simd_mma(acc[1][c], a[1], b);
    }
  }
}
for (int i = 0; i < 2; ++i)
  for (int half_row = 0; half_row < 2; ++half_row) {
    const int row = m_base + 16 * i + 8 * half_row + g;
    if (row >= count) continue;
    const size_t out = (size_t)(GROUPED ? order[first + row] : first + row) * N;
    for (int c = 0; c < NT; ++c)
      for (int j = 0; j < 2; ++j) {
        const int n = n0 + n_base + 8 * c + 2 * t + j;
        const float v = acc[i][c][2 * half_row + j];
        if (n < N) y[out + n] = ADD ? residual[out + n] + v : v;
      }
  }
