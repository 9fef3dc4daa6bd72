// Vectors of float32 in registers. This is the only file that depends on the instruction set, which the compiler's
// macros tell; instruction_set.py has the flags that choose one.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#define INSTRUCTION_SET "avx512"
#define HAS_MASKS
constexpr int64_t LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__) && defined(__FMA__)
#define INSTRUCTION_SET "avx2"
constexpr int64_t LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
#define INSTRUCTION_SET "neon"
constexpr int64_t LANES = 4, REGISTERS = 32;
#elif defined(__SSE2__)
#define INSTRUCTION_SET "sse2"
constexpr int64_t LANES = 4, REGISTERS = 16;
#else
#define INSTRUCTION_SET "other"
constexpr int64_t LANES = 4, REGISTERS = 16;
#endif

// bfloat16 in memory: the upper half of a float32's bits. Computing is always in float32.
typedef uint16_t Half;
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef Half Halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

template <int... lane> [[gnu::always_inline]] static inline Integers lane_numbers(std::integer_sequence<int, lane...>) {
    return Integers{lane...};
}

// 0, 1, 2, ...
[[gnu::always_inline]] static inline Integers lane_numbers() {
    return lane_numbers(std::make_integer_sequence<int, LANES>());
}

// Copies `count` numbers, fewer than LANES, without a call of memcpy.
template <class Number> [[gnu::always_inline]] static inline void copy_part(Number *to, const Number *from, int64_t count) {
#pragma GCC unroll 4
    for (int64_t piece = LANES / 2; piece; piece /= 2)
        if (count & piece) {
            std::memcpy(to, from, piece * sizeof(Number));
            to += piece, from += piece;
        }
}

// Numbers from memory, as many as there are lanes or `count` if that is less; the lanes beyond them are zero.
[[gnu::always_inline]] static inline Vector load(const float *from) {
    Vector lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
}

[[gnu::always_inline]] static inline Vector load(const float *from, int64_t count) {
    if (count >= LANES) return load(from);
#ifdef HAS_MASKS
    return (Vector)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
    Vector lanes = {};
    copy_part((float *)&lanes, from, count);
    return lanes;
#endif
}

[[gnu::always_inline]] static inline Vector load(const Half *from, int64_t count) {
    Halves lanes = {};
    if (count >= LANES)
        std::memcpy(&lanes, from, sizeof(lanes));
    else
#ifdef HAS_MASKS
        lanes = (Halves)_mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), from);
#else
        copy_part((Half *)&lanes, from, count);
#endif
    return (Vector)(__builtin_convertvector(lanes, Integers) << 16);
}

[[gnu::always_inline]] static inline Bytes load(const uint8_t *from, int64_t count) {
    Bytes lanes = {};
    if (count >= LANES)
        std::memcpy(&lanes, from, sizeof(lanes));
    else
        copy_part((uint8_t *)&lanes, from, count);
    return lanes;
}

[[gnu::always_inline]] static inline void store(float *to, Vector lanes, int64_t count = LANES) {
    if (count >= LANES)
        std::memcpy(to, &lanes, sizeof(lanes));
    else
#ifdef HAS_MASKS
        _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)lanes);
#else
        copy_part(to, (const float *)&lanes, count);
#endif
}

// Rounds to the nearest, to even between two; NaN stays NaN.
[[gnu::always_inline]] static inline void store(Half *to, Vector lanes, int64_t count) {
    const Integers bits = (Integers)lanes;
    Integers rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    rounded = lanes == lanes ? rounded : 0x7FC0;
    const Halves halves = __builtin_convertvector(rounded, Halves);
    if (count >= LANES)
        std::memcpy(to, &halves, sizeof(halves));
    else
#ifdef HAS_MASKS
        _mm256_mask_storeu_epi16(to, (__mmask16)((1u << count) - 1), (__m256i)halves);
#else
        copy_part(to, (const Half *)&halves, count);
#endif
}

