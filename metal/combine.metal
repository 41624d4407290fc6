// y = residual + the expert outputs of a token in rank order + its shared expert.
//: in float routed
//: in float shared
//: in float weights
//: alias float residual
//: out float y
//: const int N
//: const int K_USED
//: const int SHARED
const size_t t = threadgroup_position_in_grid.x;
for (int i = int(thread_index_in_threadgroup); i < N; i += int(threads_per_threadgroup.x)) {
  float sum = 0.0f;
  for (int rank = 0; rank < K_USED; ++rank)
    sum += weights[t * (K_USED + 1) + rank] * routed[(t * K_USED + rank) * N + i];
  if (SHARED) sum += weights[t * (K_USED + 1) + K_USED] * shared[t * N + i];
  y[t * N + i] = residual[t * N + i] + sum;
}
