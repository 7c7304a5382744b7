// What step.cu needs of the GPU that CUDA C++ has no function for: instructions of Hopper and later.

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr int MOST_SPINS = 1 << 23;  // some seconds: then something is wrong

extern __shared__ __align__(128) char memory[];
__device__ char *shared_memory() { return memory; }

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

// ---- barriers in shared memory

__device__ u32 address(const void *at) { return u32(__cvta_generic_to_shared(at)); }

// Wait for the other threads that compute.
__device__ void synchronize(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

__device__ void start_barrier(u64 *barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count));
}

// Make new barriers visible to copies.
__device__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Wait until a barrier has completed the turn with this parity.
__device__ void wait(u64 *barrier, u32 parity) {
    u32 done = 0;
    for (int spins = 0; !done; ++spins) {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(address(barrier)), "r"(parity) : "memory");
        if (spins > MOST_SPINS) __trap();
    }
}

// Arrive at a barrier, which also waits for this many bytes.
__device__ void expect_bytes(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(address(barrier)), "r"(bytes) : "memory");
}

__device__ void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// ---- memory that blocks share

__device__ ulonglong2 load_words(const u64 *at) {
    ulonglong2 two;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(two.x), "=l"(two.y) : "l"(at) : "memory");
    return two;
}

__device__ u64 load_word(const u64 *at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}

__device__ void send_word(u64 *at, u32 tag, u32 content) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(u64(tag) << 32 | content) : "memory");
}

// ---- copies to shared memory

// The cache need not keep what is copied with this policy.
__device__ u64 read_once() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ void copy(char *to, const char *from, u32 bytes, u64 *barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;"
                 ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(barrier)), "l"(policy) : "memory");
}
