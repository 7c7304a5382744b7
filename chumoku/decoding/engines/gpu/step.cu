// One decoding step of one row: all layers and the logits in one kernel.
//
// The outputs of every matrix are divided among BLOCKS blocks, one on each multiprocessor. One thread of a block copies
// the block's rows of all matrices, in the order of their use, to a ring of buffers in shared memory. It waits for
// nothing but a free buffer. The other warps wait for the inputs of a product, and multiply.
//
// Blocks exchange vectors without a barrier: a word is two 16-bit numbers and a tag, the number of the layer since the
// engine was opened. A block reads the words of its inputs until all have the tag of this layer. Every vector needs all
// words of the one before, so when a word is written again, all blocks have read it.
//
//     project    q, k, v = W norm(x) + b
//     attend     softmax(q Kᵀ) V, for each head; a long past in PARTS parts
//     output     x ← x + W Σ exp(l_i) o_i / Σ exp(l_i) + b        from the parts, with logarithms l of their sums
//     up         h = f(W norm(x) + b), or with a gate f(W norm(x) + b) ⊙ (W' norm(x) + b')
//     down       x ← x + W h + b
//
// Quantized weights and the rounding of inputs are defined in nn/quantized.py. Sizes are defined by the caller.

constexpr int THREADS = 32 * WARPS;              // that compute; one more warp copies
constexpr int FLOATS = 16, INT4 = 4;             // kinds of weights, by their bits; the third is int8
constexpr int GROUP = 32, GROUP_WORDS = 20;      // inputs of a group, and its words in shared memory
constexpr float LEVELS = 32512.0f, TINY = 1e-30f;
constexpr float LOWEST = -1e30f;                 // below all scores

struct Matrix {
    const char *codes, *scale, *low;
    const float *bias;
};

struct Norm {
    const float *gamma, *beta;
};

struct Layer {
    Matrix projection, output, up, down;
    Norm attention_norm, feedforward_norm;
    u16 *keys, *values;  // [G, C, K]
};

struct Step {
    const Layer *layers;
    Matrix logits;
    Norm norm;
    const u16 *x;                  // [D]
    const i64 *position;
    const float *cosines, *sines;  // [C + 1, ROTATED / 2]
    u64 *words;
    u32 *counter;                  // the tag of the first layer
    u16 *out;                      // logits
    i64 capacity;
    float scale, epsilon;
};

__device__ constexpr int largest(int a, int b) { return a > b ? a : b; }

template <int BITS, int INPUTS_, int OUTPUTS_, int HALVES_>
struct Shape {
    static constexpr int KIND = BITS, INPUTS = INPUTS_, OUTPUTS = OUTPUTS_;
    static constexpr int HALVES = HALVES_;                                        // with a gate two, else one
    static constexpr int CODES = INPUTS * BITS / 8;                               // bytes of a row
    static constexpr int SCALES = BITS == FLOATS ? 0 : INPUTS / 16, LOWS = BITS == INT4 ? INPUTS / 16 : 0;
    static constexpr int ROW = CODES + SCALES + LOWS;
    static constexpr int PAIRS = (OUTPUTS + 1) / 2, MOST = 2 * ((PAIRS + BLOCKS - 1) / BLOCKS);  // outputs of a block
    static constexpr int SHARED = (INPUTS + 1023) / 1024;                         // warps that share a row
    static constexpr int SLOTS = WARPS / SHARED;                                  // rows, or sets of them, at once
    static constexpr int LANES = BITS == FLOATS ? 32 : 16;                        // of a warp for one row
    static constexpr int TOGETHER = 32 / LANES, AT_ONCE = SLOTS * TOGETHER;       // rows of a warp, and of all
    static constexpr int FIT = STAGE / (HALVES * ROW), GOOD = largest(1, AT_ONCE / HALVES);
    static constexpr int ROWS = FIT < GOOD ? FIT : GOOD;                          // outputs of a tile, in each half
    static constexpr int TURNS = (HALVES * ROWS + AT_ONCE - 1) / AT_ONCE;
    static constexpr int SCALE_AT = HALVES * ROWS * CODES, LOW_AT = SCALE_AT + HALVES * ROWS * SCALES;
    static constexpr int GROUPS = INPUTS / GROUP, EACH = 32 / LANES;              // groups of one lane
    static constexpr int QUADS = (INPUTS / 4 + THREADS - 1) / THREADS;            // fours of inputs of one thread
    static_assert(FIT > 0 && SLOTS > 0);

    static __device__ int first() { return 2 * int(i64(PAIRS) * blockIdx.x / BLOCKS); }
    static __device__ int count() {
        int end = 2 * int(i64(PAIRS) * (blockIdx.x + 1) / BLOCKS);
        return (end < OUTPUTS ? end : OUTPUTS) - first();
    }
};

constexpr int PROJECTED = (HEADS + 2 * KV_HEADS) * HEAD;
using Projection = Shape<LAYER_BITS, WIDTH, PROJECTED, 1>;
using Output = Shape<LAYER_BITS, HEADS * HEAD, WIDTH, 1>;
using Up = Shape<LAYER_BITS, WIDTH, HIDDEN, GATED ? 2 : 1>;
using Down = Shape<LAYER_BITS, HIDDEN, WIDTH, 1>;
using Logits = Shape<LOGITS_BITS, WIDTH, VOCABULARY, 1>;

