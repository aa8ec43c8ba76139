// Work shared by a team of threads.
#pragma once

#include <cstdint>

namespace stoker {

// Calls item(context, index) once for each index in [0, count), on all threads of the team; returns when all are done.
// Whoever is free takes the next index, so a thread that the system has put aside holds up one item and no more.
void share(int64_t count, void (*item)(void* context, int64_t index), void* context);

}  // namespace stoker
