// Exact float32 values of blocks, one row at a time: w as the format defines it, each operation
// rounded once.

// 2^(e - 128), the scale of doubled E2M1 codes; e = 0 and 1 give subnormals.
inline float power_of_two(uint8_t e) {
  return float_from_bits(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}
inline uint32_t read_u16(const uint8_t* p) { return static_cast<uint32_t>(p[0]) | p[1] << 8; }
inline float read_half(const uint8_t* p) {
  return half_to_float(static_cast<uint16_t>(read_u16(p)));
}

// Calls decode_block(block, out) for each block of the type along k elements.
template <int type, class Fn>
inline void each_block(const uint8_t* p, int64_t k, float* out, Fn decode_block) {
  constexpr BlockSize size = block_size(type);
  for (int64_t i = 0; i < k; i += size.elements, p += size.bytes) decode_block(p, out + i);
}

inline void decode_f32(const uint8_t* p, int64_t k, float* out) {
  std::memcpy(out, p, static_cast<size_t>(k) * sizeof(float));
}
inline void decode_bf16(const uint8_t* p, int64_t k, float* out) {
  for (int64_t i = 0; i < k; ++i) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * i, sizeof bits);
    out[i] = bfloat_to_float(bits);
  }
}
inline void decode_f16(const uint8_t* p, int64_t k, float* out) {
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) store_floats(out + i, load_halves(p + 2 * i));
  for (; i < k; ++i) out[i] = read_half(p + 2 * i);
}

// Sixteen values d * code, or d * code + m: as ggml, the product is rounded before the sum.
inline void store_scaled(float* y, Floats d, Ints codes) {
  store_floats(y, multiply(d, to_floats(codes)));
}
inline void store_scaled(float* y, Floats d, Ints codes, Floats m) {
  store_floats(y, add(multiply(d, to_floats(codes)), m));
}
inline Ints low_nibbles(const uint8_t* p) { return bits_and(load_bytes(p), ints(15)); }
inline Ints high_nibbles(const uint8_t* p) { return shift_right<4>(load_bytes(p)); }
// `n_bits` bits from `shift` on of each of sixteen bytes.
inline Ints bits_of(const uint8_t* p, int shift, int n_bits) {
  return bits_and(shift_right(load_bytes(p), shift), ints((1 << n_bits) - 1));
}

inline void decode_q4_0(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ4_0>(p, k, out, [](const uint8_t* block, float* y) {
    const Floats d = floats(read_half(block));
    store_scaled(y, d, add(low_nibbles(block + 2), ints(-8)));
    store_scaled(y + 16, d, add(high_nibbles(block + 2), ints(-8)));
  });
}
inline void decode_q4_1(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ4_1>(p, k, out, [](const uint8_t* block, float* y) {
    const Floats d = floats(read_half(block));
    const Floats m = floats(read_half(block + 2));
    store_scaled(y, d, low_nibbles(block + 4), m);
    store_scaled(y + 16, d, high_nibbles(block + 4), m);
  });
}

// The 32 five-bit codes of Q5_0 and Q5_1.
inline void five_bit_codes(const uint8_t* high, const uint8_t* nibbles, int32_t codes[32]) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof bits);
  for (int j = 0; j < 16; ++j) {
    codes[j] = static_cast<int32_t>((nibbles[j] & 15u) | (bits >> j & 1u) << 4);
    codes[j + 16] = static_cast<int32_t>((nibbles[j] >> 4u) | (bits >> (j + 16) & 1u) << 4);
  }
}
inline void decode_q5_0(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ5_0>(p, k, out, [](const uint8_t* block, float* y) {
    const Floats d = floats(read_half(block));
    int32_t codes[32];
    five_bit_codes(block + 2, block + 6, codes);
    store_scaled(y, d, add(load(codes), ints(-16)));
    store_scaled(y + 16, d, add(load(codes + 16), ints(-16)));
  });
}
inline void decode_q5_1(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ5_1>(p, k, out, [](const uint8_t* block, float* y) {
    const Floats d = floats(read_half(block));
    const Floats m = floats(read_half(block + 2));
    int32_t codes[32];
    five_bit_codes(block + 4, block + 8, codes);
    store_scaled(y, d, load(codes), m);
    store_scaled(y + 16, d, load(codes + 16), m);
  });
}
inline void decode_q8_0(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ8_0>(p, k, out, [](const uint8_t* block, float* y) {
    const Floats d = floats(read_half(block));
    store_scaled(y, d, load_signed_bytes(block + 2));
    store_scaled(y + 16, d, load_signed_bytes(block + 18));
  });
}

// The signed table values of 32 nibbles, scaled.
inline void store_looked_up(float* y, Floats d, Table values, const uint8_t* nibbles) {
  const auto value = [&](Ints indices) {
    return shift_right_signed<24>(shift_left<24>(lookup(values, indices)));
  };
  store_scaled(y, d, value(low_nibbles(nibbles)));
  store_scaled(y + 16, d, value(high_nibbles(nibbles)));
}
inline void decode_iq4_nl(const uint8_t* p, int64_t k, float* out) {
  const Table values = table(kIQ4Values);
  each_block<kIQ4_NL>(p, k, out, [&](const uint8_t* block, float* y) {
    store_looked_up(y, floats(read_half(block)), values, block + 2);
  });
}
inline void decode_mxfp4(const uint8_t* p, int64_t k, float* out) {
  const Table values = table(kE2M1Doubled);
  each_block<kMXFP4>(p, k, out, [&](const uint8_t* block, float* y) {
    store_looked_up(y, floats(power_of_two(block[0])), values, block + 1);
  });
}

