// What pack.py and call.py describe, field by field.
#pragma once

#include <cstdint>

enum Kind { FLOAT32, BF16, INT8, INT8_GROUPS, INT4 };
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
    Product attention[3], output, cross_query, cross_output, up[2], down;  // parts of unlike kinds are products of their own
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
    const int32_t* home;            // in which row of the store their keys and values are put
    const float *cos, *sin;         // [positions, K/2], or none
    float* x;                       // [count, D]: in, what was embedded
    float* store;                   // keys and values [L, 2, R, C, G·K]
    int32_t rows, capacity;
    int32_t* origin;                // [R, C]: in which row of the store a row's position lies
    const float* const* memory;     // a row's cross-attention keys and values [L, 2, S, G·K]
    const int32_t* memory_length;
    int32_t asked;
    const int32_t* wanted;          // which tokens' logits
    float* logits;                  // [asked, V], or [asked, D]
};
struct Source {  // rows of weights as they lie, with steps in bytes from row to row and from group to group
    const uint8_t *q, *scale, *low;
    int64_t row, group, scale_row, scale_group, low_row, low_group;
    int32_t rows;
};
struct Packing {
    const Source* source;
    int32_t sources, outputs, groups, bytes, words, halves;  // bytes and words of a group, and halves behind it
    uint32_t flip;                                           // bits of every word that are turned round
    int32_t first;                                           // how many blocks those before it have
    uint8_t* to;
};
