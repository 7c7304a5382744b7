// One step of a decoder stack on a CPU: embeddings of new tokens in, logits out.
//
//     x ← x + attention(norm(x)),  x ← x + cross(norm(x)),  x ← x + feedforward(norm(x))       pre; post: norm(x + f(x))
//
// The whole step is one call, executed by all threads together (thread_pool.h). Matrix products are in products.h,
// attention in attention.h. pack.py prepares the weights and call.py makes the call. Only working space is allocated here.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "attention.h"
#include "thread_pool.h"
#include "structs.h"
#include "packing.h"
#include "products.h"
#include "ranking.h"
#include "vectors.h"

namespace {

struct Worker {
    const Stack& stack;
    const Batch& batch;
    ThreadPool& pool;
    Inputs &in, &hidden;
    std::vector<float>&projected, &gates;

    // Σ (x − mean)^power, power 1 or 2.
    static float sum(const float* x, int width, float mean, bool square) {
        Floats sums = {};
        int i = 0;
        for (; i + LANES <= width; i += LANES) {
            Floats part = load<Floats>(x + i) - mean;
            sums = square ? fma(part, part, sums) : sums + part;
        }
        float all = total(sums);
        for (; i < width; i++) all += square ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
        return all;
    }

    static void normalize(const Norm& norm, int width, const float* x, float* y) {
        float mean = norm.kind == LAYER ? sum(x, width, 0, false) / width : 0;
        float by = norm.kind == AFFINE ? 1 : 1 / std::sqrt(sum(x, width, mean, true) / width + norm.epsilon);
        for (int i = 0; i < width; i++) y[i] = (x[i] - mean) * by * norm.gamma[i] + (norm.beta ? norm.beta[i] : 0.0f);
    }

    // The input of a sub-layer: norm(x), or with post-norm x after the norm of the previous sub-layer.
    void prepare(const Norm& norm, const Product& product, const Norm* previous) {
        int width = stack.width;
        pool.each(batch.count, [&](int r) {
            float* x = batch.x + size_t(r) * width;
            if (previous) normalize(*previous, width, x, x);
            if (stack.post) std::memcpy(in.row(r), x, width * sizeof(float));
            else normalize(norm, width, x, in.row(r));
            in.form(r, product);
        });
    }

    void rotate(float* head, int token) {
        int pairs = stack.head_width / 2;
        size_t from = size_t(batch.position[token]) * pairs;
        const float *cos = batch.cos + from, *sin = batch.sin + from;
        int step = stack.half ? 1 : 2, apart = stack.half ? pairs : 1;
        for (int i = 0; i < pairs; i++) {
            float &a = head[i * step], &b = head[i * step + apart], rotated = a * cos[i] - b * sin[i];
            b = a * sin[i] + b * cos[i];
            a = rotated;
        }
    }

    float* place(int layer, int which, int token) {
        int row = batch.row[token], position = batch.position[token], wide = stack.kv_heads * stack.head_width;
        size_t slot = batch.origin[size_t(row) * batch.capacity + position];
        return batch.store + (((size_t(layer) * 2 + which) * batch.rows + slot) * batch.capacity + position) * wide;
    }

    void self_attention(int layer) {
        const Layer& l = stack.layer[layer];
        int width = stack.head_width, G = stack.kv_heads, shared = stack.heads / G, wide = (stack.heads + 2 * G) * width;
        multiply_all(l.attention, in, {projected.data(), wide, false});
        pool.each(batch.count, [&](int r) {
            float* query = projected.data() + size_t(r) * wide;
            float* key = query + stack.heads * width;
            if (batch.cos)
                for (int h = 0; h < stack.heads + G; h++) rotate(query + h * width, r);
            std::memcpy(place(layer, 0, r), key, G * width * sizeof(float));
            std::memcpy(place(layer, 1, r), key + G * width, G * width * sizeof(float));
        });
        size_t one = size_t(batch.rows) * batch.capacity * G * width;
        const float* keys = batch.store + size_t(layer) * 2 * one;
        bool parts = can_form_in_parts(l.output, shared * width);
        pool.each(batch.count * G, [&](int item) {
            int r = item / G, g = item % G;
            const int32_t* origin = batch.origin + size_t(batch.row[r]) * batch.capacity;
            auto at = [&](int t) { return keys + ((size_t(origin[t]) * batch.capacity + t) * G + g) * width; };
            attend(projected.data() + size_t(r) * wide + g * shared * width, shared, width, batch.visible[r], one, at,
                 in.row(r) + g * shared * width);
            if (parts) in.form_part(r, l.output, g * shared * width, (g + 1) * shared * width);
        });
        if (!parts) form_all(l.output, in);
        multiply(pool, l.output, in, batch.count, {batch.x, stack.width, true});
    }

