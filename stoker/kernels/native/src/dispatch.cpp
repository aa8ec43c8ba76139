#include "dispatch.h"

#include "abi.h"

// build.py defines STOKER_WITH_* for each translation unit that it compiled beside the generic one.
namespace stoker {

namespace generic {
extern const Kernels kernels;
}
#ifdef STOKER_WITH_avx2
namespace avx2 {
extern const Kernels kernels;
}
#endif
#ifdef STOKER_WITH_avx512
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

struct Isa {
    const char* name;
    const Kernels* kernels;
    bool (*usable)();
};

// The feature tests also ask whether the system saves the registers.
const Isa kIsas[] = {
    {"generic", &generic::kernels, [] { return true; }},
#ifdef STOKER_WITH_avx2
    {"avx2", &avx2::kernels, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#endif
#ifdef STOKER_WITH_avx512
    {"avx512", &avx512::kernels,
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
     }},
#endif
};

}  // namespace

const Kernels* kernels_of(int isa) { return kIsas[isa].kernels; }

}  // namespace stoker

#define STOKER_API extern "C" __attribute__((visibility("default")))

STOKER_API int stoker_isa_count() { return sizeof stoker::kIsas / sizeof *stoker::kIsas; }

STOKER_API const char* stoker_isa_name(int isa) { return stoker::kIsas[isa].name; }

STOKER_API int stoker_isa_usable(int isa) { return stoker::kIsas[isa].usable(); }