// The words of all vectors: projected, parts of attention and their logarithms, x after attention, hidden, x.
constexpr int AT_PARTS = PROJECTED / 2, AT_LOGS = AT_PARTS + HEADS * PARTS * HEAD / 2;
constexpr int AT_MIDDLE = AT_LOGS + HEADS * PARTS, AT_HIDDEN = AT_MIDDLE + WIDTH / 2, AT_X = AT_HIDDEN + HIDDEN / 2;

template <class S> __device__ constexpr int sums_of() { return S::HALVES * S::MOST * S::SHARED; }
constexpr int SUMS = largest(largest(sums_of<Projection>(), sums_of<Output>()),
                             largest(largest(sums_of<Up>(), sums_of<Down>()), sums_of<Logits>()));
constexpr int INPUT_BYTES = 4 * largest(HIDDEN, largest(WIDTH, HEADS * HEAD));

struct Shared {
    char stages[STAGES][STAGE];
    alignas(16) char inputs[INPUT_BYTES];  // floats, or groups of GROUP_WORDS words
    alignas(16) float sums[SUMS];
    alignas(16) float reduced[2][WARPS];
    alignas(16) float query[HEAD], key[HEAD], value[HEAD];
    alignas(16) float found[WARPS][HEAD];
    float most[WARPS], total[WARPS];
    Layer layers[2];  // this one and the next
    u64 full[STAGES], empty[STAGES];
};

static_assert(sizeof(Shared) <= SHARED_BYTES);
__device__ Shared &shared() { return *reinterpret_cast<Shared *>(shared_memory()); }

__device__ float rounded(float x) { return widen(narrow(x, 0.0f)); }

struct Ring {
    int stage = 0;
    u32 turn = 0;  // how often the ring was filled, modulo 2

    __device__ void advance() {
        if (++stage == STAGES) stage = 0, turn ^= 1;
    }
};

__device__ bool have_tag(ulonglong2 two, u32 tag) { return u32(two.x >> 32) == tag && u32(two.y >> 32) == tag; }

// Two words, as soon as they have the tag; `two` are the words that were read before.
__device__ ulonglong2 await_words(const u64 *at, u32 tag, ulonglong2 two) {
    for (int spins = 0; !have_tag(two, tag); ++spins) {
        if (spins > MOST_SPINS) __trap();
        two = load_words(at);
    }
    return two;
}

__device__ u32 await_word(const u64 *at, u32 tag) {
    u64 word = load_word(at);
    for (int spins = 0; u32(word >> 32) != tag; ++spins) {
        if (spins > MOST_SPINS) __trap();
        word = load_word(at);
    }
    return u32(word);
}

// ---- copying weights

template <class S>
__device__ void copy_matrix(const Matrix &matrix, Ring &ring, u64 policy) {
    int first = S::first(), count = S::count();
    for (int done = 0; done < count; done += S::ROWS) {
        u32 rows = count - done < S::ROWS ? count - done : S::ROWS;
        wait(&shared().empty[ring.stage], ring.turn ^ 1);
        u64 *full = &shared().full[ring.stage];
        char *stage = shared().stages[ring.stage];
        expect_bytes(full, S::HALVES * rows * S::ROW);
        for (int half = 0; half < S::HALVES; ++half) {
            i64 row = first + done + i64(half) * S::OUTPUTS;
            int place = half * S::ROWS;
            copy(stage + place * S::CODES, matrix.codes + row * S::CODES, rows * S::CODES, full, policy);
            if (S::SCALES)
                copy(stage + S::SCALE_AT + place * S::SCALES, matrix.scale + row * S::SCALES, rows * S::SCALES, full,
                     policy);
            if (S::LOWS)
                copy(stage + S::LOW_AT + place * S::LOWS, matrix.low + row * S::LOWS, rows * S::LOWS, full, policy);
        }
        ring.advance();
    }
}

__device__ void copy_weights(const Step &step) {
    u64 policy = read_once();
    Ring ring;
    for (int number = 0; number < LAYERS; ++number) {
        const Layer &layer = step.layers[number];
        copy_matrix<Projection>(layer.projection, ring, policy);
        copy_matrix<Output>(layer.output, ring, policy);
        copy_matrix<Up>(layer.up, ring, policy);
        copy_matrix<Down>(layer.down, ring, policy);
    }
    copy_matrix<Logits>(step.logits, ring, policy);
}

// ---- inputs of a product

__device__ void store_sum(float x, float *reduced) {
    for (int distance = 16; distance; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    if (threadIdx.x % 32 == 0) reduced[threadIdx.x / 32] = x;
}

__device__ float sum_of_warps(const float *reduced) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp += 4) {
        float4 four = *reinterpret_cast<const float4 *>(reduced + warp);
        sum += four.x + four.y + four.z + four.w;
    }
    return sum;
}

