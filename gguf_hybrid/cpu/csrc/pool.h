// One thread pool for every kernel: a job is n tasks, handed out one by one from an atomic counter.
//
// The caller takes part and never waits for a worker that has not woken up yet: a worker joins a
// job that is still open or goes back to sleep. Jobs must not nest; one caller at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace ggh {

class Pool {
 public:
  using TaskFn = void (*)(void* context, int64_t task, int thread);

  explicit Pool(int n_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Threads that take part in a job, the caller included.
  int n_threads() const { return limit_.load(std::memory_order_relaxed); }
  // Workers beyond the limit sleep until it is raised again.
  void limit(int n_threads);
  // Threads of the pool, the caller included.
  int size() const { return static_cast<int>(scratch_.size()); }

  // Calls fn(task, thread) for each task in [0, n_tasks), in any order, 0 <= thread < n_threads();
  // thread 0 is the caller. Returns when all are done. Costs about a microsecond while the workers
  // still spin.
  template <class Fn>
  void parallel_for(int64_t n_tasks, Fn&& fn) {
    using Body = std::remove_reference_t<Fn>;
    run(n_tasks, [](void* c, int64_t task, int thread) { (*static_cast<Body*>(c))(task, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }
  void run(int64_t n_tasks, TaskFn fn, void* context);

  // Working memory of one thread, 64-byte aligned, grow-only. Its contents last until the next call
  // for the same thread; a task may ask only for its own thread's.
  void* scratch(int thread, size_t bytes);

 private:
  struct Scratch {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };

  void work(int thread);
  bool wait_for_job(int thread, uint64_t seen);
  bool join(uint64_t* seen);
  void drain(int thread);

  // state_: generation << 16 | open << 15 | joined workers.
  static constexpr uint64_t kOpen = uint64_t{1} << 15;
  static constexpr uint64_t kJoined = kOpen - 1;
  static constexpr int kGeneration = 16;

  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<uint64_t> finished_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  TaskFn fn_ = nullptr;
  void* context_ = nullptr;
  int64_t n_tasks_ = 0;
  std::atomic<int> limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable unpark_;
  std::vector<Scratch> scratch_;
  std::vector<std::thread> workers_;
};

}  // namespace ggh

struct ggh_pool : ggh::Pool {
  using ggh::Pool::Pool;
};
