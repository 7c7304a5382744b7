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
//     int8            [N/16][K/4][16][4], q + 128       inputs as int8 with one scale
//     int4            [N/16][K/32] × 320 bytes          two q in a byte [4][16][4], s [16] and m [16]; a scale for 32 inputs
//
// pack.py packs the weights and call.py calls; nothing here allocates more than working space.

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
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int LANES = 16, GROUP = 32, ROWS = 8, TILE = 16, AHEAD = 2048;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef int8_t Chars __attribute__((vector_size(16)));
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

Floats least(Floats a, Floats b) { return a < b ? a : b; }
Floats most(Floats a, Floats b) { return a > b ? a : b; }
Floats magnitude(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

// The nearest whole numbers: added to 1.5 · 2²³, a float has no room for anything behind the point.
Ints nearest(Floats x) { return (Ints)(x + 12582912.0f) - 0x4b400000; }

// eˣ to 1e-7: 2ⁿ · e^r with |r| ≤ ln 2 / 2.
Floats exponential(Floats x) {
    x = most(least(x, Floats{} + 88.0f), Floats{} - 87.0f);
    Ints n = nearest(x * 1.44269504f);
    Floats whole = __builtin_convertvector(n, Floats);
    Floats r = x - whole * 0.693145752f - whole * 1.42860677e-6f;
    Floats p = 0.00833333333f + r * 0.00138888889f;
    p = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * p))));
    return p * (Floats)((n + 127) << 23);
}
Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }
// Abramowitz and Stegun 7.1.26, to 1.5e-7.
Floats error_function(Floats x) {
    Floats a = magnitude(x), t = 1.0f / (1.0f + 0.3275911f * a);
    Floats p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    Floats above = 1.0f - p * exponential(-a * a);
    return x < 0.0f ? -above : above;
}

enum Activation { RELU, GELU, GELU_TANH, SILU };
Floats activated(int kind, Floats x) {
    switch (kind) {
        case RELU: return most(x, Floats{});
        case GELU: return 0.5f * x * (1.0f + error_function(x * 0.707106781f));
        case GELU_TANH: return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));  // ½(1 + tanh u) = σ(2u)
        default: return x * sigmoid(x);
    }
}

float total(Floats x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}
float largest(Floats x) {
    float found = x[0];
    for (int i = 1; i < LANES; i++) found = x[i] > found ? x[i] : found;
    return found;
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

// What pack.py describes with the same fields.
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

int padded(int inputs) { return (inputs + 63) / 64 * 64; }

// The inputs of a product, in the form its weights want: floats, or q with x ≈ scale · q for each `group` of them.
struct Inputs {
    int stride = 0, groups = 0;
    std::vector<float> floats, scale;
    std::vector<int8_t> q;
    std::vector<int32_t> sum;

    void reserve(int count, int inputs) {
        stride = padded(inputs);
        groups = stride / GROUP;
        size_t rows = (count + TILE - 1) / TILE * TILE;  // whole tiles are read
        floats.resize(rows * stride);
        q.resize(floats.size());
        scale.resize(rows * groups);
        sum.resize(rows * groups);
    }
    float* row(int r) { return floats.data() + size_t(r) * stride; }

    void form(int r, const Product& product) {
        std::fill(row(r) + product.inputs, row(r) + stride, 0.0f);
        if (product.kind < INT8) return;
        int group = product.kind == INT8 ? stride : GROUP;
        for (int g = 0; g < stride / group; g++) quantise(r, g, group);
    }
    void quantise(int r, int g, int group) {
        const float* from = row(r) + g * group;
        int8_t* to = q.data() + size_t(r) * stride + g * group;
        // Sizes compare as their bits do, and what is no number is above them all, so that it is not lost.
        Ints far = {};
        for (int i = 0; i < group; i += LANES) {
            Ints size = load<Ints>(from + i) & 0x7fffffff;
            far = size > far ? size : far;
        }
        int32_t bits = far[0];
        for (int i = 1; i < LANES; i++) bits = std::max(bits, int32_t(far[i]));
        float top = load<float>(&bits), inverse = top > 0 ? 127 / top : 0;
        Ints sums = {};
        for (int i = 0; i < group; i += LANES) {
            Ints whole = nearest(load<Floats>(from + i) * inverse);
            store(to + i, __builtin_convertvector(whole, Chars));
            sums += whole;
        }
        int32_t all = 0;
        for (int i = 0; i < LANES; i++) all += sums[i];
        scale[size_t(r) * groups + g] = top / 127;
        sum[size_t(r) * groups + g] = all;
    }
};

// Ask for what is needed in a moment: the processor's own guesses end at every page.
inline void ahead(const void* from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + AHEAD + i);
}

