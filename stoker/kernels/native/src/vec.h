// One vector of floats as wide as this translation unit's instruction set has them, by the vector extensions that GCC
// and Clang share. Nothing here may be an inline function of the standard library: the linker keeps one copy of such a
// function for the whole library, and it could be this one, compiled for instructions that the host lacks.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace stoker::STOKER_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRows = 4;  // query rows that share one read of the keys: their sums must fit the registers
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kRows = 2;
#else
constexpr int kLanes = 4;
constexpr int kRows = 2;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

#define STOKER_INLINE static inline __attribute__((always_inline))

#if defined(__clang__)
#define STOKER_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define STOKER_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif

struct BFloat16 {
    uint16_t bits;
};

STOKER_INLINE Floats load(const float* from) {
    Floats out;
    memcpy(&out, from, sizeof out);
    return out;
}

STOKER_INLINE Floats load(const BFloat16* from) {
#if defined(__AVX512F__)  // compilers make several instructions of the portable form
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
#elif defined(__AVX2__)
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16);
#endif
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

STOKER_INLINE void store(float* to, Floats x) { memcpy(to, &x, sizeof x); }

// Rounds to nearest, ties to even, as torch does; a NaN stays one.
STOKER_INLINE void store(BFloat16* to, Floats x) {
    const Words bits = (Words)x;
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Words kept = x == x ? rounded : (Words){} + 0x7fc0;
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16((__m512i)kept));
#elif defined(__AVX2__)
    const __m256i packed = _mm256_packus_epi32((__m256i)kept, (__m256i)kept);
    _mm_storeu_si128((__m128i*)to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
    const Halves halves = __builtin_convertvector(kept, Halves);
    memcpy(to, &halves, sizeof halves);
#endif
}

STOKER_INLINE Floats splat(float x) { return x - (Floats){}; }

STOKER_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// 1 / x for ordinary x > 0, within 3e-7: divisions are slow enough to be felt.
STOKER_INLINE Floats inverse(Floats x) {
#if defined(__AVX512F__)
    const Floats guess = (Floats)_mm512_rcp14_ps((__m512)x);
    return guess * (2.0f - x * guess);
#elif defined(__AVX__)
    const Floats guess = (Floats)_mm256_rcp_ps((__m256)x);
    return guess * (2.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

STOKER_INLINE float total(Floats x) {
    float all = 0;
    for (int lane = 0; lane < kLanes; ++lane) all += x[lane];
    return all;
}

// e^x for x <= 0 with a relative error of 2e-7; 0 below -87. A NaN stays one.
STOKER_INLINE Floats exponential(Floats x) {
    const Floats shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    const Floats n = shifted - 12582912.0f;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;  // Cephes' polynomial for expf
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Words power = ((Words)shifted << 23) + 0x3f800000u;  // the integer sits in the lowest bits of the sum
    return x <= -87.0f ? (Floats){} : p * (Floats)power;
}

// Lanes 2 i and 2 i + 1 in each other's place.
STOKER_INLINE Floats neighbours(Floats x) {
#if defined(__AVX512F__)
    return STOKER_SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif defined(__AVX__)
    return STOKER_SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#else
    return STOKER_SHUFFLE(x, x, 1, 0, 3, 2);
#endif
}

// out[i] = the sum of all lanes of in[i]; `in` is overwritten.
STOKER_INLINE Floats sums(Floats* in) {
#if defined(__AVX512F__)
    for (int i = 0; i < 8; ++i)
        in[i] = STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    for (int i = 0; i < 4; ++i)
        in[i] = STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    for (int n = 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i)
            in[i] =
                STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#elif defined(__AVX__)
    for (int i = 0; i < 4; ++i)
        in[i] = STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
                STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    for (int i = 0; i < 2; ++i)
        in[i] = STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    in[0] = STOKER_SHUFFLE(in[0], in[1], 0, 1, 2, 3, 8, 9, 10, 11) +
            STOKER_SHUFFLE(in[0], in[1], 4, 5, 6, 7, 12, 13, 14, 15);
#else
    for (int i = 0; i < 2; ++i)
        in[i] = STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 0, 4, 1, 5) + STOKER_SHUFFLE(in[2 * i], in[2 * i + 1], 2, 6, 3, 7);
    in[0] = STOKER_SHUFFLE(in[0], in[1], 0, 1, 4, 5) + STOKER_SHUFFLE(in[0], in[1], 2, 3, 6, 7);
#endif
    return in[0];
}

}  // namespace stoker::STOKER_ISA
