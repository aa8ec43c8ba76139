// All kernels for one instruction set: compiled once for each, with STOKER_ISA as its name.
#include "attention.h"
#include "kernels.h"
#include "rows.h"

namespace stoker::STOKER_ISA {

extern const Kernels kernels;
const Kernels kernels = {attend_piece, join, norm, gate, turn};

}  // namespace stoker::STOKER_ISA
