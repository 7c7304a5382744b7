// Sizes of the products, what they are computed from, and what a block has in shared memory.

constexpr int THREADS = 32 * WARPS;              // that compute; one more warp copies
constexpr int FLOATS = 16, INT8 = 8, INT4 = 4;   // kinds of weights, by their bits
constexpr int GROUP = 32, TILE = 16;             // inputs of a group, and rows of a tile
constexpr int SUM_STRIDE = WARPS + 4;            // sums of an output, one of each warp, and space against conflicts
constexpr u32 SIGN = 1u << 31, INFINITE = 0x7F800000;  // the sign of a float, and ∞
constexpr float LEVELS = 32512.0f, TINY = 1e-30f;
constexpr float LOWEST = -1e30f;                 // below all scores

struct Matrix {
    const char *codes, *scales;  // scales [parts, rows, SCALE_STRIDE] of int8, pairs s and m of int4
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
    const u16 *table, *places;     // [V, D], and [C + 1, D] or null: what is added to the embedding at each position
    const i64 *token;
    i64 *length;                   // of the past, which is the position of the token
    const float *cosines, *sines;  // [C + 1, ROTATED / 2]
    u64 *words;
    u32 *counter, *finished_warps;  // the tag of the first layer, and how many warps have no more logits
    u64 *best;                     // of the logits so far
    u16 *out;                      // logits
    i64 *most_likely;
    i64 capacity;
    float factor, scale, epsilon;  // of embeddings, of scores, and of norms
};

__device__ constexpr int largest(int a, int b) { return a > b ? a : b; }

template <int NUMBER, int BITS, int INPUTS_, int OUTPUTS_, int HALVES_>
struct Shape {
    static constexpr int KIND = BITS, INPUTS = INPUTS_, OUTPUTS = OUTPUTS_;
    static constexpr int HALVES = HALVES_, ROWS = TILE / HALVES;                   // of a tile: with a gate two halves
    static constexpr int PAIRS = (OUTPUTS + 1) / 2, MOST = 2 * ((PAIRS + BLOCKS - 1) / BLOCKS);  // outputs of a block
    static constexpr int SLICE = BITS == FLOATS ? 64 : 128, PART = WARPS * SLICE;  // inputs of a warp, and of all
    static constexpr int PARTS_OF_ROW = (INPUTS + PART - 1) / PART;
    static constexpr int FOURS = (PARTS_OF_ROW * SLICE + 127) / 128;               // fours of inputs of one thread
    // Bytes of a row's part in a buffer. Between rows of several parts, and between rows of scales, is space, so that the
    // lanes of a warp read other banks.
    static constexpr int CODES = (INPUTS < PART ? INPUTS : PART) * BITS / 8;
    static constexpr int SPACE = PARTS_OF_ROW == 1 ? 0 : BITS == INT8 ? 16 : 64, CODE_STRIDE = CODES + SPACE;
    static constexpr int SCALE_BYTES = BITS == FLOATS ? 0 : BITS == INT8 ? 2 : 4;  // of a group
    static constexpr int SCALE_STRIDE = BITS == FLOATS ? 0 : SCALE_BYTES * ((INPUTS < PART ? INPUTS : PART) / GROUP) + 16;
    static constexpr int SCALE_AT = TILE * CODE_STRIDE;
    static constexpr int BYTES = SCALE_AT + TILE * SCALE_STRIDE;
    static_assert(BYTES <= STAGE && INPUTS % 64 == 0);

    static __device__ int inputs_of(int part) { return part + 1 < PARTS_OF_ROW ? PART : INPUTS - part * PART; }

    // The first output of this block, and how many it has, from shared memory: in registers they would be in the way.
    static __device__ int first();
    static __device__ int count();
    static __device__ int2 find_outputs() {
        int first = 2 * int(i64(PAIRS) * blockIdx.x / BLOCKS), end = 2 * int(i64(PAIRS) * (blockIdx.x + 1) / BLOCKS);
        return {first, (end < OUTPUTS ? end : OUTPUTS) - first};
    }
};

constexpr int PROJECTED = (HEADS + 2 * KV_HEADS) * HEAD;
using Projection = Shape<0, LAYER_BITS, WIDTH, PROJECTED, 1>;
using Output = Shape<1, LAYER_BITS, HEADS * HEAD, WIDTH, 1>;
using Up = Shape<2, LAYER_BITS, WIDTH, HIDDEN, GATED ? 2 : 1>;
using Down = Shape<3, LAYER_BITS, HIDDEN, WIDTH, 1>;
using Logits = Shape<4, LOGITS_BITS, WIDTH, VOCABULARY, 1>;