// Lanes of two vectors: of the first where the index is below LANES, else of the second.
template <int... index> [[gnu::always_inline]] static inline Vector lanes_of(Vector a, Vector b) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, index...);
#else
    return __builtin_shuffle(a, b, Integers{index...});
#endif
}

// Exchanges lanes whose numbers differ in the bit `half`.
template <int half, int... lane>
[[gnu::always_inline]] static inline Vector exchanged(Vector a, std::integer_sequence<int, lane...>) {
    return lanes_of<(lane ^ half)...>(a, a);
}

// The sum of all lanes, by halves.
template <int half = LANES / 2> [[gnu::always_inline]] static inline float total(Vector a) {
    a += exchanged<half>(a, std::make_integer_sequence<int, LANES>());
    if constexpr (half > 1)
        return total<half / 2>(a);
    else
        return a[0];
}

[[gnu::always_inline]] static inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

// The largest of all lanes.
template <int half = LANES / 2> [[gnu::always_inline]] static inline float largest(Vector a) {
    a = larger(exchanged<half>(a, std::make_integer_sequence<int, LANES>()), a);
    if constexpr (half > 1)
        return largest<half / 2>(a);
    else
        return a[0];
}

// Exchanges the quarters of the two vectors that lie off the diagonal, for squares of 2 `half` lanes.
template <int half, int... lane>
[[gnu::always_inline]] static inline void swap_quarters(Vector &a, Vector &b, std::integer_sequence<int, lane...>) {
    const Vector upper = lanes_of<(lane & half ? LANES + lane - half : lane)...>(a, b);
    b = lanes_of<(lane & half ? LANES + lane : lane + half)...>(a, b);
    a = upper;
}

// Transposes a square of LANES rows.
template <int half = LANES / 2> [[gnu::always_inline]] static inline void transpose(Vector *rows) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & half)) swap_quarters<half>(rows[i], rows[i + half], std::make_integer_sequence<int, LANES>());
    if constexpr (half > 1) transpose<half / 2>(rows);
}

// The totals of LANES vectors, that of the first in the first lane; `from` is overwritten. The same bits as `total`.
template <int half = LANES / 2> [[gnu::always_inline]] static inline Vector totals(Vector *from) {
#pragma GCC unroll 16
    for (int i = 0; i < half; i++) {
        swap_quarters<half>(from[i], from[i + half], std::make_integer_sequence<int, LANES>());
        from[i] += from[i + half];
    }
    if constexpr (half > 1)
        return totals<half / 2>(from);
    else
        return from[0];
}

// e^x within 2 units in the last place: x = n ln 2 + r, a polynomial in r, and 2^n by its bits. A result below
// the smallest normal number is 0, NaN stays NaN. Written out, so that no -ffast-math is needed to vectorise it.
[[gnu::always_inline]] static inline Vector exponential(Vector x) {
#ifdef HAS_MASKS
    // The same bits in fewer instructions.
    const __mmask16 seen = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);  // NaN too
    x = (Vector)_mm512_min_ps(_mm512_set1_ps(89.0f), (__m512)x);
    const Vector n = (Vector)_mm512_roundscale_ps((__m512)(x * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT);
#else
    const float shift = 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number, in the lowest bits
    const Integers below = x < -87.3f;
    x = x > 89.0f ? Vector{} + 89.0f : x;
    x = below ? Vector{} - 87.3f : x;
    const Vector rounded = x * 1.44269504088896341f + shift;
    const Vector n = rounded - shift;
#endif
    const Vector r = (x - n * 0.693359375f) + n * 2.12194440054690583e-4f;
    Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
#ifdef HAS_MASKS
    return (Vector)_mm512_maskz_scalef_ps(seen, (__m512)p, (__m512)n);
#else
    const Integers power = ((Integers)rounded - 0x4B400000 + 127) << 23;
    p *= (Vector)power;
    return below ? Vector{} : p;
#endif
}
