// Router: softmax over E logits, the K_USED largest in rank order (ties to the lower index), their
// weights, and the weight of the shared expert behind them. A simdgroup takes one token.
//: in float logits
//: in float shared
//: out int chosen
//: out float weights
//: const int E
//: const int K_USED
//: const int SHARED_GATE
//: const float W_SCALE
const size_t t = threadgroup_position_in_grid.x;
const int lane = int(thread_index_in_simdgroup);
int picked[K_USED];
float share[K_USED];
choose_experts<E, K_USED>(logits + t * E, lane, picked, share);
if (lane == 0) {
  for (int rank = 0; rank < K_USED; ++rank) {
    chosen[t * K_USED + rank] = picked[rank];
    weights[t * (K_USED + 1) + rank] = share[rank] * W_SCALE;
  }
  weights[t * (K_USED + 1) + K_USED] = SHARED_GATE ? sigmoid(shared[t]) : 1.0f;
}
