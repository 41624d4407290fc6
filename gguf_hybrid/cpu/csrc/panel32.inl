// 32-element blocks unpacked sixteen rows at a time. w = d * (code - offset) [+ m].

struct Block32 {
  uint32_t codes[8][16];  // [element / 4][row], four codes a lane
  float d[16];
  float m[16];
};

inline Ints nibble_mask() { return ints(0x0f0f0f0f); }

// Codes of 16 bytes of nibbles: the low ones are elements 0..15, the high ones 16..31.
template <class Map>
inline void unpack_nibbles(const Ints quads[4], uint32_t (*codes)[16], Map map) {
  for (int j = 0; j < 4; ++j) {
    store(codes[j], map(bits_and(quads[j], nibble_mask()), j));
    store(codes[4 + j], map(bits_and(shift_right<4>(quads[j]), nibble_mask()), 4 + j));
  }
}

// Bits 4 j .. 4 j + 3 of each lane, spread to bit 4 of the lane's four bytes.
template <int j>
inline Ints fifth_bits(Ints high) {
  const Ints four = bits_and(shift_right<4 * j>(high), ints(0xf));
  const Ints spread = multiply(four, ints(0x00204081));
  return shift_left<4>(bits_and(spread, ints(0x01010101)));
}

inline void unpack_five_bits(const Ints quads[4], Ints high, uint32_t (*codes)[16]) {
  const Ints fifth[8] = {fifth_bits<0>(high), fifth_bits<1>(high), fifth_bits<2>(high),
                         fifth_bits<3>(high), fifth_bits<4>(high), fifth_bits<5>(high),
                         fifth_bits<6>(high), fifth_bits<7>(high)};
  unpack_nibbles(quads, codes, [&](Ints nibbles, int j) { return bits_or(nibbles, fifth[j]); });
}

struct UnpackQ4_0 {
  static constexpr int kType = kQ4_0, kOffset = 8;
  static constexpr bool kMins = false, kWide = false;
  static void unpack(const uint8_t* p, size_t stride, Block32& out) {
    Ints quads[4];
    load_transposed(p + 2, stride, quads);
    store_floats(out.d, half_low(gather_u16(p, stride)));
    unpack_nibbles(quads, out.codes, [](Ints nibbles, int) { return nibbles; });
  }
};

struct UnpackQ4_1 {
  static constexpr int kType = kQ4_1, kOffset = 0;
  static constexpr bool kMins = true, kWide = false;
  static void unpack(const uint8_t* p, size_t stride, Block32& out) {
    Ints quads[4];
    load_transposed(p, stride, quads);
    store_floats(out.d, half_low(quads[0]));
    store_floats(out.m, half_high(quads[0]));
    load_transposed(p + 4, stride, quads);
    unpack_nibbles(quads, out.codes, [](Ints nibbles, int) { return nibbles; });
  }
};

struct UnpackQ5_0 {
  static constexpr int kType = kQ5_0, kOffset = 16;
  static constexpr bool kMins = false, kWide = false;
  static void unpack(const uint8_t* p, size_t stride, Block32& out) {
    Ints quads[4];
    load_transposed(p + 2, stride, quads);
    const Ints high = quads[0];
    store_floats(out.d, half_low(gather_u16(p, stride)));
    load_transposed(p + 6, stride, quads);
    unpack_five_bits(quads, high, out.codes);
  }
};

struct UnpackQ5_1 {
  static constexpr int kType = kQ5_1, kOffset = 0;
  static constexpr bool kMins = true, kWide = false;
  static void unpack(const uint8_t* p, size_t stride, Block32& out) {
    Ints quads[4];
    load_transposed(p, stride, quads);
    store_floats(out.d, half_low(quads[0]));
    store_floats(out.m, half_high(quads[0]));
    const Ints high = quads[1];
    load_transposed(p + 8, stride, quads);
    unpack_five_bits(quads, high, out.codes);
  }
};

// Signed bytes as dot4_wide wants them.
inline Ints flipped(Ints codes) {
  return kFlip == 0 ? codes : bits_xor(codes, ints(static_cast<int32_t>(0x80808080u)));
}

struct UnpackQ8_0 {
  static constexpr int kType = kQ8_0, kOffset = kFlip;
  static constexpr bool kMins = false, kWide = true;
  static void unpack(const uint8_t* p, size_t stride, Block32& out) {
    Ints quads[4];
    store_floats(out.d, half_low(gather_u16(p, stride)));
    load_transposed(p + 2, stride, quads);
    for (int j = 0; j < 4; ++j) store(out.codes[j], flipped(quads[j]));
    load_transposed(p + 18, stride, quads);
    for (int j = 0; j < 4; ++j) store(out.codes[4 + j], flipped(quads[j]));
  }
};

struct UnpackIQ4_NL {
  static constexpr int kType = kIQ4_NL, kOffset = kFlip;
  static constexpr bool kMins = false, kWide = true;
  static void unpack(const uint8_t* p, size_t stride, Block32& out) {
    Ints quads[4];
    load_transposed(p + 2, stride, quads);
    store_floats(out.d, half_low(gather_u16(p, stride)));
    const Table values = table(kIQ4Values);
    unpack_nibbles(quads, out.codes,
                   [&](Ints nibbles, int) { return flipped(lookup(values, nibbles)); });
  }
};

// Codes are twice the E2M1 values plus 12; d is 2^(e - 128).
struct UnpackMXFP4 {
  static constexpr int kType = kMXFP4, kOffset = 12;
  static constexpr bool kMins = false, kWide = false;
  static void unpack(const uint8_t* p, size_t stride, Block32& out) {
    static constexpr int8_t kCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                          12, 11, 10, 9,  8,  6,  4,  0};
    Ints quads[4];
    load_transposed(p + 1, stride, quads);
    for (size_t r = 0; r < 16; ++r) out.d[r] = power_of_two(p[r * stride]);
    const Table codes = table(kCodes);
    unpack_nibbles(quads, out.codes, [&](Ints nibbles, int) { return lookup(codes, nibbles); });
  }
};