// The words of all vectors: projected, parts of attention and their logarithms, x after attention, hidden, x.
constexpr int AT_PARTS = PROJECTED / 2, AT_LOGS = AT_PARTS + HEADS * PARTS * HEAD / 2;
constexpr int AT_MIDDLE = AT_LOGS + HEADS * PARTS, AT_HIDDEN = AT_MIDDLE + WIDTH / 2, AT_X = AT_HIDDEN + HIDDEN / 2;

constexpr int KEYS = 16, VECTOR = 2 * HEAD;                  // keys of a warp, and bytes of a key or a value
constexpr int BUFFER_KEYS = STAGE / (2 * VECTOR) / KEYS * KEYS;  // in a buffer, before as many values
static_assert(BUFFER_KEYS);

constexpr int CHUNK = 64;  // logits that a block computes before it stores them
constexpr int SUMS = largest(largest(Projection::MOST, CHUNK), largest(Output::MOST, Up::HALVES * Up::MOST));
constexpr int INPUT_WORDS = LAYER_BITS == FLOATS || LOGITS_BITS == FLOATS ? 64 : 32;  // of 128 inputs
constexpr int MOST_FOURS = largest(largest(Projection::FOURS, Output::FOURS), largest(Down::FOURS, Logits::FOURS));

struct Workspace {
    alignas(16) u32 inputs[WARPS][MOST_FOURS][2][INPUT_WORDS];  // higher and lower numbers of the inputs of a warp
    alignas(16) float2 scales[WARPS][MOST_FOURS][4];   // t, and the sum of the inputs, of each group
    alignas(16) float sums[2][SUMS * SUM_STRIDE];
    alignas(16) float reduced[2][WARPS];
    uint4 query[HEAD / 8], key[HEAD / 8], value[HEAD / 8];  // 16-bit floats
    alignas(16) float found[WARPS][HEAD];
    alignas(16) float most[WARPS], total[WARPS];
    Layer layers[2];  // this one and the next
    int position;
    int waits_for_words;  // whether the first warp does
    float own[Down::MOST];  // elements of x
    float2 rotation[HEAD];  // cos and ± sin of the position's angles
    int2 outputs[5];  // of each product: the first of this block, and how many
};

// Buffers, each with two barriers. With more of them, more is copied while blocks exchange words.
constexpr int MOST_THAT_FIT = (SHARED_BYTES - sizeof(Workspace) - 128) / (STAGE + 2 * sizeof(u64));
constexpr int STAGES = MOST_THAT_FIT < MOST_STAGES ? MOST_THAT_FIT : MOST_STAGES;

struct Shared : Workspace {
    alignas(128) char stages[STAGES][STAGE];
    u64 full[STAGES], empty[STAGES];
};

static_assert(sizeof(Shared) <= SHARED_BYTES);

__device__ Shared &shared() { return *reinterpret_cast<Shared *>(shared_memory()); }

template <int N, int B, int I, int O, int H>
__device__ int Shape<N, B, I, O, H>::first() { return shared().outputs[N].x; }

template <int N, int B, int I, int O, int H>
__device__ int Shape<N, B, I, O, H>::count() { return shared().outputs[N].y; }

// How many blocks attend to the past of a head.
__device__ int count_parts() { return shared().position <= ALONE ? 1 : PARTS; }

// The keys and values that this block attends to: those of a head, or with a long past a part of them.
struct Past {
    bool attends = false;
    int head, part, start = 0, end = 0;  // with the new token's, if this is the last part
    int stored = 0;                      // the end of those in the cache

    __device__ Past() {
        int block = block_number(), parts = count_parts(), position = shared().position;
        head = block / PARTS, part = block % PARTS;
        if (head >= HEADS || part >= parts) return;
        attends = true, end = position + 1, stored = position;
        if (parts == 1) return;
        start = (position + 1) * part / PARTS, end = (position + 1) * (part + 1) / PARTS;
        if (!last()) stored = end;
    }

    __device__ bool last() const { return part == count_parts() - 1; }
    __device__ int group() const { return head / (HEADS / KV_HEADS); }
    // Whether the new key is one of a warp's, of which this is the first.
    __device__ bool has_new(int first) const { return stored < end && first <= stored && stored < first + KEYS; }
};

__device__ float rounded(float x) { return widen(narrow(x, 0.0f)); }