    void cross_attention(int layer) {
        const Layer& l = stack.layer[layer];
        int width = stack.head_width, G = stack.kv_heads, shared = stack.heads / G;
        multiply(pool, l.cross_query, in, batch.count, {projected.data(), stack.width, false});
        bool parts = can_form_in_parts(l.cross_output, shared * width);
        pool.each(batch.count * G, [&](int item) {
            int r = item / G, g = item % G, length = batch.memory_length[batch.row[r]];
            size_t one = size_t(length) * G * width;
            const float* keys = batch.memory[batch.row[r]] + size_t(layer) * 2 * one;
            auto at = [&](int t) { return keys + (size_t(t) * G + g) * width; };
            attend(projected.data() + size_t(r) * stack.width + g * shared * width, shared, width, length, one, at,
                 in.row(r) + g * shared * width);
            if (parts) in.form_part(r, l.cross_output, g * shared * width, (g + 1) * shared * width);
        });
        if (!parts) form_all(l.cross_output, in);
        multiply(pool, l.cross_output, in, batch.count, {batch.x, stack.width, true});
    }

    void feed_forward(int layer) {
        const Layer& l = stack.layer[layer];
        int F = stack.hidden, wide = F * (1 + stack.gated);
        multiply_all(l.up, in, {gates.data(), wide, false});
        // Rows are divided into parts of a few groups, since a step often has only one row.
        int pieces = (F + 8 * GROUP - 1) / (8 * GROUP);
        bool parts = can_form_in_parts(l.down, GROUP);
        pool.each(batch.count * pieces, [&](int item) {
            int r = item / pieces, from = item % pieces * 8 * GROUP, to = std::min(F, from + 8 * GROUP);
            const float *gate = gates.data() + size_t(r) * wide, *up = gate + F;
            float* h = hidden.row(r);
            for (int i = from; i < to; i += LANES) {
                Floats value = activate(stack.activation, load<Floats>(gate + i));
                store(h + i, stack.gated ? value * load<Floats>(up + i) : value);
            }
            if (parts) hidden.form_part(r, l.down, from, to);
        });
        if (!parts) form_all(l.down, hidden);
        multiply(pool, l.down, hidden, batch.count, {batch.x, stack.width, true});
    }

    // Products of the same inputs, with their outputs side by side. The inputs have the format of the first product, which
    // all quantized kinds share.
    template <int N> void multiply_all(const Product (&products)[N], Inputs& inputs, Output out) {
        for (int i = 0; i < N && products[i].outputs; i++) {
            if (i && products[i - 1].kind < INT8) form_all(products[i], inputs);
            multiply(pool, products[i], inputs, batch.count, out);
            out.y += products[i].outputs;
        }
    }

    void form_all(const Product& product, Inputs& inputs) {
        pool.each(batch.count, [&](int r) { inputs.form(r, product); });
    }

    void logits() {
        pool.each(batch.outputs, [&](int r) {
            const float* x = batch.x + size_t(batch.output_tokens[r]) * stack.width;
            const Norm& last = stack.post ? stack.layer[stack.layers - 1].feed_norm : stack.last;
            normalize(last, stack.width, x, in.row(r));
            if (stack.logits.outputs) in.form(r, stack.logits);
            else std::memcpy(batch.logits + size_t(r) * stack.width, in.row(r), stack.width * sizeof(float));
        });
        int outputs = stack.logits.outputs;
        if (outputs) multiply(pool, stack.logits, in, batch.outputs, {batch.logits, outputs, false});
    }

    void step() {
        const Norm* previous = nullptr;
        for (int layer = 0; layer < stack.layers; layer++) {
            const Layer& l = stack.layer[layer];
            prepare(l.attention_norm, l.attention[0], previous);
            self_attention(layer);
            previous = stack.post ? &l.attention_norm : nullptr;
            if (stack.cross) {
                prepare(l.cross_norm, l.cross_query, previous);
                cross_attention(layer);
                previous = stack.post ? &l.cross_norm : nullptr;
            }
            prepare(l.feed_norm, l.up[0], previous);
            feed_forward(layer);
            previous = stack.post ? &l.feed_norm : nullptr;
        }
        logits();
    }
};

}  // namespace

