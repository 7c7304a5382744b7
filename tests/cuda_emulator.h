// Runs a CUDA kernel on the CPU, slowly: every thread of every block is a coroutine, and one runs until it has to wait.
// Each turn, a random half of them run.
//
// It stands for chumoku/nn/instructions.cu, and for CUDA's own names that the kernels use.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
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
struct int2 { int x, y; };
struct float4 { float x, y, z, w; };
struct ulonglong2 { u64 x, y; };

constexpr int MOST_SPINS = 1 << 13;

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
    u32 values[2][32][6];
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

static int thread_number() { return current->number; }
static int block_number() { return current->block_number; }
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

// What the lanes of a warp give, one after the other; valid until the exchange after the next.
static u32 (*exchange(const u32 *given, int count))[6] {
    u32(*values)[6] = warp().values[current->exchanges++ % 2];
    memcpy(values[current->number % 32], given, 4 * count);
    __syncwarp();
    return values;
}

template <class T> static T from_lane(T x, u32 lane) {
    u32 bits;
    memcpy(&bits, &x, 4);
    T y;
    memcpy(&y, exchange(&bits, 1)[lane], 4);
    return y;
}
template <class T> static T __shfl_xor_sync(u32, T x, int distance) {
    return from_lane(x, current->number % 32 ^ distance);
}
template <class T> static T __shfl_sync(u32, T x, int lane) { return from_lane(x, lane); }
template <class T> static T __shfl_down_sync(u32, T x, int distance) {
    u32 lane = current->number % 32 + distance;
    return from_lane(x, lane < 32 ? lane : current->number % 32);
}

static bool is_elected() { __syncwarp(); return current->number % 32 == 5; }
static bool any_lane(bool x) {
    u32 bits = x, (*values)[6] = exchange(&bits, 1), found = 0;
    for (int lane = 0; lane < 32; ++lane) found |= values[lane][0];
    return found;
}

static float __uint_as_float(u32 bits) { float y; memcpy(&y, &bits, 4); return y; }
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static int __float2int_rn(float x) { return int(lrintf(x)); }
static float __fdividef(float a, float b) { return a / b; }
#define __expf expf
#define __logf logf
static float power_of_two(float x) { return exp2f(x); }
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
static void arrive(u64 *at) {
    Barrier &barrier = current->block->barriers[at];
    --barrier.pending, barrier.check();
    yield();
}
static void expect_bytes(u64 *at, u32 bytes) { current->block->barriers[at].bytes += bytes, arrive(at); }
static void wait(u64 *at, u32 parity) {
    for (int spins = 0; current->block->barriers[at].turn == parity; ++spins) {
        if (spins > MOST_SPINS) __trap();
        yield();
    }
}

static uint4 load_if(bool there, const char *at) {
    uint4 v = {0, 0, 0, 0};
    if (there) memcpy(&v, at, 16);
    return v;
}

static u64 read_once() { return 0; }
static u64 read_again() { return 0; }
static void copy(char *to, const void *from, u32 bytes, u64 *at, u64) {
    if (u64(to) % 16 || u64(from) % 16 || bytes % 16) abort();  // as the GPU would
    yield();
    memcpy(to, from, bytes);
    Barrier &barrier = current->block->barriers[at];
    barrier.bytes -= bytes, barrier.check();
}

static void load_words_if(bool missing, const u64 *at, ulonglong2 &two) { yield(); if (missing) two = {at[0], at[1]}; }
static void load_word_if(bool missing, const u64 *at, u64 &word) { yield(); if (missing) word = *at; }
static void send_word(u64 *at, u32 tag, u32 content) { *at = u64(tag) << 32 | content; }

// c += a b: `element` reads element k of a register of a, `other` of b. A lane has rows lane / 4 and lane / 4 + 8 of a,
// and column lane / 4 of b.
template <class T, class A, class B>
static void multiply_tiles(T (&c)[4], const u32 (&given)[6], int per_word, A element, B other) {
    u32(*values)[6] = exchange(given, 6);
    int lane = current->number % 32;
    for (int n = 0; n < 4; ++n) {
        int row = lane / 4, column = lane % 4 * 2 + n % 2;
        for (int i = 0; i < 4; ++i)
            for (int k = 0; k < per_word; ++k)
                for (int half = 0; half < 2; ++half)
                    c[n] += element(values[4 * row + i][n / 2 + 2 * half], k) *
                            other(values[4 * column + i][4 + half], k);
    }
}
static int signed_byte(u32 word, int k) { return int8_t(word >> 8 * k); }
static void multiply_bytes(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    multiply_tiles(c, {a0, a1, a2, a3, b0, b1}, 4, signed_byte, signed_byte);
}
static void multiply_unsigned(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    auto byte = [](u32 word, int k) { return int(uint8_t(word >> 8 * k)); };
    multiply_tiles(c, {a0, a1, a2, a3, b0, b1}, 4, byte, signed_byte);
}
static void multiply_floats(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    auto element = [](u32 word, int k) { return widen(word >> 16 * k); };
    multiply_tiles(c, {a0, a1, a2, a3, b0, b1}, 2, element, element);
}

template <class T> static T atomicMax(T *at, T x) { T before = *at; if (x > before) *at = x; return before; }
static u32 atomicAdd(u32 *at, u32 x) { u32 before = *at; *at += x; return before; }
static u64 atomicExch(u64 *at, u64 x) { u64 before = *at; *at = x; return before; }
static void __threadfence() {}

static void __syncthreads();
