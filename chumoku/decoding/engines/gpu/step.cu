// One decoding step of one row: all layers and the logits in one kernel.
//
// The outputs of every matrix are divided among BLOCKS blocks, one on each multiprocessor. One warp of a block copies
// the block's rows of all matrices, in the order of their use, to a ring of buffers in shared memory. It waits for
// nothing but a free buffer, so the memory is never idle. The other warps wait for the inputs of a product, and multiply.
//
// Blocks exchange vectors without a barrier: a word is two 16-bit numbers and a tag, the number of the layer since the
// engine was opened. A warp reads the words of its inputs until all have the tag of this layer. A block sends its
// outputs when all its warps have their inputs; so when a word is written again, all blocks have read it.
//
//     project    q, k, v = W norm(x) + b
//     attend     softmax(q Kᵀ) V, for each head in PARTS parts of a long past
//     output     x ← x + W Σ exp(l_i) o_i / Σ exp(l_i) + b        from the parts, with logarithms l of their sums
//     up         h = f(W norm(x) + b), or with a gate f(W norm(x) + b) ⊙ (W' norm(x) + b')
//     down       x ← x + W h + b
//
// A product multiplies tiles of 16 rows by matrix instructions, each warp for a slice of the inputs. Those multiply
// eight columns; an input has two, because it is the sum of two numbers:
//
//     floats       x = high + low, both 16-bit floats             columns 0 and 1
//     int8, int4   p = 256 high + low, both signed bytes          columns 2j and 2j + 1 of group j, because each of
//                                                                 the four groups in a slice has its own scale
//
// Quantized weights and the rounding of inputs are defined in nn/quantized.py. Sizes are defined by the caller.

constexpr int THREADS = 32 * WARPS;              // that compute; one more warp copies
constexpr int FLOATS = 16, INT8 = 8, INT4 = 4;   // kinds of weights, by their bits
constexpr int GROUP = 32, TILE = 16;             // inputs of a group, and rows of a tile
constexpr int SUM_STRIDE = WARPS + 4;            // sums of an output, one of each warp, and space against conflicts
constexpr float LEVELS = 32512.0f, TINY = 1e-30f;
constexpr float LOWEST = -1e30f;                 // below all scores

