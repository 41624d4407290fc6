#include "simd_avx2.h"

#include "kernels.inl"

namespace ggh {

const Kernels& kernels_avx2vnni() {
  static const Kernels table = avx2vnni::make_kernels();
  return table;
}

}  // namespace ggh
