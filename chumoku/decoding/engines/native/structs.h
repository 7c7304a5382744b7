// Structures filled by pack.py and call.py. The ctypes structures in pack.py must have the same fields.
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
struct Layer {
    Norm attention_norm, cross_norm, feed_norm;
    Product attention[3], output, cross_query, cross_output, up[2], down;  // parts of different kinds are separate products
};
struct Stack {
    int32_t layers, width, heads, kv_heads, head_width, hidden, activation, gated, post, half, cross;
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
    const int32_t* visible;         // how many positions each token attends to
    const int32_t* slot;            // the slot of the store where its keys and values go
    const float *cos, *sin;         // [positions, K/2], or null
    float* x;                       // [count, D]: the embeddings; overwritten
    float* store;                   // keys and values [L, 2, R, C, G·K] in R slots
    int32_t rows, capacity;
    int32_t* origin;                // [R, C]: for each position of a row, the slot that holds it
    const float* const* memory;     // cross-attention keys and values of each row [L, 2, S, G·K]
    const int32_t* memory_length;
    int32_t outputs;                // number of tokens whose logits are returned
    const int32_t* output_tokens;   // and which
    float* logits;                  // [outputs, V], or [outputs, D]
    const LayerAdapter* const* adapters;  // the layers of each token's adapter, or null; null if no token has one
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