// R rows against B blocks of 16 outputs, the sums of which stay in registers.
template <int R, int B> struct Sums {
    Floats of[B][R] = {};
};

template <int R, int B> void multiply_float32(const Product& p, int block, const float* x, int stride, Sums<R, B>& sums) {
    const Floats* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Floats*>(p.weight) + size_t(block + b) * p.inputs;
    for (int i = 0; i < p.inputs; i++)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i, 64);
            Floats weights = load<Floats>(w[b] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sums.of[b][r] += weights * x[r * stride + i];
        }
}

// Two inputs' bf16 in a word: the upper half of a float is the bf16 itself.
template <int R, int B> void multiply_bf16(const Product& p, int block, const float* x, int stride, Sums<R, B>& sums) {
    const Words* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Words*>(p.weight) + size_t(block + b) * ((p.inputs + 1) / 2);
    for (int i = 0; i < p.inputs; i += 2)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i / 2, 64);
            Words both = load<Words>(w[b] + i / 2);
            Floats first = (Floats)(both << 16), second = (Floats)(both & 0xffff0000u);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sums.of[b][r] += first * x[r * stride + i] + second * x[r * stride + i + 1];
        }
}

template <int R, int B> void multiply_int8(const Product& p, int block, const Inputs& in, int first, Sums<R, B>& sums) {
    int parts = in.stride / 4;
    const Bytes* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Bytes*>(p.weight) + size_t(block + b) * parts;
    const int8_t* q = in.q.data() + size_t(first) * in.stride;
    Ints dots[B][R];
    // Weights are stored with 128 added, which is taken off here.
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) dots[b][r] = Ints{} - 128 * in.sum[size_t(first + r) * in.groups];
    for (int i = 0; i < parts; i++)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i, 64);
            Bytes weights = load<Bytes>(w[b] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) dots[b][r] = dot4(dots[b][r], weights, q + r * in.stride + i * 4);
        }
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) {
            Floats channel = load<Floats>(p.scale + (block + b) * LANES);
            sums.of[b][r] = __builtin_convertvector(dots[b][r], Floats) * channel * in.scale[size_t(first + r) * in.groups];
        }
}

template <int R> void multiply_int4(const Product& p, int block, const Inputs& in, int first, Sums<R, 1>& sums) {
    constexpr int SIZE = GROUP * LANES / 2 + 4 * LANES;
    int groups = p.inputs / GROUP;
    const uint8_t* w = static_cast<const uint8_t*>(p.weight) + size_t(block) * groups * SIZE;
    const int8_t* q = in.q.data() + size_t(first) * in.stride;
    const float* scale = in.scale.data() + size_t(first) * in.groups;
    const int32_t* sum = in.sum.data() + size_t(first) * in.groups;
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
            for (int j = 0; j < 8; j++) dots = dot4(dots, part[j], q + r * in.stride + g * GROUP + j * 4);
            float each = scale[r * in.groups + g];
            sums.of[0][r] += steps * (__builtin_convertvector(dots, Floats) * each);
            sums.of[0][r] += lows * (each * float(sum[r * in.groups + g]));
        }
    }
}

// Where results go: y = W x + b, or y += it.
struct Output {
    float* y;
    int stride;
    bool add;

