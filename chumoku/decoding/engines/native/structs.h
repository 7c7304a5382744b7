// Structures filled by pack.py and call.py. The ctypes structures in structs.py must have the same fields.
#pragma once

#include <cstdint>

enum Kind { FLOAT32, BF16, INT8, INT4, Q5_0, Q5_1, IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K };  // quantized from INT8 on
struct Product {
    int32_t kind, outputs, inputs;
    const void* weight;
    const float* bias;
};
enum NormKind { NONE, LAYER, RMS, AFFINE };
struct Norm {
    int32_t kind;
    float epsilon;
    const float *gamma, *beta;
};
struct Norms {  // of a sublayer f: x ← sum(x + output(f(input(x)))), where some are NONE
    Norm input, output, sum;
};
struct Layer {
    Norms attention_norms, cross_norms, feed_norms;
    Norm query_norm, key_norm, cross_query_norm;  // of each head, or of all heads
    Product attention[3], output, cross_query, cross_output, up[2], down;  // parts of different kinds are separate products
    const float* relative;  // [2 clip + 1, K]: the vector of each distance, or null
    int32_t window;         // attends to positions less than this far away
    int32_t base;           // which of the rotary bases it has; −1: none
};
struct Stack {
    int32_t layers, width, heads, kv_heads, head_width, hidden, activation, gated, parallel, half, cross;
    int32_t joint_norms;  // query_norm and key_norm normalize all heads together
    int32_t rotated;      // how many elements of each head are rotated
    int32_t clip;         // the largest distance that has its own vector in `relative`
    float scale, score_cap;  // multiplies q · k; soft-capping of scores, if not 0
    const Layer* layer;
    Norm last;
    Product logits;  // if it has no outputs, the hidden vectors are returned
};
struct LowRank {  // y += B A x for outputs first … of products side by side
    int32_t rank, inputs, first, outputs;
    const float* a;  // [rank, inputs], with zeros up to a multiple of LANES rows
    const float* b;  // [rank, outputs], scaled
};
struct LayerAdapter {
    LowRank attention[3], output[1], up[2], down[1];  // with rank 0 where there is none
};
struct Batch {
    int32_t count;                  // new tokens
    const int32_t *row, *position;  // of each token
    const int32_t* visible;         // how many positions each token attends to, if it has no window
    const int32_t* slot;            // the slot of the store where its keys and values go
    int32_t positions;              // P of the following tables
    const float* rotation;          // cos and sin for each rotary base [bases, 2, P, rotated/2]
    const float* bias;              // added to scores [H, 2 P]: of a key d positions after the query at P − 1 + d; or null
    float* x;                       // [count, D]: the embeddings; overwritten
    float* const* store;            // of each layer, keys and values [2, R, G, size, K] in R slots
    const int32_t* sizes;           // of each layer: position p of a slot is at p mod size
    int32_t rows, capacity;         // R, and C of the next table
    int32_t* origin;                // [R, C]: for each position of a row, the slot that holds it
    const float* const* memory;     // cross-attention keys and values of each row [L, 2, S, G·K]
    const int32_t* memory_length;
    int32_t outputs;                // number of tokens whose logits are returned
    const int32_t* output_tokens;   // and which
    float* logits;                  // [outputs, V], or [outputs, D]
    const LayerAdapter* const* adapters;  // the layers of each token's adapter, or null; null if no token has one
    const int32_t* tokens;          // ids, and the table [V, D] whose rows are their embeddings;
    const float* table;             // or null: then x has the embeddings
    int64_t* most_likely;           // for each output, the token of the largest logit, −1 if it is not finite; or null
};
struct Source {  // rows of weights as stored, with strides in bytes from row to row and from group to group
    const uint8_t *q, *scale, *low;
    int64_t row, group, scale_row, scale_group, low_row, low_group;
    int32_t rows;
};
struct Packing {
    const Source* source;
    int32_t kind, sources, outputs, groups;
    int32_t bytes, words, halves;  // of a group: bytes as stored, and packed words and 16-bit numbers
    uint32_t flip;                                           // bits of every word that are inverted
    int32_t first;                                           // number of blocks of the packings before
    uint8_t* to;
};
