#include "simd_avx2.h"

#include "kernels.inl"

namespace ggh {

const Kernels& kernels_avx2() {
  static const Kernels table = avx2::make_kernels();
  return table;
}

}  // namespace ggh