// The sum over all threads, in the same order in each; `turn` is the other of two buffers each time.
__device__ float sum_of_all(float x, int &turn) {
    float *reduced = shared().reduced[turn ^= 1];
    store_sum(x, reduced);
    synchronize(THREADS);
    return sum_of_warps(reduced);
}

template <class S>
__device__ bool has_quad(int i) {
    return S::INPUTS / 4 % THREADS == 0 || int(threadIdx.x) + THREADS * i < S::INPUTS / 4;
}

__device__ void widen_four(uint2 bits, float (&v)[4]) {
    v[0] = widen(bits.x), v[1] = widen_upper(bits.x), v[2] = widen(bits.y), v[3] = widen_upper(bits.y);
}

template <class S>
__device__ void load_vector(const u16 *x, float (&v)[S::QUADS][4]) {
#pragma unroll
    for (int i = 0; i < S::QUADS; ++i)
        widen_four(has_quad<S>(i) ? reinterpret_cast<const uint2 *>(x)[threadIdx.x + THREADS * i] : uint2{0, 0}, v[i]);
}

template <class S>
__device__ void await_vector(const u64 *words, u32 tag, float (&v)[S::QUADS][4]) {
    ulonglong2 two[S::QUADS];
#pragma unroll
    for (int i = 0; i < S::QUADS; ++i)
        two[i] = has_quad<S>(i) ? load_words(words + 2 * (threadIdx.x + THREADS * i)) : ulonglong2{0, 0};
#pragma unroll
    for (int i = 0; i < S::QUADS; ++i) {
        if (has_quad<S>(i)) two[i] = await_words(words + 2 * (threadIdx.x + THREADS * i), tag, two[i]);
        widen_four({u32(two[i].x), u32(two[i].y)}, v[i]);
    }
    __syncwarp();
}

// The output of attention, from its parts.
__device__ void await_heads(const u64 *words, u32 tag, int parts, float (&v)[Output::QUADS][4]) {
#pragma unroll
    for (int i = 0; i < Output::QUADS; ++i) {
        v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0.0f;
        if (!has_quad<Output>(i)) continue;
        int k = 4 * (threadIdx.x + THREADS * i), head = k / HEAD;
        const u64 *from = words + AT_PARTS + head * PARTS * (HEAD / 2) + k % HEAD / 2;
        const u64 *logs = words + AT_LOGS + head * PARTS;
        if (parts == 1) {
            ulonglong2 two = await_words(from, tag, load_words(from));
            widen_four({u32(two.x), u32(two.y)}, v[i]);
            continue;
        }
        ulonglong2 two[PARTS], log[PARTS / 2];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) two[part] = load_words(from + part * (HEAD / 2));
#pragma unroll
        for (int pair = 0; pair < PARTS / 2; ++pair) log[pair] = load_words(logs + 2 * pair);
        float l[PARTS], most = LOWEST, total = 0.0f;
#pragma unroll
        for (int pair = 0; pair < PARTS / 2; ++pair) {
            log[pair] = await_words(logs + 2 * pair, tag, log[pair]);
            l[2 * pair] = __uint_as_float(u32(log[pair].x)), l[2 * pair + 1] = __uint_as_float(u32(log[pair].y));
            most = fmaxf(most, fmaxf(l[2 * pair], l[2 * pair + 1]));
        }
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            two[part] = await_words(from + part * (HEAD / 2), tag, two[part]);
            float share = __expf(l[part] - most), four[4];
            widen_four({u32(two[part].x), u32(two[part].y)}, four);
            total += share;
            for (int j = 0; j < 4; ++j) v[i][j] += share * four[j];
        }
        for (int j = 0; j < 4; ++j) v[i][j] = rounded(__fdividef(v[i][j], total));
    }
    __syncwarp();
}

template <class S>
struct NormWeights {
    float4 gamma[S::QUADS], beta[S::QUADS];

    __device__ explicit NormWeights(const Norm &norm) {
#pragma unroll
        for (int i = 0; i < S::QUADS; ++i) {
            gamma[i] = beta[i] = {0, 0, 0, 0};
            if (!has_quad<S>(i)) continue;
            gamma[i] = reinterpret_cast<const float4 *>(norm.gamma)[threadIdx.x + THREADS * i];
            if (LAYER_NORM) beta[i] = reinterpret_cast<const float4 *>(norm.beta)[threadIdx.x + THREADS * i];
        }
    }

    // γ (x − μ) / √(σ² + ε) + β. Of RMSNorm only γ x, and the warps' sums of squares, from which `factor` is computed.
    __device__ void apply(float (&v)[S::QUADS][4], float epsilon, int &turn) const {
        float factor = 1.0f, sum = 0.0f;
        if (LAYER_NORM) {
#pragma unroll
            for (int i = 0; i < S::QUADS; ++i) sum += v[i][0] + v[i][1] + v[i][2] + v[i][3];
            float mean = sum_of_all(sum, turn) / S::INPUTS;
            sum = 0.0f;
#pragma unroll
            for (int i = 0; i < S::QUADS; ++i)
                for (int j = 0; j < 4; ++j) v[i][j] = has_quad<S>(i) ? v[i][j] - mean : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < S::QUADS; ++i)
            for (int j = 0; j < 4; ++j) sum += v[i][j] * v[i][j];
        if (LAYER_NORM) factor = rsqrtf(sum_of_all(sum, turn) / S::INPUTS + epsilon);
        else store_sum(sum, shared().reduced[0]);
#pragma unroll
        for (int i = 0; i < S::QUADS; ++i) {
            v[i][0] = v[i][0] * factor * gamma[i].x + beta[i].x, v[i][1] = v[i][1] * factor * gamma[i].y + beta[i].y;
            v[i][2] = v[i][2] * factor * gamma[i].z + beta[i].z, v[i][3] = v[i][3] * factor * gamma[i].w + beta[i].w;
        }
    }

