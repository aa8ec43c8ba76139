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

}  // namespace stoker