struct Matrix {
    const char *codes, *scales;  // scales of int8, pairs s and m of int4, and 16 bytes after each row
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
    static constexpr int HALVES = HALVES_, ROWS = TILE / HALVES;                   // of a tile: with a gate two halves
    static constexpr int PAIRS = (OUTPUTS + 1) / 2, MOST = 2 * ((PAIRS + BLOCKS - 1) / BLOCKS);  // outputs of a block
    static constexpr int SLICE = BITS == FLOATS ? 64 : 128, PART = WARPS * SLICE;  // inputs of a warp, and of all
    static constexpr int PARTS_OF_ROW = (INPUTS + PART - 1) / PART;
    static constexpr int FOURS = (PARTS_OF_ROW * SLICE + 127) / 128;               // fours of inputs of one thread
    // Bytes of a row's part in a buffer. Rows of one part are copied together. Between rows of several parts, and
    // between rows of scales, is space, so that the lanes of a warp read other banks.
    static constexpr int CODES = (INPUTS < PART ? INPUTS : PART) * BITS / 8;
    static constexpr int SPACE = PARTS_OF_ROW == 1 ? 0 : BITS == INT8 ? 16 : 64, CODE_STRIDE = CODES + SPACE;
    static constexpr int SCALE_BYTES = BITS == FLOATS ? 0 : BITS == INT8 ? 2 : 4;  // of a group
    static constexpr int SCALE_ROW = SCALE_BYTES * (INPUTS / GROUP) + 16;          // as stored
    static constexpr int SCALE_STRIDE = SCALE_BYTES * ((INPUTS < PART ? INPUTS : PART) / GROUP) + 16;
    static constexpr int SCALE_AT = TILE * CODE_STRIDE;
    static constexpr int BYTES = SCALE_AT + (BITS == FLOATS ? 0 : TILE * SCALE_STRIDE);
    static_assert(BYTES <= STAGE && INPUTS % 64 == 0);

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

constexpr int CHUNK = 64;  // logits that a block computes before it stores them
constexpr int SUMS = largest(largest(Projection::MOST, CHUNK), largest(Output::MOST, Up::HALVES * Up::MOST));
constexpr int INPUT_WORDS = LAYER_BITS == FLOATS || LOGITS_BITS == FLOATS ? 64 : 32;  // of 128 inputs
constexpr int MOST_FOURS = largest(largest(Projection::FOURS, Output::FOURS), largest(Down::FOURS, Logits::FOURS));

struct Shared {
    char stages[STAGES][STAGE];
    alignas(16) u32 inputs[WARPS][MOST_FOURS][2][INPUT_WORDS];  // higher and lower numbers of the inputs of a warp
    alignas(16) float2 scales[WARPS][MOST_FOURS][4];   // t, and the sum of the inputs, of each group
    alignas(16) float sums[2][SUMS * SUM_STRIDE];
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

__device__ u32 await_word(const u64 *at, u32 tag, u64 word) {
    for (int spins = 0; u32(word >> 32) != tag; ++spins) {
        if (spins > MOST_SPINS) __trap();
        word = load_word(at);
    }
    return u32(word);
}

// ---- copying weights

// Copy rows of a tile, from row `first` of the matrix to row `place` of the tile: whole rows, or a part of one row.
template <class S>
__device__ void copy_rows(const Matrix &matrix, char *stage, int place, i64 first, int rows, int start, int inputs,
                          u64 *full, u64 policy) {
    copy(stage + place * S::CODE_STRIDE, matrix.codes + (first * S::INPUTS + start) * S::KIND / 8,
         rows * inputs * S::KIND / 8, full, policy);
    if (S::KIND == FLOATS) return;
    copy(stage + S::SCALE_AT + place * S::SCALE_STRIDE,
         matrix.scales + first * S::SCALE_ROW + start / GROUP * S::SCALE_BYTES,
         S::PARTS_OF_ROW == 1 ? rows * S::SCALE_ROW : inputs / GROUP * S::SCALE_BYTES, full, policy);
}

// Copy the tiles of a matrix, in parts. A lane copies a half of a tile, or if a row has several parts, one row.
template <class S>
__device__ void copy_matrix(const Matrix &matrix, Ring &ring, u64 policy) {
    constexpr bool WHOLE = S::PARTS_OF_ROW == 1;
    int lane = threadIdx.x % 32, first = S::first(), count = S::count();
    for (int done = 0; done < count; done += S::ROWS) {
        int rows = count - done < S::ROWS ? count - done : S::ROWS;
        for (int start = 0; start < S::INPUTS; start += S::PART) {
            int inputs = S::INPUTS - start < S::PART ? S::INPUTS - start : S::PART;
            int row_bytes = inputs * S::KIND / 8 + (WHOLE && S::SCALE_BYTES ? S::SCALE_ROW : inputs / GROUP * S::SCALE_BYTES);
            wait(&shared().empty[ring.stage], ring.turn ^ 1);
            u64 *full = &shared().full[ring.stage];
            char *stage = shared().stages[ring.stage];
            if (lane == 0) expect_bytes(full, S::HALVES * rows * row_bytes);
            __syncwarp();
            int half = WHOLE ? lane : lane / S::ROWS, row = WHOLE ? 0 : lane % S::ROWS;
            if (half < S::HALVES && row < rows)
                copy_rows<S>(matrix, stage, half * S::ROWS + row, first + done + row + i64(half) * S::OUTPUTS,
                             WHOLE ? rows : 1, start, inputs, full, policy);
            ring.advance();
        }
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

// The sum of one number of each warp.
__device__ float sum_of_warps(const float *numbers) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp += 4) {
        float4 four = *reinterpret_cast<const float4 *>(numbers + warp);
        sum += (four.x + four.y) + (four.z + four.w);
    }
    return sum;
}

// The sum over all threads; `turn` is the other of two buffers each time.
__device__ float sum_of_all(float x, int &turn) {
    float *reduced = shared().reduced[turn ^= 1];
    store_sum(x, reduced);
    synchronize(THREADS);
    return sum_of_warps(reduced);
}

// The index of the first of the inputs in number i of this thread's fours; INPUTS if there is none.
template <class S>
__device__ int four_at(int i) {
    int warp = threadIdx.x / 32, at = 128 * i + 4 * (threadIdx.x % 32), part = at / S::SLICE;
    int k = part * S::PART + warp * S::SLICE + at % S::SLICE;
    return part < S::PARTS_OF_ROW && k < S::INPUTS ? k : S::INPUTS;
}

__device__ void widen_four(uint2 bits, float (&v)[4]) {
    v[0] = widen(bits.x), v[1] = widen_upper(bits.x), v[2] = widen(bits.y), v[3] = widen_upper(bits.y);
}

template <class S>
__device__ void load_vector(const u16 *x, float (&v)[S::FOURS][4]) {
#pragma unroll
    for (int i = 0; i < S::FOURS; ++i) {
        int k = four_at<S>(i);
        widen_four(k < S::INPUTS ? *reinterpret_cast<const uint2 *>(x + k) : uint2{0, 0}, v[i]);
    }
}

template <class S>
__device__ void await_vector(const u64 *words, u32 tag, float (&v)[S::FOURS][4]) {
    ulonglong2 two[S::FOURS];
#pragma unroll
    for (int i = 0; i < S::FOURS; ++i) {
        int k = four_at<S>(i);
        two[i] = k < S::INPUTS ? load_words(words + k / 2) : ulonglong2{0, 0};
    }
#pragma unroll
    for (int i = 0; i < S::FOURS; ++i) {
        int k = four_at<S>(i);
        if (k < S::INPUTS) two[i] = await_words(words + k / 2, tag, two[i]);
        widen_four({u32(two[i].x), u32(two[i].y)}, v[i]);
    }
    __syncwarp();
}

// The output of attention, from its parts.
__device__ void await_heads(const u64 *words, u32 tag, int parts, float (&v)[Output::FOURS][4]) {
#pragma unroll
    for (int i = 0; i < Output::FOURS; ++i) {
        v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0.0f;
        int k = four_at<Output>(i), head = k / HEAD;
        if (k == Output::INPUTS) continue;
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
    float4 gamma[S::FOURS], beta[S::FOURS];

    __device__ explicit NormWeights(const Norm &norm) {
#pragma unroll
        for (int i = 0; i < S::FOURS; ++i) {
            int k = four_at<S>(i);
            gamma[i] = k < S::INPUTS ? *reinterpret_cast<const float4 *>(norm.gamma + k) : float4{0, 0, 0, 0};
            beta[i] = {0, 0, 0, 0};
            if (LAYER_NORM && k < S::INPUTS) beta[i] = *reinterpret_cast<const float4 *>(norm.beta + k);
        }
    }

    // γ (x − μ) / √(σ² + ε) + β. Of RMSNorm only γ x, and the warps' sums of squares, from which `factor` is computed.
    __device__ void apply(float (&v)[S::FOURS][4], float epsilon, int &turn) const {
        float factor = 1.0f, sum = 0.0f;
        if (LAYER_NORM) {
#pragma unroll
            for (int i = 0; i < S::FOURS; ++i) sum += v[i][0] + v[i][1] + v[i][2] + v[i][3];
            float mean = sum_of_all(sum, turn) / S::INPUTS;
            sum = 0.0f;
#pragma unroll
            for (int i = 0; i < S::FOURS; ++i)
                for (int j = 0; j < 4; ++j) v[i][j] = four_at<S>(i) < S::INPUTS ? v[i][j] - mean : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < S::FOURS; ++i)
            for (int j = 0; j < 4; ++j) sum += v[i][j] * v[i][j];
        if (EARLY_NORM) factor = rsqrtf(sum_of_all(sum, turn) / S::INPUTS + epsilon);
        else store_sum(sum, shared().reduced[0]);
#pragma unroll
        for (int i = 0; i < S::FOURS; ++i) {
            v[i][0] = v[i][0] * factor * gamma[i].x + beta[i].x, v[i][1] = v[i][1] * factor * gamma[i].y + beta[i].y;
            v[i][2] = v[i][2] * factor * gamma[i].z + beta[i].z, v[i][3] = v[i][3] * factor * gamma[i].w + beta[i].w;
        }
    }

    static __device__ float factor(float epsilon) {
        return EARLY_NORM ? 1.0f : rsqrtf(sum_of_warps(shared().reduced[0]) / S::INPUTS + epsilon);
    }
};

// Store four inputs, which the warp exchanges, as two columns each.
__device__ void store_floats(const float (&v)[4], int i) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 high[2] = {narrow(v[0], v[1]), narrow(v[2], v[3])};
    u32 *upper = shared().inputs[warp][i][0] + 2 * lane, *lower = shared().inputs[warp][i][1] + 2 * lane;
    upper[0] = high[0], upper[1] = high[1];
    lower[0] = narrow(v[0] - widen(high[0]), v[1] - widen_upper(high[0]));
    lower[1] = narrow(v[2] - widen(high[1]), v[3] - widen_upper(high[1]));
}

__device__ void store_bytes(const float (&v)[4], int i) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float top = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    for (int distance = 4; distance; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
    float factor = top > TINY ? __fdividef(LEVELS, top) : 0.0f, t = top * (1.0f / LEVELS);
    int p[4], sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += p[j] = __float2int_rn(v[j] * factor);
    // p = 256 h + l with signed bytes: l is the lower byte, and h the one above it in p + 128.
    u32 low = __byte_perm(__byte_perm(p[0], p[1], 0x0040), __byte_perm(p[2], p[3], 0x0040), 0x5410);
    u32 high = __byte_perm(__byte_perm(p[0] + 128, p[1] + 128, 0x0051),
                           __byte_perm(p[2] + 128, p[3] + 128, 0x0051), 0x5410);
    for (int distance = 4; distance; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    shared().inputs[warp][i][0][lane] = high, shared().inputs[warp][i][1][lane] = low;
    if (lane % 8 == 0) shared().scales[warp][i][lane / 8] = {t, float(sum) * t};
}

// ---- products

// The columns of this warp's slice of one part, in the layout of the matrix instructions: lane 4 n + i has inputs of
// column n. `add` adds the products with rows lane / 4 and lane / 4 + 8 of a tile, of which each lane gets a part.
template <class S, int BITS = S::KIND>
struct Columns {
    uint4 front, back;
    float2 scale;  // t, and the sum of the inputs, of group lane % 4

    __device__ void load(int part) {
        int warp = threadIdx.x / 32, column = threadIdx.x % 32 / 4, group = threadIdx.x % 4;
        const uint4 *words = reinterpret_cast<const uint4 *>(shared().inputs[warp][part][column % 2] + 8 * group);
        bool own = column / 2 == group;
        front = own ? words[0] : uint4{0, 0, 0, 0}, back = own ? words[1] : uint4{0, 0, 0, 0};
        scale = shared().scales[warp][part][group];
    }

    __device__ void add(const char *stage, float &upper, float &lower) const {
        int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, group = threadIdx.x % 4;
        const char *at = stage + row * S::CODE_STRIDE + warp * (S::SLICE * BITS / 8) + group * (GROUP * BITS / 8);
        const uint4 *a = reinterpret_cast<const uint4 *>(at), *b = reinterpret_cast<const uint4 *>(at + 8 * S::CODE_STRIDE);
        int c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        if (BITS == INT4) {
            uint4 u = a[0], v = b[0];
            multiply_nibbles(c, u.x, v.x, front.x, back.x), multiply_nibbles(d, u.y, v.y, front.y, back.y);
            multiply_nibbles(c, u.z, v.z, front.z, back.z), multiply_nibbles(d, u.w, v.w, front.w, back.w);
        } else {
            uint4 u = a[0], v = b[0], u2 = a[1], v2 = b[1];
            multiply_bytes(c, u.x, v.x, u2.x, v2.x, front.x, back.x), multiply_bytes(d, u.y, v.y, u2.y, v2.y, front.y, back.y);
            multiply_bytes(c, u.z, v.z, u2.z, v2.z, front.z, back.z), multiply_bytes(d, u.w, v.w, u2.w, v2.w, front.w, back.w);
        }
        int place = row * S::SCALE_STRIDE + (4 * warp + group) * S::SCALE_BYTES;
        upper += scaled(stage, place, 256 * (c[0] + d[0]) + c[1] + d[1]);
        lower += scaled(stage, place + 8 * S::SCALE_STRIDE, 256 * (c[2] + d[2]) + c[3] + d[3]);
    }

    // A byte has the weights of input k of a group and, in its upper bits, of input k + 16.
    __device__ static void multiply_nibbles(int (&c)[4], u32 u, u32 v, u32 front, u32 back) {
        constexpr u32 LOWER = 0x0F0F0F0Fu;
        multiply_bytes(c, u & LOWER, v & LOWER, u >> 4 & LOWER, v >> 4 & LOWER, front, back);
    }

    __device__ float scaled(const char *stage, int place, int sum) const {
        const u16 *scales = reinterpret_cast<const u16 *>(stage + S::SCALE_AT + place);
        if (BITS == INT8) return float(sum) * scale.x * half_to_float(*scales);
        u32 both = *reinterpret_cast<const u32 *>(scales);
        return float(sum) * scale.x * half_to_float(u16(both)) + half_to_float(u16(both >> 16)) * scale.y;
    }
};

template <class S>
struct Columns<S, FLOATS> {
    uint4 words[2];  // of eight inputs in each half of the slice

    __device__ void load(int part) {
        int warp = threadIdx.x / 32, column = threadIdx.x % 32 / 4, eighth = threadIdx.x % 4;
        const u32 *from = shared().inputs[warp][part / 2][column % 2] + part % 2 * 32 + 4 * eighth;
        for (int half = 0; half < 2; ++half)
            words[half] = column < 2 ? *reinterpret_cast<const uint4 *>(from + 16 * half) : uint4{0, 0, 0, 0};
    }

    __device__ void add(const char *stage, float &upper, float &lower) const {
        int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, eighth = threadIdx.x % 4;
        const char *at = stage + row * S::CODE_STRIDE + warp * (S::SLICE * 2) + eighth * 16;
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint4 u = *reinterpret_cast<const uint4 *>(at + 64 * half);
            uint4 v = *reinterpret_cast<const uint4 *>(at + 64 * half + 8 * S::CODE_STRIDE);
            multiply_floats(c, u.x, v.x, u.y, v.y, words[half].x, words[half].y);
            multiply_floats(d, u.z, v.z, u.w, v.w, words[half].z, words[half].w);
        }
        upper += (c[0] + d[0]) + (c[1] + d[1]), lower += (c[2] + d[2]) + (c[3] + d[3]);
    }
};

// The inputs of a product, in registers.
template <class S>
struct Inputs {
    Columns<S> columns[S::PARTS_OF_ROW];

