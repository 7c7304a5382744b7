// A thread pool for one step: each phase is divided into items, free threads take the next item, and there is a barrier
// between phases.
#pragma once

#if defined(__wasm__)
#include "thread_pool_wasm.h"
#else
#include <atomic>
#include <thread>
#include <vector>

namespace {

class ThreadPool {
  public:
    explicit ThreadPool(int size) : size(size) {
        try {
            for (int i = 1; i < size; i++) threads.emplace_back([this] { wait_for_work(); });
        } catch (...) {
            // Destroying a running std::thread would end the process.
            stop();
            throw;
        }
    }
    ~ThreadPool() { stop(); }
    // Call `work` in every thread.
    template <class Work> void run(const Work& work) {
        call = [](const void* w) { (*static_cast<const Work*>(w))(); };
        argument = &work;
        finished = 0;
        begin();
        work();
        // `work` may refer to the caller's stack, so wait for all threads.
        wait_until([this] { return finished == size - 1; });
    }
    // Call item(0) … item(count − 1), each in one thread; all are done when this returns.
    template <class Item> void each(int count, const Item& item) {
        for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) item(i);
        barrier();
    }
    const int size;

  private:
    void stop() {
        stopping = true;
        begin();
        for (auto& thread : threads) thread.join();
    }
    void begin() {
        next = 0;
        round.fetch_add(1);
        round.notify_all();
    }
    void wait_for_work() {
        for (unsigned seen = 0;;) {
            round.wait(seen);
            seen = round.load();
            if (stopping) return;
            call(argument);
            finished++;
        }
    }
    void barrier() {
        unsigned turn = turns.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            arrived.store(0, std::memory_order_relaxed);
            next.store(0, std::memory_order_relaxed);
            turns.store(turn + 1, std::memory_order_release);
            return;
        }
        wait_until([&] { return turns.load(std::memory_order_acquire) != turn; });
    }
    // Spinning is fastest while every thread has a core; after a while, yield.
    template <class Condition> void wait_until(const Condition& condition) {
        for (int spins = 0; !condition(); spins++)
            if (spins > 20000) std::this_thread::yield();
    }
    // Each in its own cache line: threads that wait read one of them all the time, while others write the next.
    alignas(64) std::atomic<unsigned> turns{0};
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> next{0};
    alignas(64) std::atomic<unsigned> round{0};
    std::atomic<int> finished{0};
    std::atomic<bool> stopping{false};
    void (*call)(const void*) = nullptr;
    const void* argument = nullptr;
    std::vector<std::thread> threads;
};

}  // namespace
#endif
