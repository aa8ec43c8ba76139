// What each instruction set offers to the code that shares the work: one table of functions per translation unit.
#pragma once

#include "abi.h"

namespace stoker {

constexpr int kPiece = 256;     // tokens of a sequence's past that are attended to as one
constexpr int kMaxSize = 256;   // largest head

// Tokens [first, last) of the batch, which are one sequence's, `position` being the first's place in it, over tokens
// [begin, begin + count) of that sequence, for `heads` KV heads from `head` on.
struct Piece {
    int64_t sequence;  // in the batch
    int64_t first;
    int64_t last;
    int64_t position;
    int64_t begin;
    int count;
    int64_t head;
    int64_t heads;
};

struct Kernels {
    // Row r of the piece's rows (head by head, then token by token, then by member of the group) gives out[r][size],
    // peaks[r] and totals[r].
    void (*attend_piece)(const Attend& args, const Piece& piece, float* out, float* peaks, float* totals);
    void (*join)(
        int64_t dtype, int64_t pieces, int64_t stride, int64_t size, const float* parts, const float* peaks,
        const float* totals, void* out);
    // Rows, or tokens, [begin, end).
    void (*norm)(const Norm& args, int64_t begin, int64_t end);
    void (*gate)(const Gate& args, int64_t begin, int64_t end);
    void (*turn)(const Turn& args, int64_t begin, int64_t end);
};

}  // namespace stoker
