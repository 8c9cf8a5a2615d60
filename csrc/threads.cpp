#include "threads.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int SPINS = 2000;  // some 50 microseconds: longer than what lies between the loops of a step

void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// One loop at a time. `ticket` says which, and how many of its ranges were claimed: loop number in the upper half, next
// range in the lower. A range is claimed by adding one to the ticket that was read, which fails if the loop is another
// by now; so what was read of the loop in between is that loop's. While fields change, the ticket is CLOSED.
class Pool {
  public:
    void run(int64_t count, int64_t chunk, int64_t threads, void (*function)(void*, int64_t, int64_t), void* context) {
        const int64_t ranges = (count + chunk - 1) / chunk;
        std::unique_lock<std::mutex> alone(caller_, std::try_to_lock);
        if (threads < 2 || ranges < 2 || !alone.owns_lock()) {
            if (count > 0) function(context, 0, count);
            return;
        }
        while (workers_ < threads - 1) {
            std::thread(&Pool::work, this, ++workers_).detach();
        }
        const uint64_t loop = (ticket_.load() >> 32) + 1;
        ticket_.store(loop << 32 | CLOSED);
        function_.store(function);
        context_.store(context);
        count_.store(count);
        chunk_.store(chunk);
        helpers_.store(threads - 1);
        done_.store(0);
        ticket_.store(loop << 32);
        if (sleepers_.load() > 0) {
            std::lock_guard<std::mutex> guard(sleep_);
            wake_.notify_all();
        }
        while (take_range()) {
        }
        while (done_.load(std::memory_order_acquire) < ranges) pause_briefly();
    }

  private:
    static constexpr uint64_t CLOSED = 0xffffffff;

    std::mutex caller_, sleep_;
    std::condition_variable wake_;
    std::atomic<uint64_t> ticket_{CLOSED};
    std::atomic<void (*)(void*, int64_t, int64_t)> function_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<int64_t> count_{0}, chunk_{1}, helpers_{0}, done_{0};
    std::atomic<int> sleepers_{0};
    int64_t workers_ = 0;

    // Do one range of the current loop; false if none is left.
    bool take_range() {
        uint64_t ticket = ticket_.load();
        while ((ticket & CLOSED) != CLOSED) {
            const auto function = function_.load(std::memory_order_relaxed);
            void* const context = context_.load(std::memory_order_relaxed);
            const int64_t count = count_.load(std::memory_order_relaxed), chunk = chunk_.load(std::memory_order_relaxed);
            const int64_t begin = int64_t(ticket & CLOSED) * chunk;
            if (begin >= count) return false;
            if (ticket_.compare_exchange_weak(ticket, ticket + 1)) {
                function(context, begin, std::min(begin + chunk, count));
                done_.fetch_add(1, std::memory_order_release);
                return true;
            }
        }
        return false;
    }

    bool has_range() const {
        const uint64_t ticket = ticket_.load();
        return (ticket & CLOSED) != CLOSED && int64_t(ticket & CLOSED) * chunk_.load() < count_.load();
    }

    void work(int64_t number) {
        for (int idle = 0;; idle++) {
            if (number <= helpers_.load() && take_range()) {
                idle = 0;
            } else if (idle < SPINS) {
                pause_briefly();
            } else {
                std::unique_lock<std::mutex> guard(sleep_);
                sleepers_++;
                wake_.wait(guard, [&] { return number <= helpers_.load() && has_range(); });
                sleepers_--;
                idle = 0;
            }
        }
    }
};

// Never destroyed: its threads may still be asleep in it when the process ends.
Pool& pool() {
    static Pool* const shared = new Pool;
    return *shared;
}

}  // namespace

void share_ranges(int64_t count, int64_t chunk, int64_t threads, void (*function)(void*, int64_t, int64_t),
                  void* context) {
    pool().run(count, chunk, threads, function, context);
}

int64_t torch_threads() { return omp_get_max_threads(); }