extern "C" {

// Null if the system cannot create the threads.
void* pool_open(int size) try {
    return new ThreadPool(size);
} catch (const std::exception&) {
    return nullptr;
}
void pool_close(void* pool) { delete static_cast<ThreadPool*>(pool); }
int lanes() { return LANES; }
int sizes(int which) {
    const int all[] = {sizeof(Product), sizeof(Norm), sizeof(Layer), sizeof(Stack), sizeof(Batch),
                       sizeof(Source),  sizeof(Packing), sizeof(Ranking)};
    return all[which];
}

// Returns 0, or 1 without doing anything if there is no memory for the working space; so does `product`.
int step(void* threads, const Stack* stack, const Batch* batch) try {
    ThreadPool& pool = *static_cast<ThreadPool*>(threads);
    // Working space is kept for the next step of the calling thread.
    thread_local Inputs in, hidden;
    thread_local std::vector<float> projected, gates;
    int most = std::max(batch->count, batch->outputs);
    in.reserve(most, stack->width);
    hidden.reserve(batch->count, stack->hidden);
    projected.resize(size_t(batch->count) * (stack->heads + 2 * stack->kv_heads) * stack->head_width);
    // Whole vectors are read, so the last one may read past the end.
    gates.resize(size_t(batch->count) * stack->hidden * (1 + stack->gated) + LANES);
    for (int i = 0; i < batch->count; i++)
        batch->origin[size_t(batch->row[i]) * batch->capacity + batch->position[i]] = batch->slot[i];
    Worker worker{*stack, *batch, pool, in, hidden, projected, gates};
    pool.run([&] { worker.step(); });
    return 0;
} catch (const std::exception&) {
    return 1;
}

// A hash of the bytes: 8 interleaved sums, each multiplied by 31.
static uint64_t fingerprint(const uint8_t* bytes, size_t size) {
    uint64_t sums[8] = {size}, found = 0;
    for (; size >= sizeof sums; bytes += sizeof sums, size -= sizeof sums)
        for (int i = 0; i < 8; i++) sums[i] = (sums[i] << 5) - sums[i] + load<uint64_t>(bytes + 8 * i);
    for (uint64_t sum : sums) found = found * 31 + sum;
    for (; size; bytes++, size--) found = found * 31 + *bytes;
    return found;
}
int fingerprints(void* threads, int count, const uint8_t* const* bytes, const size_t* size, uint64_t* found) {
    ThreadPool& pool = *static_cast<ThreadPool*>(threads);
    pool.run([&] { pool.each(count, [&](int i) { found[i] = fingerprint(bytes[i], size[i]); }); });
    return 0;
}

// Pack several matrices. The items are blocks of all matrices, so that no thread waits between two matrices.
int pack(void* threads, int count, const Packing* packings) {
    ThreadPool& pool = *static_cast<ThreadPool*>(threads);
    const Packing& last = packings[count - 1];
    pool.run([&] {
        pool.each(last.first + (last.outputs + LANES - 1) / LANES, [&](int item) {
            auto later = [](int i, const Packing& p) { return i < p.first; };
            const Packing& p = *(std::upper_bound(packings, packings + count, item, later) - 1);
            pack_block(p, item - p.first);
        });
    });
    return 0;
}

// The `wanted` candidates of each sentence [sentences, wanted].
int rank_candidates(void* threads, const Ranking* ranking, float* totals, int32_t* rows, int32_t* tokens) try {
    rank(*static_cast<ThreadPool*>(threads), *ranking, totals, rows, tokens);
    return 0;
} catch (const std::exception&) {
    return 1;
}

// y [count, N] of x [count, K]
int product(void* threads, const Product* p, int count, const float* x, float* y) try {
    ThreadPool& pool = *static_cast<ThreadPool*>(threads);
    thread_local Inputs in;
    in.reserve(count, p->inputs);
    pool.run([&, &in = in] {
        pool.each(count, [&](int r) {
            std::memcpy(in.row(r), x + size_t(r) * p->inputs, p->inputs * sizeof(float));
            in.form(r, *p);
        });
        multiply(pool, *p, in, count, {y, p->outputs, false});
    });
    return 0;
} catch (const std::exception&) {
    return 1;
}

}
