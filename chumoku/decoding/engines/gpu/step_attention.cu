// Attention of one head, or of a part of its keys, in one block, by matrix instructions.

// A thread's element of a new query, key or value, and the one that it is rotated with.
struct NewElement {
    int k, partner;
    TwoWords words;

    __device__ NewElement(const u64 *vector, int thread) : k(thread % HEAD) {
        partner = HALF_PAIRING ? (k < ROTATED / 2 ? k + ROTATED / 2 : k - ROTATED / 2) : k ^ 1;
        words = {vector + k / 2, vector + (k < ROTATED ? partner : k) / 2};
    }

    // The element, rotated by the angle of its position if `turned`.
    __device__ u16 await(u32 tag, bool turned) {
        float2 rotation = shared().rotation[k];
        words.await(tag);
        u32 bits = u32(words.one), others = u32(words.other);
        float x = k % 2 ? widen_upper(bits) : widen(bits), other = partner % 2 ? widen_upper(others) : widen(others);
        return u16(narrow(turned && k < ROTATED ? x * rotation.x + other * rotation.y : x, 0.0f));
    }
};

constexpr int KEYS_AT_ONCE = WARPS * KEYS;
// Whether keys are loaded before the query is there. Those of wide heads need too many registers. All warps keep their
// first buffers until all have the query, so there must be room for these in the ring.
constexpr bool EARLY = HEAD <= 64 && (KEYS_AT_ONCE - 1) / BUFFER_KEYS + 2 <= STAGES;
constexpr int KEY_CHUNKS = HEAD / 32, VALUE_CHUNKS = HEAD / 64, OUTPUT_TILES = HEAD / 16;

// A warp's way through the buffers of a past. It frees each when it needs a later one.
struct PastBuffers {
    const Past &past;
    Ring &ring;
    int first;  // key of the buffer

    __device__ PastBuffers(const Past &past, Ring &ring) : past(past), ring(ring), first(past.start) {}

    // Free the buffers before the one of this key.
    __device__ void free_before(int key) {
        while (first + BUFFER_KEYS <= key && first < past.stored) {
            wait_for(ring);
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(&shared().empty[ring.stage]);
            ring.advance(), first += BUFFER_KEYS;
        }
    }

    // Where this key is. If it is not in the cache, there is nothing to read.
    __device__ const char *find(int key) {
        free_before(key);
        if (key < past.stored) wait_for(ring);
        return shared().stages[ring.stage] + (key - first) * VECTOR;
    }

    __device__ void free_all() { free_before(past.stored + BUFFER_KEYS); }
};

// Sixteen keys and values of a warp, in the layout of the matrix instructions: lane 4 n + i has a part of keys n and
// n + 8, and a part of the values of keys 2 i, 2 i + 1, 2 i + 8 and 2 i + 9.
struct Keys {
    uint4 key[2][KEY_CHUNKS], value[VALUE_CHUNKS][4];

    static __device__ int key_of(int row, int thread) { return thread % 32 / 4 + 8 * row; }
    static __device__ int key_of_value(int j, int thread) { return thread % 4 * 2 + j % 2 + 8 * (j / 2); }
    // Odd rows have their chunks in another order, against bank conflicts.
    static __device__ int key_chunk(int m, int thread) { return 4 * (m ^ thread / 4 % 2) + thread % 4; }
    static __device__ int value_chunk(int m, int thread) { return 8 * m + thread % 32 / 4; }

    // The first `count` keys from `at`, and zeros.
    __device__ void load_keys(const char *at, int count) {
        int thread = thread_number();
#pragma unroll
        for (int row = 0; row < 2; ++row)
#pragma unroll
            for (int m = 0; m < KEY_CHUNKS; ++m) {
                int key_number = key_of(row, thread);
                key[row][m] = load_if(key_number < count, at + key_number * VECTOR + 16 * key_chunk(m, thread));
            }
    }

