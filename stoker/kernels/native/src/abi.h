// The plain C structures that cross from Python: fixed-width fields only, in the order that library.py repeats.
#pragma once

#include <cstdint>

namespace stoker {

enum Dtype : int64_t { kFloat32 = 0, kBFloat16 = 1 };

// Causal attention of a ragged batch over paged keys and values, after the new ones were written to their slots.
// Strides count elements; the heads of a token and the numbers of a head are consecutive, `size` a multiple of 16.
struct Attend {
    const void* q;         // [tokens, heads, size]
    const void* k;         // [tokens, kv_heads, size]
    const void* v;         // [tokens, kv_heads, size]
    void* out;             // [tokens, heads, size], dense
    void* keys;            // [slots, kv_heads, size]
    void* values;          // [slots, kv_heads, size]
    const int64_t* slots;    // [tokens], where each new key and value goes
    const int64_t* starts;   // [batch + 1], borders of the sequences within tokens
    const int64_t* lengths;  // [batch], tokens in the cache with the new ones
    const int64_t* tables;   // [batch, table_stride], physical block of each logical block
    const int64_t* which;    // [sequences], those of the batch to attend for; all tokens are written
    int64_t sequences;
    int64_t tokens;
    int64_t heads;
    int64_t kv_heads;
    int64_t size;
    int64_t block_size;
    int64_t table_stride;
    int64_t q_stride;
    int64_t k_stride;
    int64_t v_stride;
    int64_t slot_stride;
    int64_t dtype;
    double scale;
};

// out = x / sqrt(mean(x^2) + epsilon) * weight for each row. With `added`, x + added is written to `sum` and normed.
// Row r of x begins at x + r / inner * x_stride + r % inner * width; the rows of all others lie one after another.
struct Norm {
    const void* x;       // [rows, width]
    const void* added;   // [rows, width] or null
    const void* weight;  // [width]
    void* sum;           // [rows, width] or null
    void* out;           // [rows, width]
    int64_t rows;
    int64_t width;  // a multiple of 16
    int64_t inner;
    int64_t x_stride;
    int64_t dtype;
    double epsilon;
};

// out = silu(gate) * up for each row.
struct Gate {
    const void* gate_up;  // [rows, 2 * width], gate first
    void* out;            // [rows, width]
    int64_t rows;
    int64_t width;  // a multiple of 16
    int64_t dtype;
};

// out = x with the first `rotary` numbers of each head turned, as `rotate` of rope.py says it.
struct Turn {
    const void* x;    // [tokens, heads, size], the heads of a token dense
    const void* cos;  // [tokens, rotary]
    const void* sin;  // [tokens, rotary], signed
    void* out;        // [tokens, heads, size]
    int64_t tokens;
    int64_t heads;
    int64_t size;
    int64_t rotary;  // a multiple of 16; of 32 unless paired
    int64_t paired;
    int64_t x_stride;
    int64_t dtype;
};

}  // namespace stoker
