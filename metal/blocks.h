// Weights and activations as the kernels read them. Common dialect, no target's own words.
//
// A weight row is a run of superblocks of 256 weights, each a multiple of 16 bytes: Q4_K and Q5_K as
// in the file, Q6_K padded from 210 to 224, eight Q4_0 or Q8_0 blocks with their scales in front.
// Activations are records of 48 bytes for 32 values: 32 int8, the float scale d, and d times the sum
// of the first and of the second 16 codes.

#define TYPE_F32 0
#define TYPE_F16 1
#define TYPE_Q4_0 2
#define TYPE_Q8_0 8
#define TYPE_Q4_K 12
#define TYPE_Q5_K 13
#define TYPE_Q6_K 14
#define TYPE_BF16 30

#define LOW 0x0f0f0f0fu

INLINE constexpr int superblock_bytes(int type) {
  return type == TYPE_Q4_K   ? 144
         : type == TYPE_Q5_K ? 176
         : type == TYPE_Q6_K ? 224
         : type == TYPE_Q8_0 ? 272
         : type == TYPE_Q4_0 ? 144
         : type == TYPE_F32  ? 1024
                             : 512;
}
INLINE constexpr bool is_float(int type) {
  return type == TYPE_F32 || type == TYPE_F16 || type == TYPE_BF16;
}

// 32 weights of a superblock in two runs of 16: w = a q - m. Run 0 meets half h0 of activation
// record r0, run 1 half h1 of r1. Eight units make a superblock.
struct Unit {
  int q0[4], q1[4];
  float a0, m0, a1, m1;
  int r0, h0, r1, h1;
};

