// Up to four weight matrices times the same few activation rows: y_i = x w_i^T (+ residual for the
// first). SIMDS simdgroups share the superblocks of 16 quantised weight rows, or the columns of FR
// float rows, for 8 NT activation rows (x holds whole tiles of them); their parts are added in a fixed
// order, so that a row's result does not depend on how many there are.
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
//: const int NT
//: const int FR
//: const int SIMDS
//: const int ADD
//: const int T0
//: const int T1
//: const int T2
//: const int T3
//: const int N0
//: const int N1
//: const int N2
//: const int N3
constexpr int COLUMNS = 8 * NT;
constexpr int B0 = is_float(T0) ? (N0 + FR - 1) / FR : (N0 + 15) / 16;
constexpr int B1 = is_float(T1) ? (N1 + FR - 1) / FR : (N1 + 15) / 16;
constexpr int B2 = is_float(T2) ? (N2 + FR - 1) / FR : (N2 + 15) / 16;
const int lane = int(thread_index_in_simdgroup), simd = int(simdgroup_index_in_threadgroup);
const int tid = int(thread_index_in_threadgroup);
const int g = lane / 4, t = lane % 4;
const int b0 = int(threadgroup_position_in_grid.y) * COLUMNS;
threadgroup float parts[SIMDS][16 * COLUMNS];
int block = int(threadgroup_position_in_grid.x);
const int segment = block < B0 ? 0 : block < B0 + B1 ? 1 : block < B0 + B1 + B2 ? 2 : 3;
block -= segment == 0 ? 0 : segment == 1 ? B0 : segment == 2 ? B0 + B1 : B0 + B1 + B2;
const int n = segment == 0 ? N0 : segment == 1 ? N1 : segment == 2 ? N2 : N3;
const int type = segment == 0 ? T0 : segment == 1 ? T1 : segment == 2 ? T2 : T3;
const device uchar* w = segment == 0 ? w0 : segment == 1 ? w1 : segment == 2 ? w2 : w3;
device float* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
const int row = block * (is_float(type) ? FR : 16);
if (is_float(type)) {
  const device float* x = xf + (size_t)b0 * K;
  const device uchar* rows[FR];
  for (int r = 0; r < FR; ++r)
    rows[r] = w + (size_t)min(row + r, n - 1) * (K * (type == TYPE_F32 ? 4 : 2));
  float acc[FR][COLUMNS];
  UNROLL_BY(FR)
  for (int r = 0; r < FR; ++r) {
    UNROLL_BY(COLUMNS)
    for (int b = 0; b < COLUMNS; ++b) acc[r][b] = 0.0f;
  }
  if (type == TYPE_F32)
    float_columns<TYPE_F32, FR, COLUMNS, K, SIMDS>(rows, x, simd, lane, acc);
  else if (type == TYPE_F16)
    float_columns<TYPE_F16, FR, COLUMNS, K, SIMDS>(rows, x, simd, lane, acc);
  else
    float_columns<TYPE_BF16, FR, COLUMNS, K, SIMDS>(rows, x, simd, lane, acc);
  UNROLL_BY(FR)
  for (int r = 0; r < FR; ++r) {
    UNROLL_BY(COLUMNS)
    for (int b = 0; b < COLUMNS; ++b) {
      const float v = simd_sum(acc[r][b]);
      if (lane == b % 32) parts[simd][r * COLUMNS + b] = v;
    }
  }
} else {
  const int stride = K / 256 * superblock_bytes(type);
  const device uchar* low = w + (size_t)min(row + g, n - 1) * stride;
  const device uchar* high = w + (size_t)min(row + 8 + g, n - 1) * stride;
  int own[NT], out[NT][2];
  for (int nt = 0; nt < NT; ++nt) {
    own[nt] = record_codes(b0 + 8 * nt + g, K / 32);
    for (int c = 0; c < 2; ++c) out[nt][c] = record_factors(b0 + 8 * nt + 2 * t + c, K / 32);
  }
  float acc[4 * NT];
  for (int i = 0; i < 4 * NT; ++i) acc[i] = 0.0f;
  if (segment == 0 && !is_float(T0)) tile_rows<T0, NT, K>(low, high, simd, SIMDS, t, xq, own, out, acc);
  if (segment == 1 && !is_float(T1)) tile_rows<T1, NT, K>(low, high, simd, SIMDS, t, xq, own, out, acc);
  if (segment == 2 && !is_float(T2)) tile_rows<T2, NT, K>(low, high, simd, SIMDS, t, xq, own, out, acc);
  if (segment == 3 && !is_float(T3)) tile_rows<T3, NT, K>(low, high, simd, SIMDS, t, xq, own, out, acc);
  for (int i = 0; i < 4 * NT; ++i)
    parts[simd][(g + i % 4 / 2 * 8) * COLUMNS + 8 * (i / 4) + 2 * t + i % 2] = acc[i];
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int i = tid; i < (is_float(type) ? FR : 16) * COLUMNS; i += 32 * SIMDS) {
  const int r = row + i % 16, b = b0 + i / 16;
  const int own_row = is_float(type) ? row + i / COLUMNS : r;
  const int column = is_float(type) ? b0 + i % COLUMNS : b;
  if (own_row >= n || column >= n_rows) continue;
  float v = 0.0f;
  for (int s = 0; s < SIMDS; ++s) v += parts[s][(own_row - row) * COLUMNS + column - b0];
  const size_t at = (size_t)column * n + own_row;
  y[at] = ADD && segment == 0 ? residual[at] + v : v;
}
