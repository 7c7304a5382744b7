// Threads that go through a step together: each phase is cut into items that whoever is free takes, and a barrier stands
// between phases.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace {

// A crew of threads that goes through one piece of work together.
class Crew {
  public:
    explicit Crew(int size) : size(size) {
        try {
            for (int i = 1; i < size; i++) threads.emplace_back([this] { wait_for_work(); });
        } catch (...) {
            // A thread that is still running when its object is destroyed would end the whole process.
            dismiss();
            throw;
        }
    }
    ~Crew() { dismiss(); }
    template <class Work> void run(const Work& work) {
        call = [](const void* w) { (*static_cast<const Work*>(w))(); };
        argument = &work;
        finished = 0;
        begin();
        work();
        // What the work stands on may be gone once this returns.
        patiently([this] { return finished == size - 1; });
    }
    // Items 0 … count−1, each taken by one thread; all are done when anyone goes on.
    template <class Item> void each(int count, const Item& item) {
        for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) item(i);
        barrier();
    }
    const int size;

  private:
    void dismiss() {
        leaving = true;
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
            if (leaving) return;
            call(argument);
            finished++;
        }
    }
    void barrier() {
        unsigned turn = turns.load();
        if (arrived.fetch_add(1) + 1 == size) {
            arrived = 0;
            next = 0;
            turns.fetch_add(1);
            return;
        }
        patiently([&] { return turns != turn; });
    }
    // Spinning is quickest while everyone has a core; whoever waits long gives its own away.
    template <class Happened> void patiently(const Happened& happened) {
        for (int spins = 0; !happened(); spins++)
            if (spins > 20000) std::this_thread::yield();
    }
    std::atomic<unsigned> round{0}, turns{0};
    std::atomic<int> arrived{0}, next{0}, finished{0};
    std::atomic<bool> leaving{false};
    void (*call)(const void*) = nullptr;
    const void* argument = nullptr;
    std::vector<std::thread> threads;
};

}  // namespace
