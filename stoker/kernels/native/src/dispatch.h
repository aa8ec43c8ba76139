// Which instruction sets this library was built for and which of them the host has.
#pragma once

#include "kernels.h"

namespace stoker {

// `isa` counts from 0, the plainest; the caller has asked `stoker_isa_usable` before.
const Kernels* kernels_of(int isa);

}  // namespace stoker
