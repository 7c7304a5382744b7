// One step of a decoder stack on a processor: vectors of new tokens in, logits out.
//
//     x ← x + attention(norm(x)),  x ← x + cross(norm(x)),  x ← x + feedforward(norm(x))       pre; post: norm(x + f(x))
//     y[o] = Σ_i W[o, i] x[i] + b[o]
//
// The whole step is one call. All threads go through it together: each phase is cut into items that whoever is free
// takes, and a barrier stands between phases. Weights lie in blocks of 16 outputs, so that a vector register holds one
// sum for each of them and nothing is ever added up across a register:
//
//     float32, bf16   [N/16][K][16]                     products of floats
//     int8            [N/16][K/32][8][16][4], q + 128   8 × (16 outputs × 4 inputs), inputs as int8 with a scale for 32
//     int4            [N/16][K/32] × 320 bytes          the same with two q in a byte [4][16][4], then s [16] and m [16]
//
// step.py packs the weights and calls; nothing here allocates more than working space.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 16, GROUP = 32, ROWS = 8, AHEAD = 2048;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef _Float16 Halves __attribute__((vector_size(32)));

template <class V> V load(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class V> void store(void* to, V v) { std::memcpy(to, &v, sizeof v); }

Floats from_half(const void* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(from));
#else
    return __builtin_convertvector(load<Halves>(from), Floats);
#endif
}

// sums[o] += Σ_{i<4} w[o][i] · x[i]
inline Ints dot4(Ints sums, Bytes w, const int8_t* x) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(load<int32_t>(x)));
#else
    for (int o = 0; o < LANES; o++)
        for (int i = 0; i < 4; i++) sums[o] += int32_t(w[4 * o + i]) * x[i];
    return sums;
#endif
}

// eˣ to 1e-7: 2ⁿ · e^r with |r| ≤ ln 2 / 2.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = std::nearbyint(x * 1.44269504f);
    float r = x - n * 0.693145752f - n * 1.42860677e-6f;
    float p = 1 + r * (1 + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return p * power;
}
inline float sigmoid(float x) { return 1 / (1 + exponential(-x)); }
// Abramowitz and Stegun 7.1.26, to 1.5e-7.
inline float error_function(float x) {
    float a = std::fabs(x), t = 1 / (1 + 0.3275911f * a);
    float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    return std::copysign(1 - p * exponential(-a * a), x);
}

enum Activation { RELU, GELU, GELU_TANH, SILU };
inline float activated(int kind, float x) {
    switch (kind) {
        case RELU: return x > 0 ? x : 0;
        case GELU: return 0.5f * x * (1 + error_function(x * 0.707106781f));
        case GELU_TANH: return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));  // ½(1 + tanh u) = σ(2u)
        default: return x * sigmoid(x);
    }
}

// A crew of threads that goes through one piece of work together.
class Crew {
  public:
    explicit Crew(int size) : size(size) {
        for (int i = 1; i < size; i++) threads.emplace_back([this] { wait_for_work(); });
    }
    ~Crew() {
        leaving = true;
        begin();
        for (auto& thread : threads) thread.join();
    }
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

// What step.py describes with the same fields.
enum Kind { FLOAT32, BF16, INT8, INT4 };
struct Product {
    int32_t kind, outputs, inputs;
    const void* weight;
    const float *scale, *bias;
};
enum NormKind { NONE, LAYER, RMS, AFFINE };
struct Norm {
    int32_t kind;
    float epsilon;
    const float *gamma, *beta;
};
struct Layer {
    Norm attention_norm, cross_norm, feed_norm;
    Product attention, output, cross_query, cross_output, up, down;
};
struct Stack {
    int32_t layers, width, heads, kv_heads, head_width, hidden, activation, gated, post, half, cross;
    const Layer* layer;
    Norm last;
    Product logits;  // without outputs: the vectors themselves are asked for
};
struct Batch {
    int32_t count;                  // new tokens
    const int32_t *row, *position;  // whose they are, and where they stand
    const int32_t* seen;            // how many positions each sees
    const float *cos, *sin;         // [count, K/2], or none
    float* x;                       // [count, D]: in, what was embedded
    float* store;                   // keys and values [L, 2, R, C, G·K]
    int32_t rows, capacity;
    const int32_t* origin;          // [R, C]: in which row of the store a row's position lies
    const float* const* memory;     // a row's cross-attention keys and values [L, 2, S, G·K]
    const int32_t* memory_length;
    int32_t asked;
    const int32_t* wanted;          // which tokens' logits
    float* logits;                  // [asked, V], or [asked, D]
};

namespace {

int padded(int inputs) { return (inputs + GROUP - 1) / GROUP * GROUP; }

// The inputs of a product, in the form its weights want.
struct Inputs {
    int stride = 0;
    std::vector<float> floats, scale;
    std::vector<int8_t> q;
    std::vector<int32_t> sum;

