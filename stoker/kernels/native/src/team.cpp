// The team is torch's own where its OpenMP runtime has GOMP_parallel: a second set of threads would fight the first for
// the cores, because both spin for a while after each piece of work. Elsewhere it is a small pool.
#include "team.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace stoker {
namespace {

using GompParallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

struct Job {
    int64_t count;
    void (*item)(void* context, int64_t index);
    void* context;
    std::atomic<int64_t> next{0};
};

void work(void* data) {
    Job& job = *static_cast<Job*>(data);
    for (int64_t index; (index = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;)
        job.item(job.context, index);
}

// Threads that sleep between jobs. Those that wake too late for one are not waited for.
class Pool {
public:
    explicit Pool(int threads) {
        for (int i = 1; i < threads; ++i) std::thread([this] { serve(); }).detach();
    }

    void run(Job& job) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            job_ = &job;
            ++round_;
        }
        wake_.notify_all();
        work(&job);
        std::unique_lock<std::mutex> lock(mutex_);
        job_ = nullptr;
        done_.wait(lock, [this] { return busy_ == 0; });
    }

private:
    [[noreturn]] void serve() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return job_ != nullptr && round_ != seen; });
            seen = round_;
            Job& job = *job_;
            ++busy_;
            lock.unlock();
            work(&job);
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    Job* job_ = nullptr;
    uint64_t round_ = 0;
    int busy_ = 0;
};

GompParallel gomp_parallel = nullptr;
Pool* pool = nullptr;

}  // namespace

void share(int64_t count, void (*item)(void* context, int64_t index), void* context) {
    Job job{count, item, context};
    if (count > 1 && gomp_parallel != nullptr)
        gomp_parallel(work, &job, 0, 0);
    else if (count > 1 && pool != nullptr)
        pool->run(job);
    else
        work(&job);
}

}  // namespace stoker

// `gomp` is the address of GOMP_parallel in the runtime that torch has loaded, or null for a pool of `threads`. Called
// once, before any kernel. The pool lives as long as the process: its threads sleep on it.
extern "C" __attribute__((visibility("default"))) void stoker_team(void* gomp, int threads) {
    stoker::gomp_parallel = reinterpret_cast<stoker::GompParallel>(gomp);
    if (gomp == nullptr && threads > 1 && stoker::pool == nullptr) stoker::pool = new stoker::Pool(threads);
}
