#include "pool.h"

#include <chrono>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace ggh {
namespace {

// Decode makes a job every few microseconds: a worker that spins this long misses none of them,
// and an idle pool is asleep before anyone notices.
constexpr auto kSpin = std::chrono::microseconds(60);
constexpr int kSpinsPerLook = 64;

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

}  // namespace

Pool::Pool(int n_threads) : limit_(n_threads), scratch_(static_cast<size_t>(n_threads)) {
  for (int thread = 1; thread < n_threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  unpark_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::limit(int n_threads) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    limit_.store(n_threads);
  }
  unpark_.notify_all();
}

void Pool::run(int64_t n_tasks, TaskFn fn, void* context) {
  if (n_threads() == 1 || n_tasks <= 1) {
    for (int64_t task = 0; task < n_tasks; ++task) fn(context, task, 0);
    return;
  }
  fn_ = fn;
  context_ = context;
  n_tasks_ = n_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  const uint64_t generation = (state_.load(std::memory_order_relaxed) >> kGeneration) + 1;
  state_.store(generation << kGeneration | kOpen);
  if (sleepers_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  drain(0);
  const uint64_t joined = state_.fetch_and(~kOpen) & kJoined;
  for (int spins = 0; finished_.load(std::memory_order_acquire) != joined; ++spins) {
    if (spins % 1024 == 1023) std::this_thread::yield();
    relax();
  }
}

void Pool::drain(int thread) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= n_tasks_) return;
    fn_(context_, task, thread);
  }
}

void Pool::work(int thread) {
  uint64_t seen = 0;
  while (wait_for_job(thread, seen)) {
    if (!join(&seen)) continue;
    if (thread < n_threads()) drain(thread);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

// Joins the newest job if it is still open. Either way that generation counts as seen, so that a
// worker never enters a job twice.
bool Pool::join(uint64_t* seen) {
  uint64_t state = state_.load(std::memory_order_acquire);
  while ((state & kOpen) != 0) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
      *seen = state >> kGeneration;
      return true;
    }
  }
  *seen = state >> kGeneration;
  return false;
}

// True when a generation newer than `seen` was published, false when the pool ends.
bool Pool::wait_for_job(int thread, uint64_t seen) {
  const auto news = [&] { return state_.load() >> kGeneration != seen || stop_.load(); };
  const auto until = std::chrono::steady_clock::now() + kSpin;
  while (thread < n_threads() && std::chrono::steady_clock::now() < until) {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (news()) return !stop_.load();
      relax();
    }
  }
  std::unique_lock<std::mutex> lock(mutex_);
  unpark_.wait(lock, [&] { return thread < n_threads() || stop_.load(); });
  sleepers_.fetch_add(1);
  wake_.wait(lock, news);
  sleepers_.fetch_sub(1);
  return !stop_.load();
}

void* Pool::scratch(int thread, size_t bytes) {
  Scratch& own = scratch_[static_cast<size_t>(thread)];
  constexpr size_t kLine = 64;
  if (own.bytes < bytes + kLine) {
    own.memory.reset(new std::byte[bytes + kLine]);
    own.bytes = bytes + kLine;
  }
  const auto address = reinterpret_cast<uintptr_t>(own.memory.get());
  return own.memory.get() + (kLine - address % kLine) % kLine;
}

}  // namespace ggh
