// Float32 activations to int8 blocks: d = max |x| / 127, q = x * (127 / max |x|) to the nearest
// even integer. A NaN or an infinity makes d one, so that it reaches the result.

struct Scaled {
  float d;
  float inverse;
};

// The largest |x| by its bit pattern, which orders NaN above everything.
inline Scaled block_scale(const float* x, int n) {
  int32_t largest = 0;
  for (int i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float max;
  std::memcpy(&max, &largest, sizeof max);
  // Below this the inverse would overflow; such a block is as good as zero.
  const bool usable = max >= 1e-30f;
  return {max / 127.0f, usable ? 127.0f / max : 0.0f};
}

// Adding 1.5 * 2^23 rounds to an integer in the low bits of the sum.
inline void round_to_bytes(const float* x, int n, float inverse, int8_t* q) {
  for (int i = 0; i < n; ++i) {
    const float shifted = x[i] * inverse + 12582912.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    q[i] = static_cast<int8_t>(bits & 0xffu);
  }
}

inline void quantize32(const float* x, int64_t k, Act32* out) {
  for (int64_t b = 0; b < k / 32; ++b) {
    const Scaled scaled = block_scale(x + 32 * b, 32);
    round_to_bytes(x + 32 * b, 32, scaled.inverse, out[b].q);
    int32_t total = 0;
    for (int8_t q : out[b].q) total += q;
    out[b].sum = total;
    out[b].d = scaled.d;
  }
}

inline void quantize256(const float* x, int64_t k, Act256* out) {
  for (int64_t b = 0; b < k / 256; ++b) {
    const Scaled scaled = block_scale(x + 256 * b, 256);
    round_to_bytes(x + 256 * b, 256, scaled.inverse, out[b].q);
    for (int g = 0; g < 16; ++g) {
      int32_t total = 0;
      for (int i = 0; i < 16; ++i) total += out[b].q[16 * g + i];
      out[b].sums16[g] = static_cast<int16_t>(total);
    }
    for (int g = 0; g < 8; ++g) {
      out[b].sums32[g] = static_cast<int16_t>(out[b].sums16[2 * g] + out[b].sums16[2 * g + 1]);
    }
    out[b].d = scaled.d;
  }
}
