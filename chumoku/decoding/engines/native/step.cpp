// One step of a decoder stack on a CPU: embeddings of new tokens in, logits out.
//
//     x ← x + attention(norm(x)),  x ← x + cross(norm(x)),  x ← x + feedforward(norm(x))       or other places of the norms
//     x ← x + attention(norm(x)) + feedforward(norm(x))                                        parallel
//
// The whole step is one call, executed by all threads together (thread_pool.h). Matrix products are in products.h,
// attention in attention.h. pack.py prepares the weights and call.py makes the call. Only working space is allocated here.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "argmax.h"
#include "attention.h"
#include "low_rank.h"
#include "memory_wasm.h"
#include "norms.h"
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
    // beside: the input of a feed-forward that is parallel to attention
    // last: the input of the output layer, apart because its number of rows, and so its format, can differ from that of `in`
    Inputs &in, &beside, &hidden, &last;
    Lines<float>&projected, &gates, &added;
    const std::vector<int>& tiles;  // the first token of each tile, and the number of tokens
    SharedScores& shared_scores;
    std::vector<Largest>& largest_logits;  // of each output, as many parts as there are threads
    AttentionSpace* space;  // of this thread
    Inputs* normed;  // normalized x: `in`, or inputs of this thread alone, so that threads need not wait for one another

    // The rest of a sublayer, after its last product: add its normalized output to x, and normalize the sum.
    void finish(const Norms& norms, int r) {
        float* x = batch.x + size_t(r) * stack.width;
        if (norms.output.kind) {
            float* y = added.data() + size_t(r) * stack.width;
            normalize(norms.output, stack.width, y, y);
            for (int i = 0; i < stack.width; i++) x[i] += y[i];
        }
        normalize(norms.sum, stack.width, x, x);
    }

    // Where a sublayer's last product goes: it is added to x, unless it is normalized first.
    Output output_of(const Norms& norms) {
        if (norms.output.kind) return {added.data(), stack.width, false};
        return {batch.x, stack.width, true};
    }

    struct Input {
        const Norm& norm;
        const Product& product;
        Inputs& to;
    };
    void form_input(const Input& input, int r) {
        normalize(input.norm, stack.width, batch.x + size_t(r) * stack.width, input.to.row(r));
        input.to.form(r, input.product);
    }
    // Finish the previous sublayer, if any, and compute the inputs of the following.
    template <class... Each> void prepare(const Norms* previous, const Each&... inputs) {
        if (normed != &in) return (form_input(inputs, 0), ...);
        pool.each(batch.count, [&](int r) {
            if (previous) finish(*previous, r);
            (form_input(inputs, r), ...);
        });
    }

    void normalize_heads(const Norm& norm, int heads, float* x) {
        int all = heads * stack.head_width, each = stack.joint_norms ? all : stack.head_width;
        for (int i = 0; norm.kind && i < all; i += each) normalize(norm, each, x + i, x + i);
    }

    void rotate(float* head, int token, int base) {
        int pairs = stack.rotated / 2, i = 0;
        const float* cos = batch.rotation + (size_t(base) * 2 * batch.positions + batch.position[token]) * pairs;
        const float* sin = cos + size_t(batch.positions) * pairs;
        int step = stack.half ? 1 : 2, apart = stack.half ? pairs : 1;
        for (; stack.half && i + LANES <= pairs; i += LANES) {
            Floats a = load<Floats>(head + i), b = load<Floats>(head + pairs + i);
            Floats c = load<Floats>(cos + i), s = load<Floats>(sin + i);
            store(head + i, a * c - b * s);
            store(head + pairs + i, a * s + b * c);
        }
        for (; i < pairs; i++) {
            float &a = head[i * step], &b = head[i * step + apart], rotated = a * cos[i] - b * sin[i];
            b = a * sin[i] + b * cos[i];
            a = rotated;
        }
    }

    // Store the keys or the values of a token.
    void keep(int layer, int which, int token, const float* heads) {
        int row = batch.row[token], position = batch.position[token], G = stack.kv_heads, width = stack.head_width;
        size_t slot = batch.origin[size_t(row) * batch.capacity + position], size = batch.sizes[layer];
        for (int g = 0; g < G; g++) {
            size_t place = ((which * size_t(batch.rows) + slot) * G + g) * size + position % size;
            std::memcpy(batch.store[layer] + place * width, heads + g * width, width * sizeof(float));
        }
    }

    // The heads of key head g of a tile's tokens, with queries in rows of `wide` numbers.
    void list_queries(int tile, int g, int wide) {
        std::vector<Query>& queries = space->queries;
        int width = stack.head_width, shared = stack.heads / stack.kv_heads;
        queries.clear();
        for (int r = tiles[tile]; r < tiles[tile + 1]; r++)
            for (int h = g * shared; h < (g + 1) * shared; h++)
                queries.push_back({projected.data() + size_t(r) * wide + h * width, in.row(r) + h * width, r, h});
    }

    // The attention of a tile's tokens for key head g, over the row's own keys or, if `cross`, over the encoder's output. It
    // uses the queries of this thread's `space`, so there is one at a time.
    Attention prepare_attention(int layer, bool cross, int tile, int g) {
        list_queries(tile, g, (stack.heads + 2 * stack.kv_heads * !cross) * stack.head_width);
        return cross ? prepare_cross(layer, g) : prepare_self(layer, g);
    }

    Attention prepare_self(int layer, int g) {
        const Layer& l = stack.layer[layer];
        for (Query& query : space->queries) {
            query.position = batch.position[query.token];
            query.first = std::max(0, query.position - l.window + 1);
            query.end = std::min(batch.visible[query.token], query.position + l.window);
            if (batch.bias)
                query.bias = batch.bias + query.head * 2 * size_t(batch.positions) + batch.positions - 1 - query.position;
        }
        size_t width = stack.head_width, size = batch.sizes[layer], slot = stack.kv_heads * size * width;
        const int32_t* origin = batch.origin + size_t(batch.row[space->queries[0].token]) * batch.capacity;
        KeyLayout layout{batch.store[layer] + g * size * width, width, slot, batch.rows * slot, origin, int(size)};
        return {*space, int(width), layout, {stack.scale, stack.score_cap, l.relative, stack.clip}};
    }

    Attention prepare_cross(int layer, int g) {
        int row = batch.row[space->queries[0].token], length = batch.memory_length[row];
        for (Query& query : space->queries) query.end = length;
        size_t width = stack.head_width, position = stack.kv_heads * width, values = length * position;
        KeyLayout layout{batch.memory[row] + 2 * layer * values + g * width, position, 0, values};
        return {*space, int(width), layout, {stack.scale, stack.score_cap}};
    }

    // Attention and its output product.
    void attend_all(int layer, bool cross, const Product& output, const Norms& norms) {
        int G = stack.kv_heads, size = stack.heads / G * stack.head_width, items = (int(tiles.size()) - 1) * G;
        bool parts = can_form_in_parts(output, size);
        if (shared_scores.stride) attend_shared(layer, cross, output);
        else
            pool.each(items, [&](int item) {
                // The last tokens of a prompt attend to the most keys, so they come first.
                int tile = int(tiles.size()) - 2 - item / G, g = item % G;
                prepare_attention(layer, cross, tile, g).run();
                for (int r = tiles[tile]; parts && r < tiles[tile + 1]; r++)
                    in.form_part(r, output, g * size, (g + 1) * size);
            });
        if (!parts) form_all(output, in);
        multiply(pool, output, in, batch.count, output_of(norms));
    }

    // The same results by threads that share every key head: first parts of the positions, then groups of columns.
    void attend_shared(int layer, bool cross, const Product& output) {
        int G = stack.kv_heads, columns = stack.head_width / GROUP, count = int(tiles.size()) - 1;
        auto scores_of = [&](int tile, int g) {
            int first = tiles[tile] * stack.heads + (tiles[tile + 1] - tiles[tile]) * stack.heads / G * g;
            return shared_scores.values.data() + first * size_t(shared_scores.stride);
        };
        pool.each(count * pool.size, [&](int item) {
            int tile = item / pool.size;
            for (int g = 0; g < G; g++) {
                Attention attention = prepare_attention(layer, cross, tile, g);
                attention.scores = scores_of(tile, g);
                attention.score_part(item % pool.size, pool.size);
            }
        });
        int all = count * G * columns;
        pool.each(pool.size, [&](int item) {
            for (int from = all * item / pool.size, end = all * (item + 1) / pool.size, to; from < end; from = to) {
                int head = from / columns, tile = head / G, g = head % G;
                to = std::min(end, (head + 1) * columns);
                int first = (from - head * columns) * GROUP, last = (to - head * columns) * GROUP;
                Attention attention = prepare_attention(layer, cross, tile, g);
                attention.mix_shared(scores_of(tile, g), first, last);
                for (const Query& query : attention.queries) {
                    int place = query.head * stack.head_width;
                    in.form_part(query.token, output, place + first, place + last);
                }
            }
        });
    }

    void self_attention(int layer) {
        const Layer& l = stack.layer[layer];
        int width = stack.head_width, G = stack.kv_heads, wide = (stack.heads + 2 * G) * width;
        multiply_all(l.attention, *normed, {projected.data(), wide, false});
        adapt(layer, &LayerAdapter::attention, *normed, {projected.data(), wide, false});
        pool.each(batch.count, [&](int r) {
            float* query = projected.data() + size_t(r) * wide;
            float* key = query + stack.heads * width;
            normalize_heads(l.query_norm, stack.heads, query);
            normalize_heads(l.key_norm, G, key);
            if (l.base >= 0)
                for (int h = 0; h < stack.heads + G; h++) rotate(query + h * width, r, l.base);
            keep(layer, 0, r, key);
            keep(layer, 1, r, key + G * width);
        });
        attend_all(layer, false, l.output, l.attention_norms);
        adapt(layer, &LayerAdapter::output, in, output_of(l.attention_norms));
    }

    void cross_attention(int layer) {
        const Layer& l = stack.layer[layer];
        int width = stack.head_width, wide = stack.heads * width;
        multiply(pool, l.cross_query, *normed, batch.count, {projected.data(), wide, false});
        if (l.cross_query_norm.kind)
            pool.each(batch.count, [&](int r) {
                normalize_heads(l.cross_query_norm, stack.heads, projected.data() + size_t(r) * wide);
            });
        attend_all(layer, true, l.cross_output, l.cross_norms);
    }

    void feed_forward(int layer, Inputs& inputs) {
        const Layer& l = stack.layer[layer];
        int F = stack.hidden, wide = F * (1 + stack.gated);
        multiply_all(l.up, inputs, {gates.data(), wide, false});
        adapt(layer, &LayerAdapter::up, inputs, {gates.data(), wide, false});
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
        multiply(pool, l.down, hidden, batch.count, output_of(l.feed_norms));
        adapt(layer, &LayerAdapter::down, hidden, output_of(l.feed_norms));
    }

    // Add the low-rank products of the adapter of each token.
    template <int N> void adapt(int layer, LowRank (LayerAdapter::*part)[N], Inputs& inputs, const Output& out) {
        if (!batch.adapters) return;
        pool.each(batch.count, [&](int r) {
            if (const LayerAdapter* adapter = batch.adapters[r])
                for (const LowRank& one : adapter[layer].*part)
                    add_low_rank(one, inputs.row(r), out.y + size_t(r) * out.stride + one.first);
        });
    }

    // Products of the same inputs, with their outputs side by side. The inputs have the format of the first product, which
    // all quantized kinds share.
    template <int N> void multiply_all(const Product (&products)[N], Inputs& inputs, Output out) {
        for (int i = 0; i < N && products[i].outputs; i++) {
            if (i && !same_inputs(products[i - 1], products[i])) form_all(products[i], inputs);
            multiply(pool, products[i], inputs, batch.count, out);
            out.y += products[i].outputs;
        }
    }

    void form_all(const Product& product, Inputs& inputs) {
        if (normed != &in && &inputs == normed) return inputs.form(0, product);
        pool.each(batch.count, [&](int r) { inputs.form(r, product); });
    }

    void logits(const Norms& previous) {
        pool.each(batch.outputs, [&](int r) {
            finish(previous, batch.output_tokens[r]);
            normalize(stack.last, stack.width, batch.x + size_t(batch.output_tokens[r]) * stack.width, last.row(r));
            if (stack.logits.outputs) last.form(r, stack.logits);
            else std::memcpy(batch.logits + size_t(r) * stack.width, last.row(r), stack.width * sizeof(float));
        });
        int outputs = stack.logits.outputs;
        if (outputs) multiply(pool, stack.logits, last, batch.outputs, {batch.logits, outputs, false});
        if (batch.most_likely) find_most_likely();
    }

    void find_most_likely() {
        pool.each(batch.outputs * pool.size, [&](int item) {
            int64_t part = item % pool.size, all = stack.logits.outputs;
            int from = int(all * part / pool.size), to = int(all * (part + 1) / pool.size);
            Largest found = find_largest(batch.logits + item / pool.size * all + from, to - from);
            largest_logits[item] = {found.value, found.place + from};
        });
        pool.each(batch.outputs, [&](int r) {
            batch.most_likely[r] = place_of_largest(&largest_logits[r * size_t(pool.size)], pool.size);
        });
    }

    void step() {
        const Norms* previous = nullptr;
        for (int layer = 0; layer < stack.layers; layer++) {
            const Layer& l = stack.layer[layer];
            Input attention{l.attention_norms.input, l.attention[0], *normed};
            Input cross{l.cross_norms.input, l.cross_query, *normed};
            Input feed{l.feed_norms.input, l.up[0], stack.parallel ? beside : *normed};
            if (stack.parallel) prepare(previous, attention, feed);
            else prepare(previous, attention);
            self_attention(layer);
            previous = &l.attention_norms;
            if (stack.cross) {
                prepare(previous, cross);
                cross_attention(layer);
                previous = &l.cross_norms;
            }
            if (stack.parallel) prepare(previous);
            else prepare(previous, feed);
            feed_forward(layer, feed.to);
            previous = &l.feed_norms;
        }
        logits(*previous);
    }
};