    void reserve(int count, int inputs) {
        stride = padded(inputs);
        floats.resize(size_t(count) * stride);
        q.resize(floats.size());
        scale.resize(floats.size() / GROUP);
        sum.resize(floats.size() / GROUP);
    }
    float* row(int r) { return floats.data() + size_t(r) * stride; }

    // x ≈ scale · q, a scale for 32 inputs.
    void quantise(int r, int inputs) {
        const float* x = row(r);
        for (int g = 0; g < padded(inputs) / GROUP; g++) {
            const float* from = x + g * GROUP;
            int8_t* to = q.data() + size_t(r) * stride + g * GROUP;
            float most = 0;
            for (int i = 0; i < GROUP; i++) most = std::max(most, std::fabs(from[i]));
            float inverse = most > 0 ? 127 / most : 0;
            int32_t total = 0;
            for (int i = 0; i < GROUP; i++) {
                to[i] = int8_t(std::nearbyint(from[i] * inverse));
                total += to[i];
            }
            scale[size_t(r) * stride / GROUP + g] = most / 127;
            sum[size_t(r) * stride / GROUP + g] = total;
        }
    }
    void form(int r, const Product& product) {
        std::fill(row(r) + product.inputs, row(r) + padded(product.inputs), 0.0f);
        if (product.kind >= INT8) quantise(r, product.inputs);
    }
};

// Ask for what is needed in a moment: the processor's own guesses end at every page.
inline void ahead(const void* from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + AHEAD + i);
}

// R rows against one block of 16 outputs. `sums` [R] are in registers.
template <int R> void block_floats(const Product& p, int block, const float* x, int stride, Floats* sums) {
    const char* w = static_cast<const char*>(p.weight);
    if (p.kind == FLOAT32) {
        w += size_t(block) * p.inputs * sizeof(Floats);
        Floats odd[R] = {};
        int i = 0;
        for (; i + 1 < p.inputs; i += 2) {
            Floats a = load<Floats>(w + i * sizeof(Floats)), b = load<Floats>(w + (i + 1) * sizeof(Floats));
            for (int r = 0; r < R; r++) {
                sums[r] += a * x[r * stride + i];
                odd[r] += b * x[r * stride + i + 1];
            }
        }
        if (i < p.inputs)
            for (int r = 0; r < R; r++) sums[r] += load<Floats>(w + i * sizeof(Floats)) * x[r * stride + i];
        for (int r = 0; r < R; r++) sums[r] += odd[r];
        return;
    }
    // Two inputs' bf16 in a word: the upper half of a float is the bf16 itself.
    w += size_t(block) * ((p.inputs + 1) / 2) * sizeof(Words);
    Floats odd[R] = {};
    for (int i = 0; i < p.inputs; i += 2) {
        Words both = load<Words>(w + i / 2 * sizeof(Words));
        Floats a = (Floats)(both << 16), b = (Floats)(both & 0xffff0000u);
        for (int r = 0; r < R; r++) {
            sums[r] += a * x[r * stride + i];
            odd[r] += b * x[r * stride + i + 1];
        }
    }
    for (int r = 0; r < R; r++) sums[r] += odd[r];
}

template <int R> void block_int8(const Product& p, int block, const Inputs& in, int first, Floats* sums) {
    int groups = padded(p.inputs) / GROUP, stride = in.stride;
    const uint8_t* w = static_cast<const uint8_t*>(p.weight) + size_t(block) * groups * GROUP * LANES;
    const int8_t* q = in.q.data() + size_t(first) * stride;
    const float* scale = in.scale.data() + size_t(first) * stride / GROUP;
    const int32_t* sum = in.sum.data() + size_t(first) * stride / GROUP;
    for (int g = 0; g < groups; g++, w += GROUP * LANES) {
        ahead(w, GROUP * LANES);
        Bytes part[8];
        for (int j = 0; j < 8; j++) part[j] = load<Bytes>(w + j * 64);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            // Weights are stored with 128 added, which is taken off here.
            Ints dots = Ints{} - 128 * sum[r * (stride / GROUP) + g];
            for (int j = 0; j < 8; j++) dots = dot4(dots, part[j], q + r * stride + g * GROUP + j * 4);
            sums[r] += __builtin_convertvector(dots, Floats) * scale[r * (stride / GROUP) + g];
        }
    }
    Floats channel = load<Floats>(p.scale + block * LANES);
    for (int r = 0; r < R; r++) sums[r] *= channel;
}