    __device__ explicit Inputs(const float (&v)[S::FOURS][4]) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < S::FOURS; ++i) {
            if (S::KIND == FLOATS) store_floats(v[i], i);
            else store_bytes(v[i], i);
        }
        __syncwarp();
#pragma unroll
        for (int part = 0; part < S::PARTS_OF_ROW; ++part) columns[part].load(part);
    }
};

// Sums of `count` of the block's outputs, one of each warp, in shared memory.
template <class S>
__device__ void multiply(const Inputs<S> &inputs, Ring &ring, int count, float *sums) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int done = 0; done < count; done += S::ROWS) {
        float upper = 0.0f, lower = 0.0f;
#pragma unroll
        for (int part = 0; part < S::PARTS_OF_ROW; ++part) {
            wait(&shared().full[ring.stage], ring.turn);
            if (part * S::PART + warp * S::SLICE < S::INPUTS)
                inputs.columns[part].add(shared().stages[ring.stage], upper, lower);
            __syncwarp();
            if (lane == 0) arrive(&shared().empty[ring.stage]);
            ring.advance();
        }
        bool odd = lane % 2;
        float sum = (odd ? lower : upper) + __shfl_xor_sync(~0u, odd ? upper : lower, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        int row = lane / 4 + 8 * odd, place = done + row % S::ROWS;
        if (lane % 4 < 2 && place < count) sums[(row / S::ROWS * S::MOST + place) * SUM_STRIDE + warp] = sum;
    }
    synchronize(THREADS);
}