    static __device__ float factor(float epsilon) {
        return LAYER_NORM ? 1.0f : rsqrtf(sum_of_warps(shared().reduced[0]) / S::INPUTS + epsilon);
    }
};

// Store the inputs of a product: floats, or the bytes of p = 256 h + l of each group, t, and the sum of its inputs.
template <class S>
__device__ void store_inputs(const float (&v)[S::QUADS][4]) {
#pragma unroll
    for (int i = 0; i < S::QUADS; ++i) {
        int quad = threadIdx.x + THREADS * i;
        if (S::KIND == FLOATS) {
            if (has_quad<S>(i))
                reinterpret_cast<float4 *>(shared().inputs)[quad] = {v[i][0], v[i][1], v[i][2], v[i][3]};
            continue;
        }
        float top = fmaxf(fmaxf(fabsf(v[i][0]), fabsf(v[i][1])), fmaxf(fabsf(v[i][2]), fabsf(v[i][3])));
        for (int distance = 4; distance; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
        float factor = top > TINY ? __fdividef(LEVELS, top) : 0.0f;
        int p[4], sum = 0;
        for (int j = 0; j < 4; ++j) sum += p[j] = __float2int_rn(v[i][j] * factor);
        // p = 256 h + l with signed bytes: l is the lower byte, and h the one above it in p + 128.
        u32 low = __byte_perm(__byte_perm(p[0], p[1], 0x0040), __byte_perm(p[2], p[3], 0x0040), 0x5410);
        u32 high = __byte_perm(__byte_perm(p[0] + 128, p[1] + 128, 0x0051),
                               __byte_perm(p[2] + 128, p[3] + 128, 0x0051), 0x5410);
        if (S::KIND == INT4)
            for (int distance = 4; distance; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
        if (!has_quad<S>(i)) continue;
        u32 *group = reinterpret_cast<u32 *>(shared().inputs) + quad / 8 * GROUP_WORDS;
        group[quad % 8] = high, group[8 + quad % 8] = low;
        if (quad % 8 == 0) {
            float t = top * (1.0f / LEVELS);
            *reinterpret_cast<float2 *>(group + 16) = {t, float(sum) * t};
        }
    }
    synchronize(THREADS);
}

// ---- products

// The inputs that a lane multiplies with the weights of each row, in registers.
template <class S, int BITS = S::KIND>
struct Inputs {
    u32 high[S::EACH][8], low[S::EACH][8];
    float t[S::EACH], total[S::EACH];
    int group[S::EACH];

    __device__ explicit Inputs(int part, int lane) {
#pragma unroll
        for (int j = 0; j < S::EACH; ++j) {
            int g = 32 * part + lane + S::LANES * j;
            group[j] = g < S::GROUPS ? g : S::GROUPS - 1;
            const uint4 *words = reinterpret_cast<const uint4 *>(shared().inputs) + group[j] * (GROUP_WORDS / 4);
            uint4 four[4] = {words[0], words[1], words[2], words[3]};
            for (int w = 0; w < 2; ++w) {
                high[j][4 * w] = four[w].x, high[j][4 * w + 1] = four[w].y;
                high[j][4 * w + 2] = four[w].z, high[j][4 * w + 3] = four[w].w;
                low[j][4 * w] = four[2 + w].x, low[j][4 * w + 1] = four[2 + w].y;
                low[j][4 * w + 2] = four[2 + w].z, low[j][4 * w + 3] = four[2 + w].w;
            }
            float2 scales = *reinterpret_cast<const float2 *>(words + 4);
            t[j] = g < S::GROUPS ? scales.x : 0.0f, total[j] = g < S::GROUPS ? scales.y : 0.0f;
        }
    }

    __device__ float dot(const char *stage, int row) const {
        float y = 0.0f;
#pragma unroll
        for (int j = 0; j < S::EACH; ++j) {
            int upper = 0, lower = 0;
            const uint4 *codes = reinterpret_cast<const uint4 *>(stage + row * S::CODES) + group[j] * (BITS / 4);
            if (BITS == INT4) {
                uint4 c = *codes;
                add<4>(c.x, j, 0, upper, lower), add<4>(c.y, j, 1, upper, lower);
                add<4>(c.z, j, 2, upper, lower), add<4>(c.w, j, 3, upper, lower);
            } else {
                uint4 c = codes[0], d = codes[1];
                add<8>(c.x, j, 0, upper, lower), add<8>(c.y, j, 1, upper, lower);
                add<8>(c.z, j, 2, upper, lower), add<8>(c.w, j, 3, upper, lower);
                add<8>(d.x, j, 4, upper, lower), add<8>(d.y, j, 5, upper, lower);
                add<8>(d.z, j, 6, upper, lower), add<8>(d.w, j, 7, upper, lower);
            }
            const u16 *scales = reinterpret_cast<const u16 *>(stage + S::SCALE_AT + row * S::SCALES);
            y += float(256 * upper + lower) * t[j] * half_to_float(scales[group[j]]);
            if (BITS == INT4) {
                const u16 *lows = reinterpret_cast<const u16 *>(stage + S::LOW_AT + row * S::LOWS);
                y += half_to_float(lows[group[j]]) * total[j];
            }
        }
        return y;
    }

    template <int WIDE>
    __device__ void add(u32 code, int j, int word, int &upper, int &lower) const {
        u32 front = WIDE == 8 ? code : code & 0x0F0F0F0Fu;
        upper = __dp4a(int(front), int(high[j][word]), upper), lower = __dp4a(int(front), int(low[j][word]), lower);
        if (WIDE == 4) {  // the upper bits are the weights of the last 16 inputs
            u32 back = code >> 4 & 0x0F0F0F0Fu;
            upper = __dp4a(int(back), int(high[j][4 + word]), upper);
            lower = __dp4a(int(back), int(low[j][4 + word]), lower);
        }
    }
};

template <class S>
struct Inputs<S, FLOATS> {
    float x[4][8];
    int chunk[4];  // of eight inputs

    __device__ explicit Inputs(int part, int lane) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            int c = 128 * part + lane + 32 * j;
            chunk[j] = c < S::INPUTS / 8 ? c : S::INPUTS / 8 - 1;
            const float *inputs = reinterpret_cast<const float *>(shared().inputs) + 8 * chunk[j];
            for (int i = 0; i < 8; ++i) x[j][i] = c < S::INPUTS / 8 ? inputs[i] : 0.0f;
        }
    }

    __device__ float dot(const char *stage, int row) const {
        const uint4 *weights = reinterpret_cast<const uint4 *>(stage + row * S::CODES);
        float y = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint4 w = weights[chunk[j]];
            y += x[j][0] * widen(w.x) + x[j][1] * widen_upper(w.x) + x[j][2] * widen(w.y) + x[j][3] * widen_upper(w.y);
            y += x[j][4] * widen(w.z) + x[j][5] * widen_upper(w.z) + x[j][6] * widen(w.w) + x[j][7] * widen_upper(w.w);
        }
        return y;
    }
};

