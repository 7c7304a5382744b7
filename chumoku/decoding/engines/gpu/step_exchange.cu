// Vectors that blocks exchange as words with a tag.

// Tell the copying warp whether the first warp waits for words.
__device__ void set_waiting(bool x) {
    if (thread_number() == 0) *reinterpret_cast<volatile int *>(&shared().waits_for_words) = x;
}

__device__ bool have_tag(ulonglong2 two, u32 tag) { return u32(two.x >> 32) == tag && u32(two.y >> 32) == tag; }

// Load words until all that the warp needs have the tag. Its lanes stay together, since a warp that has diverged is much
// slower, and ask again for what is missing only.
template <int N>
__device__ void await_words(const u64 *const (&at)[N], const bool (&needed)[N], u32 tag, ulonglong2 (&two)[N]) {
    bool missing[N], some = true;
#pragma unroll
    for (int i = 0; i < N; ++i) missing[i] = needed[i], two[i] = {0, 0};
    set_waiting(true);
    for (int spins = 0; any_lane(some); ++spins) {
        if (spins > MOST_SPINS) __trap();
        some = false;
#pragma unroll
        for (int i = 0; i < N; ++i) load_words_if(missing[i], at[i], two[i]);
#pragma unroll
        for (int i = 0; i < N; ++i) some |= missing[i] = needed[i] && !have_tag(two[i], tag);
    }
    set_waiting(false);
}

// Two words, by all lanes of a warp: `ask` loads them, and `await` does again until they have the tag.
struct TwoWords {
    const u64 *first, *second;
    u64 one = 0, other = 0;

    __device__ void ask(u32 tag) {
        load_word_if(u32(one >> 32) != tag, first, one), load_word_if(u32(other >> 32) != tag, second, other);
    }

    __device__ void await(u32 tag) {
        set_waiting(true);
        for (int spins = 0; any_lane(u32(one >> 32) != tag || u32(other >> 32) != tag); ++spins) {
            if (spins > MOST_SPINS) __trap();
            ask(tag);
        }
        set_waiting(false);
    }
};

// The index of the first of the inputs in number i of a thread's fours, and whether there are such inputs.
template <class S>
__device__ int four_at(int i, int thread) {
    static_assert(128 % S::SLICE == 0);
    int warp = thread / 32, at = 4 * (thread % 32);
    return (i * (128 / S::SLICE) + at / S::SLICE) * S::PART + warp * S::SLICE + at % S::SLICE;
}

template <class S>
__device__ bool has_four(int i, int thread) { return four_at<S>(i, thread) < S::INPUTS; }

__device__ void widen_four(uint2 bits, float (&v)[4]) {
    v[0] = widen(bits.x), v[1] = widen_upper(bits.x), v[2] = widen(bits.y), v[3] = widen_upper(bits.y);
}

// Element k of the first layer's x.
__device__ float embed(const Step &step, int k) {
    i64 token = *step.token < 0 ? 0 : *step.token;  // as in the other engines, an invalid token is the first
    float x = widen(step.table[token * WIDTH + k]) * step.factor;
    return rounded(step.places ? x + widen(step.places[i64(shared().position) * WIDTH + k]) : x);
}

template <class S>
__device__ void embed_vector(const Step &step, float (&v)[S::FOURS][4]) {
    int thread = thread_number();
#pragma unroll
    for (int i = 0; i < S::FOURS; ++i)
        for (int j = 0; j < 4; ++j) v[i][j] = has_four<S>(i, thread) ? embed(step, four_at<S>(i, thread) + j) : 0.0f;
}

template <class S>
__device__ void await_vector(const u64 *words, u32 tag, float (&v)[S::FOURS][4]) {
    const u64 *at[S::FOURS];
    bool needed[S::FOURS];
    ulonglong2 two[S::FOURS];
    int thread = thread_number();
#pragma unroll
    for (int i = 0; i < S::FOURS; ++i)
        at[i] = words + four_at<S>(i, thread) / 2, needed[i] = has_four<S>(i, thread);
    await_words(at, needed, tag, two);
#pragma unroll
    for (int i = 0; i < S::FOURS; ++i) widen_four({u32(two[i].x), u32(two[i].y)}, v[i]);
}

// The output of attention, from its parts.
__device__ void await_heads(const u64 *words, u32 tag, float (&v)[Output::FOURS][4]) {
    int thread = thread_number();
    if (count_parts() == 1) {
        const u64 *at[Output::FOURS];
        bool needed[Output::FOURS];
        ulonglong2 two[Output::FOURS];
#pragma unroll
        for (int i = 0; i < Output::FOURS; ++i) {
            int k = four_at<Output>(i, thread);
            at[i] = words + AT_PARTS + k / HEAD * PARTS * (HEAD / 2) + k % HEAD / 2;
            needed[i] = has_four<Output>(i, thread);
        }
        await_words(at, needed, tag, two);
#pragma unroll
        for (int i = 0; i < Output::FOURS; ++i) widen_four({u32(two[i].x), u32(two[i].y)}, v[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < Output::FOURS; ++i) {
        int k = four_at<Output>(i, thread), head = k / HEAD;
        constexpr int ALL = PARTS + PARTS / 2;  // and the logarithms
        const u64 *at[ALL];
        bool needed[ALL];
        ulonglong2 two[ALL];
#pragma unroll
        for (int part = 0; part < ALL; ++part) {
            at[part] = part < PARTS ? words + AT_PARTS + (head * PARTS + part) * (HEAD / 2) + k % HEAD / 2
                                    : words + AT_LOGS + head * PARTS + 2 * (part - PARTS);
            needed[part] = has_four<Output>(i, thread);
        }
        await_words(at, needed, tag, two);
        float l[PARTS], most = LOWEST, total = 0.0f;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            u64 word = part % 2 ? two[PARTS + part / 2].y : two[PARTS + part / 2].x;
            most = fmaxf(most, l[part] = __uint_as_float(u32(word)));
        }
        v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0.0f;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            float share = __expf(l[part] - most), four[4];
            widen_four({u32(two[part].x), u32(two[part].y)}, four);
            total += share;
            for (int j = 0; j < 4; ++j) v[i][j] += share * four[j];
        }
        for (int j = 0; j < 4; ++j) v[i][j] = needed[0] ? rounded(__fdividef(v[i][j], total)) : 0.0f;
    }
}
