// Weights and activations as the kernels read them. Common dialect, no target's own words.
//
// A weight row is a run of superblocks of 256 weights, each a multiple of 16 bytes: Q4_K and Q5_K as
// in the file, Q6_K padded from 210 to 224, eight Q4_0 or Q8_0 blocks with their scales in front.
// Activations stand in tiles of eight rows. For each 32 columns a tile has a record of 80 words: first
// the 32 int8 codes of each row, then for each row the float scale d and d times the sum of its codes.

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

// acc[r][b] += this lane's part of float row w[r] times activation row b of x; simdgroup `simd` of
// SIMDS takes every SIMDS-th run of 128 columns.
template <int TYPE, int ROWS, int COLUMNS, int K, int SIMDS>
INLINE void float_columns(const device uchar* thread (&w)[ROWS],
                          const device float* x, int simd, int lane,
                          thread float (&acc)[ROWS][COLUMNS]) {
  for (int k = 128 * simd + 4 * lane; k < K; k += 128 * SIMDS) {
    float v[ROWS][4];
    for (int r = 0; r < ROWS; ++r) four_weights<TYPE>(v[r], w[r], k);
    UNROLL_BY(COLUMNS)
    for (int b = 0; b < COLUMNS; ++b) {
      const float4 u = *(const device float4*)(x + (size_t)b * K + k);
      for (int r = 0; r < ROWS; ++r)
        acc[r][b] += v[r][0] * u.x + v[r][1] * u.y + (v[r][2] * u.z + v[r][3] * u.w);
    }
  }
}

#define RECORD_WORDS 80

// Where an activation row's codes and factors of columns 0..31 start, in words; each further 32 columns
// are RECORD_WORDS on. `groups` is a row's number of them.
INLINE int record_codes(int row, int groups) {
  return (row >> 3) * groups * RECORD_WORDS + (row & 7) * 8;
}
INLINE int record_factors(int row, int groups) {
  return (row >> 3) * groups * RECORD_WORDS + 64 + (row & 7) * 2;
}

// One value a lane: the simdgroup's 32 values as columns 32 group ... of an activation row.
INLINE void store_record(device uint* records, int row, int group, int groups, float v, int lane) {
  const float d = simd_max(fabs(v)) / 127.0f;
  const int q = rounded(d > 0.0f ? v / d : 0.0f);
  const int sum = simd_sum(q);
  const int word = record_codes(row, groups) + group * RECORD_WORDS;
  ((device signed char*)records)[4 * word + lane] = (signed char)q;
  device float* factors = (device float*)records + record_factors(row, groups) + group * RECORD_WORDS;
  if (lane == 0) {
    factors[0] = d;
    factors[1] = d * float(sum);
  }
}

INLINE float sigmoid(float v) { return 1.0f / (1.0f + exp(-v)); }
INLINE float silu(float v) { return v / (1.0f + exp(-v)); }
INLINE float softplus(float v) { return v > 20.0f ? v : log(1.0f + exp(v)); }

// One row of the router, by one simdgroup: softmax over E logits, the K_USED largest in rank order (ties
// to the lower index) and their normalised weights, both in every lane.
template <int E, int K_USED>
INLINE void choose_experts(const device float* logits, int lane, thread int (&chosen)[K_USED],
                           thread float (&weights)[K_USED]) {
  constexpr int PER = (E + 31) / 32;
  float p[PER];
  float highest = -3.0e38f;
  for (int i = 0; i < PER; ++i) {
    const int e = 32 * i + lane;
    p[i] = e < E ? logits[e] : -3.0e38f;
    highest = fmax(highest, p[i]);
  }
  highest = simd_max(highest);
  float total = 0.0f;
  for (int i = 0; i < PER; ++i) {
    p[i] = 32 * i + lane < E ? exp(p[i] - highest) : -1.0f;
    total += fmax(p[i], 0.0f);
  }
  total = simd_sum(total);
  float sum = 0.0f;
  UNROLL_BY(K_USED)
  for (int rank = 0; rank < K_USED; ++rank) {
    float best = -1.0f;
    int at = E;
    for (int i = 0; i < PER; ++i)
      if (p[i] > best) {
        best = p[i];
        at = 32 * i + lane;
      }
    // Probabilities are not negative, so their bits are ordered as they are.
    const float value = as_type<float>(simd_max(as_type<int>(best)));
    const int winner = -simd_max(best == value ? -at : -E);
    for (int i = 0; i < PER; ++i)
      if (32 * i + lane == winner) p[i] = -1.0f;
    weights[rank] = value / total;
    sum += weights[rank];
    chosen[rank] = winner;
  }
  sum = fmax(sum, 6.103515625e-5f);
  for (int rank = 0; rank < K_USED; ++rank) weights[rank] = weights[rank] / sum;
}

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