// The sum over LANES lanes of four numbers of each: a lane returns that of number `which`.
template <int LANES>
__device__ float sum_lanes(const float (&y)[4], int &which) {
    bool upper = threadIdx.x & (LANES / 2), odd = threadIdx.x & (LANES / 4);
    which = 2 * upper + odd;
    float first = (upper ? y[2] : y[0]) + __shfl_xor_sync(~0u, upper ? y[0] : y[2], LANES / 2);
    float second = (upper ? y[3] : y[1]) + __shfl_xor_sync(~0u, upper ? y[1] : y[3], LANES / 2);
    float sum = (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, LANES / 4);
    for (int distance = LANES / 8; distance; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    return sum;
}

// Sums of the block's outputs, of each warp that shares a row, in shared memory.
template <class S>
__device__ void multiply(Ring &ring) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int part = warp % S::SHARED, slot = warp / S::SHARED, count = S::count();
    Inputs<S> inputs(part, lane % S::LANES);
    for (int done = 0; done < count; done += 4 * S::ROWS) {
        float y[S::TURNS][4] = {};
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
            if (done + tile * S::ROWS >= count) break;
            wait(&shared().full[ring.stage], ring.turn);
            const char *stage = shared().stages[ring.stage];
#pragma unroll
            for (int turn = 0; turn < S::TURNS; ++turn) {
                int row = turn * S::AT_ONCE + slot * S::TOGETHER + lane / S::LANES;
                if (S::HALVES * S::ROWS % S::AT_ONCE) row = row < S::HALVES * S::ROWS ? row : S::HALVES * S::ROWS - 1;
                if (S::SLOTS * S::SHARED == WARPS || slot < S::SLOTS) y[turn][tile] = inputs.dot(stage, row);
            }
            __syncwarp();
            if (lane == 0) arrive(&shared().empty[ring.stage]);
            ring.advance();
        }
#pragma unroll
        for (int turn = 0; turn < S::TURNS; ++turn) {
            int tile, row = turn * S::AT_ONCE + slot * S::TOGETHER + lane / S::LANES;
            float sum = sum_lanes<S::LANES>(y[turn], tile);
            int half = row / S::ROWS, place = done + tile * S::ROWS + row % S::ROWS;
            bool there = row < S::HALVES * S::ROWS && slot < S::SLOTS && place < count;
            if (there && lane % (S::LANES / 4) == 0) shared().sums[(half * S::MOST + place) * S::SHARED + part] = sum;
        }
    }
    synchronize(THREADS);
}