    void write(const Product& p, int block, int row, Floats sums) const {
        float* to = y + size_t(row) * stride + block * LANES;
        int there = std::min(LANES, p.outputs - block * LANES);
        if (there == LANES) {
            if (p.bias) sums += load<Floats>(p.bias + block * LANES);
            store(to, add ? load<Floats>(to) + sums : sums);
            return;
        }
        for (int o = 0; o < there; o++) {
            float value = sums[o] + (p.bias ? p.bias[block * LANES + o] : 0.0f);
            to[o] = add ? to[o] + value : value;
        }
    }
};

template <int R, int B> void multiply_rows(const Product& p, int block, const Inputs& in, int first, const Output& out) {
    Sums<R, B> sums;
    const float* x = in.floats.data() + size_t(first) * in.stride;
    if constexpr (B == 1)
        if (p.kind == INT4) multiply_int4<R>(p, block, in, first, sums);
    if (p.kind == INT8) multiply_int8<R, B>(p, block, in, first, sums);
    if (p.kind == BF16) multiply_bf16<R, B>(p, block, x, in.stride, sums);
    if (p.kind == FLOAT32) multiply_float32<R, B>(p, block, x, in.stride, sums);
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) out.write(p, block + b, first + r, sums.of[b][r]);
}

template <int B, int R = ROWS>
void multiply_some(const Product& p, int block, const Inputs& in, int first, int rows, const Output& out) {
    if constexpr (R == 1) multiply_rows<1, B>(p, block, in, first, out);
    else if (rows == R) multiply_rows<R, B>(p, block, in, first, out);
    else multiply_some<B, R - 1>(p, block, in, first, rows, out);
}

#if defined(__AMX_INT8__) && defined(__linux__)
// Processors with matrix tiles multiply 16 rows by 16 outputs over 64 inputs at once. Linux asks to be asked first.
bool tiles_there() {
    static const bool there = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return there;
}

