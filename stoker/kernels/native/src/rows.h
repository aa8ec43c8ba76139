// What happens to each row of activations on its own, between the matrix products: read once, written once.
#pragma once

#include "abi.h"
#include "kernels.h"
#include "vec.h"

namespace stoker::STOKER_ISA {

constexpr int kChains = 4;  // sums that grow side by side: one alone would wait for itself

template <typename T>
STOKER_INLINE void norm_typed(const Norm& args, int64_t begin, int64_t end) {
    const int64_t width = args.width;
    for (int64_t row = begin; row < end; ++row) {
        const T* x = (const T*)args.x + row / args.inner * args.x_stride + row % args.inner * width;
        T* out = (T*)args.out + row * width;
        if (args.added != nullptr) {  // the sum is rounded before it is normed: it is what the next layer gets, too
            const T* added = (const T*)args.added + row * width;
            T* sum = (T*)args.sum + row * width;
            for (int64_t d = 0; d < width; d += kLanes) store(sum + d, load(x + d) + load(added + d));
            x = sum;
        }
        Floats squares[kChains] = {};
        int64_t d = 0;
        for (; d + kChains * kLanes <= width; d += kChains * kLanes)
            for (int i = 0; i < kChains; ++i) {
                const Floats part = load(x + d + i * kLanes);
                squares[i] += part * part;
            }
        for (; d < width; d += kLanes) squares[0] += load(x + d) * load(x + d);
        const float mean = total(squares[0] + squares[1] + (squares[2] + squares[3])) / (float)width;
        const float factor = 1.0f / __builtin_sqrtf(mean + (float)args.epsilon);
        const T* weight = (const T*)args.weight;
        for (d = 0; d < width; d += kLanes) store(out + d, load(x + d) * factor * load(weight + d));
    }
}

static void norm(const Norm& args, int64_t begin, int64_t end) {
    if (args.dtype == kBFloat16)
        norm_typed<BFloat16>(args, begin, end);
    else
        norm_typed<float>(args, begin, end);
}

template <typename T>
STOKER_INLINE void gate_typed(const Gate& args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const T* gate = (const T*)args.gate_up + row * 2 * args.width;
        const T* up = gate + args.width;
        T* out = (T*)args.out + row * args.width;
        for (int64_t d = 0; d < args.width; d += kLanes) {
            const Floats x = load(gate + d);
            const Floats small = exponential((Floats)((Words)x | 0x80000000u));  // e^-|x|
            const Floats over = x < 0.0f ? small : splat(1.0f);
            store(out + d, x * over * inverse(small + 1.0f) * load(up + d));
        }
    }
}

static void gate(const Gate& args, int64_t begin, int64_t end) {
    if (args.dtype == kBFloat16)
        gate_typed<BFloat16>(args, begin, end);
    else
        gate_typed<float>(args, begin, end);
}

// Half-split halves are whole vectors; of a pair the partner is the neighbouring lane.
template <typename T>
STOKER_INLINE void turn_typed(const Turn& args, int64_t begin, int64_t end) {
    const int64_t size = args.size, rotary = args.rotary, half = rotary / 2;
    for (int64_t token = begin; token < end; ++token) {
        const T* cos = (const T*)args.cos + token * rotary;
        const T* sin = (const T*)args.sin + token * rotary;
        for (int64_t head = 0; head < args.heads; ++head) {
            const T* x = (const T*)args.x + token * args.x_stride + head * size;
            T* out = (T*)args.out + (token * args.heads + head) * size;
            for (int64_t d = 0; d < rotary; d += kLanes) {
                Floats partner;
                if (args.paired)
                    partner = neighbours(load(x + d));
                else
                    partner = load(x + (d < half ? d + half : d - half));
                store(out + d, load(x + d) * load(cos + d) + partner * load(sin + d));
            }
            memcpy(out + rotary, x + rotary, (size - rotary) * sizeof(T));
        }
    }
}

static void turn(const Turn& args, int64_t begin, int64_t end) {
    if (args.dtype == kBFloat16)
        turn_typed<BFloat16>(args, begin, end);
    else
        turn_typed<float>(args, begin, end);
}

}  // namespace stoker::STOKER_ISA
