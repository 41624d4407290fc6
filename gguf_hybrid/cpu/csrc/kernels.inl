// The kernels of one variant. A kernels_*.cpp includes its simd_*.h, then this file, and so
// compiles everything below into its own namespace with its own processor flags.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "half.h"
#include "kernels.h"
#include "types.h"

namespace ggh::GGH_ISA {

#include "activations.inl"
#include "decode.inl"
#include "panel32.inl"
#include "panel256.inl"
#include "panel_int8.inl"
#include "panel_float.inl"

size_t panel_scratch_bytes(int64_t k) {
  const auto columns = static_cast<size_t>(round_up_16(k));
  const size_t decoded = columns * kPanelRows * sizeof(float);
  const size_t chunk = kFloatChunk * kPanelRows * sizeof(float);
  const size_t blocks32 = (columns / 32 + 1) * sizeof(Block32);
  const size_t blocks256 = (columns / 256 + 1) * sizeof(Block256);
  size_t most = decoded > chunk ? decoded : chunk;
  most = blocks32 > most ? blocks32 : most;
  return blocks256 > most ? blocks256 : most;
}

template <int type, DecodeFn decode>
void add_float(Kernels& table) {
  table.decode[type] = decode;
  table.exact[type] = panel_float<decode, type>;
}

template <class Unpack, DecodeFn decode>
void add_quantized(Kernels& table) {
  add_float<Unpack::kType, decode>(table);
  table.fast[Unpack::kType] = panel_int8<Unpack>;
}

Kernels make_kernels() {
  Kernels table{};
  table.name = kName;
  table.quantize32 = quantize32;
  table.quantize256 = quantize256;
  table.panel_scratch_bytes = panel_scratch_bytes;
  add_float<kF32, decode_f32>(table);
  add_float<kF16, decode_f16>(table);
  add_float<kBF16, decode_bf16>(table);
  add_quantized<UnpackQ4_0, decode_q4_0>(table);
  add_quantized<UnpackQ4_1, decode_q4_1>(table);
  add_quantized<UnpackQ5_0, decode_q5_0>(table);
  add_quantized<UnpackQ5_1, decode_q5_1>(table);
  add_quantized<UnpackQ8_0, decode_q8_0>(table);
  add_quantized<UnpackIQ4_NL, decode_iq4_nl>(table);
  add_quantized<UnpackMXFP4, decode_mxfp4>(table);
  add_quantized<UnpackQ2_K, decode_q2_k>(table);
  add_quantized<UnpackQ3_K, decode_q3_k>(table);
  add_quantized<UnpackQ4_K, decode_q4_k>(table);
  add_quantized<UnpackQ5_K, decode_q5_k>(table);
  add_quantized<UnpackQ6_K, decode_q6_k>(table);
  add_quantized<UnpackIQ4_XS, decode_iq4_xs>(table);
  return table;
}

}  // namespace ggh::GGH_ISA
