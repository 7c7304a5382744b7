// A step of a beam search: the most likely continuations of each sentence, from the logits of its live hypotheses.
//
//     log p(token) = logit − (m + log Σ exp(logit − m))        m = max logit
//
// Equal numbers are ranked by row, then by token; NaN comes first. decoding/beam.py has the same in PyTorch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "thread_pool.h"
#include "vectors.h"

namespace {

struct Ranking {
    int sentences, live, vocabulary;  // each sentence has `live` rows of logits
    int width, wanted;                // candidates of a row and of a sentence
    const float *logits, *totals;     // [sentences · live, V] and log p so far [sentences · live]
    int forbidden_count;
    const int32_t* forbidden;         // tokens that are no candidates, ascending
};
struct RankedToken {
    float value;
    int32_t token;
};

constexpr int PARTIAL = 16, STRIDE = 4 * PARTIAL;  // partial sums on every processor, so that sums have one order

inline float largest_of(const float* x, int count) {
    Floats top = spread(-INFINITY);
    int i = 0;
    for (; i + LANES <= count; i += LANES) top = at_least(load<Floats>(x + i), top);
    float found = largest(top);
    for (; i < count; i++) found = x[i] > found ? x[i] : found;
    return found;
}

// eˣ of x ≤ 0 as in `exponential`, but e⁻⁸⁷ below −87: fewer operations, and in a sum with 1 no difference.
inline Floats exponential_below_one(Floats x) {
    Floats bounded = at_least(x, spread(-87.0f)), shifted = bounded * 1.44269504f + 12582912.0f;
    Floats n = shifted - 12582912.0f;  // rounded, because a float above 2²³ has no fractional bits
    Floats r = fma(n, spread(-1.42860677e-6f), fma(n, spread(-0.693145752f), bounded));
    Floats p = fma(r, spread(0.00138888889f), spread(0.00833333333f));
    for (float next : {0.0416666667f, 0.166666667f, 0.5f, 1.0f, 1.0f}) p = fma(r, p, spread(next));
    return p * (Floats)(((Ints)shifted << 23) + (127 << 23));
}

// m + log Σ exp(x − m), where m is the largest x, or at least the largest that is a number.
inline float log_sum_exp(const float* x, int count, float m) {
    if (std::isinf(m)) return m;
    float partial[PARTIAL] = {}, last[PARTIAL];
    Floats sums[PARTIAL / LANES] = {};
    int whole = count - count % PARTIAL;
    for (int i = 0; i < whole; i += PARTIAL)
        for (int j = 0; j < PARTIAL / LANES; j++) sums[j] += exponential_below_one(load<Floats>(x + i + j * LANES) - m);
    for (int j = 0; j < PARTIAL / LANES; j++) store(partial + j * LANES, sums[j]);
    std::fill(last, last + PARTIAL, -INFINITY);
    std::copy(x + whole, x + count, last);
    for (int j = 0; j < PARTIAL; j += LANES)
        store(partial + j, load<Floats>(partial + j) + exponential_below_one(load<Floats>(last + j) - m));
    return m + std::log(std::accumulate(partial, partial + PARTIAL, 0.0f));
}

// The `width` largest logits of a row. Only parts of the row that have one are looked into.
inline float rank_row(const Ranking& r, const float* x, RankedToken* best) {
    int found = 0;
    std::fill(best, best + r.width, RankedToken{-INFINITY, 0});
    float m = -INFINITY, *bound = &best[r.width - 1].value;
    for (int from = 0; from < r.vocabulary; from += STRIDE) {
        int to = std::min(from + STRIDE, r.vocabulary);
        float top = largest_of(x + from, to - from);
        m = std::max(m, top);
        if (!(top > *bound)) continue;
        for (int token = from; token < to; token++) {
            if (!(x[token] > *bound) || std::binary_search(r.forbidden, r.forbidden + r.forbidden_count, token)) continue;
            int place = std::min(found++, r.width - 1);
            for (; place > 0 && x[token] > best[place - 1].value; place--) best[place] = best[place - 1];
            best[place] = {x[token], token};
        }
    }
    return log_sum_exp(x, r.vocabulary, m);
}

// The candidates of one sentence from those of its rows, as places in `sums`.
inline void rank_sentence(const Ranking& r, const float* sums, int* order) {
    auto before = [&](int a, int b) {
        bool a_nan = std::isnan(sums[a]), b_nan = std::isnan(sums[b]);
        if (a_nan != b_nan) return a_nan;
        return sums[a] == sums[b] || a_nan ? a < b : sums[a] > sums[b];
    };
    int count = r.live * r.width;
    std::iota(order, order + count, 0);
    std::partial_sort(order, order + std::min(count, r.wanted), order + count, before);
}

void rank(ThreadPool& pool, const Ranking& r, float* totals, int32_t* rows, int32_t* tokens) {
    int each = r.live * r.width;
    size_t count = size_t(r.sentences) * each;
    // Allocated here, because an exception in another thread would end the process.
    std::vector<RankedToken> best(count);
    std::vector<float> sums(count);
    std::vector<int> orders(count);
    pool.run([&] {
        pool.each(r.sentences * r.live, [&](int row) {
            size_t first = size_t(row) * r.width;
            float norm = rank_row(r, r.logits + size_t(row) * r.vocabulary, &best[first]);
            for (int i = 0; i < r.width; i++) sums[first + i] = best[first + i].value - norm + r.totals[row];
        });
        pool.each(r.sentences, [&](int s) {
            int* order = &orders[size_t(s) * each];
            rank_sentence(r, &sums[size_t(s) * each], order);
            for (int n = 0, to = s * r.wanted; n < r.wanted; n++, to++) {
                size_t place = size_t(s) * each + order[std::min(n, each - 1)];
                totals[to] = n < each ? sums[place] : -INFINITY;  // fewer tokens than beams
                rows[to] = int32_t(place / r.width);
                tokens[to] = best[place].token;
            }
        });
    });
}

}  // namespace
