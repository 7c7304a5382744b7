// Runs a CUDA kernel on the CPU, slowly: every thread of every block is a coroutine, and one runs until it has to wait.
//
// It stands for chumoku/decoding/engines/gpu/instructions.cu, and for CUDA's own names that step.cu uses.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct ulonglong2 { u64 x, y; };

constexpr int MOST_SPINS = 1 << 20;

struct Meeting {  // of a number of threads; each time they meet is a turn
    u32 arrived = 0, turn = 0;
};

struct Barrier {
    u32 count = 0, pending = 0, turn = 0;
    i64 bytes = 0;

    void check() {
        if (pending == 0 && bytes == 0) pending = count, turn ^= 1;
    }
};

struct Warp {
    Meeting meeting;
    u32 values[2][32];
};

struct Block {
    std::unique_ptr<char[]> memory;
    Meeting all, computing;
    std::vector<Warp> warps;
    std::map<u64 *, Barrier> barriers;
};

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    u32 number;
    Block *block;
    u32 block_number;
    bool done = false;
    u32 exchanges = 0;
};

static Thread *current;
static ucontext_t scheduler;
struct Index { u32 x; };
#define threadIdx (Index{current->number})
#define blockIdx (Index{current->block_number})

static void yield() { swapcontext(&current->context, &scheduler); }

static void meet(Meeting &meeting, u32 count) {
    u32 turn = meeting.turn;
    if (++meeting.arrived == count) meeting.arrived = 0, ++meeting.turn;
    while (meeting.turn == turn) yield();
}

static Warp &warp() { return current->block->warps[current->number / 32]; }
static char *shared_memory() { return current->block->memory.get(); }
static void synchronize(int threads) { meet(current->block->computing, threads); }
static void __syncwarp() { meet(warp().meeting, 32); }
[[noreturn]] static void __trap() { abort(); }

template <class T> static T from_lane(T x, u32 lane) {
    u32 *values = warp().values[current->exchanges++ % 2];  // valid until the exchange after the next
    memcpy(values + current->number % 32, &x, 4);
    __syncwarp();
    memcpy(&x, values + lane, 4);
    return x;
}
template <class T> static T __shfl_xor_sync(u32, T x, int distance) {
    return from_lane(x, current->number % 32 ^ distance);
}
template <class T> static T __shfl_sync(u32, T x, int lane) { return from_lane(x, lane); }
template <class T> static T __shfl_down_sync(u32, T x, int distance) {
    u32 lane = current->number % 32 + distance;
    return from_lane(x, lane < 32 ? lane : current->number % 32);
}

static float __uint_as_float(u32 bits) { float y; memcpy(&y, &bits, 4); return y; }
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static int __float2int_rn(float x) { return int(lrintf(x)); }
static float __fdividef(float a, float b) { return a / b; }
#define __expf expf
#define __logf logf
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static u32 __byte_perm(u32 a, u32 b, u32 selector) {
    u64 both = u64(b) << 32 | a;
    u32 y = 0;
    for (int i = 0; i < 4; ++i) y |= u32(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return y;
}

static float half_to_float(u16 bits) { _Float16 y; memcpy(&y, &bits, 2); return float(y); }
#if FLOAT16
static float widen(u32 bits) { return half_to_float(u16(bits)); }
static float widen_upper(u32 bits) { return widen(bits >> 16); }
static u32 narrow_one(float x) { _Float16 y = _Float16(x); u16 bits; memcpy(&bits, &y, 2); return bits; }
#else
static float widen(u32 bits) { return __uint_as_float(bits << 16); }
static float widen_upper(u32 bits) { return __uint_as_float(bits & 0xFFFF0000u); }
static u32 narrow_one(float x) { u32 bits = __float_as_uint(x); return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16; }
#endif
static u32 narrow(float lower, float upper) { return narrow_one(upper) << 16 | narrow_one(lower); }

static void start_barrier(u64 *barrier, u32 count) { current->block->barriers[barrier] = {count, count}; }
static void show_barriers() {}
static void arrive(u64 *at) { Barrier &barrier = current->block->barriers[at]; --barrier.pending, barrier.check(); }
static void expect_bytes(u64 *at, u32 bytes) { current->block->barriers[at].bytes += bytes, arrive(at); }
static void wait(u64 *at, u32 parity) { while (current->block->barriers[at].turn == parity) yield(); }

static u64 read_once() { return 0; }
static void copy(char *to, const char *from, u32 bytes, u64 *at, u64) {
    if (u64(to) % 16 || u64(from) % 16 || bytes % 16) abort();  // as the GPU would
    yield();
    memcpy(to, from, bytes);
    Barrier &barrier = current->block->barriers[at];
    barrier.bytes -= bytes, barrier.check();
}

static ulonglong2 load_words(const u64 *at) { yield(); return {at[0], at[1]}; }
static u64 load_word(const u64 *at) { yield(); return *at; }
static void send_word(u64 *at, u32 tag, u32 content) { *at = u64(tag) << 32 | content; }

static int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += int8_t(a >> i) * int8_t(b >> i);
    return c;
}

static void __syncthreads();
