// A quantised matrix times few rows of float32: y = x w^T. A simdgroup takes R weight rows and NB
// activation rows; a row's result does not depend on how many there are.
//: in float x
//: in uchar w
//: out float y
//: int n_rows
//: const int K
//: const int N
//: const int T0
//: const int R
//: const int NB
const int lane = int(thread_index_in_simdgroup);
const int simds = int(threads_per_threadgroup.x / 32);
const int row = (int(threadgroup_position_in_grid.x) * simds +
                 int(simdgroup_index_in_threadgroup)) * R;
const int first = int(threadgroup_position_in_grid.y) * NB;
const device uchar* rows[R];
for (int r = 0; r < R; ++r)
  rows[r] = w + (size_t)min(row + r, N - 1) * (K / 256 * superblock_bytes(T0));
const device float* values[NB];
for (int b = 0; b < NB; ++b) values[b] = x + (size_t)min(first + b, n_rows - 1) * K;
float acc[R][NB];
for (int r = 0; r < R; ++r)
  for (int b = 0; b < NB; ++b) acc[r][b] = 0.0f;
float_rows<T0, R, NB, K>(rows, values, lane, acc);
for (int r = 0; r < R; ++r)
  for (int b = 0; b < NB; ++b) {
    const float v = simd_sum(acc[r][b]);
    if (lane == 0 && row + r < N && first + b < n_rows) y[(size_t)(first + b) * N + row + r] = v;
  }
