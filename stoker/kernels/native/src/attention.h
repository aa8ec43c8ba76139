// Causal attention over paged keys and values, streamed once: what every instruction set can do.
//
// A sequence's past is cut into pieces of kPiece tokens whatever the batch and however many threads there are, so a
// result never depends on who else is there. Each piece gives, for each query row and head, a maximum score, the sum of
// exponentials and the weighted sum of values, all in float32; pieces join by the online softmax (Milakov and
// Gimelshein, 2018).
#pragma once

#include "abi.h"
#include "kernels.h"
#include "vec.h"

namespace stoker::STOKER_ISA {

constexpr int kTile = 16;     // tokens that all heads read before the next ones: a block of the usual size
constexpr int kAhead = kTile;    // how far what is asked for is from what is read: a tile takes about as long as memory
constexpr int kGroupRows = 64;  // query rows whose scores are held at a time
constexpr int kStride = kPiece + kLanes;

// Asks for a row that will be read soon.
template <typename T>
STOKER_INLINE void fetch(const T* row, int64_t size) {
    for (int64_t at = 0; at < size; at += 64 / (int64_t)sizeof(T)) __builtin_prefetch(row + at, 0, 2);
}

// scores[row][key] = q[row] . keys[places[key]] for `count` keys; written in whole vectors, so up to kLanes - 1 too many.
template <typename T, int rows, int fixed>
STOKER_INLINE void score(
    const float* q, const T* keys, const int64_t* places, int count, const T* soon, int64_t any, float* scores) {
    const int64_t size = fixed ? fixed : any;
    for (int begin = 0; begin < count; begin += kLanes) {
        Floats parts[rows][kLanes];
        for (int i = 0; i < kLanes; ++i) {
            const int key = begin + i < count ? begin + i : count - 1;
            const T* at = keys + places[key];
            fetch(soon + places[kAhead + key], size);
            Floats part[rows] = {};
            for (int64_t d = 0; d < size; d += kLanes) {
                const Floats k = load(at + d);
                for (int row = 0; row < rows; ++row) part[row] += load(q + row * size + d) * k;
            }
            for (int row = 0; row < rows; ++row) parts[row][i] = part[row];
        }
        for (int row = 0; row < rows; ++row) store(scores + row * kStride + begin, sums(parts[row]));
    }
}

// out[row] += sum over `count` keys of weights[row][key] * values[places[key]].
template <typename T, int rows, int wide>
STOKER_INLINE void weigh(
    const float* weights, const T* values, const int64_t* places, int count, int64_t size, float* out) {
    Floats sum[rows][wide];
    for (int row = 0; row < rows; ++row)
        for (int i = 0; i < wide; ++i) sum[row][i] = load(out + row * size + i * kLanes);
    for (int key = 0; key < count; ++key) {
        const T* at = values + places[key];
        fetch(values + places[kAhead + key], wide * kLanes);
        for (int i = 0; i < wide; ++i) {
            const Floats v = load(at + i * kLanes);
            for (int row = 0; row < rows; ++row) sum[row][i] += splat(weights[row * kStride + key]) * v;
        }
    }
    for (int row = 0; row < rows; ++row)
        for (int i = 0; i < wide; ++i) store(out + row * size + i * kLanes, sum[row][i]);
}

template <typename T, int rows, int fixed>
STOKER_INLINE void weigh_all(
    const float* weights, const T* values, const int64_t* places, int count, int64_t any, float* out) {
    const int64_t size = fixed ? fixed : any;
    int64_t d = 0;
    for (; d + 4 * kLanes <= size; d += 4 * kLanes)
        weigh<T, rows, 4>(weights, values + d, places, count, size, out + d);
    for (; d < size; d += kLanes) weigh<T, rows, 1>(weights, values + d, places, count, size, out + d);
}

// Makes weights of scores: exp(score - maximum), whose sum is *weight, for the first `count` keys; 0 for the others.
STOKER_INLINE void soften(float* scores, int count, int others, float* peak, float* weight) {
    const int whole = count / kLanes * kLanes;
    float most = -__builtin_inff();
    Floats most_of = splat(most);
    for (int i = 0; i < whole; i += kLanes) most_of = larger(most_of, load(scores + i));
    for (int lane = 0; lane < kLanes; ++lane) most = most_of[lane] > most ? most_of[lane] : most;
    for (int i = whole; i < count; ++i) most = scores[i] > most ? scores[i] : most;
    Floats sum = {};
    for (int i = 0; i < count; i += kLanes) {
        Floats part = exponential(load(scores + i) - most);
        if (i + kLanes > count)
            for (int lane = count - i; lane < kLanes; ++lane) part[lane] = 0;
        store(scores + i, part);
        sum += part;
    }
    *peak = most;
    *weight = total(sum);
    for (int i = count; i < others; ++i) scores[i] = 0;
}

template <typename T, int fixed>
STOKER_INLINE void attend_sized(const Attend& args, const Piece& piece, float* out, float* peaks, float* totals) {
    int64_t places[kPiece + kAhead];
    const int64_t size = fixed ? fixed : args.size, block = args.block_size;
    const int64_t* table = args.tables + piece.sequence * args.table_stride;
    for (int i = 0; i < piece.count;) {
        const int64_t token = piece.begin + i, within = token % block;
        int64_t place = (table[token / block] * block + within) * args.slot_stride;
        for (int64_t left = block - within; left > 0 && i < piece.count; --left, place += args.slot_stride)
            places[i++] = place;
    }
    // what is asked for after the last keys are the first values
    for (int i = 0; i < kAhead; ++i) places[piece.count + i] = places[i % piece.count];
    const int64_t group = args.heads / args.kv_heads, per_head = (piece.last - piece.first) * group;
    const int64_t at_once = per_head < kGroupRows ? kGroupRows / per_head : 1;
    float q[kGroupRows * kMaxSize];
    float scores[kGroupRows * kStride];
    int seen[kGroupRows];
    for (int64_t head = piece.head; head < piece.head + piece.heads; head += at_once) {
        const int64_t heads = piece.head + piece.heads - head < at_once ? piece.head + piece.heads - head : at_once;
        for (int64_t begin = 0; begin < per_head; begin += kGroupRows) {
            const int64_t rows = per_head - begin < kGroupRows ? per_head - begin : kGroupRows;
            int most = 0;
            for (int64_t h = 0; h < heads; ++h)
                for (int64_t row = 0; row < rows; ++row) {
                    const int64_t token = piece.first + (begin + row) / group, member = (begin + row) % group;
                    const T* from = (const T*)args.q + token * args.q_stride + ((head + h) * group + member) * size;
                    float* to = q + (h * rows + row) * size;
                    for (int64_t d = 0; d < size; d += kLanes) store(to + d, load(from + d) * (float)args.scale);
                    const int64_t visible = token - piece.first + piece.position + 1 - piece.begin;
                    seen[row] = visible < 0 ? 0 : visible < piece.count ? (int)visible : piece.count;
                    most = seen[row] > most ? seen[row] : most;
                }
            const int64_t at = (head - piece.head) * per_head + begin;  // heads > 1 only where begin is 0
            memset(out + at * size, 0, sizeof(float) * heads * rows * size);
            const T* keys = (const T*)args.keys + head * size;
            const T* values = (const T*)args.values + head * size;
            for (int tile = 0; tile < most; tile += kTile) {
                const int count = most - tile < kTile ? most - tile : kTile;
                const bool last = tile + kAhead >= most;
                for (int64_t h = 0; h < heads; ++h)
                    for (int64_t row = 0; row < rows;) {
                        const float* from = q + (h * rows + row) * size;
                        float* to = scores + (h * rows + row) * kStride + tile;
                        const T* k = keys + h * size;
                        const T* soon = (last ? values : keys) + h * size;
                        if (rows - row >= kRows)
                            score<T, kRows, fixed>(from, k, places + tile, count, soon, size, to), row += kRows;
#if defined(__AVX512F__)
                        else if (rows - row == 3)
                            score<T, 3, fixed>(from, k, places + tile, count, soon, size, to), row += 3;
                        else if (rows - row == 2)
                            score<T, 2, fixed>(from, k, places + tile, count, soon, size, to), row += 2;
#endif
                        else
                            score<T, 1, fixed>(from, k, places + tile, count, soon, size, to), row += 1;
                    }
            }
            for (int64_t h = 0; h < heads; ++h)
                for (int64_t row = 0; row < rows; ++row)
                    soften(scores + (h * rows + row) * kStride, seen[row], most, peaks + at + h * rows + row,
                           totals + at + h * rows + row);
            for (int tile = 0; tile < most; tile += kTile) {
                const int count = most - tile < kTile ? most - tile : kTile;
                for (int64_t h = 0; h < heads; ++h)
                    for (int64_t row = 0; row < rows;) {
                        const float* from = scores + (h * rows + row) * kStride + tile;
                        float* to = out + (at + h * rows + row) * size;
                        const T* v = values + h * size;
                        if (rows - row >= kRows)
                            weigh_all<T, kRows, fixed>(from, v, places + tile, count, size, to), row += kRows;
#if defined(__AVX512F__)
                        else if (rows - row == 3)
                            weigh_all<T, 3, fixed>(from, v, places + tile, count, size, to), row += 3;
                        else if (rows - row == 2)
                            weigh_all<T, 2, fixed>(from, v, places + tile, count, size, to), row += 2;
#endif
                        else
                            weigh_all<T, 1, fixed>(from, v, places + tile, count, size, to), row += 1;
                    }
            }
        }
    }
}

template <typename T>
static void attend_typed(const Attend& args, const Piece& piece, float* out, float* peaks, float* totals) {
    if (args.size == 64)
        attend_sized<T, 64>(args, piece, out, peaks, totals);
    else if (args.size == 128)
        attend_sized<T, 128>(args, piece, out, peaks, totals);
    else
        attend_sized<T, 0>(args, piece, out, peaks, totals);
}

static void attend_piece(const Attend& args, const Piece& piece, float* out, float* peaks, float* totals) {
    if (args.dtype == kBFloat16)
        attend_typed<BFloat16>(args, piece, out, peaks, totals);
    else
        attend_typed<float>(args, piece, out, peaks, totals);
}

template <typename T>
static void join_typed(
    int64_t pieces, int64_t stride, int64_t size, const float* parts, const float* peaks, const float* totals, T* out) {
    float peak = -__builtin_inff(), weight = 0;
    for (int64_t i = 0; i < pieces; ++i) peak = peaks[i * stride] > peak ? peaks[i * stride] : peak;
    Floats joined[kMaxSize / kLanes] = {};
    for (int64_t i = 0; i < pieces; ++i) {
        const float share = exponential(splat(peaks[i * stride] - peak))[0];
        weight += share * totals[i * stride];
        for (int64_t d = 0; d < size / kLanes; ++d) joined[d] += load(parts + i * stride * size + d * kLanes) * share;
    }
    for (int64_t d = 0; d < size / kLanes; ++d) store(out + d * kLanes, joined[d] / weight);
}

// One row's result from its pieces, which lie `stride` rows apart.
static void join(
    int64_t dtype, int64_t pieces, int64_t stride, int64_t size, const float* parts, const float* peaks,
    const float* totals, void* out) {
    if (dtype == kBFloat16)
        join_typed(pieces, stride, size, parts, peaks, totals, (BFloat16*)out);
    else
        join_typed(pieces, stride, size, parts, peaks, totals, (float*)out);
}

}  // namespace stoker::STOKER_ISA
