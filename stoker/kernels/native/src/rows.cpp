// Shares out what happens to rows of activations: so many at a time that waking a thread is worth it.
#include "abi.h"
#include "dispatch.h"
#include "team.h"

namespace {

constexpr int64_t kRun = 1 << 15;  // numbers in one item

int64_t run_of(int64_t width) { return width < kRun ? kRun / width : 1; }

}  // namespace

#define STOKER_API extern "C" __attribute__((visibility("default")))

STOKER_API void stoker_norm(int isa, const stoker::Norm* args) {
    stoker::share_rows(args->rows, run_of(args->width), stoker::kernels_of(isa)->norm, *args);
}

STOKER_API void stoker_gate(int isa, const stoker::Gate* args) {
    stoker::share_rows(args->rows, run_of(2 * args->width), stoker::kernels_of(isa)->gate, *args);
}

STOKER_API void stoker_turn(int isa, const stoker::Turn* args) {
    stoker::share_rows(args->tokens, run_of(args->heads * args->size), stoker::kernels_of(isa)->turn, *args);
}
