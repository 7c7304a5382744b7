// The thread pool in WebAssembly. step.wasm has one thread. step_threads.wasm has shared memory: JavaScript starts the
// other threads (in_page/wasm/threads.js), each of which calls `work_round` again and again.
//
// A thread that waits spins for some microseconds, and then sleeps. A trap in one thread makes all threads trap, so that
// none waits for it forever; `recover` makes the pool usable again.
#pragma once

#include <atomic>

#include "memory_wasm.h"

namespace {

#if !defined(__wasm_atomics__)
class ThreadPool {
  public:
    explicit ThreadPool(int) {}
    template <class Work> void run(const Work& work) {
        computing = true;
        work();
        computing = false;
    }
    void recover() { computing = false; }
    template <class Item> void each(int count, const Item& item) {
        for (int i = 0; i < count; i++) item(i);
    }
    const int size = 1;
};
#else
constexpr int SPINS = 2000;

class ThreadPool {
  public:
    explicit ThreadPool(int size) : size(size), finished(size - 1) {}
    // Call `work` in every thread.
    template <class Work> void run(const Work& work) {
        call = [](const void* w) { (*static_cast<const Work*>(w))(); };
        argument = &work;
        finished = 0;
        next = 0;
        computing = true;
        add(round);
        work();
        // `work` may refer to the caller's stack, so wait for all threads.
        wait_for_others();
        if (failed) __builtin_trap();
        computing = false;
    }
    // Call item(0) … item(count − 1), each in one thread; all are done when this returns.
    template <class Item> void each(int count, const Item& item) {
        for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) item(i);
        barrier();
    }
    // Of the other threads: wait for a call of `run` after round `seen`, and take part in it. Returns its round.
    int work_round(int seen) {
        while (round == seen) wait_while(round, seen);
        call(argument);
        return finish_round();
    }
    // After a trap in `work_round`: make all threads leave their work. Returns the round.
    int abandon_round() {
        fail();
        return finish_round();
    }
    // After a trap in `run`, or before it: when this returns, the other threads wait for the next call.
    void recover() {
        fail();
        wait_for_others();
        arrived = 0;
        failed = computing = false;
    }
    const int size;

  private:
    int finish_round() {
        int seen = round;  // the next round begins only when this thread has finished
        add(finished);
        return seen;
    }
    void fail() {
        failed = true;
        add(turns);
    }
    void wait_for_others() {
        for (int count; (count = finished) != size - 1;) wait_while(finished, count);
    }
    void barrier() {
        int turn = turns;
        if (arrived.fetch_add(1) + 1 == size) {
            arrived = 0;
            next = 0;
            add(turns);
        } else if (!failed) {
            wait_while(turns, turn);
        }
        if (failed) __builtin_trap();
    }
    // Sleeping and waking take longer than most waits, so spin first.
    void wait_while(std::atomic<int>& number, int value) {
        for (int spins = 0; spins < SPINS; spins++)
            if (number.load() != value) return;
        sleeping.fetch_add(1);
        while (number.load() == value) __builtin_wasm_memory_atomic_wait32(address(number), value, -1);
        sleeping.fetch_sub(1);
    }
    void add(std::atomic<int>& number) {
        number.fetch_add(1);
        if (sleeping.load()) __builtin_wasm_memory_atomic_notify(address(number), size);
    }
    static int* address(std::atomic<int>& number) { return reinterpret_cast<int*>(&number); }
    std::atomic<int> round{0}, turns{0}, arrived{0}, next{0}, finished, sleeping{0};
    std::atomic<bool> failed{false};
    void (*call)(const void*) = nullptr;
    const void* argument = nullptr;
};

#endif

}  // namespace

extern "C" {

void recover(ThreadPool* pool) { pool->recover(); }
#if defined(__wasm_atomics__)
int work_round(ThreadPool* pool, int seen) { return pool->work_round(seen); }
int abandon_round(ThreadPool* pool) { return pool->abandon_round(); }
#endif

}