template <int R> void block_int4(const Product& p, int block, const Inputs& in, int first, Floats* sums) {
    constexpr int SIZE = GROUP * LANES / 2 + 4 * LANES;
    int groups = padded(p.inputs) / GROUP, stride = in.stride;
    const uint8_t* w = static_cast<const uint8_t*>(p.weight) + size_t(block) * groups * SIZE;
    const int8_t* q = in.q.data() + size_t(first) * stride;
    const float* scale = in.scale.data() + size_t(first) * stride / GROUP;
    const int32_t* sum = in.sum.data() + size_t(first) * stride / GROUP;
    for (int g = 0; g < groups; g++, w += SIZE) {
        ahead(w, SIZE);
        Bytes part[8];
        for (int j = 0; j < 4; j++) {
            Bytes both = load<Bytes>(w + j * 64);
            part[j] = both & 15;
            part[j + 4] = both >> 4;
        }
        Floats steps = from_half(w + 4 * 64), lows = from_half(w + 4 * 64 + 2 * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Ints dots = {};
            for (int j = 0; j < 8; j++) dots = dot4(dots, part[j], q + r * stride + g * GROUP + j * 4);
            float each = scale[r * (stride / GROUP) + g];
            sums[r] += steps * (__builtin_convertvector(dots, Floats) * each);
            sums[r] += lows * (each * float(sum[r * (stride / GROUP) + g]));
        }
    }
}

template <int R>
void block_rows(const Product& p, int block, const Inputs& in, int first, float* y, int stride, bool add) {
    Floats sums[R] = {};
    if (p.kind == INT4) block_int4<R>(p, block, in, first, sums);
    else if (p.kind == INT8) block_int8<R>(p, block, in, first, sums);
    else block_floats<R>(p, block, in.floats.data() + size_t(first) * in.stride, in.stride, sums);
    int there = std::min(LANES, p.outputs - block * LANES);
    for (int r = 0; r < R; r++) {
        float* to = y + size_t(first + r) * stride + block * LANES;
        for (int o = 0; o < there; o++) {
            float value = sums[r][o] + (p.bias ? p.bias[block * LANES + o] : 0.0f);
            to[o] = add ? to[o] + value : value;
        }
    }
}

// y = W x + b for all rows, or y += it.
void multiply(Crew& crew, const Product& p, const Inputs& from, int count, float* y, int stride, bool add) {
    int blocks = (p.outputs + LANES - 1) / LANES;
    // A few blocks an item: taking one costs more than a small block does.
    int each = std::max(1, std::min(8, blocks / (crew.size * 8)));
    crew.each((blocks + each - 1) / each, [&](int item) {
        for (int r = 0; r < count;) {
            int rows = std::min(ROWS, count - r);
            for (int b = item * each; b < std::min(blocks, (item + 1) * each); b++) switch (rows) {
                case 1: block_rows<1>(p, b, from, r, y, stride, add); break;
                case 2: block_rows<2>(p, b, from, r, y, stride, add); break;
                case 3: block_rows<3>(p, b, from, r, y, stride, add); break;
                case 4: block_rows<4>(p, b, from, r, y, stride, add); break;
                case 5: block_rows<5>(p, b, from, r, y, stride, add); break;
                case 6: block_rows<6>(p, b, from, r, y, stride, add); break;
                case 7: block_rows<7>(p, b, from, r, y, stride, add); break;
                default: block_rows<8>(p, b, from, r, y, stride, add);
            }
            r += rows;
        }
    });
}