    __device__ void load_values(const char *at, int count) {
        int thread = thread_number();
#pragma unroll
        for (int m = 0; m < VALUE_CHUNKS; ++m)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int s = key_of_value(j, thread);
                value[m][j] = load_if(s < count, at + (BUFFER_KEYS + s) * VECTOR + 16 * value_chunk(m, thread));
            }
    }

    // The new token's own key and value are in shared memory.
    __device__ void take_new_key(const Past &past, int first) {
        int thread = thread_number();
#pragma unroll
        for (int row = 0; row < 2; ++row)
#pragma unroll
            for (int m = 0; m < KEY_CHUNKS; ++m)
                if (first + key_of(row, thread) == past.stored) key[row][m] = shared().key[key_chunk(m, thread)];
    }

    __device__ void take_new_value(const Past &past, int first) {
        int thread = thread_number();
#pragma unroll
        for (int m = 0; m < VALUE_CHUNKS; ++m)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (first + key_of_value(j, thread) == past.stored)
                    value[m][j] = shared().value[value_chunk(m, thread)];
    }
};

__device__ u32 lower_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
__device__ u32 upper_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }

// The softmax of a warp. Of the output, V p with p as the sum of two 16-bit floats, lane 4 n has elements 8 n to
// 8 n + 7, and of wide heads also the ones 64 further.
struct Softmax {
    float most = LOWEST, total = 0.0f, found[OUTPUT_TILES][4] = {};

    __device__ void add(const Past &past, float scale, int first, const char *at, Keys &keys) {
        int thread = thread_number(), lane = thread % 32, i = lane % 4;
        if (!EARLY) keys.load_keys(at, past.stored - first);
        if (past.has_new(first)) keys.take_new_key(past, first);
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
#pragma unroll
        for (int m = 0; m < KEY_CHUNKS; ++m) {  // every column is the query, in the order of even or odd rows
            uint4 u = keys.key[0][m], v = keys.key[1][m], q = shared().query[Keys::key_chunk(m, thread)];
            multiply_floats(c, u.x, v.x, u.y, v.y, q.x, q.y), multiply_floats(d, u.z, v.z, u.w, v.w, q.z, q.w);
        }
        if (!EARLY) keys.load_values(at, past.stored - first);
        bool odd = lane / 4 % 2;
        float p[4], larger = most;
        float lower = (odd ? c[1] + d[1] : c[0] + d[0]) * scale, upper = (odd ? c[3] + d[3] : c[2] + d[2]) * scale;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            p[j] = __shfl_sync(~0u, j < 2 ? lower : upper, 8 * i + 4 * (j % 2));
            if (first + Keys::key_of_value(j, thread) >= past.end) p[j] = LOWEST;
            larger = fmaxf(larger, p[j]);
        }
        for (int distance = 1; distance < 4; distance *= 2)
            larger = fmaxf(larger, __shfl_xor_sync(~0u, larger, distance));
        float factor = __expf(most - larger);
        most = larger, total *= factor;
#pragma unroll
        for (int j = 0; j < 4; ++j) total += p[j] = p[j] > LOWEST ? __expf(p[j] - most) : 0.0f;
        u32 high[2] = {narrow(p[0], p[1]), narrow(p[2], p[3])}, column[2];  // of the keys of two and two values
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            u32 low = narrow(p[2 * j] - widen(high[j]), p[2 * j + 1] - widen_upper(high[j]));
            column[j] = lane / 4 == 1 ? low : high[j];
        }
        if (past.has_new(first)) keys.take_new_value(past, first);
#pragma unroll
        for (int m = 0; m < VALUE_CHUNKS; ++m) {
            const uint4(&v)[4] = keys.value[m];
            add_tile(found[4 * m], factor, v[0].x, v[1].x, v[2].x, v[3].x, column);
            add_tile(found[4 * m + 1], factor, v[0].y, v[1].y, v[2].y, v[3].y, column);
            add_tile(found[4 * m + 2], factor, v[0].z, v[1].z, v[2].z, v[3].z, column);
            add_tile(found[4 * m + 3], factor, v[0].w, v[1].w, v[2].w, v[3].w, column);
        }
    }

    static __device__ void add_tile(float (&sum)[4], float factor, u32 a, u32 b, u32 c, u32 d, const u32 (&column)[2]) {
        for (int j = 0; j < 4; ++j) sum[j] *= factor;
        multiply_floats(sum, lower_halves(a, b), upper_halves(a, b), lower_halves(c, d), upper_halves(c, d), column[0],
                        column[1]);
    }

    // For the other warps, in shared memory.
    __device__ void store() {
        int thread = thread_number(), warp = thread / 32, lane = thread % 32;
        for (int distance = 1; distance < 4; distance *= 2) total += __shfl_xor_sync(~0u, total, distance);
        if (lane == 0) shared().most[warp] = most, shared().total[warp] = total;
        if (lane % 4) return;
#pragma unroll
        for (int tile = 0; tile < OUTPUT_TILES; ++tile)
            *reinterpret_cast<float2 *>(shared().found[warp] + tile / 4 * 64 + 2 * lane + tile % 4 * 2) = {
                found[tile][0] + found[tile][1], found[tile][2] + found[tile][3]};
    }
};

