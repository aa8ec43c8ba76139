// Cuts a batch's attention into pieces, has the team compute them, and joins them.
#include "abi.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "team.h"

namespace stoker {
namespace {

constexpr int64_t kFewPieces = 64;   // with fewer, each KV head is an item of its own, so that all threads have work
constexpr int64_t kWriteTokens = 128;  // new tokens that are written as one item

struct Plan {
    const Attend* args;
    const Kernels* kernels;
    bool by_head;
    std::vector<int64_t> first_item;  // of each sequence, and the number of items at the end
    std::vector<int64_t> first_row;   // of each sequence's results, in rows
    std::vector<int64_t> left;        // items of each sequence that are not done
    std::vector<float> parts, peaks, totals;
};

int64_t pieces_of(const Attend& args, int64_t sequence) { return (args.lengths[sequence] + kPiece - 1) / kPiece; }

int64_t tokens_of(const Attend& args, int64_t sequence) { return args.starts[sequence + 1] - args.starts[sequence]; }

void write_tokens(void* context, int64_t index) {
    const Attend& args = *static_cast<const Plan*>(context)->args;
    const int64_t element = args.dtype == kBFloat16 ? 2 : 4, bytes = args.kv_heads * args.size * element;
    const int64_t end = std::min((index + 1) * kWriteTokens, args.tokens);
    for (int64_t token = index * kWriteTokens; token < end; ++token) {
        const int64_t place = args.slots[token] * args.slot_stride * element;
        std::memcpy(static_cast<char*>(args.keys) + place,
                    static_cast<const char*>(args.k) + token * args.k_stride * element, bytes);
        std::memcpy(static_cast<char*>(args.values) + place,
                    static_cast<const char*>(args.v) + token * args.v_stride * element, bytes);
    }
}

void join_sequence(const Plan& plan, int64_t nth) {
    const Attend& args = *plan.args;
    const int64_t sequence = args.which[nth], tokens = tokens_of(args, sequence), group = args.heads / args.kv_heads;
    const int64_t rows = tokens * args.heads, base = plan.first_row[nth];
    const int64_t element = args.dtype == kBFloat16 ? 2 : 4;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t kv_head = row / (tokens * group), token = row / group % tokens, member = row % group;
        const int64_t to = (args.starts[sequence] + token) * args.heads + kv_head * group + member;
        plan.kernels->join(args.dtype, pieces_of(args, sequence), rows, args.size,
                           plan.parts.data() + (base + row) * args.size, plan.peaks.data() + base + row,
                           plan.totals.data() + base + row, static_cast<char*>(args.out) + to * args.size * element);
    }
}

void attend_item(void* context, int64_t index) {
    Plan& plan = *static_cast<Plan*>(context);
    const Attend& args = *plan.args;
    const int64_t nth = std::upper_bound(plan.first_item.begin(), plan.first_item.end(), index) -
                        plan.first_item.begin() - 1;
    const int64_t heads = plan.by_head ? 1 : args.kv_heads, shares = args.kv_heads / heads;
    const int64_t item = index - plan.first_item[nth], number = item / shares;
    Piece piece{};
    piece.sequence = args.which[nth];
    piece.first = args.starts[piece.sequence];
    piece.last = args.starts[piece.sequence + 1];
    piece.position = args.lengths[piece.sequence] - (piece.last - piece.first);
    piece.begin = number * kPiece;
    piece.count = static_cast<int>(std::min<int64_t>(kPiece, args.lengths[piece.sequence] - piece.begin));
    piece.head = item % shares * heads;
    piece.heads = heads;
    const int64_t tokens = piece.last - piece.first;
    const int64_t row = plan.first_row[nth] + number * tokens * args.heads +
                        piece.head * tokens * (args.heads / args.kv_heads);
    plan.kernels->attend_piece(args, piece, plan.parts.data() + row * args.size, plan.peaks.data() + row,
                               plan.totals.data() + row);
    if (__atomic_sub_fetch(&plan.left[nth], 1, __ATOMIC_ACQ_REL) == 0) join_sequence(plan, nth);
}

}  // namespace
}  // namespace stoker

extern "C" __attribute__((visibility("default"))) void stoker_attend(int isa, const stoker::Attend* args) {
    using namespace stoker;
    static thread_local Plan plan;  // kept for its memory
    plan.args = args;
    plan.kernels = kernels_of(isa);
    share((args->tokens + kWriteTokens - 1) / kWriteTokens, write_tokens, &plan);
    int64_t pieces = 0, rows = 0;
    for (int64_t i = 0; i < args->sequences; ++i) pieces += pieces_of(*args, args->which[i]);
    plan.by_head = pieces < kFewPieces;
    plan.first_item.assign(1, 0);
    plan.first_row.clear();
    plan.left.clear();
    for (int64_t i = 0; i < args->sequences; ++i) {
        const int64_t sequence = args->which[i], own = pieces_of(*args, sequence);
        const int64_t items = own * (plan.by_head ? args->kv_heads : 1);
        plan.first_item.push_back(plan.first_item.back() + items);
        plan.left.push_back(items);
        plan.first_row.push_back(rows);
        rows += own * tokens_of(*args, sequence) * args->heads;
    }
    plan.parts.resize(std::max<size_t>(plan.parts.size(), rows * args->size));
    plan.peaks.resize(std::max<size_t>(plan.peaks.size(), rows));
    plan.totals.resize(std::max<size_t>(plan.totals.size(), rows));
    share(plan.first_item.back(), attend_item, &plan);
}