// Lane l of the sum of a's neighbours where bit D of l is 0, of b's where it is 1.
template <int D> Floats fold(Floats a, Floats b) {
    Words here, there;
    for (unsigned l = 0; l < LANES; l++) {
        here[l] = (l & D ? LANES : 0) + l;
        there[l] = (l & D ? LANES : 0) + (l ^ D);
    }
    return __builtin_shuffle(a, b, here) + __builtin_shuffle(a, b, there);
}

// q · k for 16 keys at once: 16 vectors of partial sums, folded until lane l is the sum of vector l.
inline Floats dots(const float* query, const float* const* keys, int width) {
    Floats part[LANES] = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats q = load<Floats>(query + i);
        for (int t = 0; t < LANES; t++) part[t] += q * load<Floats>(keys[t] + i);
    }
    for (int t = 0; t < LANES; t += 2) part[t] = fold<1>(part[t], part[t + 1]);
    for (int t = 0; t < LANES; t += 4) part[t] = fold<2>(part[t], part[t + 2]);
    for (int t = 0; t < LANES; t += 8) part[t] = fold<4>(part[t], part[t + 4]);
    Floats sums = fold<8>(part[0], part[8]);
    for (; i < width; i++)
        for (int t = 0; t < LANES; t++) sums[t] += query[i] * keys[t][i];
    return sums;
}

// out[h] = Σ_t s[h][t] v[t] for S heads, 64 numbers of a head at a time in registers.
template <int S, class At>
void mix(const float* scores, int stride, int length, const At& value, int width, float* out) {
    int i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES) {
        Floats sums[S][4] = {};
        for (int t = 0; t < length; t++) {
            const float* v = value(t) + i;
            for (int j = 0; j < 4; j++) {
                Floats part = load<Floats>(v + j * LANES);
                for (int h = 0; h < S; h++) sums[h][j] += part * scores[h * stride + t];
            }
        }
        for (int h = 0; h < S; h++)
            for (int j = 0; j < 4; j++) store(out + h * width + i + j * LANES, sums[h][j]);
    }
    for (int h = 0; h < S; h++)
        for (int rest = i; rest < width; rest++) {
            float sum = 0;
            for (int t = 0; t < length; t++) sum += scores[h * stride + t] * value(t)[rest];
            out[h * width + rest] = sum;
        }
}

struct Worker {
    const Stack& stack;
    const Batch& batch;
    Crew& crew;
    Inputs &in, &hidden;
    std::vector<float>&projected, &gates;

    void multiply(const Product& p, const Inputs& from, int count, float* y, int stride, bool add) {
        ::multiply(crew, p, from, count, y, stride, add);
    }

