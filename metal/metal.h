// What the common kernel dialect needs beside MSL itself. Not run: no Metal device was at hand.
#include <metal_stdlib>
using namespace metal;

#define INLINE inline
#define PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(n) PRAGMA(clang loop unroll_count(n))
#define in_threadgroup threadgroup

inline float as_float(uint bits) { return as_type<float>(bits); }
inline float half_bits(ushort bits) { return float(as_type<half>(bits)); }
inline half to_half(float v) { return half(clamp(v, -65504.f, 65504.f)); }
inline int dot4(int a, int b, int c) {
  const char4 p = as_type<char4>(a), q = as_type<char4>(b);
  return c + int(p.x) * q.x + int(p.y) * q.y + int(p.z) * q.z + int(p.w) * q.w;
}
inline int rounded(float v) { return int(rint(v)); }