// Whether the sublayers are only added to x, so that x needs no change before the next sublayer. All layers are alike.
bool adds_only(const Layer& l) {
    bool found = true;
    for (const Norms* norms : {&l.attention_norms, &l.cross_norms, &l.feed_norms})
        found = found && norms->output.kind == NONE && norms->sum.kind == NONE;
    return found;
}

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
    const int all[] = {sizeof(Product), sizeof(Norm),  sizeof(Norms),  sizeof(Layer),
                       sizeof(Stack),   sizeof(Batch), sizeof(Source), sizeof(Packing), sizeof(LayerAdapter), sizeof(Ranking)};
    return all[which];
}

// Returns 0, or 1 without doing anything if there is no memory for the working space; so does `product`.
int step(void* threads, const Stack* stack, const Batch* given) try {
    ThreadPool& pool = *static_cast<ThreadPool*>(threads);
    Batch copy = *given, *batch = &copy;
    // Working space is kept for the next step of the calling thread.
    thread_local Inputs in, beside, hidden, last;
    thread_local Lines<float> projected, gates, added;
    thread_local SharedScores shared_scores;
    thread_local std::vector<AttentionSpace> spaces;  // of all threads
    thread_local std::vector<Inputs> own;
    thread_local Lines<float> embedded;
    thread_local std::vector<Largest> largest_logits;
    in.reserve(batch->count, std::max(stack->width, stack->heads * stack->head_width));
    last.reserve(std::max(1, batch->outputs), stack->width);
    if (stack->parallel) beside.reserve(batch->count, stack->width);
    hidden.reserve(batch->count, stack->hidden);
    added.resize(size_t(batch->count) * stack->width);
    projected.resize(size_t(batch->count) * (stack->heads + 2 * stack->kv_heads) * stack->head_width);
    // Whole vectors are read, so the last one may read past the end.
    gates.resize(size_t(batch->count) * stack->hidden * (1 + stack->gated) + LANES);
    if (batch->table) {
        embedded.resize(size_t(batch->count) * stack->width);
        batch->x = embedded.data();
        for (int i = 0; i < batch->count; i++)
            std::copy_n(batch->table + size_t(batch->tokens[i]) * stack->width, stack->width, batch->x + size_t(i) * stack->width);
    }
    if (batch->most_likely) largest_logits.resize(size_t(batch->outputs) * pool.size);
    for (int i = 0; i < batch->count; i++)
        batch->origin[size_t(batch->row[i]) * batch->capacity + batch->position[i]] = batch->slot[i];
    std::vector<int> tiles = make_tiles(*batch, stack->kv_heads, pool.size);
    int most_tokens = 0, keys = most_keys(*stack, *batch);
    for (size_t i = 1; i < tiles.size(); i++) most_tokens = std::max(most_tokens, tiles[i] - tiles[i - 1]);
    shared_scores.reserve(*stack, *batch, int(tiles.size()) - 1, pool.size, keys);
    spaces.resize(pool.size);
    for (AttentionSpace& space : spaces) space.reserve(most_tokens * stack->heads / stack->kv_heads, keys);
    bool alone = batch->count == 1 && !stack->parallel && adds_only(stack->layer[0]);
    own.resize(alone ? pool.size : 0);
    for (Inputs& one : own) one.reserve(1, stack->width);
    // This thread's variables; in `run`, each name of a thread_local variable would be that of another one.
    const Worker worker{*stack, *batch, pool,  in,    beside,        hidden,         last,          projected,
                        gates,  added,  tiles, shared_scores, largest_logits, spaces.data(), &in};
    Inputs* normed = alone ? own.data() : nullptr;
    std::atomic<int> started{0};
    pool.run([&] {
        Worker mine = worker;
        int number = started++;
        mine.space += number;
        if (alone) mine.normed = normed + number;
        mine.step();
    });
    return 0;
} catch (const std::exception&) {
    return 1;
}

// A hash of the bytes: 8 interleaved sums, each multiplied by 31.
static uint64_t fingerprint(const uint8_t* bytes, size_t size) {
    uint64_t sums[8] = {size}, found = 0;
    for (; size >= sizeof sums; bytes += sizeof sums, size -= sizeof sums) {
        ahead(bytes, sizeof sums);
        for (int i = 0; i < 8; i++) sums[i] = (sums[i] << 5) - sums[i] + load<uint64_t>(bytes + 8 * i);
    }
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