    static void normalise(const Norm& norm, int width, const float* x, float* y) {
        float mean = 0, square = 0;
        if (norm.kind == LAYER) {
            for (int i = 0; i < width; i++) mean += x[i];
            mean /= width;
        }
        if (norm.kind != AFFINE)
            for (int i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
        float by = norm.kind == AFFINE ? 1.0f : 1 / std::sqrt(square / width + norm.epsilon);
        for (int i = 0; i < width; i++) y[i] = (x[i] - mean) * by * norm.gamma[i] + (norm.beta ? norm.beta[i] : 0.0f);
    }

    // What a sub-layer reads: norm(x) before it, or x after the norm of the sub-layer before.
    void prepare(const Norm& norm, const Product& product, const Norm* behind) {
        int width = stack.width;
        crew.each(batch.count, [&](int r) {
            float* x = batch.x + size_t(r) * width;
            if (behind) normalise(*behind, width, x, x);
            if (stack.post) std::memcpy(in.row(r), x, width * sizeof(float));
            else normalise(norm, width, x, in.row(r));
            in.form(r, product);
        });
    }

    void rotate(float* head, int token) {
        int pairs = stack.head_width / 2;
        const float *cos = batch.cos + size_t(token) * pairs, *sin = batch.sin + size_t(token) * pairs;
        int step = stack.half ? 1 : 2, apart = stack.half ? pairs : 1;
        for (int i = 0; i < pairs; i++) {
            float &a = head[i * step], &b = head[i * step + apart], turned = a * cos[i] - b * sin[i];
            b = a * sin[i] + b * cos[i];
            a = turned;
        }
    }

    float* place(int layer, int which, int token) {
        int row = batch.row[token], position = batch.position[token], wide = stack.kv_heads * stack.head_width;
        size_t home = batch.origin[size_t(row) * batch.capacity + position];
        return batch.store + (((size_t(layer) * 2 + which) * batch.rows + home) * batch.capacity + position) * wide;
    }

    // softmax(q Kᵀ / √d) V for the query heads that share a key head. `at(t)` says where position t's keys begin.
    template <class At> void look(const float* query, int length, size_t values, const At& at, float* out) {
        thread_local std::vector<float> space;
        int shared = stack.heads / stack.kv_heads, width = stack.head_width;
        int stride = (length + LANES - 1) / LANES * LANES;
        space.resize(size_t(shared) * stride);
        float *scores = space.data(), scale = 1 / std::sqrt(float(width));
        for (int t = 0; t < length; t += LANES) {
            const float* keys[LANES];
            for (int i = 0; i < LANES; i++) keys[i] = at(std::min(t + i, length - 1));
            for (int h = 0; h < shared; h++) store(scores + h * stride + t, dots(query + h * width, keys, width) * scale);
        }
        for (int h = 0; h < shared; h++) {
            float *s = scores + h * stride, most = -INFINITY, total = 0;
            for (int t = 0; t < length; t++) most = std::max(most, s[t]);
            for (int t = 0; t < length; t++) total += s[t] = exponential(s[t] - most);
            for (int t = 0; t < length; t++) s[t] /= total;
        }
        for (int h = 0; h < shared; h += 4) {
            float *s = scores + h * stride, *to = out + h * width;
            auto value = [&](int t) { return at(t) + values; };
            switch (std::min(4, shared - h)) {
                case 1: mix<1>(s, stride, length, value, width, to); break;
                case 2: mix<2>(s, stride, length, value, width, to); break;
                case 3: mix<3>(s, stride, length, value, width, to); break;
                default: mix<4>(s, stride, length, value, width, to);
            }
        }
    }

    void self_attention(int layer) {
        const Layer& l = stack.layer[layer];
        int width = stack.head_width, G = stack.kv_heads, shared = stack.heads / G, wide = (stack.heads + 2 * G) * width;
        multiply(l.attention, in, batch.count, projected.data(), wide, false);
        crew.each(batch.count, [&](int r) {
            float* query = projected.data() + size_t(r) * wide;
            float* key = query + stack.heads * width;
            if (batch.cos)
                for (int h = 0; h < stack.heads + G; h++) rotate(query + h * width, r);
            std::memcpy(place(layer, 0, r), key, G * width * sizeof(float));
            std::memcpy(place(layer, 1, r), key + G * width, G * width * sizeof(float));
        });
        size_t one = size_t(batch.rows) * batch.capacity * G * width;
        const float* keys = batch.store + size_t(layer) * 2 * one;
        crew.each(batch.count * G, [&](int item) {
            int r = item / G, g = item % G;
            const int32_t* origin = batch.origin + size_t(batch.row[r]) * batch.capacity;
            auto at = [&](int t) { return keys + ((size_t(origin[t]) * batch.capacity + t) * G + g) * width; };
            look(projected.data() + size_t(r) * wide + g * shared * width, batch.seen[r], one, at,
                 in.row(r) + g * shared * width);
        });
        formed(l.output, in);
        multiply(l.output, in, batch.count, batch.x, stack.width, true);
    }

    void cross_attention(int layer) {
        const Layer& l = stack.layer[layer];
        int width = stack.head_width, G = stack.kv_heads, shared = stack.heads / G;
        multiply(l.cross_query, in, batch.count, projected.data(), stack.width, false);
        crew.each(batch.count * G, [&](int item) {
            int r = item / G, g = item % G, length = batch.memory_length[batch.row[r]];
            size_t one = size_t(length) * G * width;
            const float* keys = batch.memory[batch.row[r]] + size_t(layer) * 2 * one;
            auto at = [&](int t) { return keys + (size_t(t) * G + g) * width; };
            look(projected.data() + size_t(r) * stack.width + g * shared * width, length, one, at,
                 in.row(r) + g * shared * width);
        });
        formed(l.cross_output, in);
        multiply(l.cross_output, in, batch.count, batch.x, stack.width, true);
    }

    void feed_forward(int layer) {
        const Layer& l = stack.layer[layer];
        int F = stack.hidden, wide = F * (1 + stack.gated);
        multiply(l.up, in, batch.count, gates.data(), wide, false);
        // Rows in pieces of a few groups, since a step has often one row.
        int pieces = (F + 8 * GROUP - 1) / (8 * GROUP);
        crew.each(batch.count * pieces, [&](int item) {
            int r = item / pieces, from = item % pieces * 8 * GROUP, to = std::min(F, from + 8 * GROUP);
            const float *gate = gates.data() + size_t(r) * wide, *up = gate + F;
            float* h = hidden.row(r);
            for (int i = from; i < to; i++) h[i] = activated(stack.activation, gate[i]);
            if (stack.gated)
                for (int i = from; i < to; i++) h[i] *= up[i];
        });
        formed(l.down, hidden);
        multiply(l.down, hidden, batch.count, batch.x, stack.width, true);
    }

    void formed(const Product& product, Inputs& inputs) {
        crew.each(batch.count, [&](int r) { inputs.form(r, product); });
    }

    void logits() {
        crew.each(batch.asked, [&](int r) {
            const float* x = batch.x + size_t(batch.wanted[r]) * stack.width;
            const Norm& last = stack.post ? stack.layer[stack.layers - 1].feed_norm : stack.last;
            normalise(last, stack.width, x, in.row(r));
            if (stack.logits.outputs) in.form(r, stack.logits);
            else std::memcpy(batch.logits + size_t(r) * stack.width, in.row(r), stack.width * sizeof(float));
        });
        if (stack.logits.outputs) multiply(stack.logits, in, batch.asked, batch.logits, stack.logits.outputs, false);
    }

    void step() {
        const Norm* behind = nullptr;
        for (int layer = 0; layer < stack.layers; layer++) {
            const Layer& l = stack.layer[layer];
            prepare(l.attention_norm, l.attention, behind);
            self_attention(layer);
            behind = stack.post ? &l.attention_norm : nullptr;
            if (stack.cross) {
                prepare(l.cross_norm, l.cross_query, behind);
                cross_attention(layer);
                behind = stack.post ? &l.cross_norm : nullptr;
            }
            prepare(l.feed_norm, l.up, behind);
            feed_forward(layer);
            behind = stack.post ? &l.feed_norm : nullptr;
        }
        logits();
    }
};

}  // namespace