// An output of this block: factor · W x + b.
template <class S>
__device__ float output(const Matrix &matrix, float factor, int row, int half = 0) {
    float y = 0.0f;
#pragma unroll
    for (int part = 0; part < S::SHARED; ++part) y += shared().sums[(half * S::MOST + row) * S::SHARED + part];
    y *= factor;
    return matrix.bias ? y + matrix.bias[S::first() + row + half * S::OUTPUTS] : y;
}

__device__ float activate(float x) {
#if ACTIVATION == 0
    return x > 0.0f ? x : 0.0f;
#elif ACTIVATION == 1
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
#elif ACTIVATION == 2
    return x / (1.0f + __expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
#else
    return x / (1.0f + __expf(-x));
#endif
}

// Send the outputs of this block; a thread computes two of them.
template <class S, class F>
__device__ void send_outputs(u64 *words, u32 tag, F compute) {
    for (int pair = threadIdx.x; 2 * pair < S::count(); pair += THREADS)
        send_word(words + S::first() / 2 + pair, tag, compute(2 * pair));
}

// x ← x + W (inputs) + b; `own` are the two elements of x that this thread computes.
template <class S>
__device__ void add_outputs(const Matrix &matrix, u64 *words, u32 tag, float2 &own) {
    static_assert(S::MOST <= 2 * THREADS);
    send_outputs<S>(words, tag, [&](int row) {
        u32 bits = narrow(own.x + output<S>(matrix, 1.0f, row), own.y + output<S>(matrix, 1.0f, row + 1));
        own = {widen(bits), widen_upper(bits)};
        return bits;
    });
}

// ---- attention

// Element k of a new query, key or value; if `turned`, rotated by the angle of its position.
__device__ float await_rotated(const u64 *words, u32 tag, int k, float cosine, float sine, bool turned) {
    int partner = HALF_PAIRING ? (k < ROTATED / 2 ? k + ROTATED / 2 : k - ROTATED / 2) : k ^ 1;
    bool lower = HALF_PAIRING ? k < ROTATED / 2 : k % 2 == 0;
    u32 bits = await_word(words + k / 2, tag);
    float x = k % 2 ? widen_upper(bits) : widen(bits);
    if (!turned) return x;
    bits = await_word(words + partner / 2, tag);
    float other = partner % 2 ? widen_upper(bits) : widen(bits);
    return x * cosine + (lower ? -other : other) * sine;
}

constexpr int KEY_LANES = HEAD / 8, KEYS = 32 / KEY_LANES;  // lanes of a key, and keys that a warp reads at once
constexpr int STEPS = 64 / WARPS;                           // how often, before the first scores are computed
constexpr int EACH_VALUES = HEAD / 32;                      // numbers of a value in one lane
constexpr int KEYS_AT_ONCE = WARPS * KEYS * STEPS;

// Keys and values of a warp from position `start` on: some lanes have a part of a key, and all have a part of a value.
struct Past {
    uint4 key[STEPS];
    u32 value[STEPS][KEYS][EACH_VALUES / 2];

    __device__ void load(const u16 *keys, const u16 *values, int start, int end) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            int s = start + (i * WARPS + warp) * KEYS;
            int mine = s + lane / KEY_LANES;
            key[i] = {0, 0, 0, 0};
            if (mine < end) key[i] = reinterpret_cast<const uint4 *>(keys + i64(mine) * HEAD)[lane % KEY_LANES];
#pragma unroll
            for (int j = 0; j < KEYS; ++j)
#pragma unroll
                for (int k = 0; k < EACH_VALUES / 2; ++k)
                    value[i][j][k] = s + j < end
                        ? reinterpret_cast<const u32 *>(values + i64(s + j) * HEAD)[lane * (EACH_VALUES / 2) + k] : 0;
        }
    }
};

// The softmax of one warp: the largest score, the sum of weights (of this lane's keys), and a part of the output.
struct Softmax {
    float most = LOWEST, total = 0.0f, found[EACH_VALUES] = {};

    __device__ void add(const Past &past, const float (&query)[8], float scale, int start, int end) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        float score[STEPS], larger = most;
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            uint4 k = past.key[i];
            float y = query[0] * widen(k.x) + query[1] * widen_upper(k.x) + query[2] * widen(k.y);
            y += query[3] * widen_upper(k.y) + query[4] * widen(k.z) + query[5] * widen_upper(k.z);
            y += query[6] * widen(k.w) + query[7] * widen_upper(k.w);
            for (int distance = KEY_LANES / 2; distance; distance /= 2) y += __shfl_xor_sync(~0u, y, distance);
            score[i] = start + (i * WARPS + warp) * KEYS + lane / KEY_LANES < end ? y * scale : LOWEST;
            larger = fmaxf(larger, score[i]);
        }
        for (int distance = KEY_LANES; distance < 32; distance *= 2)
            larger = fmaxf(larger, __shfl_xor_sync(~0u, larger, distance));
        if (larger == LOWEST) return;
        fade(larger);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            float weight = __expf(score[i] - most);
            total += weight;
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                float share = __shfl_sync(~0u, weight, j * KEY_LANES);
#pragma unroll
                for (int k = 0; k < EACH_VALUES / 2; ++k) {
                    found[2 * k] += share * widen(past.value[i][j][k]);
                    found[2 * k + 1] += share * widen_upper(past.value[i][j][k]);
                }
            }
        }
    }

    __device__ void fade(float larger) {
        float factor = __expf(most - larger);
        most = larger, total *= factor;
        for (int k = 0; k < EACH_VALUES; ++k) found[k] *= factor;
    }

    __device__ void add_lanes() {
        for (int distance = KEY_LANES; distance < 32; distance *= 2)
            total += __shfl_xor_sync(~0u, total, distance);
    }

    // The new token's own key, in shared memory.
    __device__ void add_own(float scale) {
        int lane = threadIdx.x % 32;
        float score = 0.0f;
        for (int k = 0; k < EACH_VALUES; ++k)
            score += shared().query[lane * EACH_VALUES + k] * shared().key[lane * EACH_VALUES + k];
        for (int distance = 16; distance; distance /= 2) score += __shfl_xor_sync(~0u, score, distance);
        score *= scale;
        fade(fmaxf(most, score));
        float weight = __expf(score - most);
        total += weight;
        for (int k = 0; k < EACH_VALUES; ++k) found[k] += weight * shared().value[lane * EACH_VALUES + k];
    }
};