// An output of this block: factor · W x + b.
template <class S>
__device__ float output(const Matrix &matrix, const float *sums, float factor, int row, int half = 0) {
    float y = factor * sum_of_warps(sums + (half * S::MOST + row) * SUM_STRIDE);
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

// Send the outputs of this block, of which each thread computes one.
template <class S, class F>
__device__ void send_outputs(u64 *words, u32 tag, F compute) {
    for (int start = 0; start < S::MOST; start += THREADS) {
        int row = start + threadIdx.x;
        float y = row < S::count() ? compute(row) : 0.0f, next = __shfl_down_sync(~0u, y, 1);
        if (row % 2 == 0 && row < S::count()) send_word(words + (S::first() + row) / 2, tag, narrow(y, next));
    }
}

// x ← x + W (inputs) + b; `own` is the element of x that this thread computes.
template <class S>
__device__ void add_outputs(const Matrix &matrix, const float *sums, u64 *words, u32 tag, float &own) {
    static_assert(S::MOST <= THREADS);
    send_outputs<S>(words, tag, [&](int row) { return own = rounded(own + output<S>(matrix, sums, 1.0f, row)); });
}

// ---- attention

// Element k of a new query, key or value; if `turned`, rotated by the angle of its position.
__device__ float await_rotated(const u64 *words, u32 tag, int k, float cosine, float sine, bool turned) {
    int partner = HALF_PAIRING ? (k < ROTATED / 2 ? k + ROTATED / 2 : k - ROTATED / 2) : k ^ 1;
    bool lower = HALF_PAIRING ? k < ROTATED / 2 : k % 2 == 0;
    const u64 *first = words + k / 2, *second = turned ? words + partner / 2 : first;
    u64 one = load_word(first), two = load_word(second);
    u32 bits = await_word(first, tag, one), others = await_word(second, tag, two);
    float x = k % 2 ? widen_upper(bits) : widen(bits), other = partner % 2 ? widen_upper(others) : widen(others);
    return turned ? x * cosine + (lower ? -other : other) * sine : x;
}

constexpr int KEY_LANES = HEAD / 8, KEYS = 32 / KEY_LANES, STEPS = 64 / WARPS;  // lanes of a key, and keys of a warp at once
constexpr int EACH_VALUES = HEAD / 32;                                 // numbers of a value in one lane
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
    float v[Projection::FOURS][4], *sums = shared().sums[0];
    if (number) await_vector<Projection>(step.words + AT_X, tag - 1, v);
    else load_vector<Projection>(step.x, v);
    norm.apply(v, step.epsilon, turn);
    Inputs<Projection> inputs(v);
    multiply<Projection>(inputs, ring, Projection::count(), sums);
    float factor = norm.factor(step.epsilon);
    send_outputs<Projection>(step.words, tag, [&](int row) {
        return output<Projection>(layer.projection, sums, factor, row);
    });
}

