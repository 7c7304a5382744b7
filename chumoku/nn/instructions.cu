// What our kernels need of the GPU that CUDA C++ has no function for: instructions of Hopper and later.

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr int MOST_SPINS = 1 << 23;  // some seconds: then something is wrong

extern __shared__ __align__(128) char memory[];
__device__ char *shared_memory() { return memory; }

// The numbers of this thread and block, read again each time: the compiler cannot keep what is computed from them in
// registers until the next layer, where it would need too many.
__device__ int thread_number() {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

__device__ int block_number() {
    int number;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
}

// ---- 16-bit floats

__device__ float widen(u32 bits) {  // the lower half of `bits`
#if FLOAT16
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(u16(bits)));
    return y;
#else
    return __uint_as_float(bits << 16);
#endif
}

__device__ float widen_upper(u32 bits) {
#if FLOAT16
    return widen(bits >> 16);
#else
    return __uint_as_float(bits & 0xFFFF0000u);
#endif
}

__device__ u32 narrow(float lower, float upper) {
    u32 bits;
#if FLOAT16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(upper), "f"(lower));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(upper), "f"(lower));
#endif
    return bits;
}

__device__ float half_to_float(u16 bits) {  // scales are always float16
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
    return y;
}

__device__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- barriers in shared memory

__device__ u32 address(const void *at) { return u32(__cvta_generic_to_shared(at)); }

// Wait for the other threads that compute.
__device__ void synchronize(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

__device__ void start_barrier(u64 *barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count));
}

// Make new barriers visible to copies.
__device__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Whether a barrier has completed the turn with this parity. It may wait a short time first.
__device__ bool is_complete(u64 *barrier, u32 parity) {
    u32 done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(address(barrier)), "r"(parity) : "memory");
    return done;
}

// Wait until a barrier has completed this turn.
__device__ void wait(u64 *barrier, u32 parity) {
    if (is_complete(barrier, parity)) return;  // mostly; without counting, this is short
    for (int spins = 0; !is_complete(barrier, parity); ++spins)
        if (spins > MOST_SPINS) __trap();
}

// Arrive at a barrier, which also waits for this many bytes.
__device__ void expect_bytes(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(address(barrier)), "r"(bytes) : "memory");
}

__device__ void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// True for exactly one lane; all 32 lanes must call it together. The compiler then knows that one lane runs the branch. It
// turns a copy that several lanes may run into a loop over the lanes, with 75 cycles for each copy.
__device__ bool is_elected() {
    u32 elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected;
}

// Whether x is true in a lane of the warp.
__device__ bool any_lane(bool x) { return __any_sync(~0u, x); }

// ---- memory that blocks share

__device__ void load_words_if(bool missing, const u64 *at, ulonglong2 &two) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];\n}"
                 : "+l"(two.x), "+l"(two.y) : "l"(at), "r"(u32(missing)) : "memory");
}

__device__ void load_word_if(bool missing, const u64 *at, u64 &word) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.relaxed.gpu.global.u64 %0, [%1];\n}"
                 : "+l"(word) : "l"(at), "r"(u32(missing)) : "memory");
}

__device__ void send_word(u64 *at, u32 tag, u32 content) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(u64(tag) << 32 | content) : "memory");
}

// 16 bytes, or zeros.
__device__ uint4 load_if(bool there, const char *at) {
    return there ? *reinterpret_cast<const uint4 *>(at) : uint4{0, 0, 0, 0};
}

// ---- copies to shared memory

// The cache need not keep what is copied with this policy.
__device__ u64 read_once() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// For keys and values, which several blocks read.
__device__ u64 read_again() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ void copy(char *to, const void *from, u32 bytes, u64 *barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;"
                 ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(barrier)), "l"(policy) : "memory");
}

// ---- matrix instructions: c += a b, with a [16, 32 bytes] and b [32 bytes, 8]

__device__ void multiply_bytes(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                 " {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// With a unsigned.
__device__ void multiply_unsigned(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                 " {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ void multiply_floats(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if FLOAT16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
#endif
                 " {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