// Join the warps' results and send them.
__device__ void send_part(const Softmax &mine, u64 *words, u32 tag, int head, int part) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int k = 0; k < EACH_VALUES; ++k) shared().found[warp][lane * EACH_VALUES + k] = mine.found[k];
    if (lane == 0) shared().most[warp] = mine.most, shared().total[warp] = mine.total;
    synchronize(THREADS);
    if (warp) return;
    float most = lane < WARPS ? shared().most[lane] : LOWEST, total = lane < WARPS ? shared().total[lane] : 0.0f;
    float top = most, found[EACH_VALUES] = {};
    for (int distance = 16; distance; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
    float share = most == LOWEST ? 0.0f : __expf(most - top);
    total *= share;
    for (int distance = 16; distance; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        float weight = __shfl_sync(~0u, share, w);
        for (int k = 0; k < EACH_VALUES; ++k) found[k] += weight * shared().found[w][lane * EACH_VALUES + k];
    }
    float factor = total > 0.0f ? __fdividef(1.0f, total) : 0.0f;
    u64 *to = words + AT_PARTS + (head * PARTS + part) * (HEAD / 2) + lane * (EACH_VALUES / 2);
#pragma unroll
    for (int k = 0; k < EACH_VALUES / 2; ++k) {
        u32 bits = narrow(found[2 * k] * factor, found[2 * k + 1] * factor);
        send_word(to + k, tag, bits);
    }
    if (lane == 0) send_word(words + AT_LOGS + head * PARTS + part, tag, __float_as_uint(top + __logf(total)));
}

// Wait for an element of the new query, key or value, and write the last two to the cache.
__device__ void await_new(const Step &step, u16 *keys, u16 *values, int head, int which, int k, int position, u32 tag) {
    int group = head / (HEADS / KV_HEADS), angle = HALF_PAIRING ? k % (ROTATED / 2 + !ROTATED) : k / 2;
    bool turned = which < 2 && k < ROTATED;
    float cosine = turned ? step.cosines[i64(position) * (ROTATED / 2) + angle] : 1.0f;
    float sine = turned ? step.sines[i64(position) * (ROTATED / 2) + angle] : 0.0f;
    const u64 *from = step.words + (which ? HEADS + (which - 1) * KV_HEADS + group : head) * (HEAD / 2);
    float x = rounded(await_rotated(from, tag, k, cosine, sine, turned));
    (which == 0 ? shared().query : which == 1 ? shared().key : shared().value)[k] = x;
    if (which && head % (HEADS / KV_HEADS) == 0 && position < step.capacity)
        (which == 1 ? keys : values)[i64(position) * HEAD + k] = u16(narrow(x, 0.0f));
}

__device__ void attend(const Step &step, const Layer &layer, int position, int parts, u32 tag) {
    int head = blockIdx.x / PARTS, part = blockIdx.x % PARTS, group = head / (HEADS / KV_HEADS);
    if (head >= HEADS || part >= parts) return;
    u16 *keys = layer.keys + group * step.capacity * HEAD, *values = layer.values + group * step.capacity * HEAD;
    int start = int(i64(position) * part / parts), end = int(i64(position) * (part + 1) / parts);
    Past past;
    past.load(keys, values, start, end);
    bool last = part == parts - 1;
    for (int number = threadIdx.x; number < (last ? 3 : 1) * HEAD; number += THREADS)
        await_new(step, keys, values, head, number / HEAD, number % HEAD, position, tag);
    synchronize(THREADS);
    float query[8];
    for (int i = 0; i < 8; ++i) query[i] = shared().query[threadIdx.x % KEY_LANES * 8 + i];
    Softmax softmax;
    while (true) {
        softmax.add(past, query, step.scale, start, end);
        start += KEYS_AT_ONCE;
        if (start >= end) break;
        past.load(keys, values, start, end);
    }
    softmax.add_lanes();
    if (last && threadIdx.x < 32) softmax.add_own(step.scale);
    send_part(softmax, step.words, tag, head, part);
}