__device__ void add_attended(const Step &step, const Layer &layer, int parts, u32 tag, Ring &ring, float &own) {
    float v[Output::FOURS][4], *sums = shared().sums[1];
    await_heads(step.words, tag, parts, v);
    Inputs<Output> inputs(v);
    multiply<Output>(inputs, ring, Output::count(), sums);
    add_outputs<Output>(layer.output, sums, step.words + AT_MIDDLE, tag, own);
}

__device__ void compute_hidden(const Step &step, const Layer &layer, u32 tag, Ring &ring, int &turn) {
    NormWeights<Up> norm(layer.feedforward_norm);
    float v[Up::FOURS][4], *sums = shared().sums[0];
    await_vector<Up>(step.words + AT_MIDDLE, tag, v);
    norm.apply(v, step.epsilon, turn);
    Inputs<Up> inputs(v);
    multiply<Up>(inputs, ring, Up::count(), sums);
    float factor = norm.factor(step.epsilon);
    send_outputs<Up>(step.words + AT_HIDDEN, tag, [&](int row) {
        float y = activate(output<Up>(layer.up, sums, factor, row));
        return GATED ? y * output<Up>(layer.up, sums, factor, row, 1) : y;
    });
}

__device__ void add_hidden(const Step &step, const Layer &layer, u32 tag, Ring &ring, float &own) {
    float v[Down::FOURS][4], *sums = shared().sums[1];
    await_vector<Down>(step.words + AT_HIDDEN, tag, v);
    Inputs<Down> inputs(v);
    multiply<Down>(inputs, ring, Down::count(), sums);
    add_outputs<Down>(layer.down, sums, step.words + AT_X, tag, own);
}

