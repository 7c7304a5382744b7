// Cross-entropy of rows of logits, which are replaced by their gradient. Each row is read from memory once.
//
// A block keeps a row in shared memory, in chunks. One warp copies the chunks; the others compute the loss, then the
// gradient. When all have read a chunk for its gradient, the same chunk of the block's next row is copied.

constexpr int THREADS = 32 * WARPS;                                     // that compute
constexpr int VECTORS = PADDED / 8, VECTORS_PER_THREAD = 2;             // of eight logits: in a row, and in a chunk
constexpr int CHUNK = VECTORS_PER_THREAD * THREADS, CHUNKS = (VECTORS + CHUNK - 1) / CHUNK;
constexpr float LOG2_E = 1.4426950408889634f, LOWEST = -1e30f;

struct Arguments {
    u16 *logits;  // [count, PADDED]
    const i64 *labels;
    float *losses;
    i64 count, ignored;
    float smoothing;
};

struct Shared {
    alignas(128) uint4 row[VECTORS];
    u64 full[CHUNKS], empty[CHUNKS];
    alignas(16) float most[WARPS], total[WARPS], logits[WARPS];  // the sums of each warp
};

static_assert(sizeof(Shared) <= SHARED_BYTES);

__device__ Shared &shared() { return *reinterpret_cast<Shared *>(shared_memory()); }

__device__ void copy_rows(const Arguments &given) {
    u32 parity = 0;
    u64 policy = read_once();
    for (i64 row = blockIdx.x; row < given.count; row += BLOCKS, parity ^= 1)
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            int first = chunk * CHUNK, bytes = 16 * (VECTORS - first < CHUNK ? VECTORS - first : CHUNK);
            wait(&shared().empty[chunk], parity ^ 1);
            expect_bytes(&shared().full[chunk], bytes);
            copy(reinterpret_cast<char *>(shared().row + first), given.logits + row * PADDED + 8 * i64(first), bytes,
                 &shared().full[chunk], policy);
        }
}

// Eight logits in units of log 2, those of the padding far below all others.
__device__ void read_logits(int vector, float (&z)[8]) {
    uint4 words = shared().row[vector];
    z[0] = widen(words.x), z[1] = widen_upper(words.x), z[2] = widen(words.y), z[3] = widen_upper(words.y);
    z[4] = widen(words.z), z[5] = widen_upper(words.z), z[6] = widen(words.w), z[7] = widen_upper(words.w);
    for (int j = 0; j < 8; ++j) z[j] *= LOG2_E;
    if (8 * vector + 8 > VOCABULARY)
        for (int j = 0; j < 8; ++j)
            if (8 * vector + j >= VOCABULARY) z[j] = LOWEST;
}

// Sums over a row: total = Σ 2^(z − most), and logits = Σ z.
struct Sums {
    float most = LOWEST, total = 0.0f, logits = 0.0f;

    __device__ void add(int vector) {
        float z[8], higher = most;
        read_logits(vector, z);
        for (int j = 0; j < 8; ++j) higher = fmaxf(higher, z[j]);
        total *= power_of_two(most - higher), most = higher;
        for (int j = 0; j < 8; ++j) total += power_of_two(z[j] - most);
        if (SMOOTHED)
            for (int j = 0; j < 8; ++j) logits += 8 * vector + j < VOCABULARY ? z[j] : 0.0f;
    }

    __device__ void add(float other_most, float other_total, float other_logits) {
        float higher = fmaxf(most, other_most);
        total = total * power_of_two(most - higher) + other_total * power_of_two(other_most - higher);
        most = higher, logits += other_logits;
    }

    // Add the sums of all other threads. The sums of the next row cannot overwrite these too early: its copies wait until
    // every warp has arrived at `empty`, which is after it has read them.
    __device__ void join() {
        for (int distance = 16; distance; distance /= 2)
            add(__shfl_xor_sync(~0u, most, distance), __shfl_xor_sync(~0u, total, distance),
                __shfl_xor_sync(~0u, logits, distance));
        int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0)
            shared().most[warp] = most, shared().total[warp] = total, shared().logits[warp] = logits;
        synchronize(THREADS);
        *this = Sums();
        for (int w = 0; w < WARPS; ++w) add(shared().most[w], shared().total[w], shared().logits[w]);
    }
};

__device__ uint4 differentiate(int vector, i64 label, bool known, float log_sum, float smoothing) {
    float z[8];
    read_logits(vector, z);
    for (int j = 0; j < 8; ++j) {
        z[j] = power_of_two(z[j] - log_sum);
        if (SMOOTHED) z[j] -= 8 * vector + j < VOCABULARY ? smoothing / VOCABULARY : 0.0f;
    }
    if (label / 8 == vector)
        for (int j = 0; j < 8; ++j)
            if (label % 8 == j) z[j] -= 1.0f - smoothing;
    if (!known) return {0, 0, 0, 0};
    return {narrow(z[0], z[1]), narrow(z[2], z[3]), narrow(z[4], z[5]), narrow(z[6], z[7])};
}

__device__ void compute_rows(const Arguments &given) {
    u32 parity = 0;
    int thread = threadIdx.x;
    for (i64 row = blockIdx.x; row < given.count; row += BLOCKS, parity ^= 1) {
        i64 label = given.labels[row];
        bool known = label != given.ignored;
        Sums sums;
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            wait(&shared().full[chunk], parity);
#pragma unroll
            for (int i = 0; i < VECTORS_PER_THREAD; ++i) {
                int vector = chunk * CHUNK + i * THREADS + thread;
                if (vector < VECTORS) sums.add(vector);
            }
        }
        sums.join();
        float log_sum = sums.most + log2f(sums.total);
        if (thread == 0) {
            float chosen = known ? widen(reinterpret_cast<const u16 *>(shared().row)[label]) : 0.0f;
            float mean = SMOOTHED ? sums.logits / VOCABULARY : 0.0f;
            float loss = (log_sum - given.smoothing * mean) / LOG2_E - (1.0f - given.smoothing) * chosen;
            given.losses[row] = known ? loss : 0.0f;
        }
        uint4 *to = reinterpret_cast<uint4 *>(given.logits + row * PADDED);
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            uint4 found[VECTORS_PER_THREAD];
#pragma unroll
            for (int i = 0; i < VECTORS_PER_THREAD; ++i) {
                int vector = chunk * CHUNK + i * THREADS + thread;
                if (vector < VECTORS) found[i] = differentiate(vector, label, known, log_sum, given.smoothing);
            }
            __syncwarp();
            if (thread % 32 == 0) arrive(&shared().empty[chunk]);
#pragma unroll
            for (int i = 0; i < VECTORS_PER_THREAD; ++i) {
                int vector = chunk * CHUNK + i * THREADS + thread;
                if (vector < VECTORS) to[vector] = found[i];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, BLOCKS_PER_SM)
    replace_logits(const __grid_constant__ Arguments given) {
    if (threadIdx.x == 0) {
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            start_barrier(&shared().full[chunk], 1), start_barrier(&shared().empty[chunk], WARPS);
        show_barriers();
    }
    __syncthreads();
    if (threadIdx.x < THREADS) compute_rows(given);
    else if (threadIdx.x == THREADS) copy_rows(given);
}
