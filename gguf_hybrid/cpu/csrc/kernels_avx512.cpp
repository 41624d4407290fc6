#include "simd_avx512.h"

#include "kernels.inl"

namespace ggh {

const Kernels& kernels_avx512() {
  static const Kernels table = avx512::make_kernels();
  return table;
}

}  // namespace ggh
