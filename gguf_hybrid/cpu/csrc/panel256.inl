// 256-element super-blocks unpacked sixteen rows at a time.
//
// w = d * scale[group] * (code - offset) - dmin * min[group], groups of 16 or 32. Minima and
// offsets both meet the sums of the activations, two groups a lane as pairs of 16-bit numbers; no
// type has both.

struct Block256 {
  uint32_t codes[64][16];   // [element / 4][row], four codes a lane
  int32_t scales[16][16];   // [group][row]
  uint32_t pairs[8][16];    // [group / 2][row]: minima, or -offset * scale
  float d[16];
  float dmin[16];
};

inline Ints byte_mask() { return ints(0xff); }

// Byte j of each lane, without and with sign.
template <int j>
inline Ints unsigned_byte(Ints quads) {
  return bits_and(shift_right<8 * j>(quads), byte_mask());
}
template <int j>
inline Ints signed_byte(Ints quads) {
  return shift_right_signed<24>(shift_left<24 - 8 * j>(quads));
}
inline void store_unsigned_bytes(Ints quads, int32_t (*out)[16]) {
  store(out[0], unsigned_byte<0>(quads));
  store(out[1], unsigned_byte<1>(quads));
  store(out[2], unsigned_byte<2>(quads));
  store(out[3], unsigned_byte<3>(quads));
}
// Four unsigned bytes of each lane as two lanes of 16-bit pairs.
inline void store_byte_pairs(Ints quads, uint32_t (*out)[16]) {
  const Ints low = bits_and(quads, ints(0x00ff00ff));                  // bytes 0, 2
  const Ints high = bits_and(shift_right<8>(quads), ints(0x00ff00ff));  // bytes 1, 3
  const Ints upper_half = ints(static_cast<int32_t>(0xffff0000u));
  store(out[0], bits_or(bits_and(low, ints(0xffff)), shift_left<16>(high)));
  store(out[1], bits_or(shift_right<16>(low), bits_and(high, upper_half)));
}

// pairs = -offset * scales for n_groups groups.
inline void store_offset_pairs(Block256& block, int offset, int n_groups) {
  for (int g = 0; g < n_groups; g += 2) {
    const Ints a = multiply(load(block.scales[g]), ints(-offset));
    const Ints b = multiply(load(block.scales[g + 1]), ints(-offset));
    store(block.pairs[g / 2], bits_or(bits_and(a, ints(0xffff)), shift_left<16>(b)));
  }
}

// The six-bit scales and minima that Q4_K and Q5_K share: 16 bytes of d, dmin and 12 packed bytes.
inline void unpack_scales_and_minima(const uint8_t* p, size_t stride, Block256& out) {
  Ints head[4];
  load_transposed(p, stride, head);
  store_floats(out.d, half_low(head[0]));
  store_floats(out.dmin, half_high(head[0]));
  const Ints six = ints(0x3f3f3f3f);
  const Ints two = ints(0x03030303);
  const Ints scale_high = shift_left<4>(bits_and(shift_right<6>(head[1]), two));
  const Ints min_high = shift_left<4>(bits_and(shift_right<6>(head[2]), two));
  const Ints scale_low = bits_and(head[3], nibble_mask());
  const Ints min_low = bits_and(shift_right<4>(head[3]), nibble_mask());
  store_unsigned_bytes(bits_and(head[1], six), out.scales);
  store_unsigned_bytes(bits_or(scale_low, scale_high), out.scales + 4);
  store_byte_pairs(bits_and(head[2], six), out.pairs);
  store_byte_pairs(bits_or(min_low, min_high), out.pairs + 2);
}

struct UnpackQ4_K {
  static constexpr int kType = kQ4_K, kGroup = 32, kOffset = 0;
  static constexpr bool kMins = true, kWide = false;
  static void unpack(const uint8_t* p, size_t stride, Block256& out) {
    unpack_scales_and_minima(p, stride, out);
    for (int half = 0; half < 8; ++half) {  // 16 bytes: half of two groups
      Ints quads[4];
      load_transposed(p + 16 + 16 * half, stride, quads);
      uint32_t(*codes)[16] = out.codes + half / 2 * 16 + half % 2 * 4;
      for (int j = 0; j < 4; ++j) {
        store(codes[j], bits_and(quads[j], nibble_mask()));
        store(codes[8 + j], bits_and(shift_right<4>(quads[j]), nibble_mask()));
      }
    }
  }
};

struct UnpackQ5_K {
  static constexpr int kType = kQ5_K, kGroup = 32, kOffset = 0;
  static constexpr bool kMins = true, kWide = false;

  // Bit `group` of each byte as bit 4.
  template <int group>
  static Ints fifth(Ints high) {
    const Ints bit = bits_and(high, ints(static_cast<int32_t>(0x01010101u << group)));
    if constexpr (group < 4) return shift_left<4 - group>(bit);
    return shift_right<(group < 4 ? 0 : group - 4)>(bit);
  }

