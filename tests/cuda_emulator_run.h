// Runs the function KERNEL, which has one argument; its source is included between cuda_emulator.h and this file.
template <class A> A argument_of(void (*)(A));
using Argument = decltype(argument_of(KERNEL));
static void __syncthreads() { meet(current->block->all, THREADS + 32); }
static const Argument *argument;

static void run_thread() {
    KERNEL(*argument);
    current->done = true;
    yield();
}

extern "C" void emulate(const Argument *given, bool together) {
    std::vector<Block> blocks(BLOCKS);
    std::vector<Thread> threads(BLOCKS * (THREADS + 32));
    argument = given;
    for (u32 number = 0; number < threads.size(); ++number) {
        Thread &thread = threads[number];
        thread.block_number = number / (THREADS + 32), thread.number = number % (THREADS + 32);
        thread.block = &blocks[thread.block_number];
        if (thread.number == 0) {
            thread.block->memory.reset(new char[SHARED_BYTES]), thread.block->warps.resize(WARPS + 1);
            memset(thread.block->memory.get(), 0xFF, SHARED_BYTES);  // NaN
        }
        thread.stack.reset(new char[1 << 16]);
        getcontext(&thread.context);
        thread.context.uc_stack = {thread.stack.get(), 0, 1 << 16};
        makecontext(&thread.context, run_thread, 0);
    }
    std::mt19937 random;
    u32 first_block = 0;  // that is not done, if they run one after the other
    for (size_t remaining = threads.size(); remaining;)
        for (Thread &thread : threads) {
            if (thread.done || (!together && thread.block_number != first_block) || random() % 2) continue;
            current = &thread;
            swapcontext(&scheduler, &thread.context);
            remaining -= thread.done;
            first_block = (threads.size() - remaining) / (THREADS + 32);
        }
}
