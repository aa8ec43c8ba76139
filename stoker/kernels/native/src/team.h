// Work shared by a team of threads.
#pragma once

#include <cstdint>

namespace stoker {

// Calls item(context, index) once for each index in [0, count), on all threads of the team; returns when all are done.
// Whoever is free takes the next index, so a thread that the system has put aside holds up one item and no more.
void share(int64_t count, void (*item)(void* context, int64_t index), void* context);

// The same for work that can be cut anywhere: work(context, begin, end) over [0, rows) in runs of about `run` rows.
template <typename Context>
void share_rows(int64_t rows, int64_t run, void (*work)(const Context&, int64_t, int64_t), const Context& context) {
    struct Rows {
        int64_t rows, run;
        void (*work)(const Context&, int64_t, int64_t);
        const Context& context;
    } shared{rows, run, work, context};
    share((rows + run - 1) / run, [](void* data, int64_t index) {
        const Rows& all = *static_cast<const Rows*>(data);
        const int64_t begin = index * all.run, end = begin + all.run;
        all.work(all.context, begin, end < all.rows ? end : all.rows);
    }, &shared);
}

}  // namespace stoker