__device__ void run_layer(const Step &step, int number, int position, int parts, u32 tag, Ring &ring, int &turn,
                          float &own) {
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
    float v[Logits::FOURS][4], *sums = shared().sums[0];
    await_vector<Logits>(step.words + AT_X, tag, v);
    norm.apply(v, step.epsilon, turn);
    Inputs<Logits> inputs(v);
    for (int done = 0; done < Logits::count(); done += CHUNK) {
        int count = Logits::count() - done < CHUNK ? Logits::count() - done : CHUNK;
        multiply<Logits>(inputs, ring, count, sums);
        int row = threadIdx.x;
        if (row < count) {
            float y = norm.factor(step.epsilon) * sum_of_warps(sums + row * SUM_STRIDE);
            i64 place = Logits::first() + done + row;
            step.out[place] = u16(narrow(step.logits.bias ? y + step.logits.bias[place] : y, 0.0f));
        }
        synchronize(THREADS);
    }
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
        reinterpret_cast<u64 *>(&shared().layers[0])[threadIdx.x] = reinterpret_cast<const u64 *>(step.layers)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        copy_weights(step);
        return;
    }
    u32 tag = *step.counter;
    int position = int(*step.position), parts = position <= ALONE ? 1 : PARTS, turn = 0;
    float own = int(threadIdx.x) < Down::count() ? widen(step.x[Down::first() + threadIdx.x]) : 0.0f;
    Ring ring;
    for (int number = 0; number < LAYERS; ++number)
        run_layer(step, number, position, parts, tag + number, ring, turn, own);
    run_logits(step, tag + LAYERS - 1, ring, turn);
    if (blockIdx.x == 0 && threadIdx.x == 0) *step.counter = tag + LAYERS;
}