  template <int chunk>
  static void unpack_chunk(const uint8_t* p, size_t stride, const Ints high[8], Block256& out) {
    for (int half = 0; half < 2; ++half) {
      Ints quads[4];
      load_transposed(p + 48 + 32 * chunk + 16 * half, stride, quads);
      uint32_t(*codes)[16] = out.codes + chunk * 16 + half * 4;
      for (int j = 0; j < 4; ++j) {
        const Ints bits = high[4 * half + j];
        const Ints low_nibble = bits_and(quads[j], nibble_mask());
        const Ints high_nibble = bits_and(shift_right<4>(quads[j]), nibble_mask());
        store(codes[j], bits_or(low_nibble, fifth<2 * chunk>(bits)));
        store(codes[8 + j], bits_or(high_nibble, fifth<2 * chunk + 1>(bits)));
      }
    }
  }

  static void unpack(const uint8_t* p, size_t stride, Block256& out) {
    unpack_scales_and_minima(p, stride, out);
    Ints high[8];
    load_transposed(p + 16, stride, high);
    load_transposed(p + 32, stride, high + 4);
    unpack_chunk<0>(p, stride, high, out);
    unpack_chunk<1>(p, stride, high, out);
    unpack_chunk<2>(p, stride, high, out);
    unpack_chunk<3>(p, stride, high, out);
  }
};

struct UnpackQ6_K {
  static constexpr int kType = kQ6_K, kGroup = 16, kOffset = 32;
  static constexpr bool kMins = false, kWide = false;

  // Bits 2 t, 2 t + 1 of each byte as bits 4 and 5.
  template <int t>
  static Ints upper(Ints high) {
    const Ints bits = bits_and(high, ints(static_cast<int32_t>(0x03030303u << (2 * t))));
    if constexpr (t < 2) return shift_left<4 - 2 * t>(bits);
    return shift_right<(t < 2 ? 0 : 2 * t - 4)>(bits);
  }

  // 128 elements from 64 bytes of nibbles and 32 bytes of bit pairs.
  static void unpack_half(const uint8_t* low_bits, const uint8_t* high_bits, size_t stride,
                          uint32_t (*codes)[16]) {
    for (int part = 0; part < 2; ++part) {
      Ints first[4];   // runs 0 and 2 of 32 elements
      Ints second[4];  // runs 1 and 3
      Ints high[4];
      load_transposed(low_bits + 16 * part, stride, first);
      load_transposed(low_bits + 32 + 16 * part, stride, second);
      load_transposed(high_bits + 16 * part, stride, high);
      for (int j = 0; j < 4; ++j) {
        uint32_t(*at)[16] = codes + 4 * part + j;
        const Ints mask = nibble_mask();
        store(at[0], bits_or(bits_and(first[j], mask), upper<0>(high[j])));
        store(at[8], bits_or(bits_and(second[j], mask), upper<1>(high[j])));
        store(at[16], bits_or(bits_and(shift_right<4>(first[j]), mask), upper<2>(high[j])));
        store(at[24], bits_or(bits_and(shift_right<4>(second[j]), mask), upper<3>(high[j])));
      }
    }
  }

  static void unpack(const uint8_t* p, size_t stride, Block256& out) {
    unpack_half(p, p + 128, stride, out.codes);
    unpack_half(p + 64, p + 160, stride, out.codes + 32);
    Ints scales[4];
    load_transposed(p + 192, stride, scales);
    for (int j = 0; j < 4; ++j) {
      store(out.scales[4 * j], signed_byte<0>(scales[j]));
      store(out.scales[4 * j + 1], signed_byte<1>(scales[j]));
      store(out.scales[4 * j + 2], signed_byte<2>(scales[j]));
      store(out.scales[4 * j + 3], signed_byte<3>(scales[j]));
    }
    store_offset_pairs(out, kOffset, 16);
    store_floats(out.d, half_low(gather_u16(p + 208, stride)));
  }
};

// Codes of two bits: run t of 32 elements holds bits 2 t, 2 t + 1 of 32 bytes, twice a block.
template <int t>
inline Ints two_bits(Ints quads) {
  return bits_and(shift_right<2 * t>(quads), ints(0x03030303));
}

struct UnpackQ2_K {
  static constexpr int kType = kQ2_K, kGroup = 16, kOffset = 0;
  static constexpr bool kMins = true, kWide = false;
  static void unpack(const uint8_t* p, size_t stride, Block256& out) {
    Ints quads[4];
    load_transposed(p, stride, quads);
    for (int j = 0; j < 4; ++j) {
      store_unsigned_bytes(bits_and(quads[j], nibble_mask()), out.scales + 4 * j);
      store_byte_pairs(bits_and(shift_right<4>(quads[j]), nibble_mask()), out.pairs + 2 * j);
    }
    load_transposed(p + 68, stride, quads);  // ends with d and dmin
    store_floats(out.d, half_low(quads[3]));
    store_floats(out.dmin, half_high(quads[3]));
    for (int part = 0; part < 4; ++part) {
      load_transposed(p + 16 + 16 * part, stride, quads);
      for (int j = 0; j < 4; ++j) {
        uint32_t(*at)[16] = out.codes + part / 2 * 32 + part % 2 * 4 + j;
        store(at[0], two_bits<0>(quads[j]));
        store(at[8], two_bits<1>(quads[j]));
        store(at[16], two_bits<2>(quads[j]));
        store(at[24], two_bits<3>(quads[j]));
      }
    }
  }
};

