// Exact float32 values of blocks, one row at a time: w as the format defines it, each operation
// rounded once. Plain loops; the compiler turns them into this variant's vector code.

// 2^(e - 128), the scale of doubled E2M1 codes; e = 0 and 1 give subnormals.
inline float power_of_two(uint8_t e) {
  return float_from_bits(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}
inline uint32_t read_u16(const uint8_t* p) { return static_cast<uint32_t>(p[0]) | p[1] << 8; }
inline float read_half(const uint8_t* p) { return half_to_float(static_cast<uint16_t>(read_u16(p))); }

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

inline void decode_q4_0(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ4_0>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block);
    for (int j = 0; j < 16; ++j) {
      y[j] = d * static_cast<float>((block[2 + j] & 15) - 8);
      y[j + 16] = d * static_cast<float>((block[2 + j] >> 4) - 8);
    }
  });
}
inline void decode_q4_1(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ4_1>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block);
    const float m = read_half(block + 2);
    for (int j = 0; j < 16; ++j) {
      y[j] = d * static_cast<float>(block[4 + j] & 15) + m;
      y[j + 16] = d * static_cast<float>(block[4 + j] >> 4) + m;
    }
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
    const float d = read_half(block);
    int32_t codes[32];
    five_bit_codes(block + 2, block + 6, codes);
    for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(codes[j] - 16);
  });
}
inline void decode_q5_1(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ5_1>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block);
    const float m = read_half(block + 2);
    int32_t codes[32];
    five_bit_codes(block + 4, block + 8, codes);
    for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(codes[j]) + m;
  });
}
inline void decode_q8_0(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ8_0>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block);
    for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(static_cast<int8_t>(block[2 + j]));
  });
}
inline void decode_iq4_nl(const uint8_t* p, int64_t k, float* out) {
  each_block<kIQ4_NL>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block);
    for (int j = 0; j < 16; ++j) {
      y[j] = d * static_cast<float>(kIQ4Values[block[2 + j] & 15]);
      y[j + 16] = d * static_cast<float>(kIQ4Values[block[2 + j] >> 4]);
    }
  });
}
inline void decode_mxfp4(const uint8_t* p, int64_t k, float* out) {
  each_block<kMXFP4>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = power_of_two(block[0]);
    for (int j = 0; j < 16; ++j) {
      y[j] = d * static_cast<float>(kE2M1Doubled[block[1 + j] & 15]);
      y[j + 16] = d * static_cast<float>(kE2M1Doubled[block[1 + j] >> 4]);
    }
  });
}

inline void decode_q2_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ2_K>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block + 80);
    const float dmin = read_half(block + 82);
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(block[group] & 15);
      const float minimum = dmin * static_cast<float>(block[group] >> 4);
      const uint8_t* bytes = block + 16 + group / 8 * 32 + group % 2 * 16;
      const int shift = group % 8 / 2 * 2;
      for (int l = 0; l < 16; ++l) {
        y[16 * group + l] = scale * static_cast<float>(bytes[l] >> shift & 3) - minimum;
      }
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
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(q3_k_scale(block + 96, group));
      const uint8_t* bytes = block + 32 + group / 8 * 32 + group % 2 * 16;
      const uint8_t* high = block + group % 2 * 16;
      const int shift = group % 8 / 2 * 2;
      const int bit = group / 2;
      for (int l = 0; l < 16; ++l) {
        const int32_t code = (bytes[l] >> shift & 3) + (high[l] >> bit & 1) * 4 - 4;
        y[16 * group + l] = scale * static_cast<float>(code);
      }
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
inline void decode_q4_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ4_K>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block);
    const float dmin = read_half(block + 2);
    for (int group = 0; group < 8; ++group) {
      int32_t scale, minimum;
      k_scale_and_minimum(block + 4, group, &scale, &minimum);
      const float step = d * static_cast<float>(scale);
      const float low = dmin * static_cast<float>(minimum);
      const uint8_t* bytes = block + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        y[32 * group + l] = step * static_cast<float>(bytes[l] >> shift & 15) - low;
      }
    }
  });
}
inline void decode_q5_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ5_K>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block);
    const float dmin = read_half(block + 2);
    for (int group = 0; group < 8; ++group) {
      int32_t scale, minimum;
      k_scale_and_minimum(block + 4, group, &scale, &minimum);
      const float step = d * static_cast<float>(scale);
      const float low = dmin * static_cast<float>(minimum);
      const uint8_t* bytes = block + 48 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        const int32_t code = (bytes[l] >> shift & 15) + (block[16 + l] >> group & 1) * 16;
        y[32 * group + l] = step * static_cast<float>(code) - low;
      }
    }
  });
}
inline void decode_q6_k(const uint8_t* p, int64_t k, float* out) {
  each_block<kQ6_K>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block + 208);
    for (int group = 0; group < 16; ++group) {
      const int run = group % 8 / 2;  // 32 elements, of four in half a block
      const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + group]));
      const uint8_t* low = block + group / 8 * 64 + run % 2 * 32 + group % 2 * 16;
      const uint8_t* high = block + 128 + group / 8 * 32 + group % 2 * 16;
      const int shift = run / 2 * 4;
      for (int l = 0; l < 16; ++l) {
        const int32_t code = (low[l] >> shift & 15) + (high[l] >> (2 * run) & 3) * 16 - 32;
        y[16 * group + l] = scale * static_cast<float>(code);
      }
    }
  });
}
inline void decode_iq4_xs(const uint8_t* p, int64_t k, float* out) {
  each_block<kIQ4_XS>(p, k, out, [](const uint8_t* block, float* y) {
    const float d = read_half(block);
    const uint32_t scales_high = read_u16(block + 2);
    for (int group = 0; group < 8; ++group) {
      const int32_t low = block[4 + group / 2] >> (group % 2 * 4) & 15;
      const int32_t high = static_cast<int32_t>(scales_high >> (2 * group) & 3u);
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      const uint8_t* bytes = block + 8 + 16 * group;
      for (int j = 0; j < 16; ++j) {
        y[32 * group + j] = scale * static_cast<float>(kIQ4Values[bytes[j] & 15]);
        y[32 * group + j + 16] = scale * static_cast<float>(kIQ4Values[bytes[j] >> 4]);
      }
    }
  });
}