void tiles_begin() {
    struct Form {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t columns[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static const Form form;  // static: of one on the stack the compiler would see no use, and leave it empty
    _tile_loadconfig(&form);
}

// 32 rows against two blocks of outputs, in four tiles of sums.
void multiply_tiles(const Product& p, int block, const Inputs& in, int first, int rows, const Output& out) {
    int stride = in.stride, parts = stride / 4, two = (block + 1) * LANES < p.outputs, more = rows > TILE;
    const uint8_t* w = static_cast<const uint8_t*>(p.weight) + size_t(block) * parts * 64;
    const uint8_t* v = w + two * parts * 64;
    const int8_t *q = in.q.data() + size_t(first) * stride, *s = q + more * TILE * stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < stride; i += 64) {
        ahead(w + i * LANES, 1024);
        ahead(v + i * LANES, 1024);
        _tile_loadd(4, q + i, stride);
        _tile_loadd(5, s + i, stride);
        _tile_loadd(6, w + i * LANES, 64);
        _tile_loadd(7, v + i * LANES, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    alignas(64) int32_t sums[2][2][TILE][LANES];
    _tile_stored(0, sums[0][0], 64);
    _tile_stored(1, sums[0][1], 64);
    _tile_stored(2, sums[1][0], 64);
    _tile_stored(3, sums[1][1], 64);
    for (int b = 0; b <= two; b++) {
        Floats channel = load<Floats>(p.scale + (block + b) * LANES);
        for (int r = 0; r < rows; r++) {
            size_t place = size_t(first + r) * in.groups;
            Ints dots = load<Ints>(sums[r / TILE][b][r % TILE]) - 128 * in.sum[place];
            out.write(p, block + b, first + r, __builtin_convertvector(dots, Floats) * channel * in.scale[place]);
        }
    }
}
#else
bool tiles_there() { return false; }
void tiles_begin() {}
void multiply_tiles(const Product&, int, const Inputs&, int, int, const Output&) {}
#endif

void multiply(Crew& crew, const Product& p, const Inputs& in, int count, const Output& out) {
    bool tiles = p.kind == INT8 && count >= TILE / 2 && tiles_there();
    int blocks = (p.outputs + LANES - 1) / LANES, rows = tiles ? 2 * TILE : ROWS;
    // A few pairs of blocks an item: taking one costs more than a small block does.
    int each = std::max(1, std::min(4, blocks / (crew.size * 16))) * 2;
    if (tiles) tiles_begin();
    crew.each((blocks + each - 1) / each, [&](int item) {
        int end = std::min(blocks, (item + 1) * each);
        for (int r = 0; r < count; r += rows) {
            int some = std::min(rows, count - r);
            for (int b = item * each; b < end; b += 2) {
                if (tiles) multiply_tiles(p, b, in, r, some, out);
                else if (p.kind != INT4 && b + 1 < end) multiply_some<2>(p, b, in, r, some, out);
                else
                    for (int one = b; one < std::min(end, b + 2); one++) multiply_some<1>(p, one, in, r, some, out);
            }
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
            float* s = scores + h * stride;
            for (int t = length; t < stride; t++) s[t] = -INFINITY;
            Floats top = load<Floats>(s), sum = {};
            for (int t = LANES; t < stride; t += LANES) top = most(top, load<Floats>(s + t));
            float highest = largest(top);
            for (int t = 0; t < stride; t += LANES) {
                Floats share = exponential(load<Floats>(s + t) - highest);
                store(s + t, share);
                sum += share;
            }
            float all = total(sum);
            for (int t = 0; t < stride; t += LANES) store(s + t, load<Floats>(s + t) / all);
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
        multiply(crew, l.attention, in, batch.count, {projected.data(), wide, false});
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
        multiply(crew, l.output, in, batch.count, {batch.x, stack.width, true});
    }

    void cross_attention(int layer) {
        const Layer& l = stack.layer[layer];
        int width = stack.head_width, G = stack.kv_heads, shared = stack.heads / G;
        multiply(crew, l.cross_query, in, batch.count, {projected.data(), stack.width, false});
        crew.each(batch.count * G, [&](int item) {
            int r = item / G, g = item % G, length = batch.memory_length[batch.row[r]];
            size_t one = size_t(length) * G * width;
            const float* keys = batch.memory[batch.row[r]] + size_t(layer) * 2 * one;
            auto at = [&](int t) { return keys + (size_t(t) * G + g) * width; };
            look(projected.data() + size_t(r) * stack.width + g * shared * width, length, one, at,
                 in.row(r) + g * shared * width);
        });
        formed(l.cross_output, in);
        multiply(crew, l.cross_output, in, batch.count, {batch.x, stack.width, true});
    }

    void feed_forward(int layer) {
        const Layer& l = stack.layer[layer];
        int F = stack.hidden, wide = F * (1 + stack.gated);
        multiply(crew, l.up, in, batch.count, {gates.data(), wide, false});
        // Rows in pieces of a few groups, since a step has often one row.
        int pieces = (F + 8 * GROUP - 1) / (8 * GROUP);
        crew.each(batch.count * pieces, [&](int item) {
            int r = item / pieces, from = item % pieces * 8 * GROUP, to = std::min(F, from + 8 * GROUP);
            const float *gate = gates.data() + size_t(r) * wide, *up = gate + F;
            float* h = hidden.row(r);
            for (int i = from; i < to; i += LANES) {
                Floats value = activated(stack.activation, load<Floats>(gate + i));
                store(h + i, stack.gated ? value * load<Floats>(up + i) : value);
            }
        });
        formed(l.down, hidden);
        multiply(crew, l.down, hidden, batch.count, {batch.x, stack.width, true});
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
        int outputs = stack.logits.outputs;
        if (outputs) multiply(crew, stack.logits, in, batch.asked, {batch.logits, outputs, false});
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
    // Whole vectors are read, the last of them past the end.
    gates.resize(size_t(batch->count) * stack->hidden * (1 + stack->gated) + LANES);
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
        multiply(crew, *p, in, count, {y, p->outputs, false});
    });
}

}
