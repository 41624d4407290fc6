// Quantised weights times float32 activations, for devices that have no int8 dot product. Common
// dialect, on top of blocks.h.

INLINE float code_of(int word, int i) { return float((signed char)(uint(word) >> (8 * i) & 0xffu)); }

// out[r][b] += unit `u` (0..7) of the superblock blocks[r] times the same 32 of the activations x[b].
// What is added for one (r, b) depends neither on R nor on NB.
template <int TYPE, int R, int NB>
INLINE void float_unit(const device uchar* thread (&blocks)[R], const device float* thread (&x)[NB],
                       int u, thread float (&out)[R][NB]) {
  Unit w[R];
  for (int r = 0; r < R; ++r) load_unit<TYPE>(w[r], blocks[r], u);
  for (int run = 0; run < 2; ++run) {
    const int at = run ? 32 * w[0].r1 + 16 * w[0].h1 : 32 * w[0].r0 + 16 * w[0].h0;
    float p[R][NB], s[NB];
    for (int b = 0; b < NB; ++b) {
      s[b] = 0.0f;
      for (int r = 0; r < R; ++r) p[r][b] = 0.0f;
    }
    for (int j = 0; j < 4; ++j) {
      float c[R][4];
      for (int r = 0; r < R; ++r)
        for (int k = 0; k < 4; ++k) c[r][k] = code_of(run ? w[r].q1[j] : w[r].q0[j], k);
      for (int b = 0; b < NB; ++b) {
        const float4 v = ((const device float4*)(x[b] + at))[j];
        s[b] += v.x + v.y + (v.z + v.w);
        for (int r = 0; r < R; ++r)
          p[r][b] += c[r][0] * v.x + c[r][1] * v.y + (c[r][2] * v.z + c[r][3] * v.w);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < NB; ++b)
        out[r][b] += (run ? w[r].a1 : w[r].a0) * p[r][b] - (run ? w[r].m1 : w[r].m0) * s[b];
  }
}

// out[r][b] += this lane's part of weight row rows[r] times activation row x[b]: every 32nd unit.
template <int TYPE, int R, int NB, int K>
INLINE void float_rows(const device uchar* thread (&rows)[R], const device float* thread (&x)[NB],
                       int lane, thread float (&out)[R][NB]) {
  for (int i = lane; i < K / 32; i += 32) {
    const device uchar* blocks[R];
    const device float* values[NB];
    for (int r = 0; r < R; ++r) blocks[r] = rows[r] + (i >> 3) * superblock_bytes(TYPE);
    for (int b = 0; b < NB; ++b) values[b] = x[b] + (i >> 3) * 256;
    float_unit<TYPE, R, NB>(blocks, values, i & 7, out);
  }
}