// ---- the step

__device__ void project(const Step &step, const Layer &layer, int number, u32 tag, Ring &ring, int &turn) {
    NormWeights<Projection> norm(layer.attention_norm);
    float v[Projection::QUADS][4];
    if (number) await_vector<Projection>(step.words + AT_X, tag - 1, v);
    else load_vector<Projection>(step.x, v);
    norm.apply(v, step.epsilon, turn);
    store_inputs<Projection>(v);
    multiply<Projection>(ring);
    float factor = norm.factor(step.epsilon);
    send_outputs<Projection>(step.words, tag, [&](int row) {
        return narrow(output<Projection>(layer.projection, factor, row),
                      output<Projection>(layer.projection, factor, row + 1));
    });
}

__device__ void add_attended(const Step &step, const Layer &layer, int parts, u32 tag, Ring &ring, float2 &own) {
    float v[Output::QUADS][4];
    await_heads(step.words, tag, parts, v);
    store_inputs<Output>(v);
    multiply<Output>(ring);
    add_outputs<Output>(layer.output, step.words + AT_MIDDLE, tag, own);
}

__device__ void compute_hidden(const Step &step, const Layer &layer, u32 tag, Ring &ring, int &turn) {
    NormWeights<Up> norm(layer.feedforward_norm);
    float v[Up::QUADS][4];
    await_vector<Up>(step.words + AT_MIDDLE, tag, v);
    norm.apply(v, step.epsilon, turn);
    store_inputs<Up>(v);
    multiply<Up>(ring);
    float factor = norm.factor(step.epsilon);
    auto hidden = [&](int row) {
        float y = activate(output<Up>(layer.up, factor, row));
        return GATED ? y * output<Up>(layer.up, factor, row, 1) : y;
    };
    send_outputs<Up>(step.words + AT_HIDDEN, tag, [&](int row) { return narrow(hidden(row), hidden(row + 1)); });
}

__device__ void add_hidden(const Step &step, const Layer &layer, u32 tag, Ring &ring, float2 &own) {
    float v[Down::QUADS][4];
    await_vector<Down>(step.words + AT_HIDDEN, tag, v);
    store_inputs<Down>(v);
    multiply<Down>(ring);
    add_outputs<Down>(layer.down, step.words + AT_X, tag, own);
}

__device__ void run_layer(const Step &step, int number, int position, int parts, u32 tag, Ring &ring, int &turn,
                          float2 &own) {
    const Layer &layer = shared().layers[number % 2];
    bool prepares = threadIdx.x < sizeof(Layer) / 8 && number + 1 < LAYERS;
    u64 next = prepares ? reinterpret_cast<const u64 *>(step.layers + number + 1)[threadIdx.x] : 0;
    project(step, layer, number, tag, ring, turn);
    // All threads have finished the layer before this one.
    if (prepares) reinterpret_cast<u64 *>(&shared().layers[(number + 1) % 2])[threadIdx.x] = next;
    attend(step, layer, position, parts, tag);
    add_attended(step, layer, parts, tag, ring, own);
    compute_hidden(step, layer, tag, ring, turn);
    add_hidden(step, layer, tag, ring, own);
}

__device__ void run_logits(const Step &step, u32 tag, Ring &ring, int &turn) {
    NormWeights<Logits> norm(step.norm);
    float v[Logits::QUADS][4];
    await_vector<Logits>(step.words + AT_X, tag, v);
    norm.apply(v, step.epsilon, turn);
    store_inputs<Logits>(v);
    multiply<Logits>(ring);
    float factor = norm.factor(step.epsilon);
    for (int row = threadIdx.x; row < Logits::count(); row += THREADS)
        step.out[Logits::first() + row] = u16(narrow(output<Logits>(step.logits, factor, row), 0.0f));
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) run_step(const __grid_constant__ Step step) {
    if (threadIdx.x == THREADS) {
        for (int stage = 0; stage < STAGES; ++stage) {
            start_barrier(&shared().full[stage], 1);
            start_barrier(&shared().empty[stage], WARPS);
        }
        show_barriers();
    }
    if (threadIdx.x < sizeof(Layer) / 8)
        reinterpret_cast<u64 *>(shared().layers)[threadIdx.x] = reinterpret_cast<const u64 *>(step.layers)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        if (threadIdx.x == THREADS) copy_weights(step);
        return;
    }
    u32 tag = *step.counter;
    int position = int(*step.position), parts = position <= ALONE ? 1 : PARTS, turn = 0;
    float2 own = {0.0f, 0.0f};
    if (2 * int(threadIdx.x) < Down::count()) {
        u32 bits = reinterpret_cast<const u32 *>(step.x)[Down::first() / 2 + threadIdx.x];
        own = {widen(bits), widen_upper(bits)};
    }
    Ring ring;
    for (int number = 0; number < LAYERS; ++number)
        run_layer(step, number, position, parts, tag + number, ring, turn, own);
    run_logits(step, tag + LAYERS - 1, ring, turn);
    if (blockIdx.x == 0 && threadIdx.x == 0) *step.counter = tag + LAYERS;
}