extern "C" {

void* crew_open(int size) { return new Crew(size); }
void crew_close(void* crew) { delete static_cast<Crew*>(crew); }
int sizes(int which) {
    const int all[] = {sizeof(Product), sizeof(Norm), sizeof(Layer), sizeof(Stack), sizeof(Batch)};
    return all[which];
}

void step(void* threads, const Stack* stack, const Batch* batch) {
    Crew& crew = *static_cast<Crew*>(threads);
    // Working space stays for the next step of whichever thread calls.
    thread_local Inputs in, hidden;
    thread_local std::vector<float> projected, gates;
    int most = std::max(batch->count, batch->asked);
    in.reserve(most, stack->width);
    hidden.reserve(batch->count, stack->hidden);
    projected.resize(size_t(batch->count) * (stack->heads + 2 * stack->kv_heads) * stack->head_width);
    gates.resize(size_t(batch->count) * stack->hidden * (1 + stack->gated));
    Worker worker{*stack, *batch, crew, in, hidden, projected, gates};
    crew.run([&] { worker.step(); });
}

// A number that changes with any of the bytes and with their order: 8 sums side by side, each times 31.
uint64_t fingerprint(const uint8_t* bytes, size_t size) {
    uint64_t sums[8] = {size}, found = 0;
    for (; size >= sizeof sums; bytes += sizeof sums, size -= sizeof sums)
        for (int i = 0; i < 8; i++) sums[i] = (sums[i] << 5) - sums[i] + load<uint64_t>(bytes + 8 * i);
    for (uint64_t sum : sums) found = found * 31 + sum;
    for (; size; bytes++, size--) found = found * 31 + *bytes;
    return found;
}

// y [count, N] of x [count, K]
void product(void* threads, const Product* p, int count, const float* x, float* y) {
    Crew& crew = *static_cast<Crew*>(threads);
    thread_local Inputs in;
    in.reserve(count, p->inputs);
    crew.run([&, &in = in] {
        crew.each(count, [&](int r) {
            std::memcpy(in.row(r), x + size_t(r) * p->inputs, p->inputs * sizeof(float));
            in.form(r, *p);
        });
        multiply(crew, *p, in, count, y, p->outputs, false);
    });
}

}