// Where group g of 16 elements of Q2_K and Q3_K finds its bit pairs.
inline Ints two_bit_codes(const uint8_t* pairs, int g) {
  return bits_of(pairs + g / 8 * 32 + g % 2 * 16, g % 8 / 2 * 2, 2);
}
inline void decode_q2_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ2_K>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block + 80);
    const float dmin = read_half(block + 82);
    for (int g = 0; g < 16; ++g) {
      const Floats scale = floats(d * static_cast<float>(block[g] & 15));
      const Floats minimum = floats(-dmin * static_cast<float>(block[g] >> 4));
      store_scaled(y + 16 * g, scale, two_bit_codes(block + 16, g), minimum);
    }
  });
}

// Six-bit scale of group g of Q3_K, less 32.
inline int32_t q3_k_scale(const uint8_t* packed, int g) {
  const int32_t low = packed[g % 8] >> (g / 8 * 4) & 15;
  const int32_t high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
  return (low | high << 4) - 32;
}
inline void decode_q3_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ3_K>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block + 108);
    for (int g = 0; g < 16; ++g) {
      const Floats scale = floats(d * static_cast<float>(q3_k_scale(block + 96, g)));
      const Ints third = shift_left<2>(bits_of(block + g % 2 * 16, g / 2, 1));
      const Ints codes = bits_or(two_bit_codes(block + 32, g), third);
      store_scaled(y + 16 * g, scale, add(codes, ints(-4)));
    }
  });
}

// Six-bit scale and minimum of group g of Q4_K and Q5_K.
inline void k_scale_and_minimum(const uint8_t* packed, int g, int32_t* scale, int32_t* minimum) {
  if (g < 4) {
    *scale = packed[g] & 63;
    *minimum = packed[g + 4] & 63;
  } else {
    *scale = (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
    *minimum = packed[g + 4] >> 4 | packed[g] >> 6 << 4;
  }
}
// Calls decode_group(g, step, minimum) for the eight groups of a Q4_K or Q5_K block.
template <class Fn>
inline void each_k_group(const uint8_t* block, Fn decode_group) {
  const float d = read_half(block);
  const float dmin = read_half(block + 2);
  for (int g = 0; g < 8; ++g) {
    int32_t scale, minimum;
    k_scale_and_minimum(block + 4, g, &scale, &minimum);
    decode_group(g, floats(d * static_cast<float>(scale)),
                 floats(-dmin * static_cast<float>(minimum)));
  }
}
inline void decode_q4_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ4_K>(p, k, out, [](const uint8_t* block, float* y) {
    each_k_group(block, [&](int g, Floats step, Floats minimum) {
      const uint8_t* nibbles = block + 16 + g / 2 * 32;
      for (int part = 0; part < 2; ++part) {
        const Ints codes = bits_of(nibbles + 16 * part, g % 2 * 4, 4);
        store_scaled(y + 32 * g + 16 * part, step, codes, minimum);
      }
    });
  });
}
inline void decode_q5_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ5_K>(p, k, out, [](const uint8_t* block, float* y) {
    each_k_group(block, [&](int g, Floats step, Floats minimum) {
      const uint8_t* nibbles = block + 48 + g / 2 * 32;
      for (int part = 0; part < 2; ++part) {
        const Ints low = bits_of(nibbles + 16 * part, g % 2 * 4, 4);
        const Ints fifth = shift_left<4>(bits_of(block + 16 + 16 * part, g, 1));
        store_scaled(y + 32 * g + 16 * part, step, bits_or(low, fifth), minimum);
      }
    });
  });
}
inline void decode_q6_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ6_K>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block + 208);
    for (int g = 0; g < 16; ++g) {
      const int run = g % 8 / 2;  // 32 elements, of four in half a block
      const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + g]));
      const uint8_t* low = block + g / 8 * 64 + run % 2 * 32 + g % 2 * 16;
      const uint8_t* high = block + 128 + g / 8 * 32 + g % 2 * 16;
      const Ints upper = shift_left<4>(bits_of(high, 2 * run, 2));
      const Ints codes = bits_or(bits_of(low, run / 2 * 4, 4), upper);
      store_scaled(y + 16 * g, floats(scale), add(codes, ints(-32)));
    }
  });
}
inline void decode_iq4_xs(const uint8_t* p, int64_t k, float* out) {
  const Table values = table(kIQ4Values);
  each_block<kIQ4_XS>(p, k, out, [&](const uint8_t* block, float* y) {
    const float d = read_half(block);
    const uint32_t scales_high = read_u16(block + 2);
    for (int g = 0; g < 8; ++g) {
      const int32_t low = block[4 + g / 2] >> (g % 2 * 4) & 15;
      const int32_t high = static_cast<int32_t>(scales_high >> (2 * g) & 3u);
      const Floats scale = floats(d * static_cast<float>((low | high << 4) - 32));
      store_looked_up(y + 32 * g, scale, values, block + 8 + 16 * g);
    }
  });
}