INLINE uint quad_word(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Scales and minimums of groups 2 j and 2 j + 1 from the head of a Q4_K or Q5_K block: six bits each,
// two groups at a time in the halves of a 16-bit word.
INLINE void unit_scales(thread Unit& w, uint4 head, int j) {
  const float d = half_bits(ushort(head.x & 0xffffu)), dmin = half_bits(ushort(head.x >> 16));
  const int shift = 16 * (j & 1);
  const uint first = head.y >> shift, second = head.z >> shift, third = head.w >> shift;
  const bool low = j < 2;
  const uint scales = low ? first & 0x3f3fu : (third & 0x0f0fu) | (first >> 2 & 0x3030u);
  const uint minimums = low ? second & 0x3f3fu : (third >> 4 & 0x0f0fu) | (second >> 2 & 0x3030u);
  w.a0 = d * float(scales & 0xffu);
  w.a1 = d * float(scales >> 8 & 0xffu);
  w.m0 = dmin * float(minimums & 0xffu);
  w.m1 = dmin * float(minimums >> 8 & 0xffu);
}

INLINE void unit_nibbles(thread Unit& w, uint4 qs) {
  for (int i = 0; i < 4; ++i) {
    const uint word = quad_word(qs, i);
    w.q0[i] = int(word & LOW);
    w.q1[i] = int(word >> 4 & LOW);
  }
}

INLINE void unit_places(thread Unit& w, int r0, int h0, int r1, int h1) {
  w.r0 = r0;
  w.h0 = h0;
  w.r1 = r1;
  w.h1 = h1;
}

// Unit u (0..7) of the superblock at `block`.
template <int TYPE> INLINE void load_unit(thread Unit& w, const device uchar* block, int u) {
  const device uint4* quads = (const device uint4*)block;
  if (TYPE == TYPE_Q4_K || TYPE == TYPE_Q5_K) {
    const int j = u >> 1, h = u & 1;
    unit_scales(w, quads[0], j);
    unit_nibbles(w, quads[(TYPE == TYPE_Q4_K ? 1 : 3) + u]);
    if (TYPE == TYPE_Q5_K) {
      const uint4 high = quads[1 + h];
      for (int i = 0; i < 4; ++i) {
        const uint word = quad_word(high, i) >> (2 * j);
        w.q0[i] |= int((word & 0x01010101u) << 4);
        w.q1[i] |= int((word >> 1 & 0x01010101u) << 4);
      }
    }
    unit_places(w, 2 * j, h, 2 * j + 1, h);
  } else if (TYPE == TYPE_Q6_K) {
    const int upper = u >> 2, p = u >> 1 & 1, h = u & 1;
    unit_nibbles(w, quads[u]);
    const uint4 high = quads[8 + 2 * upper + h];
    for (int i = 0; i < 4; ++i) {
      const uint word = quad_word(high, i) >> (2 * p);
      w.q0[i] |= int((word & 0x03030303u) << 4);
      w.q1[i] |= int((word >> 4 & 0x03030303u) << 4);
    }
    const device uchar* scales = block + 192 + 8 * upper + 2 * p + h;
    const float d = half_bits(*(const device ushort*)(block + 208));
    w.a0 = d * float((signed char)scales[0]);
    w.a1 = d * float((signed char)scales[4]);
    w.m0 = 32.0f * w.a0;
    w.m1 = 32.0f * w.a1;
    unit_places(w, 4 * upper + p, h, 4 * upper + 2 + p, h);
  } else {
    const float d = half_bits(((const device ushort*)block)[u]);
    w.a0 = w.a1 = d;
    if (TYPE == TYPE_Q4_0) {
      unit_nibbles(w, quads[1 + u]);
      w.m0 = w.m1 = 8.0f * d;
    } else {
      const uint4 first = quads[1 + 2 * u], second = quads[2 + 2 * u];
      for (int i = 0; i < 4; ++i) {
        w.q0[i] = int(quad_word(first, i));
        w.q1[i] = int(quad_word(second, i));
      }
      w.m0 = w.m1 = 0.0f;
    }
    unit_places(w, u, 0, u, 1);
  }
}

// The unit times the records of its superblock.
INLINE float unit_dot(const thread Unit& w, const device uint4* records) {
  const uint4 x0 = records[3 * w.r0 + w.h0], e0 = records[3 * w.r0 + 2];
  const uint4 x1 = records[3 * w.r1 + w.h1], e1 = records[3 * w.r1 + 2];
  int p0 = 0, p1 = 0;
  for (int i = 0; i < 4; ++i) {
    p0 = dot4(w.q0[i], int(quad_word(x0, i)), p0);
    p1 = dot4(w.q1[i], int(quad_word(x1, i)), p1);
  }
  const float s0 = as_float(w.h0 ? e0.z : e0.y), s1 = as_float(w.h1 ? e1.z : e1.y);
  return as_float(e0.x) * w.a0 * float(p0) - w.m0 * s0 +
         (as_float(e1.x) * w.a1 * float(p1) - w.m1 * s1);
}

template <int TYPE> INLINE float float_weight(const device uchar* row, int k) {
  if (TYPE == TYPE_F32) return ((const device float*)row)[k];
  const ushort bits = ((const device ushort*)row)[k];
  return TYPE == TYPE_F16 ? half_bits(bits) : as_float(uint(bits) << 16);
}

template <int TYPE> INLINE void four_weights(thread float (&w)[4], const device uchar* row, int k) {
  if (TYPE == TYPE_F32) {
    const float4 v = *(const device float4*)((const device float*)row + k);
    w[0] = v.x;
    w[1] = v.y;
    w[2] = v.z;
    w[3] = v.w;
    return;
  }
  for (int i = 0; i < 4; ++i) w[i] = float_weight<TYPE>(row, k + i);
}

// acc[r][b] += this lane's part of float row w[r] times activation row x[b]; simdgroup `simd` of eight
// takes every eighth run of 128 columns.
template <int TYPE, int ROWS, int COLUMNS, int K>
INLINE void float_columns(const device uchar* (&w)[ROWS], const device float* (&x)[COLUMNS],
                          int simd, int lane, thread float (&acc)[ROWS][COLUMNS]) {
  for (int k = 128 * simd + 4 * lane; k < K; k += 1024) {
    float v[ROWS][4];
    for (int r = 0; r < ROWS; ++r) four_weights<TYPE>(v[r], w[r], k);
    for (int b = 0; b < COLUMNS; ++b) {
      const float4 u = *(const device float4*)(x[b] + k);
      for (int r = 0; r < ROWS; ++r)
        acc[r][b] += v[r][0] * u.x + v[r][1] * u.y + (v[r][2] * u.z + v[r][3] * u.w);
    }
  }
}

// acc[r][b] += this lane's part of weight row r times activation row b, for R rows `stride` bytes
// apart and NB activation rows. A lane takes every 32nd unit, so what it adds for one (r, b) does
// not depend on R or NB.
template <int TYPE, int R, int NB, int K>
INLINE void dot_rows(const device uchar* rows, int stride, const device uint* xq,
                     const device float* xf, int lane, thread float (&acc)[R][NB]) {
  if (is_float(TYPE)) {
    UNROLL_BY(4)
    for (int k = 4 * lane; k < K; k += 128) {
      float w[R][4];
      for (int r = 0; r < R; ++r) four_weights<TYPE>(w[r], rows + (size_t)r * stride, k);
      for (int b = 0; b < NB; ++b) {
        const float4 x = *(const device float4*)(xf + (size_t)b * K + k);
        for (int r = 0; r < R; ++r)
          acc[r][b] += w[r][0] * x.x + w[r][1] * x.y + (w[r][2] * x.z + w[r][3] * x.w);
      }
    }
    return;
  }
  const device uint4* records = (const device uint4*)xq;
  UNROLL_BY(2)
  for (int i = lane; i < K / 32; i += 32) {
    Unit w[R];
    for (int r = 0; r < R; ++r)
      load_unit<TYPE>(w[r], rows + (size_t)r * stride + (i >> 3) * superblock_bytes(TYPE), i & 7);
    for (int b = 0; b < NB; ++b) {
      const device uint4* x = records + ((size_t)b * (K / 32) + (i & ~7)) * 3;
      for (int r = 0; r < R; ++r) acc[r][b] += unit_dot(w[r], x);
    }
  }
}

// Unit `unit` of a weight row times the same 32 activations.
template <int TYPE>
INLINE float unit_product(const device uchar* row, const device uint* xq, const device float* xf,
                          int unit) {
  if (is_float(TYPE)) {
    float sum = 0.0f;
    for (int k = 32 * unit; k < 32 * unit + 32; ++k) sum += float_weight<TYPE>(row, k) * xf[k];
    return sum;
  }
  Unit w;
  load_unit<TYPE>(w, row + (unit >> 3) * superblock_bytes(TYPE), unit & 7);
  return unit_dot(w, (const device uint4*)xq + (unit & ~7) * 3);
}

// One value a lane: the 48-byte record of the simdgroup's 32 values.
INLINE void store_record(device uint* record, float v, int lane) {
  const float d = simd_max(fabs(v)) / 127.0f;
  const int q = rounded(d > 0.0f ? v / d : 0.0f);
  int sum = q;
  for (ushort o = 8; o > 0; o >>= 1) sum += simd_shuffle_xor(sum, o);
  ((device signed char*)record)[lane] = (signed char)q;
  device float* numbers = (device float*)record + 8;
  if (lane == 0) {
    numbers[0] = d;
    numbers[1] = d * float(sum);
    numbers[3] = 0.0f;
  }
  if (lane == 16) numbers[2] = d * float(sum);
}

INLINE float sigmoid(float v) { return 1.0f / (1.0f + exp(-v)); }
INLINE float silu(float v) { return v / (1.0f + exp(-v)); }
INLINE float softplus(float v) { return v > 20.0f ? v : log(1.0f + exp(v)); }

INLINE uint two_halves(float a, float b) {
  return uint(as_type<ushort>(to_half(a))) | uint(as_type<ushort>(to_half(b))) << 16;
}

// A lane's words of N operands of `simd_mma` that lie one behind the other.
template <int N>
INLINE void load_fragments(thread uint4 (&out)[N], const device uint4* from) {
  for (int i = 0; i < N; ++i) out[i] = from[32 * i];
}

// Weights 16 run ... 16 run + 15 of the superblock at `block`, decoded.
template <int TYPE>
INLINE void load_run(thread float (&out)[16], const device uchar* block, int run) {
  if (is_float(TYPE)) {
    for (int i = 0; i < 16; ++i) out[i] = float_weight<TYPE>(block, 16 * run + i);
    return;
  }
  // The unit that holds the run, and which of its two it is.
  const bool by_32 = TYPE == TYPE_Q4_0 || TYPE == TYPE_Q8_0, six = TYPE == TYPE_Q6_K;
  const int second = by_32 ? run & 1 : six ? run >> 2 & 1 : run >> 1 & 1;
  const int u = by_32 ? run >> 1 : six ? (run >> 3) * 4 + (run & 3) : (run >> 2) * 2 + (run & 1);
  Unit w;
  load_unit<TYPE>(w, block, u);
  const float a = second ? w.a1 : w.a0, m = second ? w.m1 : w.m0;
  for (int i = 0; i < 16; ++i) {
    const uint word = uint(second ? w.q1[i >> 2] : w.q0[i >> 2]) >> (8 * (i & 3));
    out[i] = a * float((signed char)(word & 0xffu)) - m;
  }
}
