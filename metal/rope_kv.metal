// Norm and partial NEOX rope of q and k; k and v go into their cells of the KV pool as f16. A
// threadgroup of D lanes takes one query head, or one key head with its value head, of one token.
// `cells` holds block * 256 + offset of each token; gates stay where they are, beside q.
//: in float qg
//: in float k
//: in float v
//: in float q_norm
//: in float k_norm
//: in float cosines
//: in float sines
//: in int cells
//: out float q
//: out half kv
//: const int D
//: const int NH
//: const int NKV
//: const int N_ROT
//: const int BLOCK_STRIDE
//: const float EPS
const int head = int(threadgroup_position_in_grid.x), t = int(threadgroup_position_in_grid.y);
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
constexpr int HALF = N_ROT / 2;
threadgroup float partial[D / 32];
threadgroup float normed[D];
const bool query = head < NH;
const float own = query ? qg[((size_t)t * NH + head) * 2 * D + tid]
                        : k[((size_t)t * NKV + head - NH) * D + tid];
const float squares = simd_sum(own * own);
if (lane == 0) partial[simdgroup_index_in_threadgroup] = squares;
threadgroup_barrier(mem_flags::mem_threadgroup);
float total = 0.0f;
for (int s = 0; s < D / 32; ++s) total += partial[s];
normed[tid] = own * rsqrt(total / float(D) + EPS) * (query ? q_norm[tid] : k_norm[tid]);
threadgroup_barrier(mem_flags::mem_threadgroup);
float value = normed[tid];
if (tid < N_ROT) {
  const int pair = tid % HALF;
  const float cosine = cosines[t * HALF + pair], sine = sines[t * HALF + pair];
  value = tid < HALF ? normed[pair] * cosine - normed[pair + HALF] * sine
                     : normed[pair] * sine + normed[pair + HALF] * cosine;
}
if (query) {
  q[((size_t)t * NH + head) * D + tid] = value;
} else {
  const int g = head - NH;
  const size_t cell = (size_t)(cells[t] >> 8) * BLOCK_STRIDE + ((cells[t] & 255) * NKV + g) * D;
  kv[cell + tid] = to_half(value);
  kv[cell + 256 * NKV * D + tid] = to_half(v[((size_t)t * NKV + g) * D + tid]);
}