struct UnpackQ3_K {
  static constexpr int kType = kQ3_K, kGroup = 16, kOffset = 4;
  static constexpr bool kMins = false, kWide = false;

  // Scales are six bits less 32, and d follows them: 14 bytes at 96, read as 16 bytes at 94.
  static void unpack_scales(const uint8_t* p, size_t stride, Block256& out) {
    Ints tail[4];
    load_transposed(p + 94, stride, tail);
    const auto bytes = [&](int j) {
      return bits_or(shift_right<16>(tail[j]), shift_left<16>(tail[j + 1]));
    };
    const Ints a = bytes(0);
    const Ints b = bytes(1);
    const Ints high = bytes(2);
    store_floats(out.d, half_high(tail[3]));
    const Ints mask = nibble_mask();
    const auto upper = [](Ints two) { return shift_left<4>(bits_and(two, ints(0x03030303))); };
    const Ints six[4] = {bits_or(bits_and(a, mask), upper(high)),
                         bits_or(bits_and(b, mask), upper(shift_right<2>(high))),
                         bits_or(bits_and(shift_right<4>(a), mask), upper(shift_right<4>(high))),
                         bits_or(bits_and(shift_right<4>(b), mask), upper(shift_right<6>(high)))};
    for (int j = 0; j < 4; ++j) store_unsigned_bytes(six[j], out.scales + 4 * j);
    for (auto& scale : out.scales) store(scale, add(load(scale), ints(-32)));
    store_offset_pairs(out, kOffset, 16);
  }

  // Bit `bit` of each byte as bit 2.
  template <int bit>
  static Ints third(Ints high) {
    const Ints one = bits_and(high, ints(static_cast<int32_t>(0x01010101u << bit)));
    if constexpr (bit < 2) return shift_left<2 - bit>(one);
    return shift_right<(bit < 2 ? 0 : bit - 2)>(one);
  }

  template <int half>
  static void unpack_half(const uint8_t* p, size_t stride, const Ints high[8], Block256& out) {
    for (int part = 0; part < 2; ++part) {
      Ints quads[4];
      load_transposed(p + 32 + 32 * half + 16 * part, stride, quads);
      for (int j = 0; j < 4; ++j) {
        const Ints bits = high[4 * part + j];
        uint32_t(*at)[16] = out.codes + 32 * half + 4 * part + j;
        store(at[0], bits_or(two_bits<0>(quads[j]), third<4 * half>(bits)));
        store(at[8], bits_or(two_bits<1>(quads[j]), third<4 * half + 1>(bits)));
        store(at[16], bits_or(two_bits<2>(quads[j]), third<4 * half + 2>(bits)));
        store(at[24], bits_or(two_bits<3>(quads[j]), third<4 * half + 3>(bits)));
      }
    }
  }

  static void unpack(const uint8_t* p, size_t stride, Block256& out) {
    Ints high[8];
    load_transposed(p, stride, high);
    load_transposed(p + 16, stride, high + 4);
    unpack_half<0>(p, stride, high, out);
    unpack_half<1>(p, stride, high, out);
    unpack_scales(p, stride, out);
  }
};

struct UnpackIQ4_XS {
  static constexpr int kType = kIQ4_XS, kGroup = 32, kOffset = kFlip;
  static constexpr bool kMins = false, kWide = true;

  // Group g: nibble g of the second lane, and two bits at 2 g of the upper half of the first.
  template <int g>
  static void unpack_scale(const Ints head[4], Block256& out) {
    const Ints low = bits_and(shift_right<4 * g>(head[1]), ints(0xf));
    const Ints high = bits_and(shift_right<16 + 2 * g>(head[0]), ints(3));
    store(out.scales[g], add(bits_or(low, shift_left<4>(high)), ints(-32)));
  }

  static void unpack(const uint8_t* p, size_t stride, Block256& out) {
    Ints head[4];
    load_transposed(p, stride, head);
    store_floats(out.d, half_low(head[0]));
    unpack_scale<0>(head, out);
    unpack_scale<1>(head, out);
    unpack_scale<2>(head, out);
    unpack_scale<3>(head, out);
    unpack_scale<4>(head, out);
    unpack_scale<5>(head, out);
    unpack_scale<6>(head, out);
    unpack_scale<7>(head, out);
    if (kOffset != 0) store_offset_pairs(out, kOffset, 8);
    const Table values = table(kIQ4Values);
    for (int group = 0; group < 8; ++group) {
      Ints quads[4];
      load_transposed(p + 8 + 16 * group, stride, quads);
      unpack_nibbles(quads, out.codes + 8 * group,
                     [&](Ints nibbles, int) { return flipped(lookup(values, nibbles)); });
    }
  }
};