constexpr int EACH_VALUES = HEAD / 32;  // elements of the output that a lane sends

// Join the warps' results and send them.
__device__ void send_part(Softmax &mine, u64 *words, u32 tag, int head, int part) {
    mine.store();
    synchronize(THREADS);
    int lane = threadIdx.x % 32;
    if (threadIdx.x >= 32) return;
    float most = shared().most[lane % WARPS], top = most, found[EACH_VALUES] = {};
    for (int distance = WARPS / 2; distance; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
    float share = __expf(most - top), total = share * shared().total[lane % WARPS];
    for (int distance = WARPS / 2; distance; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        float own = __shfl_sync(~0u, share, w);
        for (int k = 0; k < EACH_VALUES; ++k) found[k] += own * shared().found[w][lane * EACH_VALUES + k];
    }
    float factor = total > 0.0f ? __fdividef(1.0f, total) : 0.0f;
    u64 *to = words + AT_PARTS + (head * PARTS + part) * (HEAD / 2) + lane * (EACH_VALUES / 2);
#pragma unroll
    for (int k = 0; k < EACH_VALUES / 2; ++k)
        send_word(to + k, tag, narrow(found[2 * k] * factor, found[2 * k + 1] * factor));
    if (lane == 0) send_word(words + AT_LOGS + head * PARTS + part, tag, __float_as_uint(top + __logf(total)));
}

__device__ const u64 *new_vector(const u64 *words, int head, int which) {
    int group = head / (HEADS / KV_HEADS);
    return words + (which ? HEADS + (which - 1) * KV_HEADS + group : head) * (HEAD / 2);
}

// Store an element of the new query, key or value, and write the last two to the cache.
__device__ void store_new(const Step &step, const Layer &layer, u16 x, const Past &past, int which, int k) {
    reinterpret_cast<u16 *>(which == 0 ? shared().query : which == 1 ? shared().key : shared().value)[k] = x;
    if (which && past.head % (HEADS / KV_HEADS) == 0 && past.stored < step.capacity)
        (which == 1 ? layer.keys : layer.values)[(past.group() * step.capacity + past.stored) * HEAD + k] = x;
}

__device__ void attend(const Step &step, const Layer &layer, u32 tag, Ring &ring) {
    static_assert(THREADS % HEAD == 0);
    Past past;
    if (!past.attends) return;
    int thread = thread_number(), which = thread / HEAD;
    int vectors = past.last() ? 3 : 1;  // the query, and where they are attended to the new key and value
    NewElement element(new_vector(step.words, past.head, which < vectors ? which : 0), thread);
    if (which < vectors) element.words.ask(tag);
    int first = past.start + thread / 32 * KEYS;
    PastBuffers buffers(past, ring);
    const char *at = nullptr;
    Keys keys;
    if (EARLY) {
        at = buffers.find(first);
        keys.load_keys(at, past.stored - first), keys.load_values(at, past.stored - first);
    }
    while (which < vectors) {
        store_new(step, layer, element.await(tag, which < 2), past, which, element.k);
        which += THREADS / HEAD;
        if (which < vectors) element = NewElement(new_vector(step.words, past.head, which), thread);
    }
    synchronize(THREADS);
    Softmax softmax;
    while (first < past.end) {
        if (!EARLY) at = buffers.find(first);
        softmax.add(past, step.scale, first, at, keys);
        first += KEYS_AT_ONCE;
        if (!EARLY || first >= past.end) continue;
        at = buffers.find(first);
        keys.load_keys(at, past.stored - first), keys.load_values(at, past.stored - first);
    }
    buffers.free_all();
    send_part(softmax, step.words, tag, past.head, past.part);
}
