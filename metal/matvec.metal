// Up to four weight matrices times the same few activation rows: y_i = x w_i^T (+ residual for the
// first). A simdgroup computes R weight rows for NB activation rows; buffers of x hold whole tiles.
//: in uint xq
//: in float xf
//: in uchar w0
//: in uchar w1
//: in uchar w2
//: in uchar w3
//: alias float residual
//: out float y0
//: out float y1
//: out float y2
//: out float y3
//: int n_rows
//: const int K
//: const int R
//: const int NB
//: const int ADD
//: const int T0
//: const int T1
//: const int T2
//: const int T3
//: const int N0
//: const int N1
//: const int N2
//: const int N3
const int lane = int(thread_index_in_simdgroup);
const int n_simds = int(threads_per_threadgroup.x / 32);
int row = (int(threadgroup_position_in_grid.x) * n_simds + int(simdgroup_index_in_threadgroup)) * R;
const int b0 = int(threadgroup_position_in_grid.y) * NB;
if (row >= N0 + N1 + N2 + N3) return;
const device uint* rq = xq + (size_t)b0 * (K / 32) * 12;
const device float* rf = xf + (size_t)b0 * K;
float acc[R][NB];
for (int r = 0; r < R; ++r)
  for (int b = 0; b < NB; ++b) acc[r][b] = 0.0f;
device float* y = y0;
int n = N0;
const bool first = row < N0;
if (first) {
  const int stride = K / 256 * superblock_bytes(T0);
  dot_rows<T0, R, NB, K>(w0 + (size_t)row * stride, stride, rq, rf, lane, acc);
} else if (row < N0 + N1) {
  const int stride = K / 256 * superblock_bytes(T1);
  row -= N0;
  y = y1;
  n = N1;
  dot_rows<T1, R, NB, K>(w1 + (size_t)row * stride, stride, rq, rf, lane, acc);
} else if (row < N0 + N1 + N2) {
  const int stride = K / 256 * superblock_bytes(T2);
  row -= N0 + N1;
  y = y2;
  n = N2;
  dot_rows<T2, R, NB, K>(w2 + (size_t)row * stride, stride, rq, rf, lane, acc);
} else {
  const int stride = K / 256 * superblock_bytes(T3);
  row -= N0 + N1 + N2;
  y = y3;
  n = N3;
  dot_rows<T3, R, NB, K>(w3 + (size_t)row * stride, stride, rq, rf, lane, acc);
}
for (int r = 0; r < R; ++r)
  for (int b = 0; b < NB; ++b) {
    const float v = simd_sum(acc[r][b]);
    if (lane == (r * NB + b) % 32 && b0 + b < n_rows) {
      const size_t at = (size_t)(b0 + b) * n + row + r;
      y[at] = ADD && first ? residual[at] + v : v;
    }
  }
