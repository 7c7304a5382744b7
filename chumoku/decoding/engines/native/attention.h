// softmax(scores of q and K) V of several queries that have the same keys: the heads that share a key head, of one token or of
// several tokens of a row.
//
// Keys are read once for all queries, and the sums of some queries are in registers together. The sums of a query do not
// depend on the others: over the width of a head in the order of `dots`, over keys one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "structs.h"
#include "vectors.h"

namespace {

// Lane l is the sum of two lanes of a if bit D of l is 0, of b if it is 1. On ARM both shuffles are one instruction if each
// takes one of two neighbors; elsewhere the first is a blend.
#if defined(__clang__)
template <int D, int... L> Floats fold_lanes(Floats a, Floats b, std::integer_sequence<int, L...>) {
    constexpr int SAME = LANES == 4 ? ~D : ~0;
    return __builtin_shufflevector(a, b, ((L & D ? LANES : 0) + (L & SAME))...) +
           __builtin_shufflevector(a, b, ((L & D ? LANES : 0) + ((L & SAME) ^ D))...);
}
template <int D> Floats fold(Floats a, Floats b) {
    return fold_lanes<D>(a, b, std::make_integer_sequence<int, LANES>());
}
#else
template <int D> Floats fold(Floats a, Floats b) {
    Words here, there;
    for (unsigned l = 0; l < LANES; l++) {
        unsigned from = l & D ? LANES : 0, lane = LANES == 4 ? l & ~D : l;
        here[l] = from + lane;
        there[l] = from + (lane ^ D);
    }
    return __builtin_shuffle(a, b, here) + __builtin_shuffle(a, b, there);
}
#endif

// Add up the lanes of vectors 0, D, 2 D … END − D. If D was 1 and END is LANES, lane l of the result is the sum of vector l.
template <int D, int END> [[gnu::always_inline]] inline Floats fold_all(Floats* part) {
    if constexpr (D == END) return part[0];
    else {
        for (int t = 0; t < END; t += 2 * D) part[t] = fold<D>(part[t], part[t + D]);
        return fold_all<2 * D, END>(part);
    }
}

constexpr int TILE_ROWS = 16;   // tokens of a tile, at most
#if defined(__x86_64__) && !defined(__AVX512F__)
constexpr int TOGETHER = 2;     // queries whose sums fit in 16 registers
#else
constexpr int TOGETHER = 4;     // queries whose sums fit in registers
#endif
constexpr int BLOCK_KEYS = 64;  // keys whose values stay in the cache while all queries use them

// Call `run` with the number of queries as template argument.
template <int N = 1, class Run> [[gnu::always_inline]] inline void with_count(int count, const Run& run) {
    if constexpr (N == TOGETHER) run.template operator()<N>();
    else if (count == N) run.template operator()<N>();
    else with_count<N + 1>(count, run);
}

// q · k of R queries for LANES keys.
template <int R> void dots(const float* const* query, const float* const* keys, int width, Floats* found) {
    constexpr int AT_ONCE = R == 1 ? LANES : 4;
    Floats sums[R][LANES];
    int i = 0;
    for (int k = 0; k < LANES; k += AT_ONCE) {
        Floats part[R][AT_ONCE] = {};
        for (i = 0; i + LANES <= width; i += LANES) {
            Floats key[AT_ONCE];
            for (int t = 0; t < AT_ONCE; t++) key[t] = load<Floats>(keys[k + t] + i);
            for (int r = 0; r < R; r++) {
                Floats q = load<Floats>(query[r] + i);
                for (int t = 0; t < AT_ONCE; t++) part[r][t] = fma(q, key[t], part[r][t]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) sums[r][k] = fold_all<1, AT_ONCE>(part[r]);
    }
    for (int r = 0; r < R; r++) {
        found[r] = fold_all<AT_ONCE, LANES>(sums[r]);
        for (int rest = i; rest < width; rest++)
            for (int t = 0; t < LANES; t++) found[r][t] += query[r][rest] * keys[t][rest];
    }
}

// out[r] += Σ_t s[r][t] v[t] of R queries, for N registers from column i on.
template <int R, int N>
void mix_columns(const float* const* scores, const float* const* values, int length, int i, float* const* out) {
    Floats sums[R][N];
    each_number<R * N>([&]<int I> [[gnu::always_inline]] { sums[I / N][I % N] = load<Floats>(out[I / N] + i + I % N * LANES); });
    for (int t = 0; t < length; t++)
        for (int j = 0; j < N; j++) {
            Floats part = load<Floats>(values[t] + i + j * LANES);
            for (int r = 0; r < R; r++) sums[r][j] = fma(part, spread(scores[r][t]), sums[r][j]);
        }
    each_number<R * N>([&]<int I> [[gnu::always_inline]] { store(out[I / N] + i + I % N * LANES, sums[I / N][I % N]); });
}

// The same for columns `first` … `end`.
template <int R>
void mix(const float* const* scores, const float* const* values, int length, int first, int end, float* const* out) {
    int i = first;
    for (; i + 4 * LANES <= end; i += 4 * LANES) mix_columns<R, 4>(scores, values, length, i, out);
    for (; i + 2 * LANES <= end; i += 2 * LANES) mix_columns<R, 2>(scores, values, length, i, out);
    for (; i + LANES <= end; i += LANES) mix_columns<R, 1>(scores, values, length, i, out);
    for (; i < end; i++)
        for (int r = 0; r < R; r++)
            for (int t = 0; t < length; t++) out[r][i] += scores[r][t] * values[t][i];
}

// What becomes of q · k: cap · tanh(score / cap) of score = scale (q · k + q · r) + bias.
struct Scoring {
    float scale, cap;                 // cap 0: no soft-capping
    const float* relative = nullptr;  // [2 clip + 1, width]: the r of each distance, or null
    int clip = 0;
};

// A head of a token, and the positions that it attends to.
struct Query {
    const float* q;
    float* out;
    int token, head;
    int first = 0, end = 0, position = 0;
    const float* bias = nullptr;  // for the key of position 0, or null
    float sum = 0;                // of the weights, before they are divided by it
};

// Working space of one thread. It is allocated before the threads start, because an exception in one would end the process.
struct AttentionSpace {
    std::vector<Query> queries;
    std::vector<float> scores;
    char apart[64];  // from the next thread's, which is in other cache lines

    // For so many queries of so many keys.
    void reserve(size_t most, size_t keys) {
        queries.reserve(most);
        scores.resize(std::max(scores.size(), most * (keys + LANES)));
    }
};

// Where the keys and values of the positions of a row are, for one key head.
struct KeyLayout {
    const float* base;                     // the key of position 0 in slot 0
    size_t position_stride, slot_stride;   // from a position to the next, and from a slot to the next
    size_t value_offset;                   // from a key to its value
    const int32_t* slots = nullptr;        // of each position; null: all are in slot 0
    int slot_size = INT32_MAX;             // position p of a slot is at p mod slot_size

    const float* key(int t) const {
        int place = t < slot_size ? t : t % slot_size;
        return base + (slots ? slots[t] * slot_stride : 0) + place * position_stride;
    }
};

// Attention of queries over positions of a row. Threads can share it: first each computes the scores of some positions,
// then, with all scores, some columns of the results.
struct Attention {
    std::vector<Query>& queries;
    int width;
    KeyLayout layout;
    Scoring scoring;
    int begin = 0, end = 0, stride = 0;  // positions that some query attends to; from one query's scores to the next's
    float* scores;

    Attention(AttentionSpace& space, int width, const KeyLayout& layout, const Scoring& scoring)
        : queries(space.queries), width(width), layout(layout), scoring(scoring), scores(space.scores.data()) {
        begin = queries[0].first, end = queries[0].end;
        for (const Query& query : queries) begin = std::min(begin, query.first), end = std::max(end, query.end);
        stride = end - begin + LANES;
    }

    void run() {
        score_part(0, 1);
        mix_values(0, width);
    }

    // The scores of part `number` of `parts` of the positions.
    void score_part(int number, int parts) {
        int vectors = (end - begin + LANES - 1) / LANES;
        for (int i = vectors * number / parts; i < vectors * (number + 1) / parts; i++) score(begin + i * LANES);
    }

    // The results in columns `first` … `last`, from the scores of all positions, which become weights.
    void mix_values(int first, int last) {
        for (size_t j = 0; j < queries.size(); j++) {
            queries[j].sum = exponentials(queries[j], scores_of(j, queries[j].first));
            std::fill(queries[j].out + first, queries[j].out + last, 0.0f);
        }
        for (int t = begin; t < end; t += BLOCK_KEYS) mix_block(t, std::min(end, t + BLOCK_KEYS), first, last);
        for (const Query& query : queries)
            for (int i = first; i < last; i++) query.out[i] /= query.sum;
    }

    // The same, while other threads compute other columns from the same scores.
    void mix_shared(const float* shared, int first, int last) {
        std::copy_n(shared, queries.size() * stride, scores);
        mix_values(first, last);
    }

    float* scores_of(size_t j, int t) const { return scores + j * stride + t - begin; }

    // The scores of all queries for the keys from position t on.
    void score(int t) {
        const float *keys[LANES], *query[TOGETHER];
        for (int i = 0; i < LANES; i++) keys[i] = layout.key(std::min(t + i, end - 1));
        for (size_t j = 0; j < queries.size(); j += TOGETHER) {
            int some = std::min(queries.size() - j, size_t(TOGETHER));
            for (int r = 0; r < some; r++) query[r] = queries[j + r].q;
            Floats found[TOGETHER];
            with_count(some, [&]<int R> { dots<R>(query, keys, width, found); });
            for (int r = 0; r < some; r++) {
                if (scoring.relative) found[r] += relative_dots(queries[j + r], t);
                store(scores_of(j + r, t), found[r] * scoring.scale);
            }
        }
    }

    Floats relative_dots(const Query& query, int t) {
        const float* offsets[LANES];
        for (int i = 0; i < LANES; i++) {
            int distance = std::clamp(query.position - t - i, -scoring.clip, scoring.clip);
            offsets[i] = scoring.relative + size_t(distance + scoring.clip) * width;
        }
        Floats found;
        dots<1>(&query.q, offsets, width, &found);
        return found;
    }

    // Replace the scores s of the positions that the query attends to by e^(s − max s); returns their sum.
    float exponentials(const Query& query, float* s) {
        int length = query.end - query.first, whole = (length + LANES - 1) / LANES * LANES;
        if (query.bias)
            for (int t = 0; t < length; t++) s[t] += query.bias[query.first + t];
        if (scoring.cap)
            for (int t = 0; t < length; t += LANES)
                store(s + t, hyperbolic_tangent(load<Floats>(s + t) / scoring.cap) * scoring.cap);
        for (int t = length; t < whole; t++) s[t] = -INFINITY;
        Floats top = load<Floats>(s), sum = {};
        for (int t = LANES; t < whole; t += LANES) top = at_least(load<Floats>(s + t), top);
        float highest = largest(top);
        for (int t = 0; t < whole; t += LANES) {
            Floats share = exponential(load<Floats>(s + t) - highest);
            store(s + t, share);
            sum += share;
        }
        return total(sum);
    }

    // Add the values of a block of positions. Positions that only some of the queries attend to are added for each alone.
    void mix_block(int from, int to, int column, int last_column) {
        const float* value[BLOCK_KEYS];
        for (int t = from; t < to; t++) value[t - from] = layout.key(t) + layout.value_offset;
        auto add = [&](size_t j, int some, int first, int last) {
            if (first >= last) return;
            const float* s[TOGETHER];
            float* out[TOGETHER];
            for (int r = 0; r < some; r++) s[r] = scores_of(j + r, first), out[r] = queries[j + r].out;
            with_count(some, [&]<int R> { mix<R>(s, value + first - from, last - first, column, last_column, out); });
        };
        for (size_t j = 0; j < queries.size(); j += TOGETHER) {
            int some = std::min(queries.size() - j, size_t(TOGETHER)), first = from, last = to;
            for (int r = 0; r < some; r++) {
                first = std::max(first, queries[j + r].first);
                last = std::min(last, queries[j + r].end);
            }
            last = std::max(first, last);
            for (int r = 0; r < some; r++)
                add(j + r, 1, std::max(from, queries[j + r].first), std::min(first, queries[j + r].end));
            add(j, some, first, last);
            for (int r = 0; r < some; r++)
                add(j + r, 1, std::max(last, queries[j + r].first), std::min(to, queries[j + r].end));
        }
    }
};

// Divide the tokens into tiles: tokens of the same row, whose attention is computed together.
inline std::vector<int> make_tiles(const Batch& batch, int heads, int threads) {
    int most = std::clamp(batch.count * heads / (4 * threads), 1, TILE_ROWS);
    std::vector<int> tiles;
    for (int r = 0; r < batch.count; r++)
        if (r == 0 || batch.row[r] != batch.row[r - 1] || r - tiles.back() == most) tiles.push_back(r);
    tiles.push_back(batch.count);
    return tiles;
}

// The most keys that a token attends to.
inline int most_keys(const Stack& stack, const Batch& batch) {
    int most = 0;
    for (int r = 0; r < batch.count; r++) {
        most = std::max(most, batch.visible[r]);
        if (stack.cross) most = std::max(most, batch.memory_length[batch.row[r]]);
    }
    return most;
}

// Scores of all heads of all tokens, for threads that share the attention of a key head.
struct SharedScores {
    std::vector<float> values;
    int stride = 0;  // from one head to the next; 0 if threads share no key heads, because each has as many of its own

    void reserve(const Stack& stack, const Batch& batch, int tiles, int threads, int keys) {
        int items = tiles * stack.kv_heads;
        bool sharing = stack.head_width % GROUP == 0 && items < 4 * threads && items % threads;
        stride = sharing ? keys + LANES : 0;
        values.resize(size_t(batch.count) * stack.heads * stride);
    }
};

}  // namespace
